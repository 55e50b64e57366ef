/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Thread_local char error_text[MOOR_ERROR_TEXT];

static _Atomic int log_level = MOOR_LOG_INFO;
/* Two words that are written together only while one process starts up; a reader that sees an old pair logs to stderr. */
static _Atomic(void (*)(void *, int, const char *)) log_sink;
static _Atomic(void *) log_user;

moor_status(moor_fail)(moor_status status, const char *format, ...)
{
    int saved = errno;
    va_list args;
    va_start(args, format);
    vsnprintf(error_text, sizeof(error_text), format, args);
    va_end(args);
    errno = saved;
    return status;
}

moor_status(moor_fail_errno)(moor_status status, int err, const char *format, ...)
{
    int saved = errno;
    char reason[128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(error_text, sizeof(error_text), format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof(error_text))
        n = (int)strlen(error_text);
    /* GNU strerror_r returns the text, which may or may not be in the buffer. */
    snprintf(error_text + n, sizeof(error_text) - (size_t)n, ": %s", strerror_r(err, reason, sizeof(reason)));
    errno = saved;
    return status;
}

const char *moor_last_error(void)
{
    return error_text;
}

const char *moor_status_name(moor_status status)
{
    static const char *const names[] = {
        "MOOR_OK",        "MOOR_E_INVALID",   "MOOR_E_NOMEM",
        "MOOR_E_FULL",    "MOOR_E_NOT_FOUND", "MOOR_E_AMBIGUOUS",
        "MOOR_E_TIMEOUT", "MOOR_E_STALE",     "MOOR_E_INCOMPLETE",
        "MOOR_E_GONE",    "MOOR_E_STATE",     "MOOR_E_POISONED",
        "MOOR_E_BROKEN",  "MOOR_E_CONFIG",    "MOOR_E_EXISTS",
        "MOOR_E_ACCESS",  "MOOR_E_VERSION",   "MOOR_E_IO",
        "MOOR_E_CLOSED",  "MOOR_E_FORKED",    "MOOR_E_UNSUPPORTED",
        "MOOR_E_RANGE",   "MOOR_E_CORRUPT",   "MOOR_E_INTERRUPTED",
    };
    size_t index = (size_t) - (int64_t)status;
    if (status > 0 || index >= sizeof(names) / sizeof(names[0]))
        return "MOOR_E_?";
    return names[index];
}

void moor_log_configure(const moor_host *host, int level)
{
    void (*sink)(void *, int, const char *) = NULL;
    void *user = NULL;
    if (host && host->size >= offsetof(moor_host, log) + sizeof(host->log)) {
        sink = host->log;
        user = host->user;
    }
    atomic_store(&log_sink, NULL);
    atomic_store(&log_user, user);
    atomic_store(&log_sink, sink);
    atomic_store(&log_level, level);
}

void moor_log(int level, const char *format, ...)
{
    if (level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    int saved = errno;
    char line[MOOR_ERROR_TEXT + 128];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    void (*sink)(void *, int, const char *) = atomic_load(&log_sink);
    if (sink)
        sink(atomic_load(&log_user), level, line);
    else
        dprintf(STDERR_FILENO, "moor: %s\n", line);
    errno = saved;
}

uint64_t moor_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
