/* SPDX-License-Identifier: Apache-2.0 */
#include "policy.h"

moor_action moor_policy_decide(uint32_t owner, uint32_t event)
{
    if (owner > MOOR_OWNER_TRACE_STORE)
        return MOOR_ACTION_INVALID;
    int session = owner == MOOR_OWNER_TRACE_STORE;
    switch (event) {
    case MOOR_EVENT_RESET:
    case MOOR_EVENT_DISCARD:
    case MOOR_EVENT_REPLACED:
        return session ? MOOR_ACTION_DETACH : MOOR_ACTION_FREE;
    case MOOR_EVENT_SESSION_RELEASED:
        return session ? MOOR_ACTION_FREE : MOOR_ACTION_NOTHING;
    case MOOR_EVENT_EXPIRED: /* what nobody opens goes by the keep policy; a session's records only with their session */
        return session ? MOOR_ACTION_NOTHING : MOOR_ACTION_FREE;
    case MOOR_EVENT_EXPORTED:
        return MOOR_ACTION_LEASE;
    case MOOR_EVENT_DISCONNECTED:
        return MOOR_ACTION_END_LEASES;
    default:
        return MOOR_ACTION_INVALID;
    }
}

const char *moor_owner_name(uint32_t owner)
{
    static const char *const names[] = {"none", "rollout", "trace_store"};
    return owner <= MOOR_OWNER_TRACE_STORE ? names[owner] : "?";
}
