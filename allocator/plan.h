/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h — one request of a step: what is known of its rows already, and where its new ones go.
 *
 * Called by step.c's begin under the store's lock. Decides speculative rows, supplies cached prefixes, makes room in the tail block and writes
 * the entry and the spans of the step. Everything that commit needs memory for is reserved here; what cannot be had costs rows, never the step.
 */
#ifndef MOOR_PLAN_H
#define MOOR_PLAN_H

#include "records.h"

/* entry->token and ->count are set. entry->record is NULL afterwards when nothing of it can be recorded. */
void moor_plan_request(moor_records *records, moor_step_entry *entry, const moor_step_request *request,
                       moor_record_slot *record);
/* Rows below `until` that no later step delivers are missing for this reason. */
void moor_plan_fail_rows(moor_record_slot *record, uint64_t until, uint32_t reason);
/* Nothing will be recorded for the tokens of this request in this step: KV slots that they go to hold something unknown. */
void moor_plan_forget_kv(moor_records *records, const moor_step_request *request);

#endif
