/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clients.h — which client holds which leases, so that a disconnect ends them all.
 *
 * Called by view.c under the store's lock. Owns its nodes; the lease itself is the count in the record's slot.
 */
#ifndef MOOR_CLIENTS_H
#define MOOR_CLIENTS_H

#include <moor/moor.h>

typedef struct moor_client_leases moor_client_leases;
typedef struct moor_client_lease moor_client_lease;

typedef struct moor_clients {
    moor_client_leases *clients; /* uthash by client */
    moor_client_lease *leases;   /* uthash by (client, handle) */
    uint64_t n_clients, n_leases;
} moor_clients;

moor_status moor_clients_add(moor_clients *clients, uint64_t client, moor_handle handle);
/* MOOR_E_STATE: the client holds no lease of it. */
moor_status moor_clients_remove(moor_clients *clients, uint64_t client, moor_handle handle);
/* Takes one lease out of the client's; 0: it has none left (and is forgotten). */
int moor_clients_pop(moor_clients *clients, uint64_t client, moor_handle *handle);
void moor_clients_close(moor_clients *clients);

#endif
