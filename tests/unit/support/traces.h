/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traces.h — sealed records and sessions that hold them, in a lab's store: what unit_sessions and unit_traces both need. Sessions are
 * ALICE's, BOB reads.
 */
#ifndef SUPPORT_TRACES_H
#define SUPPORT_TRACES_H

#include "lab.h"

#include "allocator/sessions.h"
#include "allocator/trace.h"

enum { ALICE = 7, BOB = 8 };

moor_handle handle_of(lab_store *lab, const char *id);
/* A sealed record of so many rows. */
moor_handle run(lab_store *lab, const char *id, uint32_t rows);
int32_t *tokens_from(int32_t first, uint32_t n);
/* Tokens first, first + 1, … behind what the key's parent has, with the record's rows. */
moor_status insert(lab_store *lab, const char *session, const char *key, moor_handle handle, int32_t first, uint32_t n);
moor_status release(lab_store *lab, const char *session);
moor_status release_key(lab_store *lab, const char *session, const char *key);
moor_status export(lab_store *lab, const char *session, const char *key, moor_trace **out);
void trace_end(lab_store *lab, moor_trace *trace);
/* "a,b,c"; the empty key as "". */
const char *keys(lab_store *lab, const char *session);
moor_status roll(lab_store *lab, const char *key, const int32_t *tokens, uint64_t n, uint64_t min, moor_rollback *out);
/* Whether the record can still be opened. */
moor_status readable(lab_store *lab, moor_handle handle);

#endif
