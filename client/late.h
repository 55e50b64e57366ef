/* SPDX-License-Identifier: Apache-2.0 */
/* late.h — a reply whose caller was interrupted and is gone: the leases that came with it end. Called by connection.c, by the thread that reads. */
#ifndef MOOR_LATE_H
#define MOOR_LATE_H

#include "connection.h"

void moor_late_reply(moor_connection *connection, uint16_t type, const void *payload, size_t n);

#endif
