/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshots.h"

#include "allocator/sessions.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void snap_dir_make(snap_dir *dir)
{
    /* Where fsync costs nothing: these tests make thousands of them. */
    snprintf(dir->base, sizeof(dir->base), "%s/moor-snap-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(dir->base));
    snprintf(dir->path, sizeof(dir->path), "%s/snapshot", dir->base);
}

void snap_path(const snap_dir *dir, char path[PATH_MAX])
{
    char name[32];
    moor_snapshot_name(0, name);
    assert_true(snprintf(path, PATH_MAX, "%s/%s", dir->path, name) < PATH_MAX);
}

void snap_dir_remove(snap_dir *dir)
{
    char path[PATH_MAX];
    snap_path(dir, path);
    unlink(path);
    if (rmdir(dir->path) && access(dir->path, F_OK) == 0)
        fail_msg("something is left in %s", dir->path);
    if (rmdir(dir->base))
        fail_msg("something is left in %s", dir->base);
}

int snap_temporary_left(const snap_dir *dir)
{
    DIR *list = opendir(dir->path);
    const struct dirent *entry;
    int left = 0;
    while (list && (entry = readdir(list)))
        left |= strstr(entry->d_name, ".tmp") != NULL;
    if (list)
        closedir(list);
    return left;
}

size_t snap_read(const snap_dir *dir, uint8_t **out)
{
    char path[PATH_MAX];
    struct stat st;
    snap_path(dir, path);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    *out = malloc((size_t)st.st_size + 1);
    assert_non_null(*out);
    assert_int_equal(read(fd, *out, (size_t)st.st_size), st.st_size);
    close(fd);
    return (size_t)st.st_size;
}

void snap_write(const snap_dir *dir, const void *data, size_t n)
{
    char path[PATH_MAX];
    snap_path(dir, path);
    mkdir(dir->path, 0700);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
}

moor_status snap_save(lab_store *lab, const snap_dir *dir)
{
    moor_save save = {.dir = dir->path, .deadline_ns = UINT64_MAX, .epoch = lab->epoch};
    return moor_records_save(lab->records, &save, NULL);
}

moor_status snap_restore(lab_store *lab, const snap_dir *dir)
{
    moor_restore restore = {.dir = dir->path};
    return moor_records_restore(lab->records, &restore, NULL);
}

/* ---- a store ---- */

static moor_handle handle_of(lab_store *lab, const char *id)
{
    moor_handle handle = 0;
    assert_status(moor_records_find(lab->records, id, (uint32_t)strlen(id), &handle), MOOR_OK);
    return handle;
}

static void fill_shared(lab_store *lab)
{
    const int32_t kv[] = {1, 2, 3, 4, 5, 6};
    lab_request a = {.id = "a", .count = 16, .kv = kv, .n_kv = 4};
    lab_step(lab, &a, 1);
    lab_request both[] = {{.id = "b", .start = 16, .count = 2, .kv = kv, .n_kv = 4},
                          {.id = "c", .start = 12, .count = 3, .kv = kv, .n_kv = 4}};
    lab_step(lab, both, 2);
    lab->epoch = 2;
    lab_one(lab, "a", 16, 5);
    lab_one(lab, "a", 21, 1);
    assert_status(moor_records_alias(lab->records, "a", 1, "http", 4, 0), MOOR_OK);
    assert_status(moor_records_alias(lab->records, "c", 1, "http", 4, 1), MOOR_OK);
    assert_status(moor_records_alias(lab->records, "a", 1, "external", 8, 0), MOOR_OK);
    assert_status(lab_seal(lab, "a", 22), MOOR_OK);
    assert_status(lab_seal(lab, "b", 18), MOOR_OK);
    assert_status(lab_seal(lab, "c", 15), MOOR_OK);
    assert_status(moor_records_claim(lab->records, handle_of(lab, "c"), MOOR_OWNER_TRACE_STORE), MOOR_OK);
    assert_status(moor_records_event(lab->records, handle_of(lab, "c"), MOOR_EVENT_DISCARD), MOOR_OK); /* detached */
}

static void fill_gap(lab_store *lab)
{
    lab_one(lab, "gap", 3, 4); /* rows 0…2 are nobody's */
    lab->skip_layer = 2;
    lab_one(lab, "gap", 7, 2);
    lab->skip_layer = -1;
    lab_one(lab, "gap", 9, 1);
    assert_status(moor_records_seal(lab->records, moor_id_hash("gap", 3), 12, MOOR_SEAL_ABORTED), MOOR_OK);
}

static void insert(lab_store *lab, const char *session, const char *key, const char *id, uint32_t n)
{
    int32_t tokens[32];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * 1000 - n);
    moor_trace_in in = {.handle = id ? handle_of(lab, id) : 0,
                        .start = MOOR_TRACE_BEHIND,
                        .length = MOOR_TRACE_ROWS,
                        .tokens = tokens,
                        .n_tokens = n,
                        .create = 1};
    assert_status(
        moor_session_insert(lab->records, 5, session, (uint32_t)strlen(session), key, (uint32_t)strlen(key), &in),
        MOOR_OK);
}

static void release_key(lab_store *lab, const char *session, const char *key)
{
    assert_status(
        moor_session_release_key(lab->records, session, (uint32_t)strlen(session), key, (uint32_t)strlen(key)),
        MOOR_OK);
}

/* "tree": the shape of SEMANTICS 3.2 with keys that have no value, and the root; "trace": two turns, the first of which was overwritten (its
 * record is parked); "empty"; "gone", released. */
static void fill_sessions(lab_store *lab)
{
    const char *keys[] = {"", "z", "a", "abc", "ab", "abcd", "ax"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        insert(lab, "tree", keys[i], NULL, (uint32_t)i);
    release_key(lab, "tree", "abc");
    release_key(lab, "tree", "a");
    lab_run(lab, "turn1", 9, 2);
    lab_run(lab, "turn1 again", 9, 2);
    lab_run(lab, "turn2", 15, 2);
    insert(lab, "trace", "hello", "turn1", 11);
    insert(lab, "trace", "hello", "turn1 again", 11);
    insert(lab, "trace", "hello world", "turn2", 6);
    insert(lab, "trace", "hello there", "turn2", 6);
    assert_status(moor_session_start(lab->records, 5, "empty", 5, 0), MOOR_OK);
    insert(lab, "gone", "x", NULL, 1);
    assert_status(moor_session_release(lab->records, "gone", 4), MOOR_OK);
}

void snap_release_sessions(lab_store *lab)
{
    const char *ids[] = {"tree", "trace", "empty"};
    for (int i = 0; i < 3; i++)
        (void)moor_session_release(lab->records, ids[i], (uint32_t)strlen(ids[i]));
}

void snap_fill(lab_store *lab)
{
    lab_run(lab, "dup", 5, 2);
    moor_handle older = handle_of(lab, "dup");
    moor_view *view = NULL;
    lab_run(lab, "gone", 9, 1);
    fill_shared(lab);
    assert_status(moor_records_event(lab->records, handle_of(lab, "gone"), MOOR_EVENT_DISCARD), MOOR_OK);
    fill_gap(lab); /* in the slot of "gone", next generation */
    lab_run(lab, "dup", 7, 1);
    lab_run(lab, "none", 4, 1);
    assert_status(moor_records_claim(lab->records, handle_of(lab, "none"), MOOR_OWNER_NONE), MOOR_OK);
    for (uint64_t i = 0; i < 12; i++)
        lab_one(lab, "long", i * 8000, 8000);
    assert_status(lab_seal(lab, "long", 96000), MOOR_OK);
    lab_run(lab, "read", 6, 3);
    lab_unview(lab, lab_view(lab, "read"));
    lab_run(lab, "gone too", 9, 1);
    assert_status(moor_records_event(lab->records, handle_of(lab, "gone too"), MOOR_EVENT_DISCARD), MOOR_OK);
    fill_sessions(lab);
    /* The older "dup" is touched last: neither order is that of the other. */
    assert_status(moor_records_open_handle(lab->records, 1, older, &view), MOOR_OK);
    lab_unview(lab, view);
    lab_unview(lab, lab_view(lab, "b")); /* touched last */
}

void snap_fill_one(lab_store *lab, uint32_t rows)
{
    for (uint32_t at = 0, n; at < rows; at += n) {
        n = rows - at < LAB_MAX_STEP ? rows - at : LAB_MAX_STEP;
        lab_one(lab, "only", at, n);
    }
    assert_status(lab_seal(lab, "only", rows), MOOR_OK);
}

/* ---- the same? ---- */

static void assert_same_view(lab_store *a, const moor_view *x, lab_store *b, const moor_view *y)
{
    assert_int_equal(x->rows, y->rows);
    assert_int_equal(x->missing_rows, y->missing_rows);
    assert_int_equal(x->dropped_rows, y->dropped_rows);
    assert_int_equal(x->owner, y->owner);
    assert_int_equal(x->reasons, y->reasons);
    assert_int_equal(x->id_len, y->id_len);
    assert_memory_equal(x->id, y->id, x->id_len);
    assert_string_equal(x->session, y->session);
    assert_int_equal(x->n_versions, y->n_versions);
    for (uint32_t i = 0; i < x->n_versions; i++) {
        assert_int_equal(x->versions[i].start, y->versions[i].start);
        assert_int_equal(x->versions[i].epoch, y->versions[i].epoch);
    }
    assert_int_equal(x->n_segments, y->n_segments);
    for (uint32_t i = 0; i < x->n_segments; i++) {
        assert_int_equal(x->segments[i].rows, y->segments[i].rows);
        assert_int_equal(x->segments[i].present, y->segments[i].present);
        assert_int_equal(x->segments[i].reasons, y->segments[i].reasons);
    }
    uint32_t row_bytes = moor_records_row_bytes(a->records);
    for (uint64_t row = 0; row < x->rows; row++) {
        const uint8_t *p = lab_row(a, x, row), *q = lab_row(b, y, row);
        assert_int_equal(p != NULL, q != NULL);
        if (p)
            assert_memory_equal(p, q, row_bytes);
    }
}

void snap_assert_same(lab_store *a, lab_store *b)
{
    moor_records_stats x = lab_stats(a), y = lab_stats(b);
    uint64_t n = 0;
    for (uint32_t i = 0; i < a->records->slots.count; i++) {
        const moor_record_slot *slot = moor_slots_at(&a->records->slots, i);
        if (!slot->used || moor_slot_dead(slot))
            continue;
        moor_view *left = NULL, *right = NULL;
        moor_handle handle = moor_slot_handle(slot);
        assert_status(moor_records_open_handle(a->records, 7, handle, &left), MOOR_OK);
        assert_status(moor_records_open_handle(b->records, 7, handle, &right), MOOR_OK);
        assert_same_view(a, left, b, right);
        const moor_record_slot *other = moor_slots_at(&b->records->slots, i);
        assert_int_equal(slot->detached, other->detached);
        assert_int_equal(slot->created, other->created);
        assert_int_equal(slot->seal_flags, other->seal_flags);
        moor_view_free(left);
        moor_view_free(right);
        n++;
    }
    moor_records_disconnect(a->records, 7);
    moor_records_disconnect(b->records, 7);
    assert_int_equal(y.records, n);
    assert_int_equal(y.sealed, n);
    assert_int_equal(y.leases, 0);
    if (!x.leases && !x.kv_entries)
        assert_int_equal(x.blocks, y.blocks);
}

void snap_assert_new(lab_store *lab)
{
    moor_records_stats stats = lab_stats(lab);
    assert_int_equal(stats.records, 0);
    assert_int_equal(stats.blocks, 0);
    assert_int_equal(stats.live_bytes, 0);
    assert_int_equal(stats.leases, 0);
    assert_int_equal(lab->records->created, 0);
    assert_null(lab->records->ids.groups);
    assert_null(lab->records->oldest);
    assert_int_equal(lab->records->sessions->table.used, 0);
    assert_int_equal(stats.session_keys, 0);
}

void snap_empty(lab_store *lab)
{
    snap_release_sessions(lab);
    lab_assert_empty(lab);
}
