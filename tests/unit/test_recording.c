/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 1, in the store itself: rows, versions, speculation. Ends and failures: test_recording_ends.c; prefixes: test_prefix.c. */
#include <string.h>

#include "support/lab.h"

static void S1_1_rows_are_the_tokens_that_went_through_the_model(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_run(&lab, "a", 5, 3);
    lab_run(&lab, "b", 5, 0);
    lab_run(&lab, "c", 5, 1);
    const char *ids[] = {"a", "b", "c"};
    const uint64_t rows[] = {7, 5, 5};
    for (int i = 0; i < 3; i++) {
        moor_view *view = lab_view(&lab, ids[i]);
        assert_int_equal(view->rows, rows[i]);
        assert_int_equal(view->missing_rows, 0);
        assert_int_equal(view->n_segments, 1);
        lab_assert_rows(&lab, view, ids[i], 0, rows[i], 1);
        lab_unview(&lab, view);
    }
    assert_int_equal(lab.sealed_events, 3);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_1_surplus_of_an_abort_is_dropped_and_committed_rows_kept(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 5);
    lab_one(&lab, "a", 5, 1);
    lab_one(&lab, "a", 6, 1); /* forwarded, its output discarded */
    assert_status(lab_seal(&lab, "a", 6), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 6);
    lab_assert_rows(&lab, view, "a", 0, 6, 1);
    lab_unview(&lab, view);
    assert_int_equal(lab.last_event.rows, 6); /* it is nowhere, not only hidden */

    lab_one(&lab, "p", 0, 8); /* chunked prefill, aborted with a step in flight */
    lab_request chunk = {.id = "p", .start = 8, .count = 8};
    assert_status(lab_begin(&lab, &chunk, 1), MOOR_OK);
    assert_status(moor_seal_push(lab.ring, moor_id_hash("p", 1), (moor_hash128){0, 0}, 0,
                                 MOOR_SEAL_COMMITTED | MOOR_SEAL_ABORTED),
                  MOOR_OK);
    assert_int_equal(moor_records_drain(lab.records), 1);
    assert_status(moor_records_open(lab.records, 1, "p", 1, 0, 0, &view), MOOR_E_TIMEOUT);
    lab_capture(&lab, &chunk, 1);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    view = lab_view(&lab, "p");
    assert_int_equal(view->rows, 16);
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "p", 0, 16, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_2_an_id_beyond_the_experts_names_request_token_layer_and_id(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request requests[] = {{.id = "first", .count = 3}, {.id = "second", .start = 0, .count = 2}};
    const int32_t bad[] = {128, 300, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 10; i++) { /* short runs of rows are staged, long ones captured in place */
        lab_request longer[] = {{.id = "first", .count = 30}, {.id = "second", .count = 20}};
        uint32_t first = i < 5 ? 3 : 30, all = i < 5 ? 5 : 50;
        assert_status(lab_begin(&lab, i < 5 ? requests : longer, 2), MOOR_OK);
        for (uint32_t j = 0; j < all * LAB_K; j++)
            lab.source[j] = j % LAB_K;
        lab.source[(first + 1) * LAB_K + 2] = bad[i % 5]; /* token 1 of the second request */
        moor_ids ids = {.data = lab.source, .dtype = MOOR_DTYPE_I32, .tokens = all, .top_k = LAB_K};
        assert_status(moor_records_capture(lab.records, 2, &ids), MOOR_E_RANGE);
        char number[32];
        snprintf(number, sizeof(number), "id %d,", bad[i % 5]);
        assert_text("request second");
        assert_text("token 1,");
        assert_text("layer 7:"); /* column 2 */
        assert_text(number);
        assert_text("128 experts");
        assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    }
    assert_int_equal(lab_count(&lab, MOOR_C_CAPTURE_ERRORS), 10);
    /* The layer is missing in the step that had it, and only there. */
    lab.skip_layer = 2;
    assert_status(lab_begin(&lab, requests, 2), MOOR_OK);
    lab_capture(&lab, requests, 2);
    lab.source[0] = 128;
    moor_ids ids = {.data = lab.source, .dtype = MOOR_DTYPE_I32, .tokens = 5, .top_k = LAB_K};
    assert_status(moor_records_capture(lab.records, 2, &ids), MOOR_E_RANGE);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    lab.skip_layer = -1;
    lab_one(&lab, "first", 3, 1);
    assert_status(lab_seal(&lab, "first", 4), MOOR_OK);
    moor_view *view = lab_view(&lab, "first");
    lab_assert_missing(view, 0, 3, MOOR_REASON_LAYER_MISSING);
    lab_assert_rows(&lab, view, "first", 3, 4, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_2_validate_finds_what_no_router_chooses(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.validate_at_seal = 1;
    lab_open_with(&lab);
    moor_log_configure(NULL, -1);
    lab_request request = {.id = "v", .count = 3};
    assert_status(lab_begin(&lab, &request, 1), MOOR_OK);
    for (uint32_t layer = 0; layer < LAB_LAYERS; layer++) {
        for (uint32_t i = 0; i < 3 * LAB_K; i++)
            lab.source[i] = (int32_t)(i % LAB_K);
        if (layer == 5)
            lab.source[LAB_K + 3] = 1; /* row 1: id 1 twice */
        moor_ids ids = {.data = lab.source, .dtype = MOOR_DTYPE_I32, .tokens = 3, .top_k = LAB_K};
        assert_status(moor_records_capture(lab.records, layer, &ids), MOOR_OK);
    }
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    assert_status(lab_seal(&lab, "v", 3), MOOR_OK);
    moor_view *view = lab_view(&lab, "v");
    assert_int_equal(view->missing_rows, 1);
    assert_int_equal(view->reasons, MOOR_REASON_VALIDATION);
    lab_assert_missing(view, 1, 2, MOOR_REASON_VALIDATION);
    assert_non_null(lab_row(&lab, view, 0));
    assert_non_null(lab_row(&lab, view, 2));
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
    moor_log_configure(NULL, MOOR_LOG_INFO);
}

static void S1_4_a_missing_layer_makes_exactly_those_rows_missing(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.layers = 48;
    lab_open_with(&lab);
    lab_one(&lab, "a", 0, 10);
    lab.skip_layer = 17;
    lab_one(&lab, "a", 10, 1);
    lab_one(&lab, "a", 11, 1);
    lab.skip_layer = -1;
    lab_one(&lab, "a", 12, 1);
    assert_status(lab_seal(&lab, "a", 13), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 13);
    assert_int_equal(view->missing_rows, 2);
    assert_int_equal(view->reasons, MOOR_REASON_LAYER_MISSING);
    lab_assert_rows(&lab, view, "a", 0, 10, 1);
    lab_assert_missing(view, 10, 12, MOOR_REASON_LAYER_MISSING);
    lab_assert_rows(&lab, view, "a", 12, 13, 1);
    lab_unview(&lab, view);
    assert_int_equal(lab_count(&lab, MOOR_C_INCOMPLETE), 1);
    assert_int_equal(lab_count(&lab, MOOR_C_ROWS_MISSING), 2);
    assert_int_equal(lab_count(&lab, MOOR_C_STEPS_NEVER_FIRED), 0);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_5_a_step_in_which_nothing_fired_is_counted_and_missing(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request request = {.id = "a", .count = 4};
    assert_status(lab_begin(&lab, &request, 1), MOOR_OK);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    assert_int_equal(lab_count(&lab, MOOR_C_STEPS_NEVER_FIRED), 1);
    assert_status(lab_seal(&lab, "a", 4), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->missing_rows, 4);
    lab_assert_missing(view, 0, 4, MOOR_REASON_LAYER_MISSING);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_5_a_short_record_is_incomplete_with_the_exact_range(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 10);
    assert_status(lab_seal(&lab, "a", 13), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 13);
    lab_assert_rows(&lab, view, "a", 0, 10, 1);
    lab_assert_missing(view, 10, 13, MOOR_REASON_SHORT);
    assert_int_equal(view->reasons, MOOR_REASON_SHORT);
    assert_int_equal(view->n_versions, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_6_first_accepted_wins_across_a_preemption_and_an_update(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 30);
    for (uint32_t i = 30; i < 40; i++)
        lab_one(&lab, "a", i, 1);
    lab.epoch = 2;
    lab_one(&lab, "a", 0, 40); /* slots reused, prefix recomputed at version 2 */
    for (uint32_t i = 40; i < 100; i++)
        lab_one(&lab, "a", i, 1);
    assert_status(lab_seal(&lab, "a", 100), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 100);
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "a", 0, 40, 1);
    lab_assert_rows(&lab, view, "a", 40, 100, 2);
    assert_int_equal(view->n_versions, 2);
    assert_int_equal(view->versions[0].start, 0);
    assert_int_equal(view->versions[0].epoch, 1);
    assert_int_equal(view->versions[1].start, 40);
    assert_int_equal(view->versions[1].epoch, 2);
    assert_int_equal(view->dropped_rows, 40);
    assert_int_equal(lab_count(&lab, MOOR_C_ROWS_DROPPED), 40);
    assert_int_equal(lab_count(&lab, MOOR_C_ROWS), 100);
    assert_int_equal(lab.last_event.epoch_first, 1);
    assert_int_equal(lab.last_event.epoch_last, 2);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_6_one_step_may_recompute_and_go_on(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 7);
    lab.epoch = 2;
    lab_one(&lab, "a", 3, 10); /* 3…6 again, 7…12 new */
    assert_status(lab_seal(&lab, "a", 13), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 7, 1);
    lab_assert_rows(&lab, view, "a", 7, 13, 2);
    assert_int_equal(view->dropped_rows, 4);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_7_a_shorter_restart_does_not_replace_a_longer_capture(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 10);
    lab.epoch = 2;
    lab_one(&lab, "a", 0, 4);
    assert_status(moor_records_finished(lab.records, "a", 1), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 10);
    lab_assert_rows(&lab, view, "a", 0, 10, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_11_rejected_speculative_tokens_leave_no_row(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 5);
    /* Told at commit: one real and three drafts, of which one is accepted. */
    lab_request draft = {.id = "a", .start = 5, .count = 4, .spec = 3};
    uint32_t accepted = 2;
    assert_status(lab_begin(&lab, &draft, 1), MOOR_OK);
    lab_capture(&lab, &draft, 1);
    assert_status(moor_records_step_commit(lab.records, &accepted, 1), MOOR_OK);
    assert_int_equal(lab_count(&lab, MOOR_C_ROWS_REJECTED), 2);
    /* Told by the next start: it begins at 9, so drafts 8 and 9 of 8…10 … only 8 was accepted. */
    lab_request later = {.id = "a", .start = 7, .count = 4, .spec = 3};
    lab.epoch = 2;
    lab_step(&lab, &later, 1);
    lab_request next = {.id = "a", .start = 9, .count = 3, .spec = 2};
    lab.epoch = 3;
    lab_step(&lab, &next, 1);
    assert_int_equal(lab_count(&lab, MOOR_C_ROWS_REJECTED), 4);
    /* Told by the seal: 9 and 10 were accepted, 11 was not. */
    assert_status(lab_seal(&lab, "a", 11), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 11);
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "a", 0, 7, 1);
    lab_assert_rows(&lab, view, "a", 7, 9, 2);
    lab_assert_rows(&lab, view, "a", 9, 11, 3);
    assert_int_equal(view->n_versions, 3);
    assert_int_equal(view->versions[1].start, 7);
    assert_int_equal(view->versions[2].start, 9);
    assert_int_equal(view->n_segments, 1); /* the room of rejected rows was used again */
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_11_undecided_rows_are_dropped_when_nobody_decides(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 5);
    lab_request draft = {.id = "a", .start = 5, .count = 4, .spec = 3};
    lab_step(&lab, &draft, 1);
    assert_status(moor_records_finished(lab.records, "a", 1), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 6);
    lab_unview(&lab, view);
    /* Preempted with undecided rows: what is computed again from the start decides them anew. */
    lab_one(&lab, "b", 0, 5);
    draft.id = "b";
    lab_step(&lab, &draft, 1);
    lab.epoch = 2;
    lab_one(&lab, "b", 0, 8);
    assert_status(lab_seal(&lab, "b", 8), MOOR_OK);
    view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "b", 0, 6, 1);
    lab_assert_rows(&lab, view, "b", 6, 8, 2);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_11_a_layer_captured_twice_keeps_the_first(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request request = {.id = "a", .count = 2};
    assert_status(lab_begin(&lab, &request, 1), MOOR_OK);
    lab_capture(&lab, &request, 1);
    memset(lab.source, 0, 2 * LAB_K * sizeof(*lab.source)); /* a draft layer with a target's number */
    moor_ids ids = {.data = lab.source, .dtype = MOOR_DTYPE_I32, .tokens = 2, .top_k = LAB_K};
    assert_status(moor_records_capture(lab.records, 3, &ids), MOOR_E_STATE);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    assert_status(lab_seal(&lab, "a", 2), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 2, 1);
    lab_unview(&lab, view);
    assert_int_equal(lab_count(&lab, MOOR_C_CAPTURE_ERRORS), 1);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_13_a_source_buffer_may_be_reused_at_once(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 100); /* lab_capture uses one buffer for all layers */
    memset(lab.source, 0xff, 100 * LAB_K * sizeof(*lab.source));
    assert_status(lab_seal(&lab, "a", 100), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 100, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_14_a_capture_or_step_that_is_too_large_is_refused_before_a_byte(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.max_step_tokens = 8;
    lab_open_with(&lab);
    lab_request large = {.id = "a", .count = 9}, fits = {.id = "a", .count = 8};
    assert_status(lab_begin(&lab, &large, 1), MOOR_E_RANGE);
    assert_text("9 tokens");
    assert_text("made for 8");
    moor_ids ids = {.data = lab.source, .dtype = MOOR_DTYPE_I32, .tokens = 8, .top_k = LAB_K};
    assert_status(moor_records_capture(lab.records, 0, &ids), MOOR_E_STATE); /* no step */
    assert_status(lab_begin(&lab, &fits, 1), MOOR_OK);
    lab_capture(&lab, &fits, 1);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    fits.start = 8;
    assert_status(lab_begin(&lab, &fits, 1), MOOR_OK);
    uint8_t before[64];
    memcpy(before, lab.records->step.stage.ids, sizeof(before));
    ids.tokens = 9; /* one past the step: its last row would lie past the end */
    assert_status(moor_records_capture(lab.records, 0, &ids), MOOR_E_RANGE);
    assert_text("9 tokens");
    ids.tokens = 7;
    assert_status(moor_records_capture(lab.records, 1, &ids), MOOR_E_INVALID);
    assert_text("7 tokens");
    assert_text("has 8");
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    lab_request small = {.id = "a", .start = 16, .count = 2};
    assert_status(lab_begin(&lab, &small, 1), MOOR_OK);
    ids.tokens = 3; /* within the store's limit, but not this step's tokens */
    assert_status(moor_records_capture(lab.records, 0, &ids), MOOR_E_INVALID);
    assert_text("3 tokens");
    assert_text("has 2");
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    fits.start = 18;
    assert_status(lab_begin(&lab, &fits, 1), MOOR_OK);
    memcpy(before, lab.records->step.stage.ids, sizeof(before));
    ids.tokens = 8;
    ids.top_k = LAB_K + 1;
    assert_status(moor_records_capture(lab.records, 2, &ids), MOOR_E_INVALID);
    ids.top_k = LAB_K;
    ids.dtype = 9;
    assert_status(moor_records_capture(lab.records, 3, &ids), MOOR_E_INVALID);
    assert_status(moor_records_capture(lab.records, LAB_LAYERS, &ids), MOOR_E_RANGE);
    assert_memory_equal(before, lab.records->step.stage.ids, sizeof(before));
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    assert_int_equal(lab_count(&lab, MOOR_C_CAPTURE_ERRORS), 7);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

/* S1.4: each missing range with its own reason. */
static void S1_4_reasons_are_those_of_their_rows(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 4);
    lab_request step = {.id = "a", .start = 4, .count = 2};
    assert_status(lab_begin(&lab, &step, 1), MOOR_OK);
    assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    lab_one(&lab, "a", 6, 2); /* 4 and 5 are lost */
    step = (lab_request){.id = "a", .start = 8, .count = 2};
    assert_status(lab_begin(&lab, &step, 1), MOOR_OK);
    assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    assert_status(lab_seal(&lab, "a", 13), MOOR_OK); /* 8 and 9 were lost, 10 to 12 never came */
    moor_view *view = lab_view(&lab, "a");
    lab_assert_missing(view, 4, 6, MOOR_REASON_STEP_FAILED);
    lab_assert_rows(&lab, view, "a", 6, 8, 1);
    lab_assert_missing(view, 8, 10, MOOR_REASON_STEP_FAILED | MOOR_REASON_SHORT);
    lab_assert_missing(view, 10, 13, MOOR_REASON_SHORT);
    assert_int_equal(view->missing_rows, 7);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_4_reasons_are_those_of_their_rows),
        cmocka_unit_test(S1_1_rows_are_the_tokens_that_went_through_the_model),
        cmocka_unit_test(S1_1_surplus_of_an_abort_is_dropped_and_committed_rows_kept),
        cmocka_unit_test(S1_2_an_id_beyond_the_experts_names_request_token_layer_and_id),
        cmocka_unit_test(S1_2_validate_finds_what_no_router_chooses),
        cmocka_unit_test(S1_4_a_missing_layer_makes_exactly_those_rows_missing),
        cmocka_unit_test(S1_5_a_step_in_which_nothing_fired_is_counted_and_missing),
        cmocka_unit_test(S1_5_a_short_record_is_incomplete_with_the_exact_range),
        cmocka_unit_test(S1_6_first_accepted_wins_across_a_preemption_and_an_update),
        cmocka_unit_test(S1_6_one_step_may_recompute_and_go_on),
        cmocka_unit_test(S1_7_a_shorter_restart_does_not_replace_a_longer_capture),
        cmocka_unit_test(S1_11_rejected_speculative_tokens_leave_no_row),
        cmocka_unit_test(S1_11_undecided_rows_are_dropped_when_nobody_decides),
        cmocka_unit_test(S1_11_a_layer_captured_twice_keeps_the_first),
        cmocka_unit_test(S1_13_a_source_buffer_may_be_reused_at_once),
        cmocka_unit_test(S1_14_a_capture_or_step_that_is_too_large_is_refused_before_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
