/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stages.h — one record of what the stages of a pipeline have of it (SEMANTICS 1.12): each stage's store has the columns of its own layers.
 *
 * Called by open.c and resolve.c. A joined record owns its parts, with their leases, and the memory in which their columns lie side by side, in
 * the model's order whatever the stages'. A row is there when every stage has it, all under one weight epoch. Thread-safe as records are:
 * nothing changes after it was made.
 */
#ifndef MOOR_CLIENT_STAGES_H
#define MOOR_CLIENT_STAGES_H

#include "record.h"

/* Stores with the same number are stages of one replica. */
static inline uint32_t moor_stages_replica(const moor_shape *shape)
{
    return shape->store_index / shape->stages;
}

/* Which of them, from 0. */
static inline uint32_t moor_stages_number(const moor_shape *shape)
{
    return shape->store_index % shape->stages;
}

/* Replaces the parts among the *n records, which are all that one id means, by the records that they are parts of; others stay as they are.
 * MOOR_E_TIMEOUT: a stage lacks its part. On failure all of them are the caller's as before. */
moor_status moor_stages_join(moor_record **records, uint32_t *n);

#endif
