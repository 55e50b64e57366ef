/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot_v1.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

static uint8_t *begin, *at, *limit;

static void bytes(const void *data, size_t n)
{
    if ((size_t)(limit - at) < n)
        abort();
    memcpy(at, data, n);
    at += n;
}

static void number(uint64_t value, int n)
{
    for (int i = 0; i < n; i++, value >>= 8) {
        uint8_t low = (uint8_t)value;
        bytes(&low, 1);
    }
}

static void hash_of(const char *id)
{
    const char *volatile text = id; /* or gcc warns of reads that a known length excludes */
    XXH128_hash_t hash = XXH3_128bits(text, strlen(id));
    number(hash.low64, 8);
    number(hash.high64, 8);
}

/* Format 1: no owner behind the handle. */
static void record(uint64_t handle, uint64_t created, const char *id, uint32_t aliases, uint32_t pieces)
{
    number(handle, 8);
    number(0, 4); /* flags */
    number(0, 4); /* seal flags */
    number(2, 8); /* dropped rows */
    number(created, 8);
    number(strlen(id), 4);
    number(aliases, 4);
    number(pieces, 4);
    bytes(id, strlen(id));
}

static void piece(uint64_t rows, uint32_t block, uint32_t first)
{
    number(rows, 8);
    number(block, 4);
    number(first, 4);
}

static void model(void)
{
    const uint32_t shape[] = {V1_LAYERS, V1_TOP_K, V1_EXPERTS, 15, 1, V1_ROW};
    for (int i = 0; i < 6; i++)
        number(shape[i], 4);
    for (uint32_t i = 0; i < V1_LAYERS; i++)
        number(3 + 2 * i, 4);
}

static void store(void)
{
    number(9, 8); /* records ever made */
    number(V1_EPOCH, 8);
    number(3, 4); /* slots */
    number(2, 4); /* records */
    number(1, 4); /* blocks */
    number(0, 4);
    number(1, 4); /* generations */
    number(4, 4);
    number(2, 4);
}

static void rows(void)
{
    for (uint32_t row = 0; row < V1_ROWS; row++)
        for (uint32_t i = 0; i < V1_ROW; i++)
            number(snapshot_v1_id(row, i), 1);
}

static void blocks(void)
{
    uint8_t data[V1_ROWS * V1_ROW];
    for (uint32_t row = 0; row < V1_ROWS; row++)
        for (uint32_t i = 0; i < V1_ROW; i++)
            data[row * V1_ROW + i] = snapshot_v1_id(row, i);
    number(V1_ROWS, 4);
    number(2, 4);
    number(XXH3_64bits(data, sizeof(data)), 8);
    number(0, 4);
    number(V1_EPOCH - 1, 8);
    number(6, 4);
    number(V1_EPOCH, 8);
}

static void records(void)
{
    record(1ull << 32 | 0, 3, "old-a", 1, 1);
    hash_of("http");
    number(1, 4);
    piece(V1_ROWS, 0, 0);
    record(2ull << 32 | 2, 9, "old-b", 0, 2);
    piece(3, 0, 0);
    piece(2, 0xFFFFFFFFu, 8); /* MOOR_REASON_SHORT */
}

size_t snapshot_v1(uint8_t *out, size_t room)
{
    static void (*const parts[])(void) = {model, store, blocks, records, rows};
    static const uint32_t kinds[] = {1, 2, 4, 5, 6};
    uint64_t offset[5], length[5], checksum[5];
    begin = at = out;
    limit = out + room;
    memset(out, 0, 64);
    at += 64;
    for (int i = 0; i < 5; i++) {
        offset[i] = (uint64_t)(at - begin);
        parts[i]();
        length[i] = (uint64_t)(at - begin) - offset[i];
        checksum[i] = kinds[i] == 6 ? 0 : XXH3_64bits(begin + offset[i], length[i]);
    }
    uint64_t table = (uint64_t)(at - begin);
    for (int i = 0; i < 5; i++) {
        number(kinds[i], 4);
        number(0, 4);
        number(offset[i], 8);
        number(length[i], 8);
        number(checksum[i], 8);
    }
    size_t size = (size_t)(at - begin);
    uint64_t table_checksum = XXH3_64bits(begin + table, size - table);
    at = begin;
    bytes("MOORSNAP", 8);
    number(1, 4); /* format */
    number(5, 4);
    number(size, 8);
    number(table, 8);
    number(table_checksum, 8);
    number(1700000000, 8);
    number(0, 8);
    number(XXH3_64bits(begin, 56), 8);
    return size;
}
