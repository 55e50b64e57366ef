/* SPDX-License-Identifier: Apache-2.0 */
#include "stepper.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <ucontext.h>

/* A sanitizer's run time would be stepped through as well, and takes its own locks and signals into its hands. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

#if defined(__x86_64__) && !defined(SANITIZED)

#define TRAP_FLAG 0x100

static struct {
    stepper_at at;
    void *user;
} now;

static void on_trap(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    if (!now.at || now.at(now.user))
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
}

/* Below the red zone, which pushf would otherwise write into. */
static inline __attribute__((always_inline)) void set_trap_flag(void)
{
    __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp" ::
                         : "memory", "cc");
}

static inline __attribute__((always_inline)) void clear_trap_flag(void)
{
    __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp" ::
                         : "memory", "cc");
}

void stepper_run(void (*body)(void *arg), void *arg, stepper_at at, void *user)
{
    struct sigaction mine, before;
    memset(&mine, 0, sizeof(mine));
    mine.sa_sigaction = on_trap;
    mine.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &mine, &before);
    now.user = user;
    now.at = at;
    set_trap_flag();
    body(arg);
    clear_trap_flag();
    now.at = NULL;
    sigaction(SIGTRAP, &before, NULL);
}

static void nothing(void *arg)
{
    (void)arg;
}

static int count_one(void *user)
{
    ++*(int *)user;
    return 0;
}

int stepper_works(void)
{
    int steps = 0;
    stepper_run(nothing, NULL, count_one, &steps);
    return steps > 0;
}

#else

int stepper_works(void)
{
    return 0;
}

void stepper_run(void (*body)(void *arg), void *arg, stepper_at at, void *user)
{
    (void)at, (void)user;
    body(arg);
}

#endif
