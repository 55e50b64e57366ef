/* SPDX-License-Identifier: Apache-2.0 */
#include "narrow.h"

#include <stdatomic.h>
#include <string.h>

#include "narrow_x86.h"

#define LOAD(type, at)                                                                                                 \
    type value;                                                                                                        \
    memcpy(&value, at, sizeof(value))

/* Any distance between ids; also the last word on what the vector kernels must do. */
#define SCALAR(name, type, out)                                                                                        \
    static uint64_t name(const moor_narrow *job)                                                                       \
    {                                                                                                                  \
        uint64_t most = 0;                                                                                             \
        for (uint32_t s = 0; s < job->n_spans; s++) {                                                                  \
            const moor_span *span = &job->spans[s];                                                                    \
            const uint8_t *from = job->source + (ptrdiff_t)span->token * job->token_bytes;                             \
            uint8_t *to = span->rows + job->column;                                                                    \
            for (uint32_t i = 0; i < span->n; i++, from += job->token_bytes, to += job->row_bytes) {                   \
                for (uint32_t k = 0; k < job->k; k++) {                                                                \
                    LOAD(type, from + (ptrdiff_t)k * job->k_bytes);                                                    \
                    uint64_t id = (uint64_t)(int64_t)value;                                                            \
                    most = id > most ? id : most;                                                                      \
                    out narrow = (out)id;                                                                              \
                    memcpy(to + k * sizeof(out), &narrow, sizeof(out));                                                \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        return most;                                                                                                   \
    }

SCALAR(u8_to_u8, uint8_t, uint8_t)
SCALAR(u16_to_u8, uint16_t, uint8_t)
SCALAR(i16_to_u8, int16_t, uint8_t)
SCALAR(i32_to_u8, int32_t, uint8_t)
SCALAR(i64_to_u8, int64_t, uint8_t)
SCALAR(u8_to_u16, uint8_t, uint16_t)
SCALAR(u16_to_u16, uint16_t, uint16_t)
SCALAR(i16_to_u16, int16_t, uint16_t)
SCALAR(i32_to_u16, int32_t, uint16_t)
SCALAR(i64_to_u16, int64_t, uint16_t)

static const moor_narrow_fn scalar[MOOR_DTYPE_I64 + 1][2] = {
    [MOOR_DTYPE_U8] = {u8_to_u8, u8_to_u16},    [MOOR_DTYPE_U16] = {u16_to_u8, u16_to_u16},
    [MOOR_DTYPE_I16] = {i16_to_u8, i16_to_u16}, [MOOR_DTYPE_I32] = {i32_to_u8, i32_to_u16},
    [MOOR_DTYPE_I64] = {i64_to_u8, i64_to_u16},
};

static _Atomic int forced = -1;

int moor_isa_best(void)
{
#if MOOR_NARROW_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return MOOR_ISA_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return MOOR_ISA_AVX2;
#endif
    return MOOR_ISA_SCALAR;
}

void moor_isa_force(int isa)
{
    int best = moor_isa_best();
    atomic_store(&forced, isa > best ? best : isa);
}

int moor_isa(void)
{
    static _Atomic int best = -1;
    int isa = atomic_load_explicit(&forced, memory_order_relaxed);
    if (isa < 0 && (isa = atomic_load_explicit(&best, memory_order_relaxed)) < 0) {
        isa = moor_isa_best();
        atomic_store_explicit(&best, isa, memory_order_relaxed);
    }
    return isa;
}

moor_narrow_fn moor_narrow_pick(uint32_t dtype, uint32_t row_id_bytes, int contiguous)
{
    if (!moor_narrow_dtype_bytes(dtype) || (row_id_bytes != 1 && row_id_bytes != 2))
        return NULL;
    uint32_t wide = row_id_bytes - 1;
#if MOOR_NARROW_X86
    int isa = moor_isa();
    if (contiguous && isa > MOOR_ISA_SCALAR) {
        moor_narrow_fn kernel = isa == MOOR_ISA_AVX512 ? avx512[dtype][wide] : NULL;
        kernel = kernel ? kernel : avx2[dtype][wide];
        if (kernel)
            return kernel;
    }
#else
    (void)contiguous;
#endif
    return scalar[dtype][wide];
}

uint32_t moor_narrow_dtype_bytes(uint32_t dtype)
{
    static const uint8_t bytes[] = {0, 1, 2, 2, 4, 8};
    return dtype < sizeof(bytes) ? bytes[dtype] : 0;
}

int64_t moor_id_load(const uint8_t *source, uint32_t dtype)
{
    switch (dtype) {
    case MOOR_DTYPE_U8:
        return *source;
    case MOOR_DTYPE_U16: {
        LOAD(uint16_t, source);
        return value;
    }
    case MOOR_DTYPE_I16: {
        LOAD(int16_t, source);
        return value;
    }
    case MOOR_DTYPE_I32: {
        LOAD(int32_t, source);
        return value;
    }
    default: {
        LOAD(int64_t, source);
        return value;
    }
    }
}
