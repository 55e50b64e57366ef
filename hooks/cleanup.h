/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cleanup.h — the update window of this process and what was cleaned in which phase of an update (SEMANTICS 6). The adapter decides
 * what to suppress; here it asks whether it is inside and reports. Owns state->cleanup; atomics only.
 */
#ifndef MOOR_CLEANUP_H
#define MOOR_CLEANUP_H

#include "process.h"

/* moor_api members; contracts in moor.h. A leave without an enter is a no-op that says so; the depth never goes below 0. 0 in a
 * forked child and without a process. */
int moor_cleanup_window(moor_process *process, int delta);
moor_status moor_cleanup_count(moor_process *process, uint32_t phase, uint32_t kind, uint64_t ns);

#endif
