/* SPDX-License-Identifier: Apache-2.0 */
/*
 * visit.h — a consumer in the shared state: what a trainer does to gate and barriers from outside. The functions of the ABI
 * that take a moor_client and need the hooks.
 *
 * The first such call of a client maps the state and takes a slot as a visitor (role CONSUMER, not part of the server), so that
 * others see it die; detach gives both back. Owns mapping and slot, as the client's `visit`; no lock of its own.
 */
#ifndef MOOR_VISIT_H
#define MOOR_VISIT_H

#include <moor/moor.h>

moor_status moor_client_gate(moor_client *client, const char *verb, const char *label, double timeout,
                             moor_gate_status *out);
moor_status moor_barrier_arrive(moor_client *client, const char *name, uint32_t size, uint32_t rank, double timeout,
                                moor_barrier_result *result);
/* The client of the process' own instance, by the directory that it has open: at once, also when nothing is left of its name, and never another
 * server's that has taken the name. */
moor_status moor_attach_own(moor_process *process, moor_client **out);

#endif
