/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 3.3, 1.9, 1.10: what a session gives, a proof that its segments are contiguous, and rollback. */
#include "support/traces.h"

/* ---- 3.3 and 1.9: export ---------------------------------------------------------------------------------------- */

static void S3_3_search_gives_the_longest_key_and_its_segment(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_handle a = run(&lab, "a", 9);
    moor_trace_found *found;
    assert_status(insert(&lab, "s", "", 0, 0, 2), MOOR_OK);
    assert_status(insert(&lab, "s", "Hello", a, 10, 7), MOOR_OK);
    assert_status(moor_session_search(lab.records, "s", 1, "Help", 4, &found), MOOR_OK);
    assert_null(found);
    assert_status(moor_session_search(lab.records, "s", 1, "Hello world", 11, &found), MOOR_OK);
    assert_int_equal(found->key_len, 5);
    assert_int_equal(found->start, 2); /* behind the segment of "" */
    assert_int_equal(found->length, 7);
    assert_int_equal(found->has_tokens, 1);
    assert_int_equal(found->n_tokens, 7);
    assert_int_equal(found->tokens[6], 16);
    assert_true(found->handle == a);
    moor_trace_free(found);
    lab_close(&lab);
}

static void S1_9_the_row_of_the_last_sampled_token_comes_from_the_next_turn(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_handle one = run(&lab, "one", 9);  /* 10 tokens: rows 0…8 */
    moor_handle two = run(&lab, "two", 15); /* starts from them, 16 tokens */
    assert_status(insert(&lab, "s", "turn1", one, 0, 10), MOOR_OK);
    assert_status(insert(&lab, "s", "turn1 turn2", two, 10, 6), MOOR_OK);
    moor_trace *trace;
    assert_status(export(&lab, "s", "turn1", &trace), MOOR_OK);
    assert_int_equal(trace->n_tokens, 10);
    assert_int_equal(trace->rows, 9);
    trace_end(&lab, trace);
    assert_status(export(&lab, "s", "turn1 turn2", &trace), MOOR_OK);
    assert_int_equal(trace->n_tokens, 16);
    assert_int_equal(trace->rows, 15);
    assert_int_equal(trace->n_segments, 2);
    assert_int_equal(trace->n_parts, 2);
    assert_int_equal(trace->parts[0].from, 0);
    assert_int_equal(trace->parts[0].to, 9);
    assert_int_equal(trace->parts[1].from, 9); /* row 9 is turn 2's */
    assert_int_equal(trace->parts[1].to, 15);
    lab_assert_rows(&lab, trace->parts[0].view, "one", 0, 9, 1);
    lab_assert_rows(&lab, trace->parts[1].view, "two", 9, 15, 1);
    for (int i = 0; i < 16; i++)
        assert_int_equal(trace->tokens[i], i);
    assert_int_equal(lab_stats(&lab).leases, 2);
    trace_end(&lab, trace);
    assert_int_equal(lab_stats(&lab).leases, 0);
    lab_close(&lab);
}

static void S3_3_a_hole_is_an_error_that_names_it(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_trace *trace;
    moor_handle one = run(&lab, "one", 9), two = run(&lab, "two", 15), three = run(&lab, "three", 20);
    assert_status(insert(&lab, "s", "a", one, 0, 10), MOOR_OK);
    assert_status(insert(&lab, "s", "ab", two, 10, 6), MOOR_OK);
    assert_status(insert(&lab, "s", "abc", three, 16, 5), MOOR_OK);
    assert_status(export(&lab, "s", "abc", &trace), MOOR_OK);
    trace_end(&lab, trace);
    assert_status(export(&lab, "s", "abx", &trace), MOOR_E_NOT_FOUND);
    /* The key between: its segment is missing. */
    assert_status(release_key(&lab, "s", "ab"), MOOR_OK);
    assert_status(export(&lab, "s", "abc", &trace), MOOR_E_INCOMPLETE);
    assert_text("tokens 10 to 16 are missing");
    /* It comes back too long. */
    moor_handle long_one = run(&lab, "long", 30);
    assert_status(insert(&lab, "s", "ab", long_one, 10, 9), MOOR_OK);
    assert_status(export(&lab, "s", "abc", &trace), MOOR_E_INCOMPLETE);
    assert_text("tokens 16 to 19 are there twice");
    assert_status(insert(&lab, "s", "ab", long_one, 10, 6), MOOR_OK);
    assert_status(export(&lab, "s", "abc", &trace), MOOR_OK);
    trace_end(&lab, trace);
    /* A record that is short of its segment by two is refused when it comes, with both numbers. */
    assert_status(insert(&lab, "s", "ab", handle_of(&lab, "one"), 10, 6), MOOR_E_RANGE);
    assert_text("6 tokens from 10 on");
    assert_text("has 9 rows");
    assert_status(export(&lab, "s", "abc", &trace), MOOR_OK); /* and nothing changed */
    trace_end(&lab, trace);
    /* Tokens without a record at the end: no rows for them. */
    assert_status(insert(&lab, "s", "abcd", 0, 21, 4), MOOR_OK);
    assert_status(export(&lab, "s", "abcd", &trace), MOOR_E_INCOMPLETE);
    assert_text("rows 20 to 24 are missing");
    assert_int_equal(lab_stats(&lab).leases, 0);
    lab_close(&lab);
}

static void rows_of_a_segment_without_a_record_come_from_the_next_one(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_trace *trace;
    moor_handle one = run(&lab, "one", 9), two = run(&lab, "two", 15);
    assert_status(insert(&lab, "s", "p", 0, 0, 4), MOOR_OK);
    assert_status(export(&lab, "s", "p", &trace), MOOR_OK); /* tokens only */
    assert_int_equal(trace->rows, 0);
    assert_int_equal(trace->n_tokens, 4);
    trace_end(&lab, trace);
    assert_status(insert(&lab, "s", "pq", one, 4, 5), MOOR_OK);
    assert_status(insert(&lab, "s", "pqr", 0, 9, 3), MOOR_OK);
    assert_status(insert(&lab, "s", "pqrs", two, 12, 3), MOOR_OK);
    assert_status(export(&lab, "s", "pqrs", &trace), MOOR_OK);
    assert_int_equal(trace->n_parts, 2);
    assert_int_equal(trace->parts[0].from, 0);
    assert_int_equal(trace->parts[0].to, 9);
    assert_int_equal(trace->parts[1].to, 15);
    trace_end(&lab, trace);
    /* Segments whose tokens nobody gave: rows only. */
    moor_trace_in in = {.handle = two, .start = 0, .length = 15, .create = 1};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "z", 1, &in), MOOR_OK);
    assert_status(export(&lab, "s", "z", &trace), MOOR_OK);
    assert_int_equal(trace->has_tokens, 0);
    assert_int_equal(trace->rows, 15);
    assert_int_equal(trace->n_parts, 1);
    trace_end(&lab, trace);
    lab_close(&lab);
}

static void what_cannot_be_a_segment_is_refused(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    int32_t tokens[4] = {1, 2, 3, 4};
    moor_trace_in in = {.start = MOOR_TRACE_BEHIND, .length = 3, .tokens = tokens, .n_tokens = 4, .create = 1};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "k", 1, &in), MOOR_E_INVALID);
    assert_text("length 3 with 4 tokens");
    in = (moor_trace_in){.start = 0, .length = MOOR_TRACE_ROWS, .create = 1};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "k", 1, &in), MOOR_E_INVALID);
    assert_status(moor_session_insert(lab.records, ALICE, "", 0, "k", 1, &in), MOOR_E_INVALID);
    lab_one(&lab, "open", 0, 5);
    assert_status(insert(&lab, "s", "k", handle_of(&lab, "open"), 0, 5), MOOR_E_STATE);
    assert_text("not sealed");
    in = (moor_trace_in){.handle = run(&lab, "a", 5), .start = UINT64_MAX - 3, .length = 5, .create = 1};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "k", 1, &in), MOOR_E_RANGE);
    /* without a record nothing else bounds it, and a snapshot with such a segment could not be restored */
    in = (moor_trace_in){.start = INT64_MAX - 3, .length = 4, .create = 1};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "k", 1, &in), MOOR_E_RANGE);
    assert_text("4 tokens from 9223372036854775804");
    assert_int_equal(lab_stats(&lab).sessions, 0);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

/* ---- 1.10: rollback --------------------------------------------------------------------------------------------- */

static void two_turns(lab_store *lab)
{
    moor_handle one = run(lab, "one", 9), two = run(lab, "two", 15);
    assert_status(insert(lab, "s", "turn1", one, 0, 10), MOOR_OK);
    assert_status(insert(lab, "s", "turn1 turn2", two, 10, 6), MOOR_OK);
}

static void S1_10_tokens_and_rows_are_cut_together_at_the_first_difference(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_rollback out;
    moor_trace *trace;
    two_turns(&lab);
    int32_t turn[20];
    memcpy(turn, tokens_from(0, 20), sizeof(turn));
    assert_status(roll(&lab, "turn1 turn2", turn, 20, 16, &out), MOOR_OK); /* goes on behind all of it */
    assert_int_equal(out.kept, 16);
    assert_int_equal(out.key_len, 11);
    turn[13] = -1;
    assert_status(roll(&lab, "turn1 turn2", turn, 20, 14, &out), MOOR_E_RANGE);
    assert_text("differ from 13 on");
    assert_text("14 to 16");
    assert_status(export(&lab, "s", "turn1 turn2", &trace), MOOR_OK); /* nothing changed */
    assert_int_equal(trace->n_tokens, 16);
    assert_int_equal(trace->rows, 15);
    trace_end(&lab, trace);
    assert_status(roll(&lab, "turn1 turn2", turn, 20, 13, &out), MOOR_OK);
    assert_int_equal(out.kept, 13);
    assert_int_equal(out.key_len, 11);
    assert_status(export(&lab, "s", "turn1 turn2", &trace), MOOR_OK);
    assert_int_equal(trace->n_tokens, 13);
    assert_int_equal(trace->rows, 13);
    trace_end(&lab, trace);
    moor_view *view = lab_view(&lab, "two");
    assert_int_equal(view->rows, 13);
    lab_unview(&lab, view);
    lab_close(&lab);
}

static void S1_10_a_cut_at_a_turns_first_token_takes_the_turn_with_it(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_rollback out;
    moor_trace *trace;
    two_turns(&lab);
    moor_handle two = handle_of(&lab, "two");
    assert_status(roll(&lab, "turn1 turn2", tokens_from(0, 20), 10, 5, &out), MOOR_OK); /* shorter: ends there */
    assert_int_equal(out.kept, 10);
    assert_int_equal(out.key_len, 5);
    assert_string_equal(keys(&lab, "s"), "turn1");
    assert_status(readable(&lab, two), MOOR_E_STALE);
    assert_status(export(&lab, "s", "turn1", &trace), MOOR_OK);
    assert_int_equal(trace->rows, 9);
    trace_end(&lab, trace);
    assert_status(roll(&lab, "turn1", tokens_from(5, 20), 10, 0, &out), MOOR_OK);
    assert_int_equal(out.kept, 0);
    assert_int_equal(out.key_len, 0);
    assert_string_equal(keys(&lab, "s"), "");
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_10_nothing_is_cut_on_which_other_keys_hang(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_rollback out;
    moor_trace *trace;
    two_turns(&lab);
    moor_handle other = run(&lab, "other", 14);
    assert_status(insert(&lab, "s", "turn1 other", other, 10, 5), MOOR_OK);
    int32_t turn[20];
    memcpy(turn, tokens_from(0, 20), sizeof(turn));
    turn[8] = -1;
    assert_status(roll(&lab, "turn1 turn2", turn, 20, 0, &out), MOOR_E_STATE);
    assert_text("other keys go on");
    /* The record is cut for both of its keys, or for none. */
    assert_status(insert(&lab, "s", "copy", handle_of(&lab, "two"), 0, 16), MOOR_OK);
    turn[8] = 8;
    turn[12] = -1;
    assert_status(roll(&lab, "turn1 turn2", turn, 20, 0, &out), MOOR_E_STATE);
    assert_text("request two is also the key of 4 bytes");
    assert_status(export(&lab, "s", "turn1 turn2", &trace), MOOR_OK);
    assert_int_equal(trace->rows, 15);
    trace_end(&lab, trace);
    assert_status(release_key(&lab, "s", "copy"), MOOR_OK);
    assert_status(roll(&lab, "turn1 turn2", turn, 20, 0, &out), MOOR_OK);
    assert_int_equal(out.kept, 12);
    /* Tokens that nobody gave cannot be matched. */
    moor_trace_in in = {.handle = handle_of(&lab, "other"), .start = 0, .length = 10};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "z", 1, &in), MOOR_OK);
    assert_status(roll(&lab, "z", turn, 20, 0, &out), MOOR_E_STATE);
    assert_text("not known");
    lab_close(&lab);
}

static void S1_10_truncating_a_record_cuts_the_tokens_of_its_session(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_trace *trace;
    two_turns(&lab);
    assert_status(moor_records_truncate(lab.records, "one", 3, 5, 0), MOOR_E_STATE); /* turn 2 hangs on it */
    assert_text("keys of session s go on");
    assert_status(moor_records_truncate(lab.records, "two", 3, 10, 0), MOOR_E_STATE); /* nothing would be left */
    assert_status(moor_records_truncate(lab.records, "two", 3, 12, 13), MOOR_E_RANGE);
    assert_status(export(&lab, "s", "turn1 turn2", &trace), MOOR_OK);
    assert_int_equal(trace->n_tokens, 16);
    trace_end(&lab, trace);
    assert_status(moor_records_truncate(lab.records, "two", 3, 15, 0), MOOR_OK); /* all it has: nothing to cut */
    assert_status(moor_records_truncate(lab.records, "two", 3, 12, 12), MOOR_OK);
    assert_status(export(&lab, "s", "turn1 turn2", &trace), MOOR_OK);
    assert_int_equal(trace->n_tokens, 12);
    assert_int_equal(trace->rows, 12);
    trace_end(&lab, trace);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S3_3_search_gives_the_longest_key_and_its_segment),
        cmocka_unit_test(S1_9_the_row_of_the_last_sampled_token_comes_from_the_next_turn),
        cmocka_unit_test(S3_3_a_hole_is_an_error_that_names_it),
        cmocka_unit_test(rows_of_a_segment_without_a_record_come_from_the_next_one),
        cmocka_unit_test(what_cannot_be_a_segment_is_refused),
        cmocka_unit_test(S1_10_tokens_and_rows_are_cut_together_at_the_first_difference),
        cmocka_unit_test(S1_10_a_cut_at_a_turns_first_token_takes_the_turn_with_it),
        cmocka_unit_test(S1_10_nothing_is_cut_on_which_other_keys_hang),
        cmocka_unit_test(S1_10_truncating_a_record_cuts_the_tokens_of_its_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
