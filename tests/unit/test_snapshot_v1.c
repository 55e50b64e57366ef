/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of an older format loads; its records have no owner (SEMANTICS 2.6). */
#include <stdlib.h>

#include "support/snapshot_v1.h"
#include "support/snapshots.h"

static size_t fixture(uint8_t *out, size_t room)
{
    FILE *file = fopen(MOOR_TEST_DATA "/snapshot-v1.moor", "rb");
    if (!file)
        fail_msg("%s/snapshot-v1.moor is not there", MOOR_TEST_DATA);
    size_t n = fread(out, 1, room, file);
    fclose(file);
    return n;
}

static void the_fixture_is_what_its_generator_makes(void **state)
{
    (void)state;
    uint8_t stored[4096], made[4096];
    size_t n = fixture(stored, sizeof(stored));
    assert_int_equal(snapshot_v1(made, sizeof(made)), n);
    assert_memory_equal(stored, made, n);
}

static void assert_row(lab_store *lab, const moor_view *view, uint32_t row)
{
    const uint8_t *data = lab_row(lab, view, row);
    assert_non_null(data);
    for (uint32_t i = 0; i < V1_ROW; i++)
        assert_int_equal(data[i], snapshot_v1_id(row, i));
}

static void S2_6_an_old_snapshot_without_owners_loads_as_none(void **state)
{
    (void)state;
    lab_store lab;
    snap_dir dir;
    uint8_t data[4096];
    snap_dir_make(&dir);
    snap_write(&dir, data, fixture(data, sizeof(data)));
    lab_open(&lab);
    assert_status(snap_restore(&lab, &dir), MOOR_OK);
    moor_view *view = lab_view(&lab, "http"), *other = lab_view(&lab, "old-b");
    assert_int_equal(view->handle, 1ull << 32);
    assert_int_equal(view->owner, MOOR_OWNER_NONE);
    assert_int_equal(view->index, 1);
    assert_int_equal(view->rows, V1_ROWS);
    assert_int_equal(view->dropped_rows, 2);
    assert_int_equal(view->n_versions, 2);
    assert_int_equal(view->versions[1].start, 6);
    assert_int_equal(view->versions[1].epoch, V1_EPOCH);
    for (uint32_t row = 0; row < V1_ROWS; row++)
        assert_row(&lab, view, row);
    assert_int_equal(other->handle, 2ull << 32 | 2);
    assert_int_equal(other->owner, MOOR_OWNER_NONE);
    assert_int_equal(other->rows, 5);
    for (uint32_t row = 0; row < 3; row++)
        assert_row(&lab, other, row);
    lab_assert_missing(other, 3, 5, MOOR_REASON_SHORT);
    assert_int_equal(lab_stats(&lab).blocks, 1); /* shared */
    assert_status(moor_records_lease(lab.records, 3ull << 32 | 1), MOOR_E_STALE);
    /* As the table of SEMANTICS 2 has it for an owner of none: reset and discard free. */
    moor_handle handle = view->handle, second = other->handle;
    lab_unview(&lab, view);
    lab_unview(&lab, other);
    assert_status(moor_records_event(lab.records, handle, MOOR_EVENT_RESET), MOOR_OK);
    assert_status(moor_records_lease(lab.records, handle), MOOR_E_STALE);
    /* Saved again it is of today's format. */
    assert_status(snap_save(&lab, &dir), MOOR_OK);
    uint8_t *now;
    size_t n = snap_read(&dir, &now);
    assert_true(n > 12);
    assert_int_equal(now[8], MOOR_SNAP_FORMAT);
    free(now);
    assert_status(moor_records_event(lab.records, second, MOOR_EVENT_DISCARD), MOOR_OK);
    lab_assert_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fixture_is_what_its_generator_makes),
        cmocka_unit_test(S2_6_an_old_snapshot_without_owners_loads_as_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
