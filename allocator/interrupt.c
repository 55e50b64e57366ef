/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

#include <stddef.h>

#include "error.h"

#define PERIOD_NS 80000000u /* moor.h promises 100 ms */

static _Thread_local struct {
    int (*check)(void *user);
    void *user;
    uint64_t next_ns;
    int ended;
} mine;

void moor_wait_check(int (*check)(void *user), void *user)
{
    mine.check = check;
    mine.user = user;
    mine.next_ns = check ? moor_now_ns() + PERIOD_NS : 0; /* most calls are over before */
    mine.ended = 0;
}

int moor_interruptible(void)
{
    return mine.check != NULL;
}

int moor_interrupted(void)
{
    return moor_interrupted_before(0);
}

int moor_interrupted_before(uint64_t ns)
{
    if (!mine.check || mine.ended || moor_now_ns() + ns < mine.next_ns)
        return mine.ended;
    int (*check)(void *user) = mine.check;
    void *user = mine.user;
    int ended = check(user); /* which may wait for something itself, with a check of its own */
    moor_wait_check(check, user);
    mine.ended = ended != 0;
    return mine.ended;
}

int moor_was_interrupted(void)
{
    return mine.ended;
}

uint64_t moor_interrupt_slice(uint64_t deadline_ns)
{
    return mine.check && !mine.ended && mine.next_ns < deadline_ns ? mine.next_ns : deadline_ns;
}
