/* SPDX-License-Identifier: Apache-2.0 */
#include "snapbytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "heap.h"

uint8_t *moor_snapbytes_room(moor_snapbytes *bytes, size_t n)
{
    if (bytes->failed)
        return NULL;
    if (n > bytes->room - bytes->used) {
        size_t room = bytes->room ? bytes->room : 4096;
        while (room - bytes->used < n)
            room *= 2;
        uint8_t *grown = moor_heap_realloc(bytes->data, room);
        if (!grown) {
            bytes->failed = 1;
            return NULL;
        }
        bytes->data = grown;
        bytes->room = room;
    }
    uint8_t *at = bytes->data + bytes->used;
    bytes->used += n;
    return at;
}

void moor_snapbytes_put(moor_snapbytes *bytes, const void *data, size_t n)
{
    uint8_t *at = n ? moor_snapbytes_room(bytes, n) : NULL;
    if (at)
        memcpy(at, data, n);
}

void moor_snapbytes_u32(moor_snapbytes *bytes, uint32_t value)
{
    uint8_t text[4];
    moor_le32_store(text, value);
    moor_snapbytes_put(bytes, text, sizeof(text));
}

void moor_snapbytes_u64(moor_snapbytes *bytes, uint64_t value)
{
    uint8_t text[8];
    moor_le64_store(text, value);
    moor_snapbytes_put(bytes, text, sizeof(text));
}

void moor_snapbytes_free(moor_snapbytes *bytes)
{
    moor_heap_free(bytes->data);
    memset(bytes, 0, sizeof(*bytes));
}

const uint8_t *moor_snapreader_take(moor_snapreader *reader, uint64_t n, const char *what)
{
    if (reader->status)
        return NULL;
    size_t left = reader->length - reader->at;
    if (n > left) {
        reader->status = moor_fail(
            MOOR_E_CORRUPT, "snapshot %s: section %s, offset %llu: %s needs %llu bytes, the section has %zu left",
            reader->path, reader->section, (unsigned long long)(reader->offset + reader->at), what,
            (unsigned long long)n, left);
        return NULL;
    }
    const uint8_t *at = reader->data + reader->at;
    reader->at += (size_t)n;
    return at;
}

uint32_t moor_snapreader_u32(moor_snapreader *reader, const char *what)
{
    const uint8_t *at = moor_snapreader_take(reader, 4, what);
    return at ? moor_le32_load(at) : 0;
}

uint64_t moor_snapreader_u64(moor_snapreader *reader, const char *what)
{
    const uint8_t *at = moor_snapreader_take(reader, 8, what);
    return at ? moor_le64_load(at) : 0;
}

moor_status moor_snapreader_wrong(moor_snapreader *reader, size_t back, const char *format, ...)
{
    char text[512];
    va_list args;
    if (reader->status)
        return reader->status;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    reader->status =
        moor_fail(MOOR_E_CORRUPT, "snapshot %s: section %s, offset %llu: %s", reader->path, reader->section,
                  (unsigned long long)(reader->offset + reader->at - (back < reader->at ? back : reader->at)), text);
    return reader->status;
}

moor_status moor_snapreader_end(moor_snapreader *reader)
{
    if (!reader->status && reader->at != reader->length)
        return moor_snapreader_wrong(reader, 0, "%zu bytes more than what the section says it holds",
                                     reader->length - reader->at);
    return reader->status;
}
