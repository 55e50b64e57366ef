/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.h — a ref as text: which record of which store, and which of its rows.
 *
 *     moor1:HOST:INSTANCE:STORE.NONCE:HANDLE:DTYPE:RxLxK[@START]
 *
 * Handle and nonce are hexadecimal. The nonce is the store's life, so that a ref of an earlier server of the same name is stale rather than
 * another request's rows. R rows from row START of the request on (0 when it is not said), each of L layers and K ids. Of pipeline stages a ref has one
 * part each, with "+" between them, which name the same rows. Pure functions; record.c writes refs, resolve.c opens what they name.
 */
#ifndef MOOR_CLIENT_REF_H
#define MOOR_CLIENT_REF_H

#include <moor/moor.h>

#include "../allocator/error.h"

typedef struct moor_ref {
    char host[256], instance[64];
    uint32_t store_index, nonce, dtype, layers, top_k;
    uint64_t handle, start, rows; /* start + rows does not overflow */
} moor_ref;

/* One part. MOOR_E_INVALID with the text when it is none. */
moor_status moor_ref_parse(const char *text, size_t length, moor_ref *out);
/* The next part of a ref: from *at on, which then is where the one after it begins; 0: there is none. */
int moor_ref_next(const char *ref, size_t ref_len, size_t *at, const char **part, size_t *part_len);

/* A text in parts: what does not fit is counted, and left out. */
typedef struct moor_ref_text {
    char *buf;
    size_t size, used;
} moor_ref_text;
void moor_ref_put(moor_ref_text *out, const moor_ref *part);
/* MOOR_E_INVALID with both numbers when the buffer was too small. */
moor_status moor_ref_end(const moor_ref_text *out, const char *what);

/* ref_part of the ABI. */
moor_status moor_ref_part(const char *ref, size_t ref_len, uint64_t head, uint64_t tail, char *buf, size_t size);

#endif
