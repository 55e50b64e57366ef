/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots that are killed, fail, run out of memory or are damaged: at every single place. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/snapshots.h"

/* ---- the Nth system call ---- */

enum { DIE = 1000, HALF = 1001 };

static int nth, seen, action, fired; /* of the arming */
static char calls[1024];

static int at_call(const char *call)
{
    size_t used = strlen(calls);
    snprintf(calls + used, sizeof(calls) - used, "%s;", call);
    if (++seen != nth)
        return 0;
    fired = 1;
    if (action == DIE)
        kill(getpid(), SIGKILL);
    return action == HALF ? MOOR_SNAP_SHORT : action;
}

static void arm(int n, int what)
{
    nth = n;
    action = what;
    seen = fired = 0;
    calls[0] = 0;
    moor_snapfile_set_hook(at_call);
}

static void disarm(void)
{
    moor_snapfile_set_hook(NULL);
}

/* The rows of the only record that is in the snapshot; 0: it cannot be restored. */
static uint64_t rows_in(const snap_dir *dir)
{
    lab_store lab;
    lab_open(&lab);
    moor_status status = snap_restore(&lab, dir);
    uint64_t rows = 0;
    if (!status) {
        moor_view *view = lab_view(&lab, "only");
        rows = view->rows;
        lab_assert_rows(&lab, view, "only", 0, rows, 1);
        lab_unview(&lab, view);
    } else {
        print_message("%s\n", moor_last_error());
    }
    snap_empty(&lab);
    lab_close(&lab);
    return rows;
}

static void save_one(const snap_dir *dir, uint32_t rows)
{
    lab_store lab;
    lab_open(&lab);
    snap_fill_one(&lab, rows);
    assert_status(snap_save(&lab, dir), MOOR_OK);
    snap_empty(&lab);
    lab_close(&lab);
}

enum { OLD = 100, NEW = 50000 };

/* A child (the arena is not inherited, so it makes its own) is killed at its n-th call; the parent looks at what it left. */
static int killed_at(const snap_dir *dir, int n)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        lab_store lab;
        lab_open(&lab);
        snap_fill_one(&lab, NEW);
        arm(n, DIE);
        _exit(snap_save(&lab, dir) == MOOR_OK ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
        assert_int_equal(WEXITSTATUS(status), 0);
        return 0;
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return 1;
}

static void S2_6_killed_at_any_call_the_old_snapshot_is_intact(void **state)
{
    (void)state;
    snap_dir dir;
    uint64_t rows = OLD;
    int n = 1, old = 0;
    snap_dir_make(&dir);
    save_one(&dir, OLD);
    for (; killed_at(&dir, n); n++) {
        uint64_t now = rows_in(&dir);
        if (now != OLD && now != NEW)
            fail_msg("killed at call %d: %llu rows", n, (unsigned long long)now);
        if (now < rows)
            fail_msg("killed at call %d: the old one is back", n);
        rows = now; /* once the new one is there it stays */
        old += now == OLD;
        if (rows == NEW)
            save_one(&dir, OLD); /* which also writes over what the killed one left */
        rows = OLD;
    }
    print_message("killed at %d calls, %d of them before the rename\n", n - 1, old);
    assert_true(n - 1 >= 12);
    assert_int_equal(old, n - 2); /* all but the last one, the fsync of the directory */
    assert_int_equal(rows_in(&dir), NEW);
    assert_int_equal(snap_temporary_left(&dir), 0);
    snap_dir_remove(&dir);
}

static void S2_6_the_first_snapshot_is_there_or_not(void **state)
{
    (void)state;
    snap_dir dir;
    snap_dir_make(&dir);
    for (int n = 1; killed_at(&dir, n); n++) {
        lab_store lab;
        lab_open(&lab);
        moor_status status = snap_restore(&lab, &dir);
        assert_true(status == MOOR_E_NOT_FOUND || status == MOOR_OK);
        snap_empty(&lab);
        lab_close(&lab);
        save_one(&dir, OLD); /* whatever was left, the next one works */
        assert_int_equal(rows_in(&dir), OLD);
        snap_dir_remove(&dir);
        snap_dir_make(&dir);
    }
    snap_dir_remove(&dir);
}

static void S2_6_a_snapshot_is_on_the_disk_before_it_has_its_name(void **state)
{
    (void)state;
    snap_dir dir;
    lab_store lab;
    snap_dir_make(&dir);
    lab_open(&lab);
    snap_fill_one(&lab, OLD);
    arm(0, 0);
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    disarm();
    assert_string_equal(calls, "open of the directory;mkdir;fsync of the parent;open;flock;ftruncate;write;"
                               "write of the header;fsync;rename;fsync of the directory;");
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void S2_6_a_call_that_fails_leaves_the_old_one(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EIO, EDQUOT, HALF};
    snap_dir dir;
    lab_store lab;
    snap_dir_make(&dir);
    lab_open(&lab);
    snap_fill_one(&lab, NEW);
    for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
        int failures = 0;
        for (int n = 1;; n++) {
            save_one(&dir, OLD);
            uint64_t blocks = lab_stats(&lab).blocks;
            arm(n, errors[e]);
            moor_status status = snap_save(&lab, &dir);
            int was_last = strstr(calls, "fsync of the directory") != NULL;
            disarm();
            assert_int_equal(lab_stats(&lab).blocks, blocks);
            assert_int_equal(snap_temporary_left(&dir), 0);
            if (status)
                assert_text(dir.path);
            assert_int_equal(rows_in(&dir), !status || was_last ? NEW : OLD);
            if (!fired)
                break;
            if (errors[e] == HALF && !status)
                continue; /* a short write is gone on with */
            assert_int_equal(status, MOOR_E_IO);
            failures++;
        }
        assert_true(errors[e] == HALF ? failures == 1 /* the header's */ : failures >= 8);
    }
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void S2_6_reads_that_fail_or_fall_short_change_nothing(void **state)
{
    (void)state;
    snap_dir dir;
    lab_store lab;
    int n = 0, failed = 0;
    snap_dir_make(&dir);
    save_one(&dir, OLD);
    lab_open(&lab);
    do {
        arm(++n, EIO);
        moor_status status = snap_restore(&lab, &dir);
        disarm();
        if (!fired) {
            assert_status(status, MOOR_OK);
            break;
        }
        failed++;
        assert_status(status, MOOR_E_IO);
        assert_text(dir.path);
        snap_assert_new(&lab);
    } while (1);
    assert_true(failed >= 8);
    snap_empty(&lab);
    lab_close(&lab);
    for (n = 1;; n++) {
        lab_open(&lab);
        arm(n, HALF);
        assert_status(snap_restore(&lab, &dir), MOOR_OK);
        disarm();
        moor_view *view = lab_view(&lab, "only");
        lab_assert_rows(&lab, view, "only", 0, OLD, 1);
        lab_unview(&lab, view);
        snap_empty(&lab);
        lab_close(&lab);
        if (!fired)
            break;
    }
    snap_dir_remove(&dir);
}

/* ---- the Nth allocation ---- */

static void S2_6_no_memory_at_any_step_of_saving(void **state)
{
    (void)state;
    snap_dir dir;
    lab_store lab, after;
    int again = 1;
    snap_dir_make(&dir);
    save_one(&dir, OLD);
    lab_open(&lab);
    snap_fill(&lab);
    uint64_t blocks = lab_stats(&lab).blocks, n = 0;
    while (again) {
        moor_fault_arm(++n);
        moor_status status = snap_save(&lab, &dir);
        again = moor_fault_fired();
        moor_fault_arm(0);
        assert_int_equal(status, again ? MOOR_E_NOMEM : MOOR_OK);
        assert_int_equal(lab_stats(&lab).blocks, blocks);
        assert_int_equal(snap_temporary_left(&dir), 0);
        if (again)
            assert_int_equal(rows_in(&dir), OLD);
    }
    print_message("saving: %llu allocations, each failed once\n", (unsigned long long)n - 1);
    assert_true(n > 8);
    lab_open(&after);
    assert_status(snap_restore(&after, &dir), MOOR_OK);
    snap_assert_same(&lab, &after);
    snap_empty(&after);
    lab_close(&after);
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

static void S2_6_no_memory_at_any_step_of_restoring(void **state)
{
    (void)state;
    snap_dir dir;
    lab_store lab, before;
    uint64_t n = 0;
    int again = 1, failed = 0;
    snap_dir_make(&dir);
    lab_open(&before);
    snap_fill(&before);
    assert_status(snap_save(&before, &dir), MOOR_OK);
    lab_open(&lab);
    while (again) {
        moor_fault_arm(++n);
        moor_status status = snap_restore(&lab, &dir);
        again = moor_fault_fired();
        moor_fault_arm(0);
        if (!status) { /* none failed, or one that is tried again: the arena's, after a purge */
            snap_assert_same(&before, &lab);
            snap_empty(&lab);
            lab_close(&lab);
            lab_open(&lab);
            continue;
        }
        if (!again || (status != MOOR_E_NOMEM && status != MOOR_E_FULL)) /* FULL: of the arena's own memory */
            fail_msg("allocation %llu: %s: %s", (unsigned long long)n, moor_status_name(status), moor_last_error());
        snap_assert_new(&lab);
        failed++;
    }
    print_message("restoring: %llu allocations, each failed once\n", (unsigned long long)n - 1);
    assert_true(failed > 40);
    lab_close(&lab);
    snap_empty(&before);
    lab_close(&before);
    snap_dir_remove(&dir);
}

/* ---- damage ---- */

static void refused(lab_store *lab, const snap_dir *dir, const char *what, size_t at)
{
    moor_status status = snap_restore(lab, dir);
    if (status != MOOR_E_CORRUPT && status != MOOR_E_VERSION)
        fail_msg("%s at %zu: %s: %s", what, at, moor_status_name(status), moor_last_error());
    if (!strstr(moor_last_error(), "offset") || !strstr(moor_last_error(), dir->path))
        fail_msg("%s at %zu: the place is not in \"%s\"", what, at, moor_last_error());
    snap_assert_new(lab);
}

static void S2_6_damage_anywhere_is_refused_with_its_place(void **state)
{
    (void)state;
    snap_dir dir;
    lab_store small, lab;
    uint8_t *data;
    snap_dir_make(&dir);
    lab_open(&small);
    lab_run(&small, "only", 20, 1);
    assert_status(moor_records_alias(small.records, "only", 4, "http", 4, 0), MOOR_OK);
    assert_status(snap_save(&small, &dir), MOOR_OK);
    size_t size = snap_read(&dir, &data);
    lab_open(&lab);
    for (size_t at = 0; at < size; at++) {
        static const uint8_t flips[] = {1, 0x80, 0xFF};
        for (int i = 0; i < 3; i++) {
            data[at] ^= flips[i];
            snap_write(&dir, data, size);
            refused(&lab, &dir, "a flip", at);
            data[at] ^= flips[i];
        }
        snap_write(&dir, data, at);
        refused(&lab, &dir, "the end", at);
    }
    data[size] = 0;
    snap_write(&dir, data, size + 1);
    refused(&lab, &dir, "one byte more", size);
    snap_write(&dir, data, size);
    assert_status(snap_restore(&lab, &dir), MOOR_OK); /* after all that */
    snap_assert_same(&small, &lab);
    print_message("%zu bytes, each damaged in 3 ways and cut off\n", size);
    free(data);
    snap_empty(&lab);
    lab_close(&lab);
    snap_empty(&small);
    lab_close(&small);
    snap_dir_remove(&dir);
}

static void S2_6_the_place_of_damage_is_the_right_one(void **state)
{
    (void)state;
    snap_dir dir;
    lab_store lab;
    uint8_t *data;
    char want[64];
    snap_dir_make(&dir);
    save_one(&dir, 200);
    size_t size = snap_read(&dir, &data);
    lab_open(&lab);
    /* Behind the rows come a section of no sessions (4 bytes) and the table of seven sections. */
    size_t rows_end = size - 7 * MOOR_SNAP_ENTRY - 4;
    data[rows_end - 1] ^= 4;
    snap_write(&dir, data, size);
    assert_status(snap_restore(&lab, &dir), MOOR_E_CORRUPT);
    snprintf(want, sizeof(want), "section rows, offset %zu:", rows_end - 200 * moor_records_row_bytes(lab.records));
    assert_text(want);
    assert_text("block 0");
    data[rows_end - 1] ^= 4;
    data[8] = 77;
    snap_write(&dir, data, size);
    assert_status(snap_restore(&lab, &dir), MOOR_E_VERSION);
    assert_text("format 77, this library reads 1 to 2");
    data[8] = MOOR_SNAP_FORMAT;
    data[MOOR_SNAP_HEADER] ^= 1;
    snap_write(&dir, data, size);
    assert_status(snap_restore(&lab, &dir), MOOR_E_CORRUPT);
    assert_text("section model, offset 64:");
    free(data);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S2_6_killed_at_any_call_the_old_snapshot_is_intact),
        cmocka_unit_test(S2_6_the_first_snapshot_is_there_or_not),
        cmocka_unit_test(S2_6_a_snapshot_is_on_the_disk_before_it_has_its_name),
        cmocka_unit_test(S2_6_a_call_that_fails_leaves_the_old_one),
        cmocka_unit_test(S2_6_reads_that_fail_or_fall_short_change_nothing),
        cmocka_unit_test(S2_6_no_memory_at_any_step_of_saving),
        cmocka_unit_test(S2_6_no_memory_at_any_step_of_restoring),
        cmocka_unit_test(S2_6_damage_anywhere_is_refused_with_its_place),
        cmocka_unit_test(S2_6_the_place_of_damage_is_the_right_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
