/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <stdlib.h>
#include <string.h>

#include "mock.h"

typedef struct block {
    uint32_t refs;
    uint64_t hash;         /* 0: not cached */
    int32_t before, after; /* in the free queue */
} block;

struct mk_blocks {
    block *block;
    uint32_t count, available;
    int32_t head, tail;
    int32_t *log;
    uint32_t n_log;
};

static void enqueue(mk_blocks *b, int32_t i)
{
    b->block[i].before = b->tail;
    b->block[i].after = -1;
    if (b->tail >= 0)
        b->block[b->tail].after = i;
    else
        b->head = i;
    b->tail = i;
    b->available++;
}

static void dequeue(mk_blocks *b, int32_t i)
{
    int32_t before = b->block[i].before, after = b->block[i].after;
    if (before >= 0)
        b->block[before].after = after;
    else
        b->head = after;
    if (after >= 0)
        b->block[after].before = before;
    else
        b->tail = before;
    b->available--;
}

mk_blocks *mk_blocks_new(uint32_t count)
{
    mk_blocks *b = mk_alloc(sizeof *b);
    *b = (mk_blocks){.block = mk_alloc(count * sizeof *b->block), .count = count, .head = -1, .tail = -1};
    for (uint32_t i = 0; i < count; i++)
        enqueue(b, (int32_t)i);
    return b;
}

void mk_blocks_free(mk_blocks *b)
{
    free(b->block);
    free(b->log);
    free(b);
}

uint32_t mk_blocks_available(const mk_blocks *b)
{
    return b->available;
}

int32_t mk_blocks_hand_out(mk_blocks *b)
{
    int32_t i = b->head;
    if (i < 0)
        mk_die("no KV block left: the scheduler did not ask");
    dequeue(b, i);
    b->block[i].refs = 1;
    b->block[i].hash = 0;
    b->log = mk_grow(b->log, (b->n_log + 1) * sizeof *b->log);
    b->log[b->n_log++] = i;
    return i;
}

void mk_blocks_give_back(mk_blocks *b, int32_t i)
{
    if (!--b->block[i].refs)
        enqueue(b, i);
}

int32_t mk_blocks_hit(mk_blocks *b, uint64_t hash)
{
    for (uint32_t i = 0; i < b->count; i++)
        if (b->block[i].hash == hash) {
            if (!b->block[i].refs++)
                dequeue(b, (int32_t)i);
            return (int32_t)i;
        }
    return -1;
}

void mk_blocks_cache(mk_blocks *b, int32_t i, uint64_t hash)
{
    for (uint32_t k = 0; k < b->count; k++)
        if (b->block[k].hash == hash)
            return; /* the first one stays */
    b->block[i].hash = hash;
}

void mk_blocks_forget(mk_blocks *b)
{
    for (uint32_t i = 0; i < b->count; i++)
        b->block[i].hash = 0;
}

int32_t *mk_blocks_take_log(mk_blocks *b, uint32_t *n)
{
    int32_t *log = b->log;
    *n = b->n_log;
    b->log = NULL;
    b->n_log = 0;
    return log;
}
