/* SPDX-License-Identifier: Apache-2.0 */
#include "traces.h"

moor_handle handle_of(lab_store *lab, const char *id)
{
    moor_handle handle = 0;
    assert_status(moor_records_find(lab->records, id, (uint32_t)strlen(id), &handle), MOOR_OK);
    return handle;
}

moor_handle run(lab_store *lab, const char *id, uint32_t rows)
{
    lab_one(lab, id, 0, rows);
    assert_status(lab_seal(lab, id, rows), MOOR_OK);
    return handle_of(lab, id);
}

int32_t *tokens_from(int32_t first, uint32_t n)
{
    static int32_t tokens[4096];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
    return tokens;
}

moor_status insert(lab_store *lab, const char *session, const char *key, moor_handle handle, int32_t first, uint32_t n)
{
    moor_trace_in in = {.handle = handle,
                        .start = MOOR_TRACE_BEHIND,
                        .length = MOOR_TRACE_ROWS,
                        .tokens = tokens_from(first, n),
                        .n_tokens = n,
                        .create = 1};
    return moor_session_insert(lab->records, ALICE, session, (uint32_t)strlen(session), key, (uint32_t)strlen(key),
                               &in);
}

moor_status release(lab_store *lab, const char *session)
{
    return moor_session_release(lab->records, session, (uint32_t)strlen(session));
}

moor_status export(lab_store *lab, const char *session, const char *key, moor_trace **out)
{
    return moor_session_export(lab->records, BOB, session, (uint32_t)strlen(session), key, (uint32_t)strlen(key), out);
}

void trace_end(lab_store *lab, moor_trace *trace)
{
    moor_trace_close(lab->records, BOB, trace);
    for (uint32_t i = 0; i < trace->n_parts; i++)
        moor_view_free(trace->parts[i].view);
    moor_trace_free(trace);
}

moor_status readable(lab_store *lab, moor_handle handle)
{
    moor_view *view;
    moor_status status = moor_records_open_handle(lab->records, BOB, handle, &view);
    if (status)
        return status;
    assert_status(moor_records_close(lab->records, BOB, handle), MOOR_OK);
    moor_view_free(view);
    return MOOR_OK;
}

moor_status release_key(lab_store *lab, const char *session, const char *key)
{
    return moor_session_release_key(lab->records, session, (uint32_t)strlen(session), key, (uint32_t)strlen(key));
}

const char *keys(lab_store *lab, const char *session)
{
    static char text[4096];
    char key[256];
    moor_trace_keys *list;
    size_t used = 0;
    assert_status(moor_session_keys(lab->records, session, (uint32_t)strlen(session), &list), MOOR_OK);
    const uint8_t *at = list->data, *end = list->data + list->size;
    for (uint64_t i = 0; i < list->n; i++) {
        uint32_t head[2];
        memcpy(head, at, sizeof(head));
        memcpy(key + head[0], at + sizeof(head), head[1]);
        key[head[0] + head[1]] = 0;
        at += sizeof(head) + head[1];
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? "," : "", *key ? key : "\"\"");
    }
    assert_ptr_equal(at, end);
    text[used] = 0;
    moor_trace_free(list);
    return text;
}

moor_status roll(lab_store *lab, const char *key, const int32_t *tokens, uint64_t n, uint64_t min, moor_rollback *out)
{
    return moor_session_rollback(lab->records, "s", 1, key, (uint32_t)strlen(key), tokens, n, min, out);
}
