/* SPDX-License-Identifier: Apache-2.0 */
#include "save.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "../abi/wire.h"
#include "../allocator/error.h"
#include "connection.h"

moor_status moor_client_save(moor_client *client, const char *dir, double timeout)
{
    moor_connection *connections[MOOR_CLIENT_STORES];
    size_t length = dir ? strlen(dir) : 0;
    uint64_t ns = timeout > 0 ? (timeout > 1e9 ? (uint64_t)1e18 : (uint64_t)(timeout * 1e9)) : 0;
    uint64_t deadline_ns = moor_now_ns() + ns;
    uint32_t n = 0;
    moor_status status = moor_client_check(client, "client_save");
    if (!status && (!length || dir[0] != '/' || length >= PATH_MAX))
        status = moor_fail(MOOR_E_INVALID, "client_save: directory \"%.200s\" of %zu bytes: an absolute path is needed",
                           length ? dir : "", length);
    if (!status)
        status = moor_client_take(client, connections, &n);
    if (status)
        return status;
    if ((status = moor_client_unanswered(client, "client_save"))) {
        moor_client_give(connections, n);
        return status;
    }
    if (!n)
        return moor_fail(MOOR_E_NOT_FOUND, "instance \"%s\" has no store", moor_client_where(client)->name);
    for (uint32_t i = 0; i < n && !status; i++) {
        uint64_t now_ns = moor_now_ns();
        moor_wire_open message = {.timeout_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0,
                                  .id_len = (uint32_t)length};
        void *payload = NULL;
        size_t size;
        status = moor_connection_call(connections[i], MOOR_WIRE_SAVE, &message, sizeof(message), dir, length,
                                      now_ns + message.timeout_ns + moor_client_patience_ns(client), &payload, &size);
        free(payload);
        if (status == MOOR_E_INTERRUPTED)
            status = moor_fail(
                status, "snapshot: interrupted; store %u goes on, and replaces its file once the new one is complete",
                moor_connection_shape(connections[i])->store_index);
    }
    moor_client_give(connections, n);
    return status;
}
