/* SPDX-License-Identifier: Apache-2.0 */
#include "late.h"

#include "record.h"
#include "session.h"

void moor_late_reply(moor_connection *connection, uint16_t type, const void *payload, size_t n)
{
    moor_record **records;
    uint32_t count;
    moor_wire_reader reader = {payload, n};
    int has_views = type == MOOR_WIRE_OPEN || type == MOOR_WIRE_OPEN_ALL || type == MOOR_WIRE_OPEN_HANDLE ||
                    (type == MOOR_WIRE_SESSION_EXPORT && moor_client_exported_views(&reader));
    if (has_views && moor_records_from_reply(connection, reader.at, reader.left, &records, &count) == MOOR_OK)
        moor_records_drop(records, count);
}
