/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 3.4, 2 (trace_store): sessions of the store, how long they live and what they own. What they give: test_traces.c. */
#include <pthread.h>
#include <stdlib.h>

#include "support/traces.h"

/* ---- 3.4: life -------------------------------------------------------------------------------------------------- */

static void S3_4_a_read_never_creates_a_session(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_trace_found *found;
    moor_trace_keys *list;
    moor_trace *trace;
    moor_rollback rolled;
    int32_t token = 1;
    assert_status(moor_session_search(lab.records, "s", 1, "x", 1, &found), MOOR_E_NOT_FOUND);
    assert_text("no session s");
    assert_status(moor_session_keys(lab.records, "s", 1, &list), MOOR_E_NOT_FOUND);
    assert_status(export(&lab, "s", "x", &trace), MOOR_E_NOT_FOUND);
    assert_status(release_key(&lab, "s", "x"), MOOR_E_NOT_FOUND);
    assert_status(release(&lab, "s"), MOOR_E_NOT_FOUND);
    assert_status(moor_session_rollback(lab.records, "s", 1, "x", 1, &token, 1, 0, &rolled), MOOR_E_NOT_FOUND);
    assert_int_equal(lab_stats(&lab).sessions + lab_stats(&lab).sessions_gone, 0);
    /* Nor does an insert that fails, or that was not asked to. */
    assert_status(insert(&lab, "s", "x", 0x100000001, 0, 3), MOOR_E_INVALID);
    moor_trace_in in = {.handle = run(&lab, "a", 3), .length = 3};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "x", 1, &in), MOOR_E_NOT_FOUND);
    assert_int_equal(lab_stats(&lab).sessions + lab_stats(&lab).sessions_gone, 0);
    lab_close(&lab);
}

static void S3_4_a_released_session_is_gone_until_it_is_started(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_trace_keys *list;
    uint32_t what;
    uint64_t values;
    assert_status(insert(&lab, "s", "x", 0, 0, 3), MOOR_OK);
    assert_status(release(&lab, "s"), MOOR_OK);
    assert_status(release(&lab, "s"), MOOR_OK); /* twice is a no-op */
    assert_status(insert(&lab, "s", "x", 0, 0, 3), MOOR_E_GONE);
    assert_text("session s was released");
    assert_status(moor_session_keys(lab.records, "s", 1, &list), MOOR_E_GONE);
    moor_session_state(lab.records, "s", 1, &what, &values);
    assert_int_equal(what, MOOR_SESSION_GONE);
    assert_int_equal(lab_stats(&lab).sessions_gone, 1);
    assert_status(moor_session_start(lab.records, ALICE, "s", 1, 0), MOOR_OK);
    assert_string_equal(keys(&lab, "s"), ""); /* new, not the old one */
    assert_status(insert(&lab, "s", "y", 0, 0, 3), MOOR_OK);
    assert_status(moor_session_start(lab.records, BOB, "s", 1, 0), MOOR_OK); /* lives: left as it is */
    moor_session_state(lab.records, "s", 1, &what, &values);
    assert_int_equal(what, MOOR_SESSION_LIVE);
    assert_int_equal(values, 1);
    moor_session_state(lab.records, "t", 1, &what, &values);
    assert_int_equal(what, MOOR_SESSION_NEVER);
    assert_int_equal(lab_stats(&lab).sessions_gone, 0);
    lab_close(&lab);
}

static void S2_5_a_session_ends_with_the_client_that_started_it(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_handle a = run(&lab, "a", 5), b = run(&lab, "b", 5);
    assert_status(insert(&lab, "mine", "x", a, 0, 5), MOOR_OK);
    assert_status(moor_session_start(lab.records, ALICE, "kept", 4, 1), MOOR_OK);
    assert_status(insert(&lab, "kept", "x", b, 0, 5), MOOR_OK);
    moor_records_disconnect(lab.records, BOB);
    assert_status(readable(&lab, a), MOOR_OK);
    moor_records_disconnect(lab.records, ALICE);
    assert_status(readable(&lab, a), MOOR_E_STALE);
    assert_status(insert(&lab, "mine", "x", 0, 0, 5), MOOR_E_GONE);
    assert_status(readable(&lab, b), MOOR_OK);
    assert_string_equal(keys(&lab, "kept"), "x");
    assert_status(release(&lab, "kept"), MOOR_OK);
    assert_status(readable(&lab, b), MOOR_E_STALE);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

/* ---- 2: what a session owns ------------------------------------------------------------------------------------- */

static void S2_table_of_a_sessions_records(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const char *names[] = {"reset", "discard", "replaced"};
    const uint32_t events[] = {MOOR_EVENT_RESET, MOOR_EVENT_DISCARD, MOOR_EVENT_REPLACED};
    moor_handle handles[3];
    for (int i = 0; i < 3; i++) {
        handles[i] = run(&lab, names[i], 5);
        assert_status(insert(&lab, "s", names[i], handles[i], 0, 5), MOOR_OK);
        assert_status(moor_records_event(lab.records, handles[i], events[i]), MOOR_OK);
        assert_status(readable(&lab, handles[i]), MOOR_OK); /* detached */
    }
    moor_view *view;
    assert_status(moor_records_open_handle(lab.records, BOB, handles[0], &view), MOOR_OK);
    assert_int_equal(view->owner, MOOR_OWNER_TRACE_STORE);
    assert_string_equal(view->session, "s");
    /* The keep policy leaves them alone; the session is the only way out. */
    lab.config.keep_s = 0;
    assert_int_equal(moor_records_expire(lab.records, UINT64_MAX), 0);
    assert_status(moor_records_event(lab.records, handles[1], MOOR_EVENT_SESSION_RELEASED), MOOR_E_STATE);
    assert_text("belongs to session s");
    assert_status(moor_records_claim(lab.records, handles[1], MOOR_OWNER_ROLLOUT), MOOR_E_STATE);
    assert_status(release(&lab, "s"), MOOR_OK);
    for (int i = 0; i < 3; i++)
        assert_status(readable(&lab, handles[i]), MOOR_E_STALE);
    lab_assert_rows(&lab, view, "reset", 0, 5, 1); /* S2.2: leased, so it can still be read */
    assert_status(moor_records_close(lab.records, BOB, handles[0]), MOOR_OK);
    moor_view_free(view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S2_the_keep_policy_counts_no_rows_of_sessions(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.keep_bytes = 100 * LAB_LAYERS * LAB_K;
    lab_open_with(&lab);
    moor_handle mine = run(&lab, "mine", 200), other = run(&lab, "other", 50);
    moor_trace_in in = {.handle = mine, .length = 200, .create = 1};
    assert_status(moor_session_insert(lab.records, ALICE, "s", 1, "k", 1, &in), MOOR_OK);
    assert_int_equal(moor_records_expire(lab.records, 1), 0); /* nobody goes because a session is large */
    assert_status(readable(&lab, other), MOOR_OK);
    assert_status(readable(&lab, mine), MOOR_OK);
    lab_close(&lab);
}

static void S2_3_the_same_record_in_two_places_is_freed_once(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_handle a = run(&lab, "a", 9);
    assert_status(insert(&lab, "s", "prompt", a, 0, 4), MOOR_OK);
    assert_status(insert(&lab, "s", "prompt answer", a, 4, 5), MOOR_OK);
    assert_status(insert(&lab, "other", "x", a, 0, 4), MOOR_E_STATE); /* one session's */
    assert_text("request a belongs to session s");
    uint64_t freed = lab_count(&lab, MOOR_C_FREED);
    assert_status(release_key(&lab, "s", "prompt"), MOOR_OK);
    assert_status(readable(&lab, a), MOOR_OK); /* the other place */
    assert_status(release_key(&lab, "s", "prompt"), MOOR_OK);
    assert_status(release_key(&lab, "s", "prompt answer"), MOOR_OK);
    assert_status(readable(&lab, a), MOOR_E_STALE);
    assert_int_equal(lab_count(&lab, MOOR_C_FREED), freed + 1);
    moor_handle b = run(&lab, "b", 9);
    assert_status(insert(&lab, "s", "1", b, 0, 4), MOOR_OK);
    assert_status(insert(&lab, "s", "2", b, 0, 4), MOOR_OK);
    assert_status(release(&lab, "s"), MOOR_OK);
    assert_int_equal(lab_count(&lab, MOOR_C_FREED), freed + 2);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S2_4_overwriting_parks_only_the_record(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    moor_handle a = run(&lab, "a", 9), b = run(&lab, "b", 9), c = run(&lab, "c", 9);
    assert_status(insert(&lab, "s", "key", a, 0, 9), MOOR_OK);
    assert_status(insert(&lab, "s", "key", b, 100, 9), MOOR_OK);
    assert_status(insert(&lab, "s", "key", b, 100, 9), MOOR_OK); /* by itself: nothing is parked */
    assert_status(insert(&lab, "s", "again", a, 0, 9), MOOR_OK);
    assert_int_equal(lab_stats(&lab).session_keys, 2); /* what was overwritten is gone but for its record */
    moor_trace_found *found;
    assert_status(moor_session_search(lab.records, "s", 1, "key", 3, &found), MOOR_OK);
    assert_int_equal(found->tokens[0], 100);
    assert_string_equal(found->request, "b");
    moor_trace_free(found);
    assert_status(readable(&lab, a), MOOR_OK);
    assert_status(release_key(&lab, "s", "again"), MOOR_OK);
    assert_status(readable(&lab, a), MOOR_OK); /* parked: until the session goes */
    assert_status(release_key(&lab, "s", "key"), MOOR_OK);
    assert_status(readable(&lab, b), MOOR_E_STALE);
    assert_status(insert(&lab, "s", "key", c, 0, 9), MOOR_OK);
    uint64_t freed = lab_count(&lab, MOOR_C_FREED);
    assert_status(release(&lab, "s"), MOOR_OK);
    assert_status(readable(&lab, a), MOOR_E_STALE);
    assert_status(readable(&lab, c), MOOR_E_STALE);
    assert_int_equal(lab_count(&lab, MOOR_C_FREED), freed + 2);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

/* The slot that was freed last is used first: so new records tell in which order the old ones went. */
static void S3_2_records_go_child_before_parent(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const char *in_order[] = {"", "z", "a", "ax"}, *released[] = {"z", "ax", "a", ""};
    moor_handle handle[4], parked = run(&lab, "parked", 5);
    assert_status(insert(&lab, "s", "z", parked, 0, 5), MOOR_OK);
    for (int i = 0; i < 4; i++) {
        char id[8];
        snprintf(id, sizeof(id), "r%s", in_order[i]);
        handle[i] = run(&lab, id, 5);
        moor_trace_in in = {.handle = handle[i], .length = 5};
        assert_status(moor_session_insert(lab.records, ALICE, "s", 1, in_order[i], (uint32_t)strlen(in_order[i]), &in),
                      MOOR_OK);
    }
    assert_string_equal(keys(&lab, "s"), "\"\",z,a,ax"); /* the overwritten "z" came first, "" lives at the root */
    assert_status(release(&lab, "s"), MOOR_OK);
    assert_int_equal((uint32_t)run(&lab, "n", 5), (uint32_t)handle[0]); /* "" went last */
    for (int i = 2; i >= 0; i--) {
        char id[8];
        uint32_t was = 0;
        snprintf(id, sizeof(id), "n%d", i);
        for (int k = 0; k < 4; k++)
            was = strcmp(in_order[k], released[i]) == 0 ? (uint32_t)handle[k] : was;
        assert_int_equal((uint32_t)run(&lab, id, 5), was);
    }
    assert_int_equal((uint32_t)run(&lab, "last", 5), (uint32_t)parked);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

/* ---- limits ----------------------------------------------------------------------------------------------------- */

/* Ids that all want the same few places: added and removed, each is found as long as it is there. */
static void the_table_finds_what_collides(void **state)
{
    (void)state;
    enum { IDS = 40 };
    moor_session_table table = {.slots = NULL};
    int there[IDS] = {0};
    unsigned random = 3;
    assert_null(moor_session_table_find(&table, (moor_hash128){1, 1}));
    for (int step = 0; step < 20000; step++) {
        int i = rand_r(&random) % IDS;
        moor_hash128 hash = {62 + (uint64_t)i % 5, 1 + (uint64_t)i}; /* around the end of 64 places */
        moor_session_slot *slot = moor_session_table_find(&table, hash);
        assert_int_equal(slot != NULL, there[i]);
        if (slot)
            moor_session_table_remove(&table, slot);
        else if (table.used < 30)
            assert_non_null(moor_session_table_add(&table, hash));
        there[i] = moor_session_table_find(&table, hash) != NULL;
    }
    for (int i = 0; i < IDS; i++) {
        moor_hash128 hash = {62 + (uint64_t)i % 5, 1 + (uint64_t)i};
        assert_int_equal(moor_session_table_find(&table, hash) != NULL, there[i]);
    }
    moor_session_table_close(&table);
}

static void many_sessions_and_their_tombstones(void **state)
{
    (void)state;
    enum { N = 100000 };
    lab_store lab;
    lab_open(&lab);
    char id[32];
    for (uint32_t i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "session %u", i);
        assert_status(insert(&lab, id, "key", 0, 0, 4), MOOR_OK);
    }
    assert_int_equal(lab_stats(&lab).sessions, N);
    assert_int_equal(moor_sessions_disconnect(lab.records, ALICE), N);
    assert_int_equal(lab_stats(&lab).sessions_gone, N);
    assert_int_equal(lab_stats(&lab).session_keys, 0);
    assert_status(insert(&lab, "session 77", "key", 0, 0, 4), MOOR_E_GONE);
    lab_close(&lab);
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 300 };

typedef struct worker {
    lab_store *lab;
    int number, bad;
    moor_handle shared;
    pthread_t thread;
} worker;

/* Everything a server does for sessions, and readers of the records meanwhile. A worker's client is its own. */
static void *work(void *user)
{
    worker *w = user;
    moor_records *records = w->lab->records;
    uint64_t client = 100 + (uint64_t)w->number;
    char own[16], key[32];
    snprintf(own, sizeof(own), "own %d", w->number);
    for (int i = 0; i < ROUNDS; i++) {
        const int32_t tokens[3] = {w->number, i, 0};
        moor_trace_in in = {.tokens = tokens, .n_tokens = 3, .length = MOOR_TRACE_ROWS, .create = 1};
        moor_trace_in shared = {.handle = w->shared, .length = 5};
        moor_trace_found *found = NULL;
        moor_trace_keys *list;
        moor_trace *trace;
        moor_view *view;
        snprintf(key, sizeof(key), "%d %d.", w->number, i);
        w->bad += moor_session_insert(records, client, "all", 3, key, (uint32_t)strlen(key), &in) != MOOR_OK;
        w->bad += moor_session_insert(records, client, "all", 3, "record", 6, &shared) != MOOR_OK;
        w->bad += moor_session_search(records, "all", 3, key, (uint32_t)strlen(key), &found) != MOOR_OK || !found ||
                  found->tokens[1] != i;
        moor_trace_free(found);
        if (moor_session_export(records, client, "all", 3, "record", 6, &trace) == MOOR_OK) {
            w->bad += trace->rows != 5;
            moor_trace_close(records, client, trace);
            for (uint32_t p = 0; p < trace->n_parts; p++)
                moor_view_free(trace->parts[p].view);
            moor_trace_free(trace);
        } else {
            w->bad++;
        }
        if (moor_records_open_handle(records, client, w->shared, &view) == MOOR_OK) {
            w->bad += strcmp(view->session, "all") != 0;
            moor_view_free(view);
        } else {
            w->bad++;
        }
        w->bad += moor_session_keys(records, "all", 3, &list) != MOOR_OK;
        moor_trace_free(list);
        w->bad += moor_session_start(records, client, own, (uint32_t)strlen(own), 0) != MOOR_OK;
        w->bad += moor_session_insert(records, client, own, (uint32_t)strlen(own), key, 3, &in) != MOOR_OK;
        w->bad += moor_session_release_key(records, "all", 3, key, (uint32_t)strlen(key)) != MOOR_OK;
        moor_records_disconnect(records, client); /* its leases and its own session */
    }
    return NULL;
}

static void threads_share_sessions(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    worker workers[THREADS];
    moor_handle shared = run(&lab, "shared", 5);
    assert_status(moor_session_start(lab.records, ALICE, "all", 3, 1), MOOR_OK);
    moor_trace_in in = {.handle = shared, .length = 5};
    assert_status(moor_session_insert(lab.records, ALICE, "all", 3, "record", 6, &in), MOOR_OK);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.lab = &lab, .number = i, .shared = shared};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 50; i++)
        (void)moor_records_truncate(lab.records, "shared", 6, 5, 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].bad, 0);
    }
    assert_int_equal(lab_stats(&lab).leases, 0);
    assert_int_equal(lab_stats(&lab).sessions, 1);
    assert_string_equal(keys(&lab, "all"), "record");
    assert_status(release(&lab, "all"), MOOR_OK);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void script(lab_store *lab, const moor_handle handle[3])
{
    (void)moor_session_start(lab->records, ALICE, "t", 1, 0);
    (void)insert(lab, "s", "turn1", handle[0], 0, 10);
    (void)insert(lab, "s", "turn1 turn2", handle[1], 10, 6);
    (void)insert(lab, "s", "turn1 other", 0, 10, 6);
    (void)insert(lab, "s", "turn1 turn2", handle[2], 10, 6);
    (void)insert(lab, "s", "turning", 0, 0, 6);
    moor_trace_found *found;
    if (!moor_session_search(lab->records, "s", 1, "turn1 turn2!", 12, &found) && found)
        moor_trace_free(found);
    moor_trace_keys *list;
    if (!moor_session_keys(lab->records, "s", 1, &list))
        moor_trace_free(list);
    moor_trace *trace;
    if (!export(lab, "s", "turn1 turn2", &trace)) {
        assert_true(trace->rows <= 15 && trace->n_parts <= 2);
        trace_end(lab, trace);
    }
    moor_rollback out;
    (void)roll(lab, "turn1 turn2", tokens_from(0, 16), 12, 0, &out);
    (void)release_key(lab, "s", "turning");
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    uint64_t nth = 0;
    for (int fired = 1; fired;) {
        lab_store lab;
        lab_open(&lab);
        const moor_handle handle[] = {run(&lab, "a", 9), run(&lab, "b", 15), run(&lab, "c", 15)};
        moor_fault_arm(++nth);
        script(&lab, handle);
        fired = moor_fault_fired();
        moor_fault_arm(0);
        moor_records_disconnect(lab.records, BOB);
        moor_records_disconnect(lab.records, ALICE);
        assert_int_equal(lab_stats(&lab).leases, 0);
        assert_int_equal(lab_stats(&lab).sessions, 0);
        assert_int_equal(lab_stats(&lab).session_keys, 0);
        lab_assert_empty(&lab);
        lab_close(&lab);
    }
    assert_true(nth > 25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S3_4_a_read_never_creates_a_session),
        cmocka_unit_test(S3_4_a_released_session_is_gone_until_it_is_started),
        cmocka_unit_test(S2_5_a_session_ends_with_the_client_that_started_it),
        cmocka_unit_test(S2_table_of_a_sessions_records),
        cmocka_unit_test(S2_3_the_same_record_in_two_places_is_freed_once),
        cmocka_unit_test(S2_4_overwriting_parks_only_the_record),
        cmocka_unit_test(S3_2_records_go_child_before_parent),
        cmocka_unit_test(threads_share_sessions),
        cmocka_unit_test(S2_the_keep_policy_counts_no_rows_of_sessions),
        cmocka_unit_test(the_table_finds_what_collides),
        cmocka_unit_test(many_sessions_and_their_tombstones),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
