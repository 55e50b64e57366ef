/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <string.h>

size_t moor_copy_dtype_bytes(uint32_t dtype)
{
    static const unsigned char bytes[] = {
        [MOOR_DTYPE_U8] = 1, [MOOR_DTYPE_U16] = 2, [MOOR_DTYPE_I16] = 2, [MOOR_DTYPE_I32] = 4, [MOOR_DTYPE_I64] = 8};
    return dtype < sizeof(bytes) ? bytes[dtype] : 0;
}

int moor_copy_dtype_holds(uint32_t dtype, uint32_t num_experts)
{
    switch (dtype) {
    case MOOR_DTYPE_U8:
        return num_experts <= 256;
    case MOOR_DTYPE_I16:
        return num_experts <= 32768;
    case MOOR_DTYPE_U16:
        return num_experts <= 65536;
    default:
        return moor_copy_dtype_bytes(dtype) >= 4;
    }
}

#define WIDEN(name, to, from)                                                                                          \
    static void name(to *restrict dst, const from *restrict src, size_t n)                                             \
    {                                                                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            dst[i] = (to)src[i];                                                                                       \
    }
WIDEN(u8_to_16, uint16_t, uint8_t)
WIDEN(u8_to_32, int32_t, uint8_t)
WIDEN(u8_to_64, int64_t, uint8_t)
WIDEN(u16_to_8, uint8_t, uint16_t)
WIDEN(u16_to_32, int32_t, uint16_t)
WIDEN(u16_to_64, int64_t, uint16_t)
#undef WIDEN

void moor_copy_ids(void *dst, uint32_t dst_dtype, const void *src, uint32_t src_dtype, size_t n)
{
    size_t to = moor_copy_dtype_bytes(dst_dtype), from = moor_copy_dtype_bytes(src_dtype);
    if (to == from)
        memcpy(dst, src, n * to);
    else if (from == 1 && to == 2)
        u8_to_16(dst, src, n);
    else if (from == 1 && to == 4)
        u8_to_32(dst, src, n);
    else if (from == 1)
        u8_to_64(dst, src, n);
    else if (to == 1)
        u16_to_8(dst, src, n);
    else if (to == 4)
        u16_to_32(dst, src, n);
    else
        u16_to_64(dst, src, n);
}
