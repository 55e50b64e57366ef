/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h — the one place that decides what an event does to a record (SEMANTICS 2). Pure: no state, no effect.
 *
 * Called by the store for every event; callers of the store state only the event.
 */
#ifndef MOOR_POLICY_H
#define MOOR_POLICY_H

#include <moor/moor.h>

enum { /* events that have no public number: they follow from what happened */
       MOOR_EVENT_EXPORTED = 100,
       MOOR_EVENT_DISCONNECTED = 101,
       MOOR_EVENT_EXPIRED = 102
};

typedef enum moor_action {
    MOOR_ACTION_INVALID = 0, /* no such owner or event */
    MOOR_ACTION_NOTHING,     /* the event does not concern this owner's records */
    MOOR_ACTION_FREE,        /* the owner lets go: freed with the last lease */
    MOOR_ACTION_DETACH,      /* stays readable until the owner's session is released */
    MOOR_ACTION_LEASE,       /* a lease is added */
    MOOR_ACTION_END_LEASES   /* the client's leases end; the record's owner keeps it */
} moor_action;

moor_action moor_policy_decide(uint32_t owner, uint32_t event);
const char *moor_owner_name(uint32_t owner);

#endif
