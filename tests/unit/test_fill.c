/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 1.7, 1.8, 1.10, 1.19: rows from outside, resumptions, truncation. */
#include "support/lab.h"

static uint8_t delivered[1000 * LAB_LAYERS * LAB_K];

/* Rows of `as` at epoch, positions start…start+n-1, as a delivery would bring them. */
static moor_status fill(lab_store *lab, const char *id, const char *as, uint64_t start, uint64_t n, uint64_t epoch)
{
    for (uint64_t row = 0; row < n; row++)
        for (uint32_t i = 0; i < LAB_LAYERS * LAB_K; i++)
            delivered[row * LAB_LAYERS * LAB_K + i] =
                (uint8_t)lab_id(lab, as, start + row, i / LAB_K, i % LAB_K, epoch);
    moor_ids ids = {.data = delivered, .dtype = MOOR_DTYPE_U8, .tokens = (uint32_t)n * LAB_LAYERS, .top_k = LAB_K};
    return moor_records_fill(lab->records, id, (uint32_t)strlen(id), start, &ids, n, epoch);
}

static void S1_8_three_resumptions_give_each_row_once(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const uint64_t rows[] = {9, 19, 29};
    for (uint64_t i = 0; i < 3; i++)
        assert_status(fill(&lab, "a", "a", 0, rows[i], i + 1), MOOR_OK);
    assert_status(moor_records_finished(lab.records, "a", 1), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 29);
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "a", 0, 9, 1);
    lab_assert_rows(&lab, view, "a", 9, 19, 2);
    lab_assert_rows(&lab, view, "a", 19, 29, 3);
    assert_int_equal(view->n_versions, 3);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_8_short_by_one_is_fine_by_two_is_an_error_with_both_numbers(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    assert_status(fill(&lab, "a", "a", 0, 10, 1), MOOR_OK);
    assert_status(fill(&lab, "a", "a", 0, 9, 2), MOOR_OK);
    assert_status(fill(&lab, "a", "a", 0, 8, 2), MOOR_E_RANGE);
    assert_text("8 rows");
    assert_text("has 10");
    /* Deliveries of new rows only: one missing row between is the last sampled token's. */
    assert_status(fill(&lab, "a", "a", 11, 4, 2), MOOR_OK);
    assert_status(fill(&lab, "a", "a", 17, 4, 2), MOOR_E_RANGE);
    assert_text("from 17 on");
    assert_text("has 15");
    assert_status(moor_records_finished(lab.records, "a", 1), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 15);
    lab_assert_rows(&lab, view, "a", 0, 10, 1); /* 1.7: the longer one stays */
    lab_assert_missing(view, 10, 11, MOOR_REASON_PREFIX_UNKNOWN);
    lab_assert_rows(&lab, view, "a", 11, 15, 2);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_19_a_fill_supplies_the_prefix_that_another_server_computed(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "d", 20, 1); /* a decode server: rows 0…19 are elsewhere */
    for (uint64_t i = 21; i < 30; i++)
        lab_one(&lab, "d", i, 1);
    assert_status(lab_seal(&lab, "d", 30), MOOR_OK);
    moor_view *before = lab_view(&lab, "d");
    assert_int_equal(before->missing_rows, 20);
    assert_status(fill(&lab, "d", "p", 0, 20, 4), MOOR_OK);
    moor_view *view = lab_view(&lab, "d");
    assert_int_equal(view->rows, 30);
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "p", 0, 20, 4);
    lab_assert_rows(&lab, view, "d", 20, 30, 1);
    assert_int_equal(before->missing_rows, 20); /* a view stays what it was */
    lab_unview(&lab, before);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_6_a_fill_over_present_and_missing_rows_takes_only_the_missing(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 4);
    lab.skip_layer = 1;
    lab_one(&lab, "a", 4, 3);
    lab.skip_layer = -1;
    lab_one(&lab, "a", 7, 3);
    assert_status(fill(&lab, "a", "f", 2, 10, 9), MOOR_OK);
    lab_one(&lab, "a", 12, 2); /* recording goes on behind it */
    assert_status(lab_seal(&lab, "a", 14), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 4, 1);
    lab_assert_rows(&lab, view, "f", 4, 7, 9);
    lab_assert_rows(&lab, view, "a", 7, 10, 1);
    lab_assert_rows(&lab, view, "f", 10, 12, 9);
    lab_assert_rows(&lab, view, "a", 12, 14, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void fill_refuses_wrong_shapes_and_ids(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_ids ids = {.data = delivered, .dtype = MOOR_DTYPE_U8, .tokens = 3 * LAB_LAYERS - 1, .top_k = LAB_K};
    assert_status(moor_records_fill(lab.records, "a", 1, 0, &ids, 3, 1), MOOR_E_INVALID);
    ids = (moor_ids){.data = delivered,
                     .dtype = MOOR_DTYPE_U8,
                     .tokens = 3,
                     .top_k = LAB_K * LAB_LAYERS}; /* a row a token is the same */
    memset(delivered, 1, sizeof(delivered));
    assert_status(moor_records_fill(lab.records, "a", 1, 0, &ids, 3, 1), MOOR_OK);
    delivered[2 * LAB_LAYERS * LAB_K + 4 * LAB_K] = 200;
    assert_status(moor_records_fill(lab.records, "b", 1, 0, &ids, 3, 1), MOOR_E_RANGE);
    assert_text("request b");
    assert_text("token 2");
    assert_text("layer 11"); /* column 4 */
    assert_text("id 200");
    lab_request step = {.id = "a", .start = 3, .count = 1};
    assert_status(lab_begin(&lab, &step, 1), MOOR_OK);
    assert_status(fill(&lab, "a", "a", 0, 5, 1), MOOR_E_STATE);
    assert_status(moor_records_truncate(lab.records, "a", 1, 1, 0), MOOR_E_STATE);
    assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_10_truncation_only_inside_the_allowed_range(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 10);
    lab_one(&lab, "a", 10, 10);
    assert_status(moor_records_truncate(lab.records, "a", 1, 5, 8), MOOR_E_RANGE);
    assert_text("to 5 rows");
    assert_text("8 to 20");
    assert_status(moor_records_truncate(lab.records, "a", 1, 21, 8), MOOR_E_RANGE);
    assert_status(moor_records_truncate(lab.records, "nobody", 6, 5, 0), MOOR_E_NOT_FOUND);
    assert_status(moor_records_truncate(lab.records, "a", 1, 20, 8), MOOR_OK); /* nothing to cut */
    assert_status(moor_records_truncate(lab.records, "a", 1, 12, 8), MOOR_OK);
    lab.epoch = 2;
    lab_one(&lab, "a", 12, 5); /* the new turn's own tokens */
    assert_status(lab_seal(&lab, "a", 17), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 12, 1);
    lab_assert_rows(&lab, view, "a", 12, 17, 2);
    /* Cut while it is read: the reader keeps what it has. */
    assert_status(moor_records_truncate(lab.records, "a", 1, 3, 0), MOOR_OK);
    for (int i = 0; i < 20; i++)
        lab_run(&lab, "other", 60, 2);
    lab_assert_rows(&lab, view, "a", 12, 17, 2);
    moor_view *after = lab_view(&lab, "a");
    assert_int_equal(after->rows, 3);
    lab_unview(&lab, view);
    lab_unview(&lab, after);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_10_whole_blocks_that_are_cut_stay_for_their_readers(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    assert_status(fill(&lab, "a", "a", 0, 10, 1), MOOR_OK);
    assert_status(fill(&lab, "a", "a", 10, 10, 1), MOOR_OK); /* a block of its own */
    assert_status(lab_seal(&lab, "a", 20), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    uint64_t bytes = lab_stats(&lab).live_bytes;
    assert_status(moor_records_truncate(lab.records, "a", 1, 10, 0), MOOR_OK);
    assert_int_equal(lab_stats(&lab).live_bytes, bytes);
    for (int i = 0; i < 20; i++)
        lab_run(&lab, "other", 60, 2); /* would take its memory */
    lab_assert_rows(&lab, view, "a", 0, 20, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_10_rows_cut_and_recorded_again_do_not_overwrite_a_prefix_that_others_share(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const int32_t kv[] = {1, 2, 3, 4, 5};
    lab_request a = {.id = "a", .count = 16, .kv = kv, .n_kv = 4};
    lab_step(&lab, &a, 1);
    lab_request b = {.id = "b", .start = 16, .count = 1, .kv = kv, .n_kv = 5};
    lab_step(&lab, &b, 1);
    assert_status(moor_records_truncate(lab.records, "a", 1, 4, 0), MOOR_OK);
    lab.epoch = 2;
    lab_one(&lab, "a", 4, 12);
    assert_status(lab_seal(&lab, "b", 17), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "a", 0, 16, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_8_a_refused_fill_leaves_no_record_behind(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_ids ids = {.data = lab.source, .dtype = MOOR_DTYPE_I32, .tokens = 3 * LAB_LAYERS, .top_k = LAB_K};
    assert_status(moor_records_fill(lab.records, "a", 1, 5, &ids, 3, 1), MOOR_E_RANGE);
    assert_int_equal(lab_stats(&lab).records, 0);
    assert_int_equal(lab_count(&lab, MOOR_C_REQUESTS), 0);
    lab.source[7] = LAB_EXPERTS;
    assert_status(moor_records_fill(lab.records, "a", 1, 0, &ids, 3, 1), MOOR_E_RANGE);
    assert_int_equal(lab_stats(&lab).records, 0);
    assert_int_equal(lab_stats(&lab).live_bytes, 0);
    lab_close(&lab);
}

/* S1.15: what was delivered from outside is not what the KV cache of this worker holds. */
static void S1_15_filled_rows_are_not_given_to_prefix_hits(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const int32_t kv[] = {20, 21, 22, 23};
    moor_ids ids = {.data = lab.source, .dtype = MOOR_DTYPE_I32, .tokens = 8 * LAB_LAYERS, .top_k = LAB_K};
    memset(lab.source, 0, 8 * LAB_LAYERS * LAB_K * sizeof(*lab.source));
    assert_status(moor_records_fill(lab.records, "a", 1, 0, &ids, 8, 1), MOOR_OK);
    /* The engine brings KV for the first 4 tokens from elsewhere, and computes the others itself. */
    lab_request a = {.id = "a", .start = 4, .count = 6, .kv = kv, .n_kv = 3};
    lab_step(&lab, &a, 1);
    lab_request b = {.id = "b", .start = 10, .count = 1, .kv = kv, .n_kv = 3};
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 11), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    lab_assert_missing(view, 0, 8, MOOR_REASON_PREFIX_UNKNOWN);
    lab_assert_rows(&lab, view, "a", 8, 10, 1);
    assert_int_equal(view->missing_rows, 8);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_8_a_refused_fill_leaves_no_record_behind),
        cmocka_unit_test(S1_15_filled_rows_are_not_given_to_prefix_hits),
        cmocka_unit_test(S1_8_three_resumptions_give_each_row_once),
        cmocka_unit_test(S1_8_short_by_one_is_fine_by_two_is_an_error_with_both_numbers),
        cmocka_unit_test(S1_19_a_fill_supplies_the_prefix_that_another_server_computed),
        cmocka_unit_test(S1_6_a_fill_over_present_and_missing_rows_takes_only_the_missing),
        cmocka_unit_test(fill_refuses_wrong_shapes_and_ids),
        cmocka_unit_test(S1_10_truncation_only_inside_the_allowed_range),
        cmocka_unit_test(S1_10_whole_blocks_that_are_cut_stay_for_their_readers),
        cmocka_unit_test(S1_10_rows_cut_and_recorded_again_do_not_overwrite_a_prefix_that_others_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
