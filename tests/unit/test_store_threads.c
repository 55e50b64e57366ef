/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder runs while a server opens, closes, frees and waits, and a core seals: for ThreadSanitizer, and for the eye. */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/lab.h"

enum { REQUESTS = 300, BATCH = 8, ROWS = 24, CONSUMERS = 2 };

static lab_store shared;
static _Atomic int opened_rows, failures;

static void id_of(char *id, int request)
{
    snprintf(id, 16, "request-%d", request % 1000);
}

/* Waits as a server does: on the descriptor, and looking at the ring itself. */
static moor_status open_waiting(const char *id, uint64_t client, moor_view **out)
{
    uint64_t deadline = moor_now_ns() + 60000000000u;
    struct pollfd fd = {moor_records_notify_fd(shared.records), POLLIN, 0};
    moor_records_wait(shared.records, 1);
    moor_status status;
    do {
        moor_records_drain(shared.records);
        status = moor_records_open(shared.records, client, id, (uint32_t)strlen(id), 0, 0, out);
        if (status != MOOR_E_TIMEOUT && status != MOOR_E_NOT_FOUND)
            break;
        if (poll(&fd, 1, 1) > 0)
            moor_records_notified(shared.records);
    } while (moor_now_ns() < deadline);
    moor_records_wait(shared.records, -1);
    return status;
}

static int check(const moor_view *view, const char *id)
{
    if (view->rows != ROWS || view->missing_rows)
        return 0;
    for (uint64_t row = 0; row < ROWS; row++) {
        const uint8_t *data = lab_row(&shared, view, row);
        for (uint32_t i = 0; i < LAB_LAYERS * LAB_K; i++) {
            if (data[i] != lab_id(&shared, id, row, i / LAB_K, i % LAB_K, 1))
                return 0;
        }
    }
    return 1;
}

/* Consumers take every second request each: open, lease more, read, give back, free. */
static void *consume(void *argument)
{
    uint64_t client = (uint64_t)(uintptr_t)argument;
    unsigned seed = (unsigned)client;
    for (int i = (int)client - 1; i < REQUESTS; i += CONSUMERS) {
        char id[16];
        moor_view *view = NULL;
        id_of(id, i);
        if (open_waiting(id, client, &view)) {
            atomic_fetch_add(&failures, 1);
            continue;
        }
        moor_handle handle = view->handle;
        moor_records_lease(shared.records, handle);
        if (rand_r(&seed) % 2)
            moor_records_event(shared.records, handle, MOOR_EVENT_DISCARD); /* while it is read */
        if (check(view, id))
            atomic_fetch_add(&opened_rows, ROWS);
        else
            atomic_fetch_add(&failures, 1);
        moor_view_free(view);
        if (rand_r(&seed) % 4)
            moor_records_close(shared.records, client, handle);
        else
            moor_records_disconnect(shared.records, client);
        moor_records_unlease(shared.records, handle);
        moor_records_event(shared.records, handle, MOOR_EVENT_DISCARD);
        if (i % 16 == 0)
            moor_records_expire(shared.records, moor_now_ns());
    }
    return NULL;
}

static void recording_and_serving_at_once(void **state)
{
    (void)state;
    lab_open(&shared);
    pthread_t threads[CONSUMERS];
    for (uintptr_t i = 0; i < CONSUMERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, consume, (void *)(i + 1)), 0);
    for (int first = 0; first < REQUESTS; first += BATCH) {
        char ids[BATCH][16];
        lab_request batch[BATCH];
        uint32_t n = 0;
        for (int i = first; i < first + BATCH && i < REQUESTS; i++, n++)
            id_of(ids[n], i);
        for (uint64_t row = 0; row < ROWS; row += row ? 1 : 8) {
            for (uint32_t i = 0; i < n; i++)
                batch[i] = (lab_request){.id = ids[i], .start = row, .count = row ? 1 : 8};
            lab_step(&shared, batch, n);
        }
        for (uint32_t i = 0; i < n; i++) {
            moor_hash128 hash = moor_id_hash(ids[i], strlen(ids[i])), none = {0, 0};
            assert_status(moor_seal_push(shared.ring, hash, none, ROWS, 0), MOOR_OK);
            if (i % 3 == 0)
                assert_status(moor_records_finished(shared.records, ids[i], (uint32_t)strlen(ids[i])), MOOR_OK);
        }
    }
    for (int i = 0; i < CONSUMERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&failures), 0);
    assert_int_equal(atomic_load(&opened_rows), REQUESTS * ROWS);
    assert_int_equal(lab_stats(&shared).records, 0);
    lab_assert_empty(&shared);
    lab_close(&shared);
}

static moor_handle contended;

static void *lease_often(void *argument)
{
    (void)argument;
    for (int i = 0; i < 50000; i++) {
        if (moor_records_lease(shared.records, contended) == MOOR_OK)
            moor_records_unlease(shared.records, contended);
    }
    return NULL;
}

/* S2.2: whoever ends the last lease of a dead record reclaims it, exactly once. */
static void S2_2_the_last_lease_of_many_threads_frees_once(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        lab_open(&shared);
        lab_run(&shared, "a", 30, 3);
        assert_status(moor_records_find(shared.records, "a", 1, &contended), MOOR_OK);
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, lease_often, NULL), 0);
        usleep(500);
        assert_status(moor_records_event(shared.records, contended, MOOR_EVENT_DISCARD), MOOR_OK);
        lab_run(&shared, "b", 30, 3); /* may take the slot over while they still try */
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(lab_stats(&shared).records, 1);
        moor_view *view = lab_view(&shared, "b");
        lab_assert_rows(&shared, view, "b", 0, 32, 1);
        lab_unview(&shared, view);
        lab_assert_empty(&shared);
        lab_close(&shared);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recording_and_serving_at_once),
        cmocka_unit_test(S2_2_the_last_lease_of_many_threads_frees_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
