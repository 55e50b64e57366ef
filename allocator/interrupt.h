/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interrupt.h — waits that the waiting thread's host may end: an interpreter, say, that has signals to look for (wait_check of the ABI).
 *
 * A check belongs to one thread and is asked between naps, with no lock of Moor held; what it runs may call Moor again, on the same
 * connection too. Without one (an engine's threads) a wait is one sleep as before. Called by every wait that may be a consumer's. Owns a few
 * thread-local words.
 */
#ifndef MOOR_INTERRUPT_H
#define MOOR_INTERRUPT_H

#include <stdint.h>

void moor_wait_check(int (*check)(void *user), void *user);

/* 1 when this thread has a check. */
int moor_interruptible(void);
/* Asks, when it is time to. 1, and from then on until a check is set anew: the wait shall end, with MOOR_E_INTERRUPTED. */
int moor_interrupted(void);
/* The same, also when it would be time within ns: before something that is better not interrupted. */
int moor_interrupted_before(uint64_t ns);
/* That it did, without asking: under a lock. */
int moor_was_interrupted(void);
/* When a sleep until deadline_ns has to be interrupted for the next question. */
uint64_t moor_interrupt_slice(uint64_t deadline_ns);

#endif
