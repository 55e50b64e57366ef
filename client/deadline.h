/* SPDX-License-Identifier: Apache-2.0 */
/* deadline.h — a caller's timeout in seconds as a point of time, and pauses that do not go beyond it. Called by client.c and open.c. */
#ifndef MOOR_CLIENT_DEADLINE_H
#define MOOR_CLIENT_DEADLINE_H

#include <time.h>

#include "../allocator/interrupt.h"
#include "../allocator/locks.h"

static inline uint64_t moor_deadline_of(double timeout)
{
    if (!(timeout > 0))
        return moor_now_ns();
    return moor_now_ns() + (timeout > 1e9 ? (uint64_t)1e18 : (uint64_t)(timeout * 1e9));
}

static inline void moor_sleep_ms(long ms, uint64_t deadline_ns)
{
    uint64_t now_ns = moor_now_ns(), ns = (uint64_t)ms * 1000000;
    if (deadline_ns > now_ns && deadline_ns - now_ns < ns)
        ns = deadline_ns - now_ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

#endif
