/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idhash.h — the hash by which a request id travels through the shared state (tickets, seal ring, record lookup). Every part
 * must use this one. Owns nothing, locks nothing.
 */
#ifndef MOOR_IDHASH_H
#define MOOR_IDHASH_H

#include <stddef.h>
#include <xxhash.h>

#include "../abi/state.h"

/* XXH3-128; never the all-zero value, which means "none". */
static inline moor_hash128 moor_id_hash(const char *id, size_t len)
{
    XXH128_hash_t h = XXH3_128bits(id, len);
    moor_hash128 out = {h.low64, h.high64};
    if (!out.lo && !out.hi)
        out.lo = 1;
    return out;
}

static inline int moor_hash_equal(moor_hash128 a, moor_hash128 b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

static inline int moor_hash_none(moor_hash128 a)
{
    return !a.lo && !a.hi;
}

#endif
