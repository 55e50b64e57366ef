/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mock.h — what all processes of the mock engine share: options, the device ledger, and helpers that end the program on
 * failure (it is a test program; libmoor itself never does).
 *
 * Roles are processes of one executable: the front end plays the script and starts the core and the consumer; the core
 * schedules and starts the workers; each knows Moor through moor.h alone. Each role's state is its own; no locks but the
 * front end's (front.h).
 */
#ifndef MOCK_MOCK_H
#define MOCK_MOCK_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "script.h"

enum { /* --break: a fault on purpose, which the verification must find */
       MK_BREAK_DROP_LAYER = 1,
       MK_BREAK_SHIFT_IDS = 2,
       MK_BREAK_NO_BARRIER = 4,
       MK_BREAK_NO_GATE = 8,
       MK_BREAK_STALE_SLOT = 16
};

/* Memory on the mock's one device, in a memfd that every process inherits: who resumes its KV cache sees what is held. */
typedef struct mk_ledger {
    _Atomic int64_t held;
} mk_ledger;

typedef struct mk_context {
    const moor_api *api;
    mk_script script;
    const char *dir, *instance, *role, *label, *overrides;
    uint32_t dp, tp;
    int fd; /* to whoever started this process */
    int ledger_fd;
    mk_ledger *ledger;
    unsigned breaks;
    int verbose;
} mk_context;

int mk_front_main(mk_context *context);
int mk_core_main(mk_context *context);
int mk_worker_main(mk_context *context);
int mk_verify_main(mk_context *context);
int mk_trainer_main(mk_context *context);

/* Starts another role; *fd is this side's end of the socket to it. */
pid_t mk_spawn(const mk_context *context, const char *role, uint32_t dp, uint32_t tp, const char *label, int *fd);

/* Joins the instance as the script's engine line configures it. */
moor_status mk_join(const mk_context *context, uint32_t roles, uint32_t rank, moor_process **out);

void *mk_alloc(size_t size); /* zeroed */
void *mk_grow(void *memory, size_t size);
_Noreturn void mk_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mk_say(const mk_context *context, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t mk_now_ns(void);
void mk_sleep_ms(double ms);

#endif
