/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.h — how every part of libmoor fails and logs. Lowest module: includes nothing of Moor but the ABI.
 *
 * moor_fail() writes the calling thread's last-error sentence and returns its status, so that a failure is one line:
 *     return moor_fail(MOOR_E_RANGE, "request %s: layer %u of %u", id, layer, layers);
 * The text is a fixed thread-local buffer: no allocation, usable when memory has run out. Log lines go to one sink per
 * process (the host's, else stderr); no lock of Moor may be held while logging.
 */
#ifndef MOOR_ERROR_H
#define MOOR_ERROR_H

#include <moor/moor.h>

#if defined(__GNUC__)
#define MOOR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define MOOR_PRINTF(fmt, args)
#endif

enum { MOOR_ERROR_TEXT = 1024 };

/* Sets this thread's error text and returns status. errno is kept. */
moor_status moor_fail(moor_status status, const char *format, ...) MOOR_PRINTF(2, 3);
/* The same, with ": <strerror(err)>" appended. */
moor_status moor_fail_errno(moor_status status, int err, const char *format, ...) MOOR_PRINTF(3, 4);
#ifdef __clang_analyzer__ /* clang-tidy does not see that a failure returns the status it was given */
#define moor_fail(status, ...) (moor_fail(status, __VA_ARGS__), (status))
#define moor_fail_errno(status, ...) (moor_fail_errno(status, __VA_ARGS__), (status))
#endif
/* This thread's text; "" when nothing failed yet. */
const char *moor_last_error(void);
/* "MOOR_E_TIMEOUT" for MOOR_E_TIMEOUT; "MOOR_E_?" for an unknown one. */
const char *moor_status_name(moor_status status);

enum { MOOR_LOG_ERROR = 0, MOOR_LOG_WARN = 1, MOOR_LOG_INFO = 2, MOOR_LOG_DEBUG = 3 };

/* Where lines go and up to which level. host NULL or host->log NULL → stderr, prefixed "moor: ". Not a hot path. */
void moor_log_configure(const moor_host *host, int level);
void moor_log(int level, const char *format, ...) MOOR_PRINTF(2, 3);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t moor_now_ns(void);

#endif
