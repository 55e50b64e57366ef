/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h — where the ids of a decode step wait until its rows are whole.
 *
 * Such a step has one row of each request, in as many pages, and each of 48 layers brings 8 bytes of every row: stored at once they miss the
 * cache 48 times a row. Staged, a layer's ids are one run in token order, narrowed at the speed at which they are read, and the commit
 * writes every row once.
 *
 * Called by plan.c, step.c and commit.c on the recorder's thread; needs no lock, because nobody sees rows before their commit. Owns its
 * buffers; the rows are the caller's, until the step is over.
 */
#ifndef MOOR_STAGE_H
#define MOOR_STAGE_H

#include "error.h"
#include "narrow.h"

enum { MOOR_STAGE_ROWS = 2048, MOOR_STAGE_RUN = 8 /* longer runs of rows are better captured in place */ };

typedef struct moor_stage {
    uint32_t layers, bytes; /* bytes: of a layer's ids in a row */
    uint32_t rows, n_spans; /* of this step */
    uint8_t *ids;           /* [layers][rows][bytes], layers at distances of whole cache lines */
    uint8_t **row;          /* [MOOR_STAGE_ROWS] where each goes */
    moor_span *spans;       /* [MOOR_STAGE_ROWS] what is narrowed: neighbours in the source are one */
} moor_stage;

moor_status moor_stage_open(moor_stage *stage, uint32_t layers, uint32_t bytes);
void moor_stage_close(moor_stage *stage);
/* A new step; what an earlier one staged is forgotten. */
void moor_stage_begin(moor_stage *stage);
/* n tokens from `token` on go to rows of row_bytes each from `rows` on. 0: the run is too long, or the stage is full. */
int moor_stage_add(moor_stage *stage, uint32_t token, uint32_t n, uint8_t *rows, size_t row_bytes);
/* Narrows one layer's ids of the staged tokens, once all of them were added; of `job` the source, k and the distances count. Returns the largest id. */
uint64_t moor_stage_narrow(const moor_stage *stage, uint32_t column, moor_narrow_fn narrow, moor_narrow job);
/* All layers came: writes the rows. */
void moor_stage_write(const moor_stage *stage);

#endif
