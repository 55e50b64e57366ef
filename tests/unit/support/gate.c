/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "gate.h"

moor_process *process;

static int start_mode(void **state, const char *config)
{
    (void)state;
    process = support_start(config, MOOR_ROLE_FRONTEND | MOOR_ROLE_WORKER);
    return 0;
}

int start_enforce(void **state)
{
    return start_mode(state, "\"gate\":{\"mode\":\"enforce\"}");
}

int start_observe(void **state)
{
    return start_mode(state, "\"gate\":{\"mode\":\"observe\"}");
}

int start_off(void **state)
{
    return start_mode(state, "\"gate\":{\"mode\":\"off\"}");
}

int stop(void **state)
{
    (void)state;
    return support_end(process) ? 0 : -1;
}

moor_status enter(const char *id, uint32_t records, double timeout, moor_ticket *ticket)
{
    return moor_gate_enter(process, id, (uint32_t)strlen(id), records, timeout, ticket);
}

moor_gate_status status_now(void)
{
    moor_gate_status status = MOOR_GATE_STATUS_INIT;
    assert_int_equal(moor_gate_get_status(process, &status), MOOR_OK);
    return status;
}
