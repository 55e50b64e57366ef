/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gone.h — ids whose record was freed lately, so that one who asks learns that there was one. Bounded: a place is taken over by the next id
 * that falls on it. Called by records.c and view.c under the store's lock; zeroed memory is an empty one, and there is nothing to free.
 */
#ifndef MOOR_GONE_H
#define MOOR_GONE_H

#include <moor/moor.h>

#include "idhash.h"

enum { MOOR_GONE_PLACES = 4096 };

typedef struct moor_gone {
    struct {
        uint64_t hash;  /* half of the id's; 0: free */
        uint64_t freed; /* moor_now_ns(), its lowest bit: by the keep policy */
    } places[MOOR_GONE_PLACES];
    int forgot; /* an id whose place was taken over */
} moor_gone;

void moor_gone_add(moor_gone *gone, moor_hash128 id, int expired, uint64_t now_ns);
/* 0: not remembered. */
int moor_gone_find(const moor_gone *gone, moor_hash128 id, int *expired, uint64_t *when_ns);

#endif
