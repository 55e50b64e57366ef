/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapbytes.h — the bytes of a snapshot: a growing buffer of little-endian numbers, and a reader that never looks beyond its
 * section and says where it stopped.
 *
 * Called by snapshot.c, restore.c and snapfile.c. A buffer owns its memory; a reader owns nothing. No lock. Numbers are composed byte
 * by byte: no struct and no byte order of this machine gets into a file.
 */
#ifndef MOOR_SNAPBYTES_H
#define MOOR_SNAPBYTES_H

#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

typedef struct moor_snapbytes {
    uint8_t *data;
    size_t used, room;
    int failed; /* no memory: everything after it is a no-op */
} moor_snapbytes;

void moor_snapbytes_put(moor_snapbytes *bytes, const void *data, size_t n);
/* Room for n bytes, which the caller fills at once; NULL: no memory. */
uint8_t *moor_snapbytes_room(moor_snapbytes *bytes, size_t n);
void moor_snapbytes_u32(moor_snapbytes *bytes, uint32_t value);
void moor_snapbytes_u64(moor_snapbytes *bytes, uint64_t value);
void moor_snapbytes_free(moor_snapbytes *bytes);

static inline void moor_le32_store(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static inline void moor_le64_store(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static inline uint32_t moor_le32_load(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t moor_le64_load(const uint8_t *at)
{
    return moor_le32_load(at) | (uint64_t)moor_le32_load(at + 4) << 32;
}

/* One section. `status` is the first failure; after it everything reads as zero, so that a caller may check once an entry. */
typedef struct moor_snapreader {
    const char *path, *section;
    uint64_t offset; /* of the section in the file */
    const uint8_t *data;
    size_t length, at;
    moor_status status;
} moor_snapreader;

uint32_t moor_snapreader_u32(moor_snapreader *reader, const char *what);
uint64_t moor_snapreader_u64(moor_snapreader *reader, const char *what);
/* The next n bytes where they lie; NULL when there are fewer. */
const uint8_t *moor_snapreader_take(moor_snapreader *reader, uint64_t n, const char *what);
/* A failure at the number that was read last: its section and offset, what was found and what was expected. Returns MOOR_E_CORRUPT. */
moor_status moor_snapreader_wrong(moor_snapreader *reader, size_t back, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Everything was read; else the section is longer than what it says it holds. */
moor_status moor_snapreader_end(moor_snapreader *reader);

#endif
