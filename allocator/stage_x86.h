/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage_x86.h — staged rows written around the cache, one whole line at a time: it need not be read first, and nobody reads it before its request
 * ends. stage.c alone includes it. For columns of 8 or 16 bytes (8 experts a token as bytes or words), which is what most models have; other
 * rows go through the cache. SSE2 is always there, AVX-512 is chosen at run time.
 */
#ifndef MOOR_STAGE_X86_H
#define MOOR_STAGE_X86_H

#include "stage.h"

enum { LINE = 64, AHEAD = 4 /* rows: the next ones are elsewhere, and cold */ };

/* Writes all rows of a stage whose layers lie `distance` bytes apart. */
typedef void (*stream_fn)(const moor_stage *stage, size_t distance);

#if defined(__x86_64__)
#include <immintrin.h>

#define SSE2 __attribute__((always_inline)) static inline
#define AVX512F __attribute__((target("avx512f"), always_inline)) static inline

SSE2 __m128i ids_8(const uint8_t *at)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)at);
}

SSE2 void pair_of_8(uint8_t *to, const uint8_t *from, size_t distance)
{
    _mm_stream_si128((__m128i *)(void *)to, _mm_unpacklo_epi64(ids_8(from), ids_8(from + distance)));
}

SSE2 void line_of_8(uint8_t *to, const uint8_t *from, size_t distance)
{
    pair_of_8(to, from, distance);
    pair_of_8(to + 16, from + 2 * distance, distance);
    pair_of_8(to + 32, from + 4 * distance, distance);
    pair_of_8(to + 48, from + 6 * distance, distance);
}

SSE2 void line_of_16(uint8_t *to, const uint8_t *from, size_t distance)
{
    for (int column = 0; column < 4; column++, to += 16, from += distance)
        _mm_stream_si128((__m128i *)(void *)to, _mm_loadu_si128((const __m128i *)(const void *)from));
}

AVX512F void line_of_8_wide(uint8_t *to, const uint8_t *from, size_t distance)
{
    __m512i line = _mm512_castsi128_si512(ids_8(from));
    line = _mm512_mask_broadcastq_epi64(line, 0x02, ids_8(from + distance));
    line = _mm512_mask_broadcastq_epi64(line, 0x04, ids_8(from + 2 * distance));
    line = _mm512_mask_broadcastq_epi64(line, 0x08, ids_8(from + 3 * distance));
    line = _mm512_mask_broadcastq_epi64(line, 0x10, ids_8(from + 4 * distance));
    line = _mm512_mask_broadcastq_epi64(line, 0x20, ids_8(from + 5 * distance));
    line = _mm512_mask_broadcastq_epi64(line, 0x40, ids_8(from + 6 * distance));
    line = _mm512_mask_broadcastq_epi64(line, 0x80, ids_8(from + 7 * distance));
    _mm512_stream_si512((void *)to, line);
}

/* A line that a row shares with its neighbours goes through the cache. */
#define STREAM(name, features, bytes, line)                                                                            \
    __attribute__((target(features))) static void name(const moor_stage *stage, size_t distance)                       \
    {                                                                                                                  \
        enum { COLUMNS = LINE / (bytes) };                                                                             \
        size_t row_bytes = (size_t)stage->layers * (bytes);                                                            \
        for (uint32_t r = 0; r < stage->rows; r++) {                                                                   \
            const uint8_t *from = stage->ids + (size_t)r * (bytes);                                                    \
            uint8_t *to = stage->row[r], *end = to + row_bytes;                                                        \
            if (r + AHEAD < stage->rows) {                                                                             \
                uint8_t *next = stage->row[r + AHEAD];                                                                 \
                if ((uintptr_t)next % LINE)                                                                            \
                    __builtin_prefetch(next, 1);                                                                       \
                if ((uintptr_t)(next + row_bytes) % LINE)                                                              \
                    __builtin_prefetch(next + row_bytes - 1, 1);                                                       \
            }                                                                                                          \
            for (; to < end && (uintptr_t)to % LINE; to += (bytes), from += distance)                                  \
                memcpy(to, from, bytes);                                                                               \
            for (; end - to >= LINE; to += LINE, from += COLUMNS * distance)                                           \
                line(to, from, distance);                                                                              \
            for (; to < end; to += (bytes), from += distance)                                                          \
                memcpy(to, from, bytes);                                                                               \
        }                                                                                                              \
        _mm_sfence(); /* such stores are in no order with the word that publishes them */                              \
    }

STREAM(stream_8, "sse2", 8, line_of_8)
STREAM(stream_16, "sse2", 16, line_of_16)
STREAM(stream_8_wide, "avx512f", 8, line_of_8_wide)

/* NULL: no kernel for columns of so many bytes. */
static stream_fn stream_pick(uint32_t bytes)
{
    if (bytes == 8)
        return moor_isa() == MOOR_ISA_AVX512 ? stream_8_wide : stream_8;
    return bytes == 16 ? stream_16 : NULL;
}

#else
static stream_fn stream_pick(uint32_t bytes)
{
    (void)bytes;
    return NULL;
}
#endif
#endif
