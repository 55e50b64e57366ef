/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h — one process that is front end and worker, with its gate in one of the three modes: the fixture of unit_gate and
 * unit_gate_control. Include it behind cmocka.h.
 */
#ifndef SUPPORT_GATE_H
#define SUPPORT_GATE_H

#include "hooks/gate.h"
#include "support/member.h"

extern moor_process *process;

int start_enforce(void **state);
int start_observe(void **state);
int start_off(void **state);
int stop(void **state);

moor_status enter(const char *id, uint32_t records, double timeout, moor_ticket *ticket);
moor_gate_status status_now(void);

#define assert_ok(call) assert_int_equal((call), MOOR_OK)
#define ENFORCED(f) cmocka_unit_test_setup_teardown(f, start_enforce, stop)
#define OBSERVED(f) cmocka_unit_test_setup_teardown(f, start_observe, stop)
#define GATE_OFF(f) cmocka_unit_test_setup_teardown(f, start_off, stop)

#endif
