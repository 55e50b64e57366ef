/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.h — a forked child in which the kernel refuses system calls, or has little room. */
#ifndef MOOR_TEST_SANDBOX_H
#define MOOR_TEST_SANDBOX_H

/* Runs body(argument) in a child and gives its result (0…), or 1000 + the signal that ended it. Nothing of cmocka works in there:
 * CHECK ends it with a line that says why. */
int sandbox_run(int (*body)(int argument), int argument);

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return sandbox_says(__FILE__, __LINE__, #condition);                                                       \
    } while (0)
int sandbox_says(const char *file, int line, const char *what);

/* From now on this system call is refused with `err`; mask != 0: only when (argument n & mask) == value. For good. */
void sandbox_refuse(int number, int err);
void sandbox_refuse_some(int number, int n, unsigned mask, unsigned value, int err);

/* A tmpfs of so many bytes over `path`, in this process only. 0, or -1 where that is not allowed. */
int sandbox_tmpfs(const char *path, unsigned long bytes);

#endif
