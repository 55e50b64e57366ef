/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h — the store of the process that owns an arena: opens and closes it, and serves it on store-<n>.sock.
 *
 * store_open and store_close are called by hosts through the ABI. One thread per store ("moor-store", all signals blocked)
 * waits in poll: it accepts consumers of our uid, feeds their bytes to plugin/peer.c, sends what comes back, answers waiting
 * opens when records are sealed or deadlines pass, drains the seal ring, and runs the keep policy once a second. All
 * sockets are non-blocking; nobody can make it wait. Owns the address, the connections and the thread; no lock:
 * everything but the stop flag belongs to the thread.
 */
#ifndef MOOR_SERVER_H
#define MOOR_SERVER_H

#include "../hooks/record.h"

enum { MOOR_MAX_LAYERS = 4096 };

moor_status moor_store_open(moor_process *process, const moor_store_args *args, moor_store **out);
void moor_store_close(moor_store *store);

#endif
