/* SPDX-License-Identifier: Apache-2.0 */
/*
 * futex.h — sleeping on a word of the shared state until it changes or a deadline passes. Used by gate, barrier and weights; owns
 * nothing. Futexes are shared (not private): waiter and waker are different processes. Deadlines are absolute, CLOCK_MONOTONIC, so
 * that a wait that is interrupted goes on and does not start anew. Where the kernel has no futex (a sandbox): short sleeps.
 */
#ifndef MOOR_FUTEX_H
#define MOOR_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Returns when *word != expected, when woken, when a signal came, or at the deadline: the caller looks again in any case. */
void moor_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
/* Raises the word and wakes everyone who sleeps on it. */
void moor_futex_raise(_Atomic uint32_t *word);
/* Now + timeout seconds, in moor_now_ns() time. Not positive or NaN → now; longer than a year → a year. */
uint64_t moor_deadline(double timeout);
/* Sleeps up to ns nanoseconds, not beyond the deadline. */
void moor_nap(uint64_t ns, uint64_t deadline_ns);

#endif
