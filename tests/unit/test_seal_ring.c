/* SPDX-License-Identifier: Apache-2.0 */
/* The seal ring (SEMANTICS 1.22): many producers, one drainer, producers that die half-way. */
#include <pthread.h>
#include <stdlib.h>

#include "support/lab.h"

static const moor_hash128 none = {0, 0};

static void a_full_ring_refuses_and_counts(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    for (int i = 0; i < MOOR_SEAL_RING; i++)
        assert_status(moor_seal_push(lab.ring, moor_id_hash("x", 1), none, 1, 0), MOOR_OK);
    assert_status(moor_seal_push(lab.ring, moor_id_hash("x", 1), none, 1, 0), MOOR_E_FULL);
    assert_int_equal(atomic_load(&lab.ring->lost), 1);
    assert_int_equal(moor_records_drain(lab.records), MOOR_SEAL_RING);
    assert_int_equal(moor_records_drain(lab.records), 0);
    for (int lap = 0; lap < 3; lap++) {
        for (int i = 0; i < 1000; i++)
            assert_status(moor_seal_push(lab.ring, moor_id_hash("x", 1), none, 1, 0), MOOR_OK);
        assert_int_equal(moor_records_drain(lab.records), 1000);
    }
    assert_int_equal(lab_stats(&lab).seals_unknown, MOOR_SEAL_RING + 3000);
    assert_status(moor_seal_push(lab.ring, moor_id_hash("x", 1), none, (uint64_t)1 << 32, 0), MOOR_E_INVALID);
    lab_close(&lab);
}

static void a_producer_that_died_half_way_does_not_hold_the_others_up(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 4);
    uint64_t dead = 0;
    assert_status(moor_seal_claim(lab.ring, &dead), MOOR_OK); /* … and it is gone */
    assert_status(moor_seal_push(lab.ring, moor_id_hash("a", 1), none, 4, 0), MOOR_OK);
    uint64_t now = moor_now_ns();
    moor_records_lock(lab.records);
    assert_int_equal(moor_seal_drain(lab.records, now), 0); /* it may only be slow */
    assert_int_equal(moor_seal_drain(lab.records, now + MOOR_SEAL_STUCK_NS - 1), 0);
    assert_int_equal(moor_seal_drain(lab.records, now + MOOR_SEAL_STUCK_NS), 1);
    moor_records_unlock(lab.records);
    assert_int_equal(lab_stats(&lab).seals_torn, 1);
    assert_int_equal(lab.sealed_events, 1);
    /* It was only asleep: its seal is lost, and it is told so. */
    assert_status(moor_seal_publish(lab.ring, dead, moor_id_hash("late", 4), none, 1, 0), MOOR_E_TIMEOUT);
    assert_int_equal(moor_records_drain(lab.records), 0);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void an_entry_that_two_laps_wrote_at_once_is_void(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_one(&lab, "a", 0, 4);
    lab_one(&lab, "b", 0, 4);
    assert_status(moor_seal_push(lab.ring, moor_id_hash("a", 1), none, 4, 0), MOOR_OK);
    lab.ring->entry[0].rows_expected = 3; /* the sleeper of the lap before wrote between */
    assert_status(moor_seal_push(lab.ring, moor_id_hash("b", 1), none, 4, 0), MOOR_OK);
    assert_int_equal(moor_records_drain(lab.records), 1);
    assert_int_equal(lab_stats(&lab).seals_torn, 1);
    moor_view *view = NULL;
    assert_status(moor_records_open(lab.records, 1, "a", 1, 0, 0, &view),
                  MOOR_E_TIMEOUT); /* the worker's notice will seal it */
    lab_unview(&lab, lab_view(&lab, "b"));
    lab_assert_empty(&lab);
    lab_close(&lab);
}

enum { PRODUCERS = 3, EACH = 20000 };
typedef struct producer {
    moor_state_seal_ring *ring;
    uint64_t number;
} producer;

static void *produce(void *argument)
{
    producer *p = argument;
    for (uint64_t i = 1; i <= EACH; i++) {
        moor_hash128 id = {p->number, i};
        while (moor_seal_push(p->ring, id, none, i, 0) == MOOR_E_FULL)
            sched_yield();
    }
    return NULL;
}

static uint8_t seen[PRODUCERS + 1][EACH + 1];
static void on_event(void *user, const moor_sealed_event *event)
{
    lab_store *lab = user;
    lab->sealed_events++;
    assert_in_range(event->ids[0].lo, 1, PRODUCERS);
    assert_in_range(event->ids[0].hi, 1, EACH);
    assert_int_equal(seen[event->ids[0].lo][event->ids[0].hi]++, 0); /* none twice */
}

static void producers_at_once_lose_nothing(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.sealed = on_event;
    lab_open_with(&lab);
    pthread_t threads[PRODUCERS];
    producer all[PRODUCERS];
    for (uint64_t i = 0; i < PRODUCERS; i++) {
        all[i] = (producer){lab.ring, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &all[i]), 0);
    }
    uint64_t deadline = moor_now_ns() + 60000000000u;
    while (lab.sealed_events < PRODUCERS * EACH && moor_now_ns() < deadline) {
        if (!moor_records_drain(lab.records))
            sched_yield();
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(lab.sealed_events,
                     PRODUCERS * EACH); /* none lost, not even that of a producer that slept too long */
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_ring_refuses_and_counts),
        cmocka_unit_test(a_producer_that_died_half_way_does_not_hold_the_others_up),
        cmocka_unit_test(an_entry_that_two_laps_wrote_at_once_is_void),
        cmocka_unit_test(producers_at_once_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
