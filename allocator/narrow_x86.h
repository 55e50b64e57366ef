/* SPDX-License-Identifier: Apache-2.0 */
/*
 * narrow_x86.h — the vector kernels of narrow.c, which alone includes it: AVX2 and AVX-512 for int32 and int64 sources, AVX2 for bytes, whose k
 * ids lie side by side, as torch makes them. Chosen at run time; compiled always, by target attribute.
 */
#ifndef MOOR_NARROW_X86_H
#define MOOR_NARROW_X86_H

#if defined(__x86_64__)
#define MOOR_NARROW_X86 1
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2"), always_inline)) static inline
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl"), always_inline)) static inline

/* The one loop over spans and tokens; ROW handles one token's k ids. K is a constant in the common cases. */
#define TOKENS(ROW, K)                                                                                                 \
    for (uint32_t s = 0; s < job->n_spans; s++) {                                                                      \
        const moor_span *span = &job->spans[s];                                                                        \
        const uint8_t *from = job->source + (ptrdiff_t)span->token * job->token_bytes;                                 \
        uint8_t *to = span->rows + job->column;                                                                        \
        for (uint32_t i = 0; i < span->n; i++, from += job->token_bytes, to += job->row_bytes)                         \
            ROW(to, from, K, most);                                                                                    \
    }

#define KERNEL(name, features, type, ROW, LARGEST)                                                                     \
    __attribute__((target(features))) static uint64_t name(const moor_narrow *job)                                     \
    {                                                                                                                  \
        type most[2];                                                                                                  \
        memset(most, 0, sizeof(most));                                                                                 \
        if (job->k == 8) {                                                                                             \
            TOKENS(ROW, 8)                                                                                             \
        } else if (job->k == 4) {                                                                                      \
            TOKENS(ROW, 4)                                                                                             \
        } else {                                                                                                       \
            TOKENS(ROW, job->k)                                                                                        \
        }                                                                                                              \
        return LARGEST(most);                                                                                          \
    }

/* ---- AVX2: 8 ids at a time. most[0]: largest low halves; most[1]: high halves or'ed (int64 only). ---- */

AVX2 __m256i first_lanes(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AVX2 void store_u8(uint8_t *to, __m256i ids, uint32_t n)
{
    __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1,
                                    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i bytes = _mm256_shuffle_epi8(ids, pick);
    __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    if (n == 8) {
        _mm_storel_epi64((__m128i *)(void *)to, both);
        return;
    }
    uint64_t word = (uint64_t)_mm_cvtsi128_si64(both);
    if (n & 4) {
        memcpy(to, &word, 4);
        to += 4;
        word >>= 32;
    }
    if (n & 2) {
        memcpy(to, &word, 2);
        to += 2;
        word >>= 16;
    }
    if (n & 1)
        *to = (uint8_t)word;
}

AVX2 void store_u16(uint8_t *to, __m256i ids, uint32_t n)
{
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(ids), _mm256_extracti128_si256(ids, 1));
    if (n == 8) {
        _mm_storeu_si128((__m128i *)(void *)to, words);
        return;
    }
    if (n & 4) {
        _mm_storel_epi64((__m128i *)(void *)to, words);
        to += 8;
        words = _mm_srli_si128(words, 8);
    }
    uint64_t word = (uint64_t)_mm_cvtsi128_si64(words);
    if (n & 2) {
        memcpy(to, &word, 4);
        to += 4;
        word >>= 32;
    }
    if (n & 1) {
        uint16_t last = (uint16_t)word;
        memcpy(to, &last, 2);
    }
}

AVX2 __m256i load_i32(const uint8_t *from, uint32_t n, __m256i *most)
{
    __m256i ids = n == 8 ? _mm256_loadu_si256((const __m256i *)(const void *)from)
                         : _mm256_maskload_epi32((const int *)(const void *)from, first_lanes(n));
    most[0] = _mm256_max_epu32(most[0], ids);
    return ids;
}

AVX2 __m256i load_i64(const uint8_t *from, uint32_t n, __m256i *most)
{
    __m256i low, high;
    if (n == 8) {
        low = _mm256_loadu_si256((const __m256i *)(const void *)from);
        high = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
    } else { /* an id is two lanes */
        low = _mm256_maskload_epi32((const int *)(const void *)from, first_lanes(2 * n));
        high = n > 4 ? _mm256_maskload_epi32((const int *)(const void *)(from + 32), first_lanes(2 * (n - 4)))
                     : _mm256_setzero_si256();
    }
    most[1] = _mm256_or_si256(most[1], _mm256_or_si256(_mm256_srli_epi64(low, 32), _mm256_srli_epi64(high, 32)));
    __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    __m256i ids =
        _mm256_blend_epi32(_mm256_permutevar8x32_epi32(low, even), _mm256_permutevar8x32_epi32(high, even), 0xF0);
    most[0] = _mm256_max_epu32(most[0], ids);
    return ids;
}

AVX2 uint64_t largest_avx2(const __m256i *most)
{
    uint32_t lane[8];
    uint64_t largest = 0;
    _mm256_storeu_si256((__m256i *)(void *)lane, most[0]);
    for (int i = 0; i < 8; i++)
        largest = lane[i] > largest ? lane[i] : largest;
    /* A high half that is not zero is an id beyond any model, or a negative one. */
    if (!_mm256_testz_si256(most[1], most[1]))
        return UINT64_MAX;
    return largest;
}

/* 32 ids, each below 256, in order; a larger one may become anything. */
AVX2 void store32_u8(uint8_t *to, __m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d)); /* by lanes */
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
}

#define AVX2_ROW(load, store, bytes)                                                                                   \
    uint32_t at = 0;                                                                                                   \
    for (; (bytes) == 1 && at + 32 <= k; at += 32)                                                                     \
        store32_u8(to + at, load(from + at * ID, 8, most), load(from + (at + 8) * ID, 8, most),                        \
                   load(from + (at + 16) * ID, 8, most), load(from + (at + 24) * ID, 8, most));                        \
    for (; at + 8 <= k; at += 8)                                                                                       \
        store(to + at * (bytes), load(from + at * ID, 8, most), 8);                                                    \
    if (at < k)                                                                                                        \
    store(to + at * (bytes), load(from + at * ID, k - at, most), k - at)

#define ID 4
AVX2 void row_i32_u8(uint8_t *to, const uint8_t *from, uint32_t k, __m256i *most)
{
    AVX2_ROW(load_i32, store_u8, 1);
}
AVX2 void row_i32_u16(uint8_t *to, const uint8_t *from, uint32_t k, __m256i *most)
{
    AVX2_ROW(load_i32, store_u16, 2);
}
#undef ID
#define ID 8
AVX2 void row_i64_u8(uint8_t *to, const uint8_t *from, uint32_t k, __m256i *most)
{
    AVX2_ROW(load_i64, store_u8, 1);
}
AVX2 void row_i64_u16(uint8_t *to, const uint8_t *from, uint32_t k, __m256i *most)
{
    AVX2_ROW(load_i64, store_u16, 2);
}
#undef ID

KERNEL(avx2_i32_u8, "avx2", __m256i, row_i32_u8, largest_avx2)
KERNEL(avx2_i32_u16, "avx2", __m256i, row_i32_u16, largest_avx2)
KERNEL(avx2_i64_u8, "avx2", __m256i, row_i64_u8, largest_avx2)
KERNEL(avx2_i64_u16, "avx2", __m256i, row_i64_u16, largest_avx2)

/* Ids that are narrow already: a copy that looks. */
AVX2 void row_u8_u8(uint8_t *to, const uint8_t *from, uint32_t k, __m256i *most)
{
    uint32_t at = 0;
    for (; at + 32 <= k; at += 32) {
        __m256i ids = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        most[0] = _mm256_max_epu8(most[0], ids);
        _mm256_storeu_si256((__m256i *)(void *)(to + at), ids);
    }
    for (; at + 8 <= k; at += 8) {
        __m128i ids = _mm_loadl_epi64((const __m128i *)(const void *)(from + at));
        most[0] = _mm256_max_epu8(most[0], _mm256_zextsi128_si256(ids));
        _mm_storel_epi64((__m128i *)(void *)(to + at), ids);
    }
    for (; at < k; at++) {
        most[0] = _mm256_max_epu8(most[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(from[at])));
        to[at] = from[at];
    }
}

AVX2 uint64_t largest_avx2_u8(const __m256i *most)
{
    uint8_t lane[32], largest = 0;
    _mm256_storeu_si256((__m256i *)(void *)lane, most[0]);
    for (int i = 0; i < 32; i++)
        largest = lane[i] > largest ? lane[i] : largest;
    return largest;
}

KERNEL(avx2_u8_u8, "avx2", __m256i, row_u8_u8, largest_avx2_u8)

static const moor_narrow_fn avx2[MOOR_DTYPE_I64 + 1][2] = {
    [MOOR_DTYPE_U8] = {avx2_u8_u8, NULL},
    [MOOR_DTYPE_I32] = {avx2_i32_u8, avx2_i32_u16},
    [MOOR_DTYPE_I64] = {avx2_i64_u8, avx2_i64_u16},
};

/* ---- AVX-512: masks do the ends; 16 int32 or 8 int64 at a time. most[0]: largest ids. ---- */

/* 64 ids, each below 256, in order; a larger one may become anything. */
AVX512 void store64_u8(uint8_t *to, __m512i a, __m512i b, __m512i c, __m512i d)
{
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); /* packing goes by lanes */
    __m512i bytes = _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
}
AVX512 __m512i load16_i32(const uint8_t *from, __m512i *most)
{
    __m512i ids = _mm512_loadu_si512(from);
    most[0] = _mm512_max_epu32(most[0], ids);
    return ids;
}
AVX512 __m512i load16_i64(const uint8_t *from, __m512i *most)
{
    __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 64);
    most[0] = _mm512_max_epu64(most[0], _mm512_max_epu64(low, high));
    return _mm512_permutex2var_epi32(low, even, high);
}
AVX512 void row512_i32_u8(uint8_t *to, const uint8_t *from, uint32_t k, __m512i *most)
{
    uint32_t at = 0;
    for (; at + 64 <= k; at += 64)
        store64_u8(to + at, load16_i32(from + at * 4, most), load16_i32(from + at * 4 + 64, most),
                   load16_i32(from + at * 4 + 128, most), load16_i32(from + at * 4 + 192, most));
    for (; at < k; at += 16) {
        __mmask16 mask = k - at >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << (k - at)) - 1);
        __m512i ids = _mm512_maskz_loadu_epi32(mask, from + at * 4);
        most[0] = _mm512_max_epu32(most[0], ids);
        _mm512_mask_cvtepi32_storeu_epi8(to + at, mask, ids);
    }
}
AVX512 void row512_i32_u16(uint8_t *to, const uint8_t *from, uint32_t k, __m512i *most)
{
    for (uint32_t at = 0; at < k; at += 16) {
        __mmask16 mask = k - at >= 16 ? (__mmask16)0xFFFF : (__mmask16)((1u << (k - at)) - 1);
        __m512i ids = _mm512_maskz_loadu_epi32(mask, from + at * 4);
        most[0] = _mm512_max_epu32(most[0], ids);
        _mm512_mask_cvtepi32_storeu_epi16(to + at * 2, mask, ids);
    }
}
AVX512 void row512_i64_u8(uint8_t *to, const uint8_t *from, uint32_t k, __m512i *most)
{
    uint32_t at = 0;
    for (; at + 64 <= k; at += 64)
        store64_u8(to + at, load16_i64(from + at * 8, most), load16_i64(from + at * 8 + 128, most),
                   load16_i64(from + at * 8 + 256, most), load16_i64(from + at * 8 + 384, most));
    for (; at < k; at += 8) {
        __mmask8 mask = k - at >= 8 ? (__mmask8)0xFF : (__mmask8)((1u << (k - at)) - 1);
        __m512i ids = _mm512_maskz_loadu_epi64(mask, from + at * 8);
        most[0] = _mm512_max_epu64(most[0], ids);
        _mm512_mask_cvtepi64_storeu_epi8(to + at, mask, ids);
    }
}
AVX512 void row512_i64_u16(uint8_t *to, const uint8_t *from, uint32_t k, __m512i *most)
{
    for (uint32_t at = 0; at < k; at += 8) {
        __mmask8 mask = k - at >= 8 ? (__mmask8)0xFF : (__mmask8)((1u << (k - at)) - 1);
        __m512i ids = _mm512_maskz_loadu_epi64(mask, from + at * 8);
        most[0] = _mm512_max_epu64(most[0], ids);
        _mm512_mask_cvtepi64_storeu_epi16(to + at * 2, mask, ids);
    }
}
AVX512 uint64_t largest_512_u32(const __m512i *most)
{
    return _mm512_reduce_max_epu32(most[0]);
}
AVX512 uint64_t largest_512_u64(const __m512i *most)
{
    return _mm512_reduce_max_epu64(most[0]);
}

#define AVX512_FEATURES "avx512f,avx512bw,avx512vl"
KERNEL(avx512_i32_u8, AVX512_FEATURES, __m512i, row512_i32_u8, largest_512_u32)
KERNEL(avx512_i32_u16, AVX512_FEATURES, __m512i, row512_i32_u16, largest_512_u32)
KERNEL(avx512_i64_u8, AVX512_FEATURES, __m512i, row512_i64_u8, largest_512_u64)
KERNEL(avx512_i64_u16, AVX512_FEATURES, __m512i, row512_i64_u16, largest_512_u64)

static const moor_narrow_fn avx512[MOOR_DTYPE_I64 + 1][2] = {
    [MOOR_DTYPE_I32] = {avx512_i32_u8, avx512_i32_u16},
    [MOOR_DTYPE_I64] = {avx512_i64_u8, avx512_i64_u16},
};

#else
#define MOOR_NARROW_X86 0
#endif
#endif
