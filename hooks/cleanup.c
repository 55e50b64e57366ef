/* SPDX-License-Identifier: Apache-2.0 */
#include "cleanup.h"

#include "member.h"

_Static_assert(MOOR_PHASES <= 8 && MOOR_CLEAN_KINDS <= 8, "the shared state has 8 by 8 cells");

int moor_cleanup_window(moor_process *process, int delta)
{
    if (!process || process->pid != moor_pid())
        return 0;
    int depth = atomic_load(&process->cleanup_depth), next;
    do {
        if (!delta)
            return depth;
        next = depth + delta;
        if (next < 0) {
            moor_log(MOOR_LOG_INFO, "cleanup_window: %d below a depth of %d; it is 0 now", delta, depth);
            next = 0;
        }
    } while (!atomic_compare_exchange_weak(&process->cleanup_depth, &depth, next));
    return next;
}

moor_status moor_cleanup_count(moor_process *process, uint32_t phase, uint32_t kind, uint64_t ns)
{
    moor_status status = moor_process_check(process, "cleanup_count");
    if (status)
        return status;
    if (phase >= MOOR_PHASES || kind >= MOOR_CLEAN_KINDS)
        return moor_fail(MOOR_E_INVALID, "cleanup_count: phase %u of %d, kind %u of %d", phase, MOOR_PHASES, kind,
                         MOOR_CLEAN_KINDS);
    atomic_fetch_add_explicit(&process->state->cleanup.count[phase][kind], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&process->state->cleanup.ns[phase][kind], ns, memory_order_relaxed);
    return MOOR_OK;
}
