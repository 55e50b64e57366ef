/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.h — rows of the arena into a consumer's buffer: between dtypes, and from MoE columns to all model layers. Pure
 * functions, written so that compilers vectorise them (CMakeLists.txt asks for it). Called by record.c.
 */
#ifndef MOOR_COPY_H
#define MOOR_COPY_H

#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

/* Bytes of one element, 0 for what is no dtype. */
size_t moor_copy_dtype_bytes(uint32_t dtype);
/* 1 when every id below num_experts fits. */
int moor_copy_dtype_holds(uint32_t dtype, uint32_t num_experts);

/* n ids; src_dtype is MOOR_DTYPE_U8 or _U16. */
void moor_copy_ids(void *dst, uint32_t dst_dtype, const void *src, uint32_t src_dtype, size_t n);

#endif
