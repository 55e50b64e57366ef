/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.h — KV blocks of the mock engine: reference counts, a least-recently-freed queue, and the prefix cache (hash of a
 * full block → block). Used by sched.c only. A block keeps its hash while it waits in the queue, so a freed prefix can be
 * hit until the block is handed out again; hand-outs are logged for the workers.
 */
#ifndef MOCK_BLOCKS_H
#define MOCK_BLOCKS_H

#include <stdint.h>

typedef struct mk_blocks mk_blocks;

mk_blocks *mk_blocks_new(uint32_t count);
void mk_blocks_free(mk_blocks *blocks);
uint32_t mk_blocks_available(const mk_blocks *blocks);
/* Takes a fresh block; there must be one available. */
int32_t mk_blocks_hand_out(mk_blocks *blocks);
void mk_blocks_give_back(mk_blocks *blocks, int32_t block);
/* The cached block of that hash with one reference more, or -1. */
int32_t mk_blocks_hit(mk_blocks *blocks, uint64_t hash);
void mk_blocks_cache(mk_blocks *blocks, int32_t block, uint64_t hash);
void mk_blocks_forget(mk_blocks *blocks); /* empties the prefix cache */
/* The blocks handed out since the last call: malloc'ed, the caller's. */
int32_t *mk_blocks_take_log(mk_blocks *blocks, uint32_t *n);

#endif
