/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 1.12, pipeline stages: each a process with a store of its own layers; who opens a request gets one record (client/stages.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/actors.h"

/* Stages 0 and 1 of replica `replica`, with the columns given as digits. */
static void start_stages(actor stage[2], int replica, const char *columns_0, const char *columns_1)
{
    const char *columns[2] = {columns_0, columns_1};
    for (int s = 0; s < 2; s++) {
        actor_start(&stage[s], replica || s ? "MOOR_INSTANCE=default" : "MOOR_OTHER=1", NULL);
        actor_say(&stage[s], "ok default ", "join {}");
        actor_say(&stage[s], "ok", "store %d 2 %s", 2 * replica + s, columns[s]);
    }
}

static void step_both(actor stage[2], const char *id, int start, int rows)
{
    for (int s = 0; s < 2; s++)
        actor_say(&stage[s], "ok", "step %s %d %d", id, start, rows);
}

/* The core, which may be any process, tells every stage. */
static void seal_both(actor stage[2], int replica, const char *id, int rows)
{
    for (int s = 0; s < 2; s++)
        actor_say(&stage[0], "ok", "seal %s %d %d", id, rows, 2 * replica + s);
}

static void expect_good(const actor *consumer)
{
    if (!strstr(consumer->line, " good"))
        fail_msg("%s", consumer->line);
}

static void S1_12_columns_of_all_stages_are_one_record(void **state)
{
    static const char *const split[][2] = {{"01", "2"}, {"0", "12"}, {"02", "1"}, {"2", "01"}, {"12", "0"}};
    (void)state;
    for (size_t i = 0; i < sizeof(split) / sizeof(split[0]); i++) {
        actor stage[2], consumer;
        start_stages(stage, 0, split[i][0], split[i][1]);
        start_consumer(&consumer);
        step_both(stage, "a", 0, 7);
        step_both(stage, "a", 7, 1);
        seal_both(stage, 0, "a", 8);
        actor_say(&consumer, "ok a rows=8 missing=0 segments=1 versions=1 store=0 reasons=0", "open a 5");
        expect_good(&consumer);
        actor_exit(&consumer);
        actor_exit(&stage[1]);
        actor_exit(&stage[0]);
    }
}

/* Its rows are memory of the reader's own, its leases those of the stages: both are a forked child's, too. */
static void S2_8_a_forked_child_has_a_record_of_stages(void **state)
{
    (void)state;
    actor stage[2], consumer, other;
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    start_consumer(&other);
    step_both(stage, "a", 0, 8);
    seal_both(stage, 0, "a", 8);
    actor_say(&consumer, "ok a rows=8", "open a 5");
    actor_say(&consumer, "ok ", "child");
    actor_say(&consumer, "ok", "release");
    actor_say(&consumer, "ok good", "tell verify");
    actor_say(&consumer, "ok MOOR_E_FORKED", "tell event");
    actor_say(&other, "ok", "stats");
    assert_non_null(strstr(other.line, "\"leases\": 1"));
    actor_say(&consumer, "ok done", "tell release");
    for (int i = 0; i < 200 && strstr(actor_say(&other, "ok", "stats"), "\"leases\": 1"); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_null(strstr(other.line, "\"leases\": 1"));
}

/* Whichever stage is the last to seal is waited for; one that never does is named. */
static void S1_12_every_stage_is_waited_for_in_either_order(void **state)
{
    (void)state;
    actor stage[2], consumer;
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    for (int last = 0; last < 2; last++) {
        const char *id = last ? "late-1" : "late-0";
        step_both(stage, id, 0, 3);
        actor_say(&stage[0], "ok", "seal %s 3 %d", id, !last);
        actor_say(&consumer, "MOOR_E_TIMEOUT", "open %s 0", id);
        actor_send(&consumer, "open %s 10", id);
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        actor_say(&stage[0], "ok", "seal %s 3 %d", id, last);
        actor_hear(&consumer, "ok late-");
        expect_good(&consumer);
    }
    actor_say(&stage[0], "ok", "step half 0 3");
    actor_say(&stage[0], "ok", "seal half 3 0");
    actor_say(&consumer, "MOOR_E_TIMEOUT request half: pipeline stage 1 of 2 has no sealed record of it",
              "open half 0.05");
    /* what was found meanwhile was let go */
    actor_say(&consumer, "ok", "release");
    const char *leases = actor_say(&consumer, "ok", "stats");
    for (int store = 0; store < 2; store++) {
        leases = strstr(leases, "\"leases\": ");
        assert_non_null(leases);
        leases += strlen("\"leases\": ");
        assert_int_equal(strtol(leases, NULL, 10), 0);
    }
}

static void S1_12_a_row_that_one_stage_lacks_is_missing(void **state)
{
    (void)state;
    actor stage[2], consumer;
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    /* rows 3 and 4 are not in stage 0, row 6 not in stage 1, row 8 in neither */
    actor_say(&stage[0], "ok", "step gaps 0 3");
    actor_say(&stage[0], "ok", "step gaps 5 3");
    actor_say(&stage[1], "ok", "step gaps 0 6");
    actor_say(&stage[1], "ok", "step gaps 7 1");
    seal_both(stage, 0, "gaps", 9);
    actor_say(&consumer, "ok gaps rows=9 missing=4 segments=6", "open gaps 5");
    expect_good(&consumer);
    /* a stage that sealed fewer: its reason, and no row is made up */
    step_both(stage, "short", 0, 4);
    actor_say(&stage[0], "ok", "seal short 4 0");
    actor_say(&stage[0], "ok", "seal short 2 1");
    actor_say(&consumer, "ok short rows=4 missing=2 segments=2 versions=1 store=0 reasons=8", "open short 5");
    expect_good(&consumer);
}

static void S1_12_a_row_of_two_weight_epochs_is_missing(void **state)
{
    (void)state;
    actor stage[2], consumer;
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    step_both(stage, "mixed", 0, 4);
    actor_say(&stage[0], "ok", "step mixed 4 2"); /* the change comes between the stages of this step */
    actor_say(&stage[0], "ok", "weights");
    actor_say(&stage[1], "ok", "step mixed 4 2");
    step_both(stage, "mixed", 6, 3);
    seal_both(stage, 0, "mixed", 9);
    actor_say(&consumer, "ok mixed rows=9 missing=2 segments=3 versions=2 store=0 reasons=64", "open mixed 5");
    expect_good(&consumer);
}

static void S1_12_cuts_events_and_claims_go_to_every_stage(void **state)
{
    (void)state;
    actor stage[2], consumer;
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    step_both(stage, "cut", 0, 9);
    seal_both(stage, 0, "cut", 9);
    actor_say(&consumer, "ok", "open cut 5"); /* drained: now there is something to cut */
    actor_say(&consumer, "ok", "release");
    actor_say(&consumer, "ok", "truncate cut 5");
    actor_say(&consumer, "ok cut rows=5 missing=0 segments=1", "open cut 1");
    expect_good(&consumer);
    actor_say(&consumer, "MOOR_E_NOT_FOUND", "truncate nobody 1");
    actor_say(&consumer, "MOOR_E_UNSUPPORTED session_insert: request cut was recorded by 2 pipeline stages",
              "insert s");
    actor_say(&consumer, "ok", "claim 2");
    assert_non_null(strstr(actor_say(&consumer, "ok", "stats"), "\"records\": 1"));
    actor_say(&consumer, "ok", "claim 1");
    actor_say(&consumer, "ok", "event 2"); /* discard */
    actor_say(&consumer, "ok", "release");
    for (int i = 0; i < 200 && strstr(actor_say(&consumer, "ok", "stats"), "\"records\": 1"); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_null(strstr(consumer.line, "\"records\": 1"));
}

static void S1_12_a_ref_of_stages_has_one_part_each(void **state)
{
    (void)state;
    actor stage[2], consumer;
    char ref[800], half[800];
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    step_both(stage, "r", 0, 6);
    seal_both(stage, 0, "r", 6);
    actor_say(&consumer, "ok r", "open r 5");
    snprintf(ref, sizeof(ref), "%s", actor_say(&consumer, "ok moor1:", "ref") + 3);
    char *plus = strstr(ref, "x2x2+moor1:");
    assert_non_null(plus);
    actor_say(&consumer, "ok", "release");
    actor_say(&consumer, "ok r", "resolve %s", ref);
    actor_say(&consumer, "ok good", "verify");
    snprintf(half, sizeof(half), "%.*s", (int)(plus + 4 - ref), ref);
    actor_say(&consumer, "MOOR_E_INVALID request r: pipeline stage 1 of 2", "resolve %s", half);
    actor_say(&consumer, "MOOR_E_CORRUPT request r: store 0 has it twice", "resolve %s+%s", half, half);
    actor_say(&consumer, "MOOR_E_INVALID", "resolve %s+", half);
}

static void S1_27_a_ref_of_stages_has_the_same_rows_of_each(void **state)
{
    (void)state;
    actor stage[2], consumer;
    char ref[800], part[1000];
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    step_both(stage, "r", 0, 6);
    seal_both(stage, 0, "r", 6);
    actor_say(&consumer, "ok r", "open r 5");
    snprintf(ref, sizeof(ref), "%s", actor_say(&consumer, "ok moor1:", "ref") + 3);
    ref[strcspn(ref, "\n")] = 0;
    char *first = strstr(ref, ":6x2x2+"), *second = strstr(ref, ":6x1x2");
    assert_non_null(first);
    assert_non_null(second);
    snprintf(part, sizeof(part), "%.*s:3x2x2@2%.*s:3x1x2@2", (int)(first - ref), ref, (int)(second - first - 6),
             first + 6);
    actor_say(&consumer, "ok r", "resolve %s", part);
    actor_say(&consumer, "ok good", "verify");
    assert_non_null(strstr(actor_say(&consumer, "ok moor1:", "ref"), part));
    snprintf(part, sizeof(part), "%.*s:3x2x2@2%.*s:3x1x2@3", (int)(first - ref), ref, (int)(second - first - 6),
             first + 6);
    actor_say(&consumer, "MOOR_E_INVALID resolve: the parts of a ref name different rows", "resolve %s", part);
}

static void S1_12_replicas_of_stages_are_told_apart(void **state)
{
    (void)state;
    actor zero[2], one[2], consumer;
    start_stages(zero, 0, "01", "2");
    start_stages(one, 1, "01", "2");
    start_consumer(&consumer);
    step_both(zero, "at-zero", 0, 3);
    seal_both(zero, 0, "at-zero", 3);
    step_both(one, "at-one", 0, 4);
    seal_both(one, 1, "at-one", 4);
    actor_say(&consumer, "ok at-zero rows=3 missing=0 segments=1 versions=1 store=0", "open at-zero 5");
    expect_good(&consumer);
    actor_say(&consumer, "ok at-one rows=4 missing=0 segments=1 versions=1 store=2", "open at-one 5");
    expect_good(&consumer);
    /* one id in both; siblings of one request */
    step_both(zero, "twice", 0, 2);
    seal_both(zero, 0, "twice", 2);
    step_both(one, "twice", 0, 2);
    seal_both(one, 1, "twice", 2);
    actor_say(&consumer, "ok twice twice", "open_all twice 5");
    actor_say(&consumer, "MOOR_E_AMBIGUOUS id twice means several records: twice (store 0), twice (store 2)",
              "open twice 1");
    for (int i = 1; i >= 0; i--) {
        char id[16];
        snprintf(id, sizeof(id), "sib-%d", i);
        step_both(zero, id, 0, 2 + i);
        for (int s = 0; s < 2; s++)
            actor_say(&zero[s], "ok", "alias %s %d", id, i);
        seal_both(zero, 0, id, 2 + i);
    }
    actor_say(&consumer, "ok sib-0 sib-1", "open_all http 5");
}

/* A stage's process dies: what was opened stays readable, what was not is not to be had in part. */
static void S1_12_without_a_stage_there_is_no_record(void **state)
{
    (void)state;
    actor stage[2], consumer;
    start_stages(stage, 0, "01", "2");
    start_consumer(&consumer);
    for (int i = 0; i < 2; i++) {
        step_both(stage, i ? "b" : "a", 0, 5);
        seal_both(stage, 0, i ? "b" : "a", 5);
    }
    actor_say(&consumer, "ok a rows=5", "open a 5");
    actor_kill(&stage[1]);
    actor_say(&consumer, "ok good", "verify");
    actor_say(&consumer, "MOOR_E_TIMEOUT request b: pipeline stage 1 of 2", "open b 0.1");
    actor_say(&consumer, "ok", "release");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(S1_12_columns_of_all_stages_are_one_record, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S2_8_a_forked_child_has_a_record_of_stages, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_12_every_stage_is_waited_for_in_either_order, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_12_a_row_that_one_stage_lacks_is_missing, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_12_a_row_of_two_weight_epochs_is_missing, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_12_cuts_events_and_claims_go_to_every_stage, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_12_a_ref_of_stages_has_one_part_each, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_27_a_ref_of_stages_has_the_same_rows_of_each, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_12_replicas_of_stages_are_told_apart, actors_begin, actors_end),
        cmocka_unit_test_setup_teardown(S1_12_without_a_stage_there_is_no_record, actors_begin, actors_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
