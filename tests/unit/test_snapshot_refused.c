/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 2.6: what cannot be saved or restored, and snapshots beside a store that goes on. What comes back: test_snapshot.c. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/snapshots.h"

#include "allocator/sessions.h"
#include "allocator/trace.h"

static void S2_6_only_a_quiet_store_is_saved(void **state)
{
    (void)state;
    lab_store lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&lab);
    lab_run(&lab, "done", 4, 1);
    lab_request open = {.id = "in a step", .count = 3};
    assert_status(lab_begin(&lab, &open, 1), MOOR_OK);
    assert_status(snap_save(&lab, &dir), MOOR_E_STATE);
    assert_text("in a step");
    assert_text("a step of 1 requests is open");
    assert_int_not_equal(access(dir.path, F_OK), 0); /* nothing was begun */
    lab_capture(&lab, &open, 1);
    assert_status(moor_records_step_commit(lab.records, NULL, 0), MOOR_OK);
    lab_one(&lab, "also open", 0, 2);
    assert_status(snap_save(&lab, &dir), MOOR_E_STATE);
    assert_text("2 requests are not sealed: in a step, also open");
    assert_status(lab_seal(&lab, "in a step", 3), MOOR_OK);
    /* A seal that is still on the ring counts. */
    assert_status(moor_seal_push(lab.ring, moor_id_hash("also open", 9), (moor_hash128){0, 0}, 2, 0), MOOR_OK);
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void S2_6_it_is_restored_into_a_new_store_only(void **state)
{
    (void)state;
    lab_store before, lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&before);
    snap_fill_one(&before, 3);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    lab_open(&lab);
    lab_run(&lab, "mine", 5, 1);
    assert_status(snap_restore(&lab, &dir), MOOR_E_STATE);
    assert_text("1 records, 1 live");
    moor_view *view = lab_view(&lab, "mine");
    lab_assert_rows(&lab, view, "mine", 0, 5, 1);
    lab_unview(&lab, view);
    snap_empty(&lab);
    assert_status(snap_restore(&lab, &dir), MOOR_E_STATE); /* empty, but its handles were given out */
    lab_close(&lab);
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

static void refused_by(lab_store *lab, const snap_dir *dir, moor_status want, const char *one, const char *other)
{
    lab_open_with(lab);
    assert_status(snap_restore(lab, dir), want);
    assert_text(one);
    assert_text(other);
    snap_assert_new(lab);
    lab_close(lab);
}

static void S2_6_a_snapshot_of_another_model_is_refused(void **state)
{
    (void)state;
    lab_store before, lab;
    snap_dir dir;
    snap_dir_make(&dir);
    lab_open(&before);
    snap_fill_one(&before, 2000);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    lab_defaults(&lab);
    lab.config.layers--;
    refused_by(&lab, &dir, MOOR_E_INVALID, "6 of 15 layers, 4 of 128 experts", "5 of 15 layers, 4 of 128 experts");
    lab_defaults(&lab);
    lab.config.top_k = 8;
    refused_by(&lab, &dir, MOOR_E_INVALID, "4 of 128 experts", "8 of 128 experts");
    lab_defaults(&lab);
    lab.config.num_experts = 64;
    refused_by(&lab, &dir, MOOR_E_INVALID, "4 of 128 experts", "4 of 64 experts");
    lab_defaults(&lab);
    lab.layer_ids[5]++;
    refused_by(&lab, &dir, MOOR_E_INVALID, "column 5 is layer 13", "layer 14");
    lab_defaults(&lab);
    lab.config.store_index = 3;
    refused_by(&lab, &dir, MOOR_E_NOT_FOUND, "store-3.moor", "");
    lab_defaults(&lab);
    lab.config.arena_bytes = 32 << 10;
    refused_by(&lab, &dir, MOOR_E_FULL, "48000 bytes of rows", "32768");
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

static void directories_that_cannot_be_are_named(void **state)
{
    (void)state;
    lab_store lab;
    snap_dir dir;
    char path[PATH_MAX + 8];
    snap_dir_make(&dir);
    lab_open(&lab);
    moor_save save = {.dir = "relative/path", .deadline_ns = UINT64_MAX};
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_E_INVALID);
    assert_text("relative/path");
    save.dir = NULL;
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_E_INVALID);
    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[PATH_MAX - 20] = 0;
    save.dir = path;
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_E_INVALID);
    assert_text("a path of");
    snprintf(path, sizeof(path), "%s/no/such", dir.base);
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_E_IO); /* more than the last component is absent */
    assert_text(path);
    save.dir = "/proc/self/status";
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_E_IO);
    assert_status(snap_restore(&lab, &dir), MOOR_E_NOT_FOUND);
    assert_text(dir.path);
    /* Not a file at all. */
    char file[PATH_MAX];
    snap_path(&dir, file);
    assert_int_equal(mkdir(dir.path, 0700), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_status(snap_restore(&lab, &dir), MOOR_E_INVALID);
    assert_text("not a regular file");
    snap_assert_new(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void two_do_not_write_one_snapshot(void **state)
{
    (void)state;
    lab_store lab;
    snap_dir dir;
    char path[PATH_MAX + 32];
    snap_dir_make(&dir);
    lab_open(&lab);
    snap_fill_one(&lab, 3);
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    snprintf(path, sizeof(path), "%s/.store-0.moor.tmp", dir.path);
    int other = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(other >= 0);
    assert_int_equal(flock(other, LOCK_EX), 0);
    assert_status(snap_save(&lab, &dir), MOOR_E_STATE);
    assert_text("another one is being written");
    assert_int_equal(access(path, F_OK), 0); /* and the other's file is left alone */
    close(other);
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    assert_int_equal(snap_temporary_left(&dir), 0);
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void a_deadline_or_a_closing_store_leaves_the_old_one(void **state)
{
    (void)state;
    lab_store lab, after;
    snap_dir dir;
    _Atomic int cancel = 1;
    snap_dir_make(&dir);
    lab_open(&lab);
    snap_fill_one(&lab, 3);
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    lab_run(&lab, "more", 5, 1);
    moor_save save = {.dir = dir.path, .deadline_ns = moor_now_ns() - 1};
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_E_TIMEOUT);
    save = (moor_save){.dir = dir.path, .deadline_ns = UINT64_MAX, .cancel = &cancel};
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_E_CLOSED);
    assert_int_equal(snap_temporary_left(&dir), 0);
    lab_open(&after);
    assert_status(snap_restore(&after, &dir), MOOR_OK);
    assert_int_equal(lab_stats(&after).records, 1);
    snap_empty(&after);
    lab_close(&after);
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static lab_store shared;
static _Atomic int stop;

static void *disturb(void *unused)
{
    (void)unused;
    for (int i = 0; !atomic_load(&stop); i++) {
        char id[16];
        moor_handle handle = 0;
        snprintf(id, sizeof(id), "t%d", i);
        lab_run(&shared, id, 200, 1);
        if (!moor_records_find(shared.records, id, (uint32_t)strlen(id), &handle)) {
            moor_records_lease(shared.records, handle);
            moor_records_unlease(shared.records, handle);
        }
        if (i >= 8) {
            snprintf(id, sizeof(id), "t%d", i - 8);
            if (!moor_records_find(shared.records, id, (uint32_t)strlen(id), &handle))
                moor_records_event(shared.records, handle, MOOR_EVENT_DISCARD);
        }
        usleep(300);
    }
    return NULL;
}

/* Rows are written while the store goes on: what was there when it began is what comes back. */
static void S2_6_a_store_that_goes_on_does_not_change_its_snapshot(void **state)
{
    (void)state;
    snap_dir dir;
    pthread_t thread;
    int saved = 0;
    snap_dir_make(&dir);
    lab_open(&shared);
    snap_fill_one(&shared, 8000);
    assert_int_equal(pthread_create(&thread, NULL, disturb, NULL), 0);
    uint64_t deadline = moor_now_ns() + 60000000000u;
    while (saved < 10 && moor_now_ns() < deadline) {
        moor_status status = snap_save(&shared, &dir);
        if (status) {
            assert_status(status, MOOR_E_STATE); /* it came amid a request */
            continue;
        }
        saved++;
        lab_store after;
        lab_open(&after);
        assert_status(snap_restore(&after, &dir), MOOR_OK);
        moor_view *view = lab_view(&after, "only");
        lab_assert_rows(&after, view, "only", 0, 8000, 1);
        lab_unview(&after, view);
        for (uint32_t s = 0; s < after.records->slots.count; s++) {
            const moor_record_slot *slot = moor_slots_at(&after.records->slots, s);
            if (!slot->used || slot->id[0] != 't')
                continue;
            view = lab_view(&after, slot->id);
            lab_assert_rows(&after, view, slot->id, 0, 200, 1);
            lab_unview(&after, view);
        }
        snap_empty(&after);
        lab_close(&after);
    }
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    assert_true(saved > 0);
    snap_empty(&shared);
    lab_close(&shared);
    snap_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S2_6_only_a_quiet_store_is_saved),
        cmocka_unit_test(S2_6_it_is_restored_into_a_new_store_only),
        cmocka_unit_test(S2_6_a_snapshot_of_another_model_is_refused),
        cmocka_unit_test(directories_that_cannot_be_are_named),
        cmocka_unit_test(two_do_not_write_one_snapshot),
        cmocka_unit_test(a_deadline_or_a_closing_store_leaves_the_old_one),
        cmocka_unit_test(S2_6_a_store_that_goes_on_does_not_change_its_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
