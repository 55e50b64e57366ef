/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 1.3: widths, boundary values, sources; every kernel against a plain loop on random data. */
#include <stdlib.h>

#include "allocator/narrow.h"
#include "support/lab.h"

enum { MOST_K = 200 }; /* ids side by side: of many tokens, when they go to the stage */

static const uint32_t dtypes[] = {MOOR_DTYPE_U8, MOOR_DTYPE_U16, MOOR_DTYPE_I16, MOOR_DTYPE_I32, MOOR_DTYPE_I64};

static void put(uint8_t *at, uint32_t dtype, int64_t value)
{
    uint32_t bytes = moor_narrow_dtype_bytes(dtype);
    memcpy(at, &value, bytes); /* little-endian */
}

/* Tokens in random spans, each row at a random place of its own; strides with gaps. */
static void one_case(unsigned *seed, uint32_t dtype, uint32_t wide, uint32_t k, int strided, int64_t limit)
{
    enum { TOKENS = 70, ROW = 640, COLUMN = 64 };
    static uint8_t source[TOKENS * (2 * MOST_K + 3) * 8], rows[TOKENS * ROW], want[TOKENS * ROW];
    ptrdiff_t size = moor_narrow_dtype_bytes(dtype);
    ptrdiff_t stride_k = strided ? 2 : 1, stride_token = strided ? 2 * (ptrdiff_t)k + 3 : (ptrdiff_t)k;
    for (size_t i = 0; i < sizeof(source); i++)
        source[i] = (uint8_t)rand_r(seed);
    memset(rows, 0xA5, sizeof(rows));
    memset(want, 0xA5, sizeof(want));
    moor_span spans[TOKENS];
    uint32_t n = 0, row = 0;
    uint64_t largest = 0;
    for (uint32_t token = 0; token < TOKENS;) {
        uint32_t take = 1 + (uint32_t)rand_r(seed) % 5, skip = (uint32_t)rand_r(seed) % 2;
        take = token + take > TOKENS ? TOKENS - token : take;
        spans[n++] = (moor_span){rows + (size_t)row * ROW, token, take};
        for (uint32_t i = 0; i < take; i++, row++) {
            for (uint32_t j = 0; j < k; j++) {
                int64_t id = rand_r(seed) % limit;
                put(source + ((token + i) * stride_token + j * stride_k) * size, dtype, id);
                largest = (uint64_t)id > largest ? (uint64_t)id : largest;
                memcpy(want + (size_t)row * ROW + COLUMN + j * wide, &id, wide);
            }
        }
        token += take + skip;
        if (token >= TOKENS)
            break;
    }
    moor_narrow job = {.spans = spans,
                       .n_spans = n,
                       .k = k,
                       .row_bytes = ROW,
                       .column = COLUMN,
                       .source = source,
                       .token_bytes = stride_token * size,
                       .k_bytes = stride_k * size};
    moor_narrow_fn fn = moor_narrow_pick(dtype, wide, !strided);
    assert_non_null(fn);
    assert_int_equal(fn(&job), largest);
    assert_memory_equal(rows, want, sizeof(rows)); /* nothing beside the columns was touched */
}

static void every_kernel(int isa)
{
    unsigned seed = 7;
    moor_isa_force(isa);
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        for (uint32_t wide = 1; wide <= 2; wide++) {
            int64_t limit = wide == 1 || dtypes[d] == MOOR_DTYPE_U8 ? 256 : dtypes[d] == MOOR_DTYPE_I16 ? 32768 : 65536;
            for (uint32_t k = 1; k <= MOST_K; k += k < 40 ? 1 : 23) {
                one_case(&seed, dtypes[d], wide, k, 0, limit);
                one_case(&seed, dtypes[d], wide, k, 1, limit);
            }
        }
    }
    moor_isa_force(-1);
}

static void S1_3_scalar_kernels(void **state)
{
    (void)state;
    every_kernel(MOOR_ISA_SCALAR);
}

static void S1_3_avx2_kernels(void **state)
{
    (void)state;
    if (moor_isa_best() < MOOR_ISA_AVX2)
        skip();
    assert_ptr_not_equal(moor_narrow_pick(MOOR_DTYPE_I32, 1, 1),
                         moor_narrow_pick(MOOR_DTYPE_I32, 1, 0)); /* a kernel of its own */
    every_kernel(MOOR_ISA_AVX2);
}

static void S1_3_avx512_kernels(void **state)
{
    (void)state;
    if (moor_isa_best() < MOOR_ISA_AVX512) {
        print_message("this CPU has no AVX-512\n");
        skip();
    }
    every_kernel(MOOR_ISA_AVX512);
}

static void out_of_range(uint32_t dtype, uint32_t wide, uint32_t k, uint32_t at, int64_t bad)
{
    uint8_t source[MOST_K * 8], row[MOST_K * 2];
    ptrdiff_t size = moor_narrow_dtype_bytes(dtype);
    for (uint32_t i = 0; i < k; i++)
        put(source + i * size, dtype, i == at ? bad : (int64_t)i);
    moor_span span = {row, 0, 1};
    moor_narrow job = {.spans = &span,
                       .n_spans = 1,
                       .k = k,
                       .row_bytes = sizeof(row),
                       .source = source,
                       .token_bytes = k * size,
                       .k_bytes = size};
    assert_true(moor_narrow_pick(dtype, wide, 1)(&job) >= (uint64_t)(wide == 1 ? 256 : 65536));
}

/* An id out of range in any place is seen, whatever the kernel. */
static void S1_2_every_kernel_sees_an_id_out_of_range(void **state)
{
    (void)state;
    const int64_t bad[] = {
        256,       65536,    1 << 20, INT32_MAX, -1, -128, INT32_MIN, (int64_t)1 << 32, (int64_t)5 << 32 | 3,
        INT64_MIN, INT64_MAX};
    for (int isa = 0; isa <= moor_isa_best(); isa++) {
        moor_isa_force(isa);
        for (uint32_t wide = 1; wide <= 2; wide++) {
            for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
                for (uint32_t d = MOOR_DTYPE_I16; d <= MOOR_DTYPE_I64; d++) {
                    int64_t top = d == MOOR_DTYPE_I16 ? INT16_MAX : d == MOOR_DTYPE_I32 ? INT32_MAX : INT64_MAX;
                    int64_t experts = wide == 1 ? 256 : 65536;
                    if (bad[b] > top || bad[b] < -top - 1 || (bad[b] >= 0 && bad[b] < experts))
                        continue;
                    for (uint32_t at = 0; at < 23; at++)
                        out_of_range(d, wide, 23, at, bad[b]);
                    for (uint32_t at = 0; at < 64 + 32 + 8 + 3; at++)
                        out_of_range(d, wide, 64 + 32 + 8 + 3, at, bad[b]);
                }
            }
        }
    }
    moor_isa_force(-1);
}

static void round_trip(uint32_t experts, const uint32_t *values, uint32_t n, uint32_t dtype)
{
    lab_store lab;
    lab_defaults(&lab);
    lab.config.num_experts = experts;
    lab.config.layers = 1;
    lab.config.top_k = n;
    lab_open_with(&lab);
    assert_int_equal(moor_records_dtype(lab.records), experts <= 256 ? MOOR_DTYPE_U8 : MOOR_DTYPE_U16);
    lab_request request = {.id = "a", .count = 1};
    assert_status(lab_begin(&lab, &request, 1), MOOR_OK);
    uint8_t source[16 * 8];
    for (uint32_t i = 0; i < n; i++)
        put(source + i * moor_narrow_dtype_bytes(dtype), dtype, values[i]);
    moor_ids ids = {.data = source, .dtype = dtype, .tokens = 1, .top_k = n};
    assert_status(moor_records_capture(lab.records, 0, &ids), MOOR_OK);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    assert_status(lab_seal(&lab, "a", 1), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    const uint8_t *row = lab_row(&lab, view, 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t got = experts <= 256 ? row[i] : ((const uint16_t *)(const void *)row)[i];
        assert_int_equal(got, values[i]);
    }
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_3_boundary_ids_survive_exactly(void **state)
{
    (void)state;
    const uint32_t narrow[] = {0, 1, 127, 128, 254, 255},
                   wide[] = {0, 255, 256, 383, 511, 895, 32767, 32768, 65534, 65535};
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        round_trip(256, narrow, 6, dtypes[d]);
        if (dtypes[d] == MOOR_DTYPE_U8)
            continue;
        round_trip(65536, wide, dtypes[d] == MOOR_DTYPE_I16 ? 7 : 10, dtypes[d]);
    }
    round_trip(257, wide, 3, MOOR_DTYPE_I64); /* 256 is an expert of it */
}

static void S1_3_int16_minus_one_is_not_expert_65535(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.num_experts = 65536;
    lab_open_with(&lab);
    lab_request request = {.id = "a", .count = 1};
    assert_status(lab_begin(&lab, &request, 1), MOOR_OK);
    int16_t source[LAB_K] = {0, 1, -1, 2};
    moor_ids ids = {.data = source, .dtype = MOOR_DTYPE_I16, .tokens = 1, .top_k = LAB_K};
    assert_status(moor_records_capture(lab.records, 0, &ids), MOOR_E_RANGE);
    assert_text("id -1");
    assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_3_more_experts_than_two_bytes_are_refused_at_set_up(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.num_experts = 65537;
    assert_status(moor_records_create(&lab.config, &lab.records), MOOR_E_INVALID);
    assert_text("65537 experts");
    lab.config.num_experts = 8;
    lab.config.top_k = 9;
    assert_status(moor_records_create(&lab.config, &lab.records), MOOR_E_INVALID);
    lab.config.top_k = 2;
    lab.layer_ids[1] = lab.layer_ids[0];
    assert_status(moor_records_create(&lab.config, &lab.records), MOOR_E_INVALID);
    assert_text("layer_ids[1]");
    free(lab.ring);
}

static void S1_3_strided_captures_are_read_by_their_strides(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.layers = 1;
    lab_open_with(&lab);
    lab_request request = {.id = "a", .count = 3};
    assert_status(lab_begin(&lab, &request, 1), MOOR_OK);
    int64_t source[LAB_K * 5]; /* [k][tokens]: a transposed tensor; two tokens of padding */
    for (int token = 0; token < 5; token++)
        for (int k = 0; k < LAB_K; k++)
            source[k * 5 + token] = 10 * token + k;
    moor_ids ids = {
        .data = source, .dtype = MOOR_DTYPE_I64, .tokens = 3, .top_k = LAB_K, .stride_token = 1, .stride_k = 5};
    assert_status(moor_records_capture(lab.records, 0, &ids), MOOR_OK);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    assert_status(lab_seal(&lab, "a", 3), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    for (uint64_t row = 0; row < 3; row++)
        for (uint32_t k = 0; k < LAB_K; k++)
            assert_int_equal(lab_row(&lab, view, row)[k], 10 * row + k);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_3_scalar_kernels),
        cmocka_unit_test(S1_3_avx2_kernels),
        cmocka_unit_test(S1_3_avx512_kernels),
        cmocka_unit_test(S1_2_every_kernel_sees_an_id_out_of_range),
        cmocka_unit_test(S1_3_boundary_ids_survive_exactly),
        cmocka_unit_test(S1_3_int16_minus_one_is_not_expert_65535),
        cmocka_unit_test(S1_3_more_experts_than_two_bytes_are_refused_at_set_up),
        cmocka_unit_test(S1_3_strided_captures_are_read_by_their_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
