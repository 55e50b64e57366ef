/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 2.6: what comes back. What is refused: test_snapshot_refused.c. Killing, failing and damaging are in test_snapshot_faults.c. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/snapshots.h"

#include "allocator/sessions.h"
#include "allocator/trace.h"

static void assert_open_status(lab_store *lab, const char *id, moor_status want)
{
    moor_view *view = NULL;
    moor_status status = moor_records_open(lab->records, 1, id, (uint32_t)strlen(id), 0, 0, &view);
    if (!status)
        lab_unview(lab, view);
    assert_int_equal(status, want);
}

static void round_trip(const moor_records_config *change)
{
    lab_store before, after;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_defaults(&before);
    lab_defaults(&after);
    if (change) {
        before.config.num_experts = after.config.num_experts = change->num_experts;
        before.config.top_k = after.config.top_k = change->top_k;
    }
    lab_open_with(&before);
    lab_open_with(&after);
    snap_fill(&before);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    assert_int_equal(snap_temporary_left(&dir), 0);
    assert_status(snap_restore(&after, &dir), MOOR_OK);
    snap_assert_same(&before, &after);
    assert_int_equal(lab_stats(&after).records, SNAP_RECORDS);
    snap_empty(&before);
    snap_empty(&after);
    lab_close(&before);
    lab_close(&after);
    snap_dir_remove(&dir);
}

static void S2_6_a_snapshot_keeps_identity_owner_and_rows(void **state)
{
    (void)state;
    round_trip(NULL);
}

static void S2_6_ids_of_two_bytes_come_back(void **state)
{
    (void)state;
    moor_records_config wide = {.num_experts = 40000, .top_k = 3};
    round_trip(&wide);
}

static void S2_6_ids_and_aliases_mean_what_they_meant(void **state)
{
    (void)state;
    lab_store before, lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&before);
    snap_fill(&before);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    lab_open(&lab);
    assert_status(snap_restore(&lab, &dir), MOOR_OK);
    moor_view *view = lab_view(&lab, "external");
    lab_assert_rows(&lab, view, "a", 0, 16, 1);
    lab_assert_rows(&lab, view, "a", 16, 22, 2);
    assert_int_equal(view->n_versions, 2);
    lab_unview(&lab, view);
    view = lab_view(&lab, "c");
    lab_assert_rows(&lab, view, "a", 0, 12, 1);
    lab_assert_rows(&lab, view, "c", 12, 15, 1);
    lab_unview(&lab, view);
    view = lab_view(&lab, "gap");
    lab_assert_missing(view, 0, 3, MOOR_REASON_PREFIX_UNKNOWN);
    lab_assert_rows(&lab, view, "gap", 3, 7, 2);
    lab_assert_missing(view, 7, 9, MOOR_REASON_LAYER_MISSING);
    lab_assert_rows(&lab, view, "gap", 9, 10, 2);
    lab_assert_missing(view, 10, 12, MOOR_REASON_SHORT);
    lab_unview(&lab, view);
    assert_open_status(&lab, "http", MOOR_E_AMBIGUOUS);
    assert_text("a, c");
    assert_open_status(&lab, "dup", MOOR_E_AMBIGUOUS);
    moor_view **views = NULL;
    uint32_t n = 0;
    assert_status(moor_records_open_all(lab.records, 2, "dup", 3, &views, &n), MOOR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(views[0]->rows, 6); /* the older one first, as before */
    assert_int_equal(views[1]->rows, 7);
    moor_views_free(views, n);
    moor_records_disconnect(lab.records, 2);
    /* An id means its newest record: a fill goes there. */
    assert_int_equal(moor_record_by_core_id(lab.records, moor_id_hash("dup", 3))->rows.end, 7);
    assert_open_status(&lab, "gone", MOOR_E_NOT_FOUND);
    snap_empty(&lab);
    lab_close(&lab);
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

static void S2_6_shared_rows_are_stored_once_and_shared_again(void **state)
{
    (void)state;
    enum { PROMPT = 4096, SIBLINGS = 16, OWN = 2 };
    lab_store before, lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_defaults(&before);
    before.config.kv_blocks = 2048;
    lab_open_with(&before);
    static int32_t kv[PROMPT / LAB_BLOCK];
    for (int i = 0; i < PROMPT / LAB_BLOCK; i++)
        kv[i] = i;
    lab_request first = {.id = "p", .count = PROMPT, .kv = kv, .n_kv = PROMPT / LAB_BLOCK};
    lab_step(&before, &first, 1);
    for (int i = 0; i < SIBLINGS; i++) {
        char id[8];
        snprintf(id, sizeof(id), "s%d", i);
        lab_request one = {.id = id, .start = PROMPT, .count = OWN, .kv = kv, .n_kv = PROMPT / LAB_BLOCK};
        lab_step(&before, &one, 1);
        assert_status(lab_seal(&before, id, PROMPT + OWN), MOOR_OK);
    }
    assert_status(lab_seal(&before, "p", PROMPT), MOOR_OK);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    uint8_t *bytes;
    size_t size = snap_read(&dir, &bytes);
    free(bytes);
    size_t rows = PROMPT + SIBLINGS * OWN, row_bytes = moor_records_row_bytes(before.records);
    assert_true(size >= rows * row_bytes);
    assert_true(size < rows * row_bytes + 8192);
    lab_open(&lab);
    assert_status(snap_restore(&lab, &dir), MOOR_OK);
    assert_int_equal(lab_stats(&lab).blocks, 1 + SIBLINGS);
    snap_assert_same(&before, &lab);
    /* Freeing one of them leaves the others their rows. */
    moor_handle handle = 0;
    assert_status(moor_records_find(lab.records, "p", 1, &handle), MOOR_OK);
    assert_status(moor_records_event(lab.records, handle, MOOR_EVENT_DISCARD), MOOR_OK);
    moor_view *view = lab_view(&lab, "s3");
    lab_assert_rows(&lab, view, "p", 0, PROMPT, 1);
    lab_assert_rows(&lab, view, "s3", PROMPT, PROMPT + OWN, 1);
    lab_unview(&lab, view);
    snap_empty(&lab);
    lab_close(&lab);
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

static void S2_6_rows_that_nobody_needs_are_not_written(void **state)
{
    (void)state;
    lab_store lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&lab);
    snap_fill_one(&lab, 8000);
    assert_status(moor_records_truncate(lab.records, "only", 4, 10, 0), MOOR_OK);
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    uint8_t *bytes;
    assert_true(snap_read(&dir, &bytes) < 4096);
    free(bytes);
    lab_store after;
    lab_open(&after);
    assert_status(snap_restore(&after, &dir), MOOR_OK);
    snap_assert_same(&lab, &after);
    snap_empty(&after);
    lab_close(&after);
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void S2_6_a_stale_handle_stays_stale(void **state)
{
    (void)state;
    lab_store before, lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&before);
    lab_run(&before, "x", 5, 1);
    lab_run(&before, "leased", 5, 1);
    moor_handle old = 0, leased = 0;
    assert_status(moor_records_find(before.records, "x", 1, &old), MOOR_OK);
    assert_status(moor_records_event(before.records, old, MOOR_EVENT_DISCARD), MOOR_OK);
    lab_run(&before, "y", 5, 1); /* the same slot */
    moor_view *view = lab_view(&before, "leased");
    leased = view->handle;
    assert_status(moor_records_event(before.records, leased, MOOR_EVENT_DISCARD), MOOR_OK); /* dead, but still read */
    assert_status(snap_save(&before, &dir), MOOR_OK);
    lab_open(&lab);
    assert_status(snap_restore(&lab, &dir), MOOR_OK);
    assert_int_equal(lab_stats(&lab).records, 1);
    assert_status(moor_records_lease(lab.records, old), MOOR_E_STALE);
    assert_status(moor_records_lease(lab.records, leased), MOOR_E_STALE);
    for (int i = 0; i < 600; i++) { /* slots are used again, their old handles are not */
        char id[16];
        moor_handle handle = 0;
        snprintf(id, sizeof(id), "new%d", i);
        lab_run(&lab, id, 1, 1);
        assert_status(moor_records_find(lab.records, id, (uint32_t)strlen(id), &handle), MOOR_OK);
        assert_true(handle != old && handle != leased);
    }
    assert_status(moor_records_lease(lab.records, old), MOOR_E_STALE);
    assert_status(moor_records_lease(lab.records, leased), MOOR_E_STALE);
    lab_unview(&before, view);
    snap_empty(&lab);
    lab_close(&lab);
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

static void S2_6_a_restored_store_goes_on(void **state)
{
    (void)state;
    lab_store before, lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&before);
    snap_fill(&before);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    lab_defaults(&lab);
    lab.config.keep_bytes = 1;
    lab_open_with(&lab);
    assert_status(snap_restore(&lab, &dir), MOOR_OK);
    lab.epoch = 3;
    lab_run(&lab, "a", 4, 1); /* an id of before is a new request */
    assert_open_status(&lab, "a", MOOR_E_AMBIGUOUS);
    moor_view *view = lab_view(&lab, "external");
    assert_int_equal(view->rows, 22);
    /* And is saved again, with what came since. */
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    lab_store again;
    lab_open(&again);
    assert_status(snap_restore(&again, &dir), MOOR_OK);
    assert_int_equal(lab_stats(&again).records, SNAP_RECORDS + 1);
    snap_empty(&again);
    lab_close(&again);
    /* The keep policy takes them in the old order: "b" was touched last before, "a" is new; what is leased or a session's stays. */
    moor_record_slot *newest = lab.records->newest;
    assert_string_equal(newest->id, "a");
    assert_string_equal(newest->older->id, "b");
    assert_string_equal(lab.records->oldest->id, "a");
    moor_records_expire(lab.records, moor_now_ns());
    assert_int_equal(lab_stats(&lab).records, 2 + 3 /* a session's */);
    lab_unview(&lab, view);
    snap_empty(&lab);
    lab_close(&lab);
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

static void assert_same_keys(lab_store *a, lab_store *b, const char *session)
{
    moor_trace_keys *x = NULL, *y = NULL;
    assert_status(moor_session_keys(a->records, session, (uint32_t)strlen(session), &x), MOOR_OK);
    assert_status(moor_session_keys(b->records, session, (uint32_t)strlen(session), &y), MOOR_OK);
    assert_int_equal(x->n, y->n);
    assert_int_equal(x->size, y->size);
    assert_memory_equal(x->data, y->data, x->size);
    moor_trace_free(x);
    moor_trace_free(y);
}

static void assert_same_trace(lab_store *a, lab_store *b, const char *key)
{
    moor_trace *x = NULL, *y = NULL;
    uint32_t n = (uint32_t)strlen(key);
    assert_status(moor_session_export(a->records, 2, "trace", 5, key, n, &x), MOOR_OK);
    assert_status(moor_session_export(b->records, 2, "trace", 5, key, n, &y), MOOR_OK);
    assert_int_equal(x->n_tokens, y->n_tokens);
    assert_true(x->has_tokens && y->has_tokens);
    assert_memory_equal(x->tokens, y->tokens, x->n_tokens * sizeof(int32_t));
    assert_int_equal(x->n_parts, y->n_parts);
    for (uint32_t i = 0; i < x->n_parts; i++) {
        assert_int_equal(x->parts[i].from, y->parts[i].from);
        assert_int_equal(x->parts[i].to, y->parts[i].to);
        assert_int_equal(x->parts[i].view->handle, y->parts[i].view->handle);
    }
    moor_trace_close(a->records, 2, x);
    moor_trace_close(b->records, 2, y);
    for (uint32_t i = 0; i < x->n_parts; i++) {
        moor_view_free(x->parts[i].view);
        moor_view_free(y->parts[i].view);
    }
    moor_trace_free(x);
    moor_trace_free(y);
}

static void S2_6_sessions_come_back(void **state)
{
    (void)state;
    static char key[3001];
    lab_store before, lab;
    snap_dir dir;
    uint32_t what;
    uint64_t values;
    snap_dir_make(&dir);
    lab_open(&before);
    snap_fill(&before);
    memset(key, 'x', sizeof(key) - 1);
    for (uint32_t n = 1; n < sizeof(key); n++) { /* a long chain */
        moor_trace_in in = {.start = MOOR_TRACE_BEHIND, .length = n % 3, .create = 1};
        assert_status(moor_session_insert(before.records, 5, "empty", 5, key, n, &in), MOOR_OK);
    }
    assert_status(snap_save(&before, &dir), MOOR_OK);
    lab_open(&lab);
    assert_status(snap_restore(&lab, &dir), MOOR_OK);
    snap_assert_same(&before, &lab);
    const char *sessions[] = {"tree", "trace", "empty"};
    for (int i = 0; i < 3; i++)
        assert_same_keys(&before, &lab, sessions[i]);
    assert_same_trace(&before, &lab, "hello world");
    assert_same_trace(&before, &lab, "hello there");
    assert_int_equal(lab_stats(&lab).session_keys, lab_stats(&before).session_keys);
    moor_session_state(lab.records, "tree", 4, &what, &values);
    assert_int_equal(values, 5); /* of seven keys */
    moor_session_state(lab.records, "gone", 4, &what, &values);
    assert_int_equal(what, MOOR_SESSION_GONE);
    moor_session_state(lab.records, "never", 5, &what, &values);
    assert_int_equal(what, MOOR_SESSION_NEVER);
    /* The tries are of the same shape: what comes next hangs where it would have, and what goes takes the same along. */
    lab_store *both[] = {&before, &lab};
    for (int i = 0; i < 2; i++) {
        moor_trace_in in = {.start = 0, .length = 1};
        const char *more[] = {"abcde", "abx", "a", "axe"};
        for (int k = 0; k < 4; k++)
            assert_status(moor_session_insert(both[i]->records, 5, "tree", 4, more[k], (uint32_t)strlen(more[k]), &in),
                          MOOR_OK);
        assert_status(moor_session_release_key(both[i]->records, "tree", 4, "abcd", 4), MOOR_OK);
    }
    assert_same_keys(&before, &lab, "tree");
    /* No client's end is theirs. */
    assert_int_equal(moor_records_disconnect(lab.records, 5), 0);
    moor_session_state(lab.records, "trace", 5, &what, &values);
    assert_int_equal(what, MOOR_SESSION_LIVE);
    /* A released one frees its records once, the parked one too. */
    uint64_t records = lab_stats(&lab).records;
    assert_status(moor_session_release_key(lab.records, "trace", 5, "hello world", 11), MOOR_OK);
    assert_int_equal(lab_stats(&lab).records, records); /* "hello there" has it too */
    assert_status(moor_session_release_key(lab.records, "trace", 5, "hello there", 11), MOOR_OK);
    assert_int_equal(lab_stats(&lab).records, records - 1);
    assert_status(moor_session_release_key(lab.records, "trace", 5, "hello", 5), MOOR_OK);
    assert_int_equal(lab_stats(&lab).records, records - 2);
    assert_status(moor_session_release(lab.records, "trace", 5), MOOR_OK);
    assert_int_equal(lab_stats(&lab).records, records - 3);
    snap_empty(&lab);
    lab_close(&lab);
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

static void S2_6_a_store_with_sessions_is_not_new(void **state)
{
    (void)state;
    lab_store lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&lab);
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    assert_status(moor_session_start(lab.records, 5, "empty", 5, 1), MOOR_OK);
    assert_status(snap_restore(&lab, &dir), MOOR_E_STATE);
    assert_text("1 sessions");
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void an_empty_store_is_saved_too(void **state)
{
    (void)state;
    lab_store before, after;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&before);
    lab_open(&after);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    assert_status(snap_restore(&after, &dir), MOOR_OK);
    assert_int_equal(lab_stats(&after).records, 0);
    lab_close(&before);
    lab_close(&after);
    snap_dir_remove(&dir);
}

/* ---- labels ---- */

typedef struct told {
    uint64_t epochs[8];
    char labels[8][MOOR_SNAP_LABEL_BYTES];
    int n;
} told;

static void label_of(void *user, uint64_t epoch, char text[MOOR_SNAP_LABEL_BYTES])
{
    (void)user;
    if (epoch == 2)
        snprintf(text, MOOR_SNAP_LABEL_BYTES, "step-%058d", 7); /* as long as a label can be */
}

static void label_told(void *user, uint64_t epoch, const char *text)
{
    told *all = user;
    all->epochs[all->n] = epoch;
    snprintf(all->labels[all->n++], MOOR_SNAP_LABEL_BYTES, "%s", text);
}

static void S2_6_weight_labels_and_the_epoch_come_back(void **state)
{
    (void)state;
    lab_store before, after;
    snap_dir dir;
    told all = {.n = 0};
    snap_dir_make(&dir);
    lab_open(&before);
    lab_open(&after);
    snap_fill(&before);
    moor_save save = {.dir = dir.path, .deadline_ns = UINT64_MAX, .epoch = 41, .label_of = label_of};
    uint64_t bytes = 0;
    assert_status(moor_records_save(before.records, &save, &bytes), MOOR_OK);
    uint8_t *data;
    assert_int_equal(snap_read(&dir, &data), bytes);
    free(data);
    moor_restore restore = {.dir = dir.path, .label = label_told, .user = &all};
    moor_restored restored = {0};
    assert_status(moor_records_restore(after.records, &restore, &restored), MOOR_OK);
    assert_int_equal(restored.records, SNAP_RECORDS);
    assert_int_equal(restored.epoch, 41);
    assert_int_equal(all.n, 1);
    assert_int_equal(all.epochs[0], 2);
    assert_int_equal(strlen(all.labels[0]), MOOR_SNAP_LABEL_BYTES - 1);
    snap_empty(&before);
    snap_empty(&after);
    lab_close(&before);
    lab_close(&after);
    snap_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S2_6_a_snapshot_keeps_identity_owner_and_rows),
        cmocka_unit_test(S2_6_ids_of_two_bytes_come_back),
        cmocka_unit_test(S2_6_ids_and_aliases_mean_what_they_meant),
        cmocka_unit_test(S2_6_shared_rows_are_stored_once_and_shared_again),
        cmocka_unit_test(S2_6_rows_that_nobody_needs_are_not_written),
        cmocka_unit_test(S2_6_a_stale_handle_stays_stale),
        cmocka_unit_test(S2_6_a_restored_store_goes_on),
        cmocka_unit_test(S2_6_sessions_come_back),
        cmocka_unit_test(S2_6_a_store_with_sessions_is_not_new),
        cmocka_unit_test(an_empty_store_is_saved_too),
        cmocka_unit_test(S2_6_weight_labels_and_the_epoch_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
