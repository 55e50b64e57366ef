/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 1.1, 1.2: rows that wait in the stage arrive where they belong, from every source, and only when they are written. */
#include <stdlib.h>

#include "allocator/stage.h"
#include "support/lab.h"

enum { TOKENS = 200, LAYERS = 11, MOST_K = 24, LINE = 64, ROOM = (LAYERS * MOST_K * 2 / LINE + 2) * LINE };

typedef struct bed {
    moor_stage stage;
    uint32_t layers, k, wide, from; /* wide: bytes of a narrowed id; from: bytes before the first row */
    int strided;
    int64_t largest;
    _Alignas(LINE) uint8_t rows[TOKENS][ROOM], want[TOKENS][ROOM], untouched[TOKENS][ROOM];
    int32_t source[LAYERS][TOKENS * (2 * MOST_K + 3)];
} bed;

static int32_t *source_of(bed *b, uint32_t layer, uint32_t token, uint32_t j)
{
    return b->strided ? &b->source[layer][token * (2 * b->k + 3) + 2 * j] : &b->source[layer][token * b->k + j];
}

/* Runs of 1 to 8 tokens at rows in backward order, some tokens left out: what a batch of many requests looks like. */
static void add_runs(bed *b, unsigned *seed)
{
    size_t row_bytes = (size_t)b->layers * b->k * b->wide;
    uint32_t row = TOKENS;
    moor_stage_begin(&b->stage);
    for (uint32_t token = (uint32_t)rand_r(seed) % 3, n; token < TOKENS; token += n + (uint32_t)rand_r(seed) % 3 / 2) {
        n = 1 + (uint32_t)rand_r(seed) % MOOR_STAGE_RUN;
        n = token + n > TOKENS ? TOKENS - token : n;
        row -= n;
        uint8_t *at = b->rows[0] + b->from + row * row_bytes, *want = b->want[0] + b->from + row * row_bytes;
        assert_int_equal(moor_stage_add(&b->stage, token, n, at, row_bytes), 1);
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t l = 0; l < b->layers; l++) {
                for (uint32_t j = 0; j < b->k; j++) {
                    int64_t id = *source_of(b, l, token + i, j);
                    b->largest = id > b->largest ? id : b->largest;
                    memcpy(want + i * row_bytes + (l * b->k + j) * b->wide, &id, b->wide);
                }
            }
        }
    }
}

static void one_case(bed *b, unsigned *seed)
{
    assert_status(moor_stage_open(&b->stage, b->layers, b->k * b->wide), MOOR_OK);
    for (int step = 0; step < 2; step++) { /* nothing of the first is left in the second */
        memset(b->rows, 0xA5, sizeof(b->rows));
        memset(b->want, 0xA5, sizeof(b->want));
        b->largest = 0;
        for (uint32_t l = 0; l < b->layers; l++)
            for (size_t i = 0; i < sizeof(b->source[0]) / sizeof(b->source[0][0]); i++)
                b->source[l][i] = rand_r(seed) % (b->wide == 1 ? 256 : 65536);
        add_runs(b, seed);
        uint64_t most = 0;
        for (uint32_t l = b->layers; l--;) {
            moor_narrow job = {.source = (const uint8_t *)b->source[l],
                               .k = b->k,
                               .token_bytes = 4 * (ptrdiff_t)(b->strided ? 2 * b->k + 3 : b->k),
                               .k_bytes = b->strided ? 8 : 4};
            uint64_t largest =
                moor_stage_narrow(&b->stage, l, moor_narrow_pick(MOOR_DTYPE_I32, b->wide, !b->strided), job);
            most = largest > most ? largest : most;
        }
        assert_int_equal(most, b->largest);
        assert_memory_equal(b->rows, b->untouched, sizeof(b->rows));
        moor_stage_write(&b->stage);
        assert_memory_equal(b->rows, b->want, sizeof(b->rows));
    }
    moor_stage_close(&b->stage);
}

static void S1_1_staged_rows_arrive_whole(void **state)
{
    (void)state;
    /* With 8 layers rows are often whole cache lines, on lines or beside them. */
    static const struct {
        uint32_t layers, from;
    } shape[] = {{LAYERS, 0}, {LAYERS, 3}, {8, 0}, {8, 8}};
    unsigned seed = 11;
    bed *b = aligned_alloc(LINE, sizeof(*b));
    assert_non_null(b);
    memset(b, 0, sizeof(*b));
    memset(b->untouched, 0xA5, sizeof(b->untouched));
    for (int isa = 0; isa <= moor_isa_best(); isa++) {
        moor_isa_force(isa);
        for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
            b->layers = shape[i].layers;
            b->from = shape[i].from;
            for (b->k = 1; b->k <= MOST_K; b->k++)
                for (b->wide = 1; b->wide <= 2; b->wide++)
                    for (b->strided = 0; b->strided < 2; b->strided++)
                        one_case(b, &seed);
        }
    }
    moor_isa_force(-1);
    free(b);
}

/* Each row begins a cache line, none fills one: what follows it is somebody else's. */
static void S1_1_staged_rows_end_where_they_end(void **state)
{
    enum { ROWS = 4, SMALL = 4, FEW = 11 };
    (void)state;
    _Alignas(LINE) uint8_t rows[ROWS][2 * LINE];
    int32_t source[ROWS * SMALL];
    moor_stage stage = {0};
    memset(rows, 0xA5, sizeof(rows));
    assert_status(moor_stage_open(&stage, FEW, SMALL), MOOR_OK);
    moor_stage_begin(&stage);
    for (uint32_t r = 0; r < ROWS; r++)
        assert_int_equal(moor_stage_add(&stage, r, 1, rows[r], FEW * SMALL), 1);
    for (uint32_t l = 0; l < FEW; l++) {
        for (uint32_t i = 0; i < ROWS * SMALL; i++)
            source[i] = (int32_t)(l * 16 + i);
        moor_narrow job = {.source = (const uint8_t *)source, .k = SMALL, .token_bytes = 4 * SMALL, .k_bytes = 4};
        moor_stage_narrow(&stage, l, moor_narrow_pick(MOOR_DTYPE_I32, 1, 1), job);
    }
    moor_stage_write(&stage);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < 2 * LINE; i++)
            assert_int_equal(rows[r][i], i < FEW * SMALL ? i / SMALL * 16 + r * SMALL + i % SMALL : 0xA5);
    moor_stage_close(&stage);
}

static void S1_1_what_the_stage_does_not_take(void **state)
{
    (void)state;
    moor_stage stage = {0};
    uint8_t row[4];
    assert_status(moor_stage_open(&stage, 1, sizeof(row)), MOOR_OK);
    moor_stage_begin(&stage);
    assert_int_equal(moor_stage_add(&stage, 0, MOOR_STAGE_RUN + 1, row, 0), 0);
    for (uint32_t n = 0; n < MOOR_STAGE_ROWS - 1; n++)
        assert_int_equal(moor_stage_add(&stage, 2 * n, 1, row, 0), 1);
    assert_int_equal(moor_stage_add(&stage, 2 * MOOR_STAGE_ROWS, 2, row, 0), 0);
    assert_int_equal(moor_stage_add(&stage, 2 * MOOR_STAGE_ROWS, 1, row, 0), 1);
    assert_int_equal(moor_stage_add(&stage, 2 * MOOR_STAGE_ROWS + 1, 1, row, 0), 0);
    assert_int_equal(stage.rows, MOOR_STAGE_ROWS);
    moor_stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_1_staged_rows_arrive_whole),
        cmocka_unit_test(S1_1_staged_rows_end_where_they_end),
        cmocka_unit_test(S1_1_what_the_stage_does_not_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
