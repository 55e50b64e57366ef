/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepper.h — runs a function one machine instruction at a time, and asks after each: what another process could do, or where this
 * one could die, between any two instructions can so be tried at every one of them. Single thread; x86-64 only (the trap flag).
 */
#ifndef MOOR_TESTS_STEPPER_H
#define MOOR_TESTS_STEPPER_H

/* Asked after each instruction, in a signal handler: nothing but atomics and _exit. Anything but 0: the rest runs at full speed. */
typedef int (*stepper_at)(void *user);

int stepper_works(void); /* 0: another architecture, a sanitizer, or a sandbox that does not deliver the trap */
void stepper_run(void (*body)(void *arg), void *arg, stepper_at at, void *user);

#endif
