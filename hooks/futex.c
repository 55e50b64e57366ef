/* SPDX-License-Identifier: Apache-2.0 */
#include "futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/error.h"

#define SECOND_NS 1000000000u
#define NO_FUTEX_NAP_NS 500000u

static _Atomic int no_futex; /* the kernel said ENOSYS or a filter forbade it: sleep instead, for good */

static struct timespec timespec_of(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    return t;
}

void moor_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns)
{
    int saved = errno;
    if (!atomic_load_explicit(&no_futex, memory_order_relaxed)) {
        struct timespec at = timespec_of(deadline_ns);
        /* FUTEX_WAIT_BITSET takes an absolute time, of CLOCK_MONOTONIC when FUTEX_CLOCK_REALTIME is not given. */
        long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &at, NULL, FUTEX_BITSET_MATCH_ANY);
        if (rc == 0 || (errno != ENOSYS && errno != EPERM)) {
            errno = saved;
            return;
        }
        atomic_store(&no_futex, 1);
    }
    if (atomic_load(word) == expected)
        moor_nap(NO_FUTEX_NAP_NS, deadline_ns);
    errno = saved;
}

void moor_futex_raise(_Atomic uint32_t *word)
{
    int saved = errno;
    atomic_fetch_add(word, 1);
    if (!atomic_load_explicit(&no_futex, memory_order_relaxed))
        (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    errno = saved;
}

uint64_t moor_deadline(double timeout)
{
    const double year = 365.0 * 86400;
    uint64_t now = moor_now_ns();
    if (!(timeout > 0))
        return now;
    return now + (uint64_t)((timeout < year ? timeout : year) * SECOND_NS);
}

void moor_nap(uint64_t ns, uint64_t deadline_ns)
{
    uint64_t now = moor_now_ns();
    if (now >= deadline_ns)
        return;
    if (ns > deadline_ns - now)
        ns = deadline_ns - now;
    struct timespec t = timespec_of(ns);
    nanosleep(&t, NULL);
}
