/* SPDX-License-Identifier: Apache-2.0 */
/*
 * validate.h — `validate: seal`: are a sealed record's ids ones that a router can have chosen (SEMANTICS 1.2)?
 *
 * Called by records.c under the store's lock when the configuration asks for it. A row with an id ≥ num_experts, or with an id
 * twice in one layer, becomes missing (MOOR_REASON_VALIDATION); the first one is named in the log.
 */
#ifndef MOOR_VALIDATE_H
#define MOOR_VALIDATE_H

#include "records.h"

void moor_record_validate(moor_records *records, moor_record_slot *record);

#endif
