/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 1.17, 1.22: rows without room, how a request ends, and steps that fail. What a step records: test_recording.c. */
#include <stdlib.h>

#include "support/lab.h"

static void S1_17_a_full_arena_loses_rows_not_requests(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.arena_bytes = 1 << 20; /* 43,690 rows of 24 bytes, less what size classes take */
    lab_open_with(&lab);
    char id[16];
    int first_incomplete = -1;
    for (int i = 0; i < 12; i++) {
        snprintf(id, sizeof(id), "r%d", i);
        lab_one(&lab, id, 0, 8000);
        assert_status(lab_seal(&lab, id, 8000), MOOR_OK);
        moor_view *view = lab_view(&lab, id);
        assert_int_equal(view->rows, 8000);
        if (view->missing_rows) {
            assert_int_equal(view->reasons, MOOR_REASON_ARENA_FULL);
            if (first_incomplete < 0)
                first_incomplete = i;
        } else {
            lab_assert_rows(&lab, view, id, 0, 8000, 1);
        }
        lab_unview(&lab, view);
    }
    assert_true(first_incomplete >= 3);
    assert_true(lab_count(&lab, MOOR_C_ARENA_FULL) > 0);
    for (int i = 0; i < 3; i++) { /* space returns */
        moor_handle handle;
        snprintf(id, sizeof(id), "r%d", i);
        assert_status(moor_records_find(lab.records, id, (uint32_t)strlen(id), &handle), MOOR_OK);
        assert_status(moor_records_event(lab.records, handle, MOOR_EVENT_DISCARD), MOOR_OK);
    }
    lab_run(&lab, "whole", 8000, 4);
    moor_view *view = lab_view(&lab, "whole");
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "whole", 0, 8003, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_17_rows_go_on_in_the_record_that_lost_some(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 5);
    for (uint64_t n = 1; n <= 2;
         n++) { /* the 64 rows of the first block are used up; growing and a new block both fail */
        lab_one(&lab, "a", 5 + (n - 1), 1);
    }
    lab_request request = {.id = "b", .count = 50};
    for (uint64_t nth = 1; nth < 12; nth++) {
        moor_fault_arm(nth);
        char id[8];
        snprintf(id, sizeof(id), "b%d", (int)nth);
        request.id = id;
        request.start = 0;
        assert_status(lab_begin(&lab, &request, 1), MOOR_OK);
        lab_capture(&lab, &request, 1);
        assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
        moor_fault_arm(0);
        lab_one(&lab, id, 50, 3);
        assert_status(lab_seal(&lab, id, 53), MOOR_OK);
        moor_view *view = lab_view(&lab, id);
        assert_int_equal(view->rows, 53);
        lab_assert_rows(&lab, view, id, 50, 53, 1);
        if (view->missing_rows) {
            assert_int_equal(view->missing_rows, 50);
            assert_true(view->reasons == MOOR_REASON_ARENA_FULL || view->reasons == MOOR_REASON_PREFIX_UNKNOWN);
        } else {
            lab_assert_rows(&lab, view, id, 0, 50, 1);
        }
        lab_unview(&lab, view);
    }
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_22_each_end_is_exactly_one_seal(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_hash128 none = {0, 0}, a = moor_id_hash("a", 1);
    lab_one(&lab, "a", 0, 4);
    assert_status(moor_seal_push(lab.ring, a, none, 4, 0), MOOR_OK);
    assert_status(moor_seal_push(lab.ring, a, none, 2, MOOR_SEAL_ABORTED), MOOR_OK); /* told twice */
    assert_status(moor_records_finished(lab.records, "a", 1), MOOR_OK);              /* and by the worker */
    assert_status(moor_records_finished(lab.records, "a", 1), MOOR_OK);
    assert_int_equal(lab.sealed_events, 1);
    assert_int_equal(lab_count(&lab, MOOR_C_SEALED), 1);
    assert_int_equal(lab_stats(&lab).seals_repeated, 1);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 4); /* the core's number, not the worker's fallback, and not the second one */
    lab_unview(&lab, view);
    /* A request that never ran here is told of, and remembered as unknown. */
    assert_status(moor_seal_push(lab.ring, moor_id_hash("never", 5), none, 0, MOOR_SEAL_ABORTED), MOOR_OK);
    assert_int_equal(moor_records_drain(lab.records), 1);
    assert_int_equal(lab.sealed_events, 2);
    assert_int_equal(lab_stats(&lab).seals_unknown, 1);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_22_a_seal_during_the_last_step_waits_for_its_commit(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 4);
    lab_request last = {.id = "a", .start = 4, .count = 1};
    assert_status(lab_begin(&lab, &last, 1), MOOR_OK);
    lab_capture(&lab, &last, 1);
    assert_status(lab_seal(&lab, "a", 5), MOOR_OK);
    assert_int_equal(lab.sealed_events, 0);
    assert_status(lab_seal(&lab, "a", 4), MOOR_OK); /* a second one changes nothing */
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    assert_int_equal(lab.sealed_events, 1);
    moor_view *view = lab_view(&lab, "a");
    assert_int_equal(view->rows, 5);
    lab_assert_rows(&lab, view, "a", 0, 5, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_22_steps_under_way_after_the_seal_make_no_second_record(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 4);
    assert_status(lab_seal(&lab, "a", 4), MOOR_OK);
    lab_one(&lab, "a", 4, 1);              /* scheduled before the seal */
    moor_view *view = lab_view(&lab, "a"); /* not ambiguous */
    assert_int_equal(view->rows, 4);
    lab_unview(&lab, view);
    assert_int_equal(lab_stats(&lab).records, 1);
    /* The worker's notice ends the id: what comes now is another request. */
    assert_status(moor_records_finished(lab.records, "a", 1), MOOR_OK);
    lab.epoch = 2;
    lab_one(&lab, "a", 0, 6);
    assert_status(lab_seal(&lab, "a", 6), MOOR_OK);
    assert_int_equal(lab_stats(&lab).records, 2);
    assert_status(moor_records_open(lab.records, 1, "a", 1, 0, 0, &view), MOOR_E_AMBIGUOUS);
    moor_view **views;
    uint32_t n;
    assert_status(moor_records_open_all(lab.records, 1, "a", 1, &views, &n), MOOR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(views[0]->rows, 4);
    assert_int_equal(views[1]->rows, 6);
    lab_assert_rows(&lab, views[1], "a", 0, 6, 2);
    moor_views_free(views, n);
    assert_int_equal(moor_records_disconnect(lab.records, 1), 2);
    /* Without a notice, a step from 0 is a new request as well. */
    lab_one(&lab, "c", 0, 4);
    assert_status(lab_seal(&lab, "c", 4), MOOR_OK);
    lab_one(&lab, "c", 0, 2);
    assert_int_equal(lab_stats(&lab).records, 4);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_22_an_abandoned_step_leaves_missing_rows_unless_it_is_done_again(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 4);
    lab_request more = {.id = "a", .start = 4, .count = 3};
    assert_status(lab_begin(&lab, &more, 1), MOOR_OK);
    lab_capture(&lab, &more, 1);
    assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    lab_one(&lab, "a", 7, 1); /* the engine went on all the same */
    assert_status(lab_seal(&lab, "a", 8), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 4, 1);
    lab_assert_missing(view, 4, 7, MOOR_REASON_STEP_FAILED);
    lab_assert_rows(&lab, view, "a", 7, 8, 1);
    lab_unview(&lab, view);

    lab_one(&lab, "b", 0, 4);
    more.id = "b";
    assert_status(lab_begin(&lab, &more, 1), MOOR_OK);
    lab_step(&lab, &more, 1); /* begin again abandons, then it is done */
    assert_status(lab_seal(&lab, "b", 7), MOOR_OK);
    view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "b", 0, 7, 1);
    lab_unview(&lab, view);

    lab_one(&lab, "c", 0, 4); /* the fallback seal does not call it whole */
    more.id = "c";
    assert_status(lab_begin(&lab, &more, 1), MOOR_OK);
    assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    assert_status(moor_records_finished(lab.records, "c", 1), MOOR_OK);
    view = lab_view(&lab, "c");
    assert_int_equal(view->rows, 7);
    lab_assert_missing(view, 4, 7, MOOR_REASON_STEP_FAILED);
    lab_unview(&lab, view);
    assert_int_equal(lab_count(&lab, MOOR_C_STEPS_FAILED), 3);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void a_step_refuses_nonsense_and_changes_nothing(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request twice[] = {{.id = "a", .count = 1}, {.id = "a", .start = 1, .count = 1}};
    assert_status(lab_begin(&lab, twice, 2), MOOR_E_INVALID);
    assert_text("request a");
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_E_STATE);
    lab_request spec = {.id = "a", .count = 1, .spec = 2};
    assert_status(lab_begin(&lab, &spec, 1), MOOR_E_INVALID);
    lab_request good = {.id = "a", .count = 2};
    assert_status(lab_begin(&lab, &good, 1), MOOR_OK);
    lab_capture(&lab, &good, 1);
    uint32_t accepted[2] = {3, 0};
    assert_status(moor_records_step_commit(lab.records, accepted, 1), MOOR_E_INVALID);
    assert_text("3 tokens accepted of request a");
    assert_status(moor_records_step_commit(lab.records, accepted, 2), MOOR_E_INVALID);
    accepted[0] = 2;
    assert_status(moor_records_step_commit(lab.records, accepted, 1), MOOR_OK);
    assert_status(lab_seal(&lab, "a", 2), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 2, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void a_long_record_of_many_small_steps_is_few_segments(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request both[] = {{.id = "a", .count = 1}, {.id = "b", .count = 1}};
    for (uint32_t i = 0; i < 5000; i++) {
        both[0].start = both[1].start = i;
        lab_step(&lab, both, 2);
    }
    for (int i = 0; i < 2; i++) {
        assert_status(lab_seal(&lab, both[i].id, 5000), MOOR_OK);
        moor_view *view = lab_view(&lab, both[i].id);
        lab_assert_rows(&lab, view, both[i].id, 0, 5000, 1);
        assert_true(view->n_segments <= 8);
        lab_unview(&lab, view);
    }
    /* Sealed blocks were shrunk: at most a size class more than the rows. */
    assert_true(lab_stats(&lab).live_bytes < 2 * 5000 * 24 * 5 / 4);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void a_prefill_larger_than_a_block_is_whole(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.layers = 48;
    lab.config.top_k = 8;
    lab.config.num_experts = 512; /* two bytes: 768 a row, 2,730 rows a block */
    lab_open_with(&lab);
    lab_one(&lab, "a", 0, 8000);
    lab_one(&lab, "a", 8000, 8);
    assert_status(lab_seal(&lab, "a", 8008), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    assert_true(view->n_segments >= 3);
    lab_assert_rows(&lab, view, "a", 0, 8008, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_17_a_full_arena_loses_rows_not_requests),
        cmocka_unit_test(S1_17_rows_go_on_in_the_record_that_lost_some),
        cmocka_unit_test(S1_22_each_end_is_exactly_one_seal),
        cmocka_unit_test(S1_22_a_seal_during_the_last_step_waits_for_its_commit),
        cmocka_unit_test(S1_22_steps_under_way_after_the_seal_make_no_second_record),
        cmocka_unit_test(S1_22_an_abandoned_step_leaves_missing_rows_unless_it_is_done_again),
        cmocka_unit_test(a_step_refuses_nonsense_and_changes_nothing),
        cmocka_unit_test(a_long_record_of_many_small_steps_is_few_segments),
        cmocka_unit_test(a_prefill_larger_than_a_block_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
