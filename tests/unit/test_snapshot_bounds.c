/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 2.6: every bound that restoring checks, from both sides: a number of a good file is changed, its checksums are made right again. */
#include <stdlib.h>

#include <xxhash.h>

#include "support/snapshots.h"

enum { ROWS = 5, ID = 4 /* bytes of "only" */, RECORD = 48 /* before its id */ };

static uint8_t *file;
static size_t size;

static uint8_t *entry_of(uint32_t kind)
{
    uint8_t *table = file + moor_le64_load(file + 24);
    for (uint32_t i = 0; i < moor_le32_load(file + 12); i++)
        if (moor_le32_load(table + (size_t)i * MOOR_SNAP_ENTRY) == kind)
            return table + (size_t)i * MOOR_SNAP_ENTRY;
    fail_msg("no section %u", kind);
    return NULL;
}

static uint8_t *section(uint32_t kind)
{
    return file + moor_le64_load(entry_of(kind) + 8);
}

static void fix(uint32_t kind)
{
    uint8_t *entry = entry_of(kind), *table = file + moor_le64_load(file + 24);
    moor_le64_store(entry + 24, XXH3_64bits(section(kind), moor_le64_load(entry + 16)));
    moor_le64_store(file + 32, XXH3_64bits(table, (size_t)moor_le32_load(file + 12) * MOOR_SNAP_ENTRY));
    moor_le64_store(file + 56, XXH3_64bits(file, 56));
}

static void label_of(void *user, uint64_t epoch, char text[MOOR_SNAP_LABEL_BYTES])
{
    (void)user;
    memset(text, 'a' + (int)(epoch % 26), MOOR_SNAP_LABEL_BYTES - 1);
    text[MOOR_SNAP_LABEL_BYTES - 1] = 0;
}

/* A record of ROWS rows of two epochs, one block. */
static void make(const snap_dir *dir)
{
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "only", 0, 2);
    lab.epoch = 2;
    lab_one(&lab, "only", 2, ROWS - 2);
    assert_status(lab_seal(&lab, "only", ROWS), MOOR_OK);
    moor_save save = {.dir = dir->path, .deadline_ns = UINT64_MAX, .epoch = 2, .label_of = label_of};
    assert_status(moor_records_save(lab.records, &save, NULL), MOOR_OK);
    snap_empty(&lab);
    lab_close(&lab);
    size = snap_read(dir, &file);
}

struct bound {
    uint32_t kind, at, bytes;
    uint64_t good, bad; /* UINT64_MAX: not tried */
    const char *text;
};

#define NONE UINT64_MAX
enum { PIECE = RECORD + ID, RUN = 16, LABEL = 4 };
static struct bound bounds[] = {
    {MOOR_SNAP_STORE, 20, 4, 1, 0 /* set below: one more than slots */, "slots, a store has up to"},
    {MOOR_SNAP_STORE, 32, 4, 1, 0, "slot 0 has generation 0"},
    {MOOR_SNAP_BLOCKS, 0, 4, ROWS, 0, "block 0 has 0 rows, allowed are 1 to"},
    {MOOR_SNAP_BLOCKS, 0, 4, ROWS, ROWS + 1, "bytes of rows, section rows has"},
    {MOOR_SNAP_BLOCKS, RUN + 12, 4, ROWS - 1, ROWS, "weight version 1 begins at row 5 of 5"},
    {MOOR_SNAP_BLOCKS, RUN + 12, 4, 1, 0, "weight version 1 begins at row 0 of 5"},
    {MOOR_SNAP_LABELS, LABEL + 8, 4, MOOR_SNAP_LABEL_BYTES - 1, MOOR_SNAP_LABEL_BYTES, "label 0 of 64 bytes"},
    {MOOR_SNAP_LABELS, LABEL + 12 + 63, 8, 2, 1, "of epoch 1 after 1"},
    {MOOR_SNAP_RECORDS, 0, 8, NONE, 1ull << 32 | 1, "and this one's generation is 0"},
    {MOOR_SNAP_RECORDS, 8, 4, 2, 3, "owner 3, known are 0 to 2"},
    {MOOR_SNAP_RECORDS, 12, 4, 3, 4, "flags 0x4, known are 0x3"},
    {MOOR_SNAP_RECORDS, 28, 8, 1, 2, "record number 2, 1 were ever made"},
    {MOOR_SNAP_RECORDS, PIECE, 8, ROWS, ROWS + 1, "rows 0 to 6 of block 0, which has 5"},
    {MOOR_SNAP_RECORDS, PIECE, 8, 1, 0, "has 0 rows"},
    {MOOR_SNAP_RECORDS, PIECE, 8, NONE, (uint64_t)INT64_MAX + 1, "has 9223372036854775808 rows"},
    {MOOR_SNAP_RECORDS, PIECE + 8, 4, 0, 1, "of block 1, which has 0"},
    {MOOR_SNAP_RECORDS, PIECE + 12, 4, 0, 1, "rows 1 to 6 of block 0, which has 5"},
    {MOOR_SNAP_RECORDS, PIECE + 12, 4, NONE, 6, "rows 6 to 11 of block 0, which has 5"},
};

static void S2_6_bounds_from_both_sides(void **state)
{
    (void)state;
    snap_dir dir;
    lab_store lab;
    snap_dir_make(&dir);
    make(&dir);
    uint32_t slots = moor_le32_load(section(MOOR_SNAP_STORE) + 16);
    bounds[0].bad = slots + 1;
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
        if (bounds[i].kind == MOOR_SNAP_RECORDS && bounds[i].at == 0)
            bounds[i].bad = 1ull << 32 | slots;
    uint8_t *whole = malloc(size);
    assert_non_null(whole);
    memcpy(whole, file, size);
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
        for (int bad = 0; bad < 2; bad++) {
            const struct bound *b = &bounds[i];
            uint64_t value = bad ? b->bad : b->good;
            if (value == NONE)
                continue;
            memcpy(file, whole, size);
            if (b->bytes == 8)
                moor_le64_store(section(b->kind) + b->at, value);
            else
                moor_le32_store(section(b->kind) + b->at, (uint32_t)value);
            fix(b->kind);
            snap_write(&dir, file, size);
            lab_open(&lab);
            moor_status status = snap_restore(&lab, &dir);
            if ((status == MOOR_OK) == bad || (status && status != MOOR_E_CORRUPT) ||
                (bad && b->text && !strstr(moor_last_error(), b->text)))
                fail_msg("bound %zu, %llu: status %d, %s", i, (unsigned long long)value, status,
                         status ? moor_last_error() : "accepted");
            if (bad)
                snap_assert_new(&lab);
            else
                snap_empty(&lab);
            lab_close(&lab);
        }
    free(whole);
    free(file);
    snap_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(S2_6_bounds_from_both_sides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
