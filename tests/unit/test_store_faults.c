/* SPDX-License-Identifier: Apache-2.0 */
/* The Nth allocation fails, for every N, over a run that uses everything: no crash, no leak, live bytes 0, and no wrong row. */
#include <stdlib.h>

#include "support/lab.h"

static const int32_t kv[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

/* What is readable must be right; more than that a run with a failure cannot promise. */
static void check_rows(lab_store *lab, const char *id, const char *prefix_of, uint64_t prefix)
{
    moor_view *view = NULL;
    moor_status status = moor_records_open(lab->records, 3, id, (uint32_t)strlen(id), 0, 0, &view);
    if (status) {
        assert_true(status == MOOR_E_NOMEM || status == MOOR_E_NOT_FOUND || status == MOOR_E_TIMEOUT);
        return;
    }
    uint64_t missing = 0;
    for (uint64_t row = 0; row < view->rows; row++) {
        if (lab_row(lab, view, row))
            lab_assert_rows(lab, view, row < prefix ? prefix_of : id, row, row + 1, 1);
        else
            missing++;
    }
    assert_int_equal(missing, view->missing_rows);
    assert_true(!missing == !view->reasons);
    moor_view_free(view);
}

static void try_step(lab_store *lab, lab_request *requests, uint32_t n)
{
    moor_status status = lab_begin(lab, requests, n);
    if (status) {
        assert_int_equal(status, MOOR_E_NOMEM);
        return;
    }
    lab_capture(lab, requests, n);
    assert_status(moor_records_step_commit(lab->records, NULL, 0), MOOR_OK);
}

static void check_all(lab_store *lab)
{
    check_rows(lab, "a", "", 0);
    check_rows(lab, "long", "", 0);
    check_rows(lab, "b", "a", 16);
    check_rows(lab, "d", "c", 8);
    check_rows(lab, "c", "", 0);
    check_rows(lab, "f", "", 0);
}

static void script(lab_store *lab)
{
    lab_request both[] = {{.id = "a", .count = 20, .kv = kv, .n_kv = 5}, {.id = "long", .count = 70}};
    try_step(lab, both, 2);
    for (uint64_t i = 0; i < 90; i++) {
        both[0] = (lab_request){.id = "a", .start = 20 + i, .count = 1, .kv = kv, .n_kv = 5};
        both[1] = (lab_request){.id = "long", .start = 70 + 50 * i, .count = 50};
        try_step(lab, both, 2);
    }
    (void)moor_records_alias(lab->records, "b", 1, "http", 4, 1);
    (void)moor_records_alias(lab->records, "b", 1, "more", 4, 1);
    (void)moor_records_alias(lab->records, "b", 1, "ids", 3, 1);
    (void)moor_records_alias(lab->records, "b", 1, "yet", 3, 1);
    lab_request hits[] = {{.id = "b", .start = 16, .count = 3, .kv = kv, .n_kv = 5},
                          {.id = "d", .start = 8, .count = 3, .kv = kv + 6, .n_kv = 3},
                          {.id = "c", .count = 8, .kv = kv + 6, .n_kv = 2}};
    try_step(lab, hits, 3);
    moor_view *prefix = NULL;
    if (!moor_records_open(lab->records, 2, "b", 1, MOOR_OPEN_PREFIX, 17, &prefix))
        moor_view_free(prefix);
    (void)moor_records_truncate(lab->records, "c", 1, 4, 0);
    moor_ids ids = {.data = lab->source, .dtype = MOOR_DTYPE_I32, .tokens = 6 * LAB_LAYERS, .top_k = LAB_K};
    memset(lab->source, 0, 6 * LAB_LAYERS * LAB_K * sizeof(*lab->source));
    for (uint32_t row = 0; row < 6; row++)
        for (uint32_t i = 0; i < LAB_LAYERS * LAB_K; i++)
            lab->source[row * LAB_LAYERS * LAB_K + i] = (int32_t)lab_id(lab, "f", row, i / LAB_K, i % LAB_K, 1);
    (void)moor_records_fill(lab->records, "f", 1, 0, &ids, 6, 1);
    (void)moor_seal_push(lab->ring, moor_id_hash("a", 1), moor_id_hash("http", 4), 110, 0);
    (void)moor_seal_push(lab->ring, moor_id_hash("long", 4), (moor_hash128){0, 0}, 4570, 0);
    (void)moor_seal_push(lab->ring, moor_id_hash("nobody", 6), (moor_hash128){0, 0}, 1, 0);
    moor_records_drain(lab->records);
    const char *rest[] = {"b", "c", "d", "f"};
    for (int i = 0; i < 4; i++)
        (void)moor_records_finished(lab->records, rest[i], 1);
    check_all(lab);
    moor_view **views = NULL;
    uint32_t n = 0;
    if (!moor_records_open_all(lab->records, 3, "http", 4, &views, &n)) {
        assert_true(n >= 1 && n <= 2);
        moor_views_free(views, n);
    }
}

static void fail_each(void (*arm)(uint64_t nth))
{
    int fired = 1;
    uint64_t nth = 0;
    while (fired) {
        lab_store lab;
        lab_defaults(&lab);
        lab.config.validate_at_seal = nth % 2 != 0;
        lab_open_with(&lab);
        arm(++nth);
        script(&lab);
        fired = moor_fault_fired();
        moor_fault_arm(0);
        check_all(&lab);
        moor_records_disconnect(lab.records, 2);
        moor_records_disconnect(lab.records, 3);
        assert_int_equal(lab_stats(&lab).leases, 0);
        lab_assert_empty(&lab);
        /* And it goes on as if nothing had been. */
        lab_run(&lab, "after", 30, 3);
        moor_view *view = lab_view(&lab, "after");
        assert_int_equal(view->missing_rows, 0);
        lab_unview(&lab, view);
        lab_assert_empty(&lab);
        lab_close(&lab);
    }
    print_message("%llu allocations, each failed\n", (unsigned long long)nth - 1);
    assert_true(nth > 60);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    fail_each(moor_fault_arm);
}

/* Memory that is used up stays so for a while: what a first failure is answered with must not need any either. */
static void every_allocation_may_be_the_last(void **state)
{
    (void)state;
    fail_each(moor_fault_arm_from);
}

/* The seal needs two pieces more, and must not fail: whatever a step finds no memory for, room for these two is left. */
static void memory_that_is_gone_in_a_prefix_leaves_the_seal_its_room(void **state)
{
    static const int32_t own[] = {30, 20, 21, 22, 23};
    static const char *const others[] = {"p", "q", "s", "t"};
    (void)state;
    lab_store lab;
    lab_open(&lab);
    for (int i = 0; i < 4; i++)
        lab_step(&lab, &(lab_request){.id = others[i], .count = 4, .kv = own + 1 + i, .n_kv = 1}, 1);
    lab_step(&lab, &(lab_request){.id = "r", .count = 2, .kv = own, .n_kv = 1}, 1);
    moor_fault_arm_from(1);
    try_step(&lab, &(lab_request){.id = "r", .start = 20, .count = 3, .kv = own, .n_kv = 5}, 1);
    try_step(&lab, &(lab_request){.id = "r", .start = 23, .count = 3}, 1);
    assert_status(lab_seal(&lab, "r", 40), MOOR_OK);
    moor_fault_arm(0);
    const moor_record_slot *slot = moor_slots_at(&lab.records->slots, 4);
    assert_string_equal(slot->id, "r");
    assert_true(slot->rows.n <= slot->rows.cap);
    moor_view *view = lab_view(&lab, "r");
    assert_int_equal(view->rows, 40);
    lab_assert_rows(&lab, view, "r", 0, 2, 1);
    lab_assert_missing(view, 26, 40, MOOR_REASON_SHORT);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void a_store_that_cannot_be_made_leaves_nothing(void **state)
{
    (void)state;
    uint64_t nth = 0;
    moor_status status;
    do {
        lab_store lab;
        lab_defaults(&lab);
        moor_fault_arm(++nth);
        status = moor_records_create(&lab.config, &lab.records);
        assert_int_equal(moor_fault_fired(), status != MOOR_OK);
        moor_fault_arm(0);
        if (status)
            assert_int_equal(status, MOOR_E_NOMEM);
        else
            moor_records_destroy(lab.records);
        free(lab.ring);
    } while (status);
    assert_true(nth > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_allocation_may_be_the_last),
        cmocka_unit_test(memory_that_is_gone_in_a_prefix_leaves_the_seal_its_room),
        cmocka_unit_test(a_store_that_cannot_be_made_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
