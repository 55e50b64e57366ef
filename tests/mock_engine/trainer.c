/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer.c — a process that holds memory on the device: takes a hold, keeps `ms` (or until told, or killed), gives its
 * memory back, then releases the hold. It joins no instance.
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "mock.h"
#include "wire.h"

int mk_trainer_main(mk_context *context)
{
    enum { HELD = 64 << 20 };
    moor_hold *hold;
    mk_buffer body = {0};
    uint32_t type;
    moor_status status = context->api->hold_take(context->dir, "cpu:0", context->label, HELD, &hold);
    if (!status)
        atomic_fetch_add(&context->ledger->held, HELD);
    mk_send_done(context->fd, status, status ? context->api->last_error() : "");
    if (status || mk_receive(context->fd, &type, &body)) /* how long */
        return 1;
    double ms = (double)mk_get_u32(&body);
    int dies = mk_get_u32(&body) != 0;
    if (ms > 0)
        mk_sleep_ms(ms);
    else
        (void)mk_receive(context->fd, &type, &body); /* until the front end says so */
    atomic_fetch_sub(&context->ledger->held, HELD);
    if (dies)
        kill(getpid(), SIGKILL); /* a driver frees a dead process' memory; the hold ends with the process */
    context->api->hold_release(hold);
    mk_buffer_clear(&body);
    return 0;
}
