/* SPDX-License-Identifier: Apache-2.0 */
/* reply_input — what fuzz_reply's input is read as: a small program, read where a decision is to be made. Zeros follow its end, and a zero
 * always means what a good store does, so that short inputs come far. */
#ifndef MOOR_FUZZ_REPLY_INPUT_H
#define MOOR_FUZZ_REPLY_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"

extern moor_wire_reader reply_input;

static inline uint8_t reply_next(void)
{
    uint8_t byte = 0;
    moor_wire_get(&reply_input, &byte, 1);
    return byte;
}

enum { REPLY_ARENA = 65536, REPLY_NONCE = 0x1234, REPLY_FDS = 4 };

/* Of all stores in an input, when they tell the truth. */
typedef struct reply_shape {
    uint32_t stages, layers, top_k, dtype, model_layers, num_experts; /* layers: of one store */
    int in_turns, the_same; /* the layers of stages: 0, 2, … and 1, 3, …; all have the first ones */
} reply_shape;

extern reply_shape reply_all;

/* What one request is answered with. */
typedef struct reply_answer {
    moor_wire_buffer bytes;
    int fds[REPLY_FDS], n_fds; /* descriptors that come along; not owned but made[] */
    int made;                  /* closed once sent; -1: none */
    int silent, hangs_up;      /* nothing is sent; the connection ends after it */
    size_t first;              /* bytes in the first piece */
} reply_answer;

void reply_shape_begin(void); /* reads the shape of this input */
void reply_answer_make(const moor_wire_header *request, uint32_t store, reply_answer *out);
const int *reply_answer_arenas(void); /* [REPLY_FDS]: sealed, small and sealed, unsealed, no memfd */

#endif
