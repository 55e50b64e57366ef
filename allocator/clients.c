/* SPDX-License-Identifier: Apache-2.0 */
#include "clients.h"

#include <string.h>

#include "error.h"
#include "table.h"

typedef struct lease_key {
    uint64_t client;
    moor_handle handle;
} lease_key;

struct moor_client_lease {
    lease_key key;
    uint64_t count;
    moor_client_leases *client;
    moor_client_lease *next, *previous;
    UT_hash_handle hh;
};

struct moor_client_leases {
    uint64_t client;
    moor_client_lease *first;
    UT_hash_handle hh;
};

static moor_client_lease *find(const moor_clients *clients, uint64_t client, moor_handle handle)
{
    lease_key key = {client, handle};
    moor_client_lease *lease = NULL;
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): uthash: what it takes for empty is not */
    HASH_FIND(hh, clients->leases, &key, sizeof(key), lease);
    return lease;
}

static moor_client_leases *client_for(moor_clients *clients, uint64_t id)
{
    moor_client_leases *client = NULL;
    HASH_FIND(hh, clients->clients, &id, sizeof(id), client);
    if (client)
        return client;
    client = moor_heap_alloc(sizeof(*client));
    if (!client)
        return NULL;
    client->client = id;
    HASH_ADD(hh, clients->clients, client, sizeof(client->client), client);
    if (!MOOR_TABLE_HAS(client)) {
        moor_heap_free(client);
        return NULL;
    }
    clients->n_clients++;
    return client;
}

static void forget_if_empty(moor_clients *clients, moor_client_leases *client)
{
    if (client->first)
        return;
    HASH_DELETE(hh, clients->clients, client);
    moor_heap_free(client);
    clients->n_clients--;
}

moor_status moor_clients_add(moor_clients *clients, uint64_t client, moor_handle handle)
{
    moor_client_lease *lease = find(clients, client, handle);
    if (lease) {
        lease->count++;
        clients->n_leases++;
        return MOOR_OK;
    }
    moor_client_leases *owner = client_for(clients, client);
    lease = owner ? moor_heap_alloc(sizeof(*lease)) : NULL;
    if (lease) {
        lease->key = (lease_key){client, handle};
        lease->count = 1;
        lease->client = owner;
        HASH_ADD(hh, clients->leases, key, sizeof(lease->key), lease);
        if (!MOOR_TABLE_HAS(lease)) {
            moor_heap_free(lease);
            lease = NULL;
        }
    }
    if (!lease) {
        if (owner)
            forget_if_empty(clients, owner);
        return moor_fail(MOOR_E_NOMEM, "no memory for a lease of client %llu", (unsigned long long)client);
    }
    lease->next = owner->first;
    if (owner->first)
        owner->first->previous = lease;
    owner->first = lease;
    clients->n_leases++;
    return MOOR_OK;
}

static void end_one(moor_clients *clients, moor_client_lease *lease)
{
    clients->n_leases--;
    if (--lease->count)
        return;
    moor_client_leases *owner = lease->client;
    if (lease->previous)
        lease->previous->next = lease->next;
    else
        owner->first = lease->next;
    if (lease->next)
        lease->next->previous = lease->previous;
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): uthash: what it takes for empty is not */
    HASH_DELETE(hh, clients->leases, lease);
    moor_heap_free(lease);
    forget_if_empty(clients, owner);
}

moor_status moor_clients_remove(moor_clients *clients, uint64_t client, moor_handle handle)
{
    moor_client_lease *lease = find(clients, client, handle);
    if (!lease)
        return moor_fail(MOOR_E_STATE, "client %llu holds no lease of handle %#llx", (unsigned long long)client,
                         (unsigned long long)handle);
    end_one(clients, lease);
    return MOOR_OK;
}

int moor_clients_pop(moor_clients *clients, uint64_t client, moor_handle *handle)
{
    moor_client_leases *owner = NULL;
    HASH_FIND(hh, clients->clients, &client, sizeof(client), owner);
    if (!owner || !owner->first)
        return 0;
    *handle = owner->first->key.handle;
    end_one(clients, owner->first);
    return 1;
}

void moor_clients_close(moor_clients *clients)
{
    while (clients->clients) {
        moor_client_leases *client = clients->clients;
        moor_handle handle;
        uint64_t id = client->client;
        while (moor_clients_pop(clients, id, &handle)) {
        }
    }
}
