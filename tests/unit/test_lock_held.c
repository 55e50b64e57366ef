/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever ends many records lets the store's lock go between them: a step waits for a few at most. Counted, not timed: here is the
 * pthread_mutex_unlock that the store calls. */
#include <dlfcn.h>
#include <pthread.h>

#include "support/lab.h"

enum { RECORDS = 40 * MOOR_FREED_AT_ONCE };

static const pthread_mutex_t *watched;
static int let_go;

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    static int (*real)(pthread_mutex_t *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    let_go += mutex == watched;
    return real(mutex);
}

/* Sealed records that client 7 has leased, every second of them freed meanwhile. */
static void open_many(lab_store *lab)
{
    char id[32];
    lab_defaults(lab);
    lab->config.arena_bytes = 256 << 20;
    lab->config.keep_s = 1;
    lab_open_with(lab);
    for (int i = 0; i < RECORDS; i++) {
        moor_view *view;
        snprintf(id, sizeof(id), "r%d", i);
        lab_one(lab, id, 0, 1);
        lab_seal(lab, id, 1);
        assert_status(moor_records_open(lab->records, 7, id, (uint32_t)strlen(id), 0, 0, &view), MOOR_OK);
        if (i % 2)
            assert_status(moor_records_event(lab->records, view->handle, MOOR_EVENT_RESET), MOOR_OK);
        moor_view_free(view);
    }
    let_go = 0;
    watched = &lab->records->lock;
}

static void a_client_with_many_leases_ends(void **state)
{
    (void)state;
    lab_store lab;
    open_many(&lab);
    assert_int_equal(moor_records_disconnect(lab.records, 7), RECORDS);
    assert_in_range(let_go, RECORDS / MOOR_FREED_AT_ONCE, RECORDS);
    assert_int_equal(lab_stats(&lab).leases, 0);
    assert_int_equal(lab_stats(&lab).records, RECORDS / 2);
    lab_close(&lab);
}

static void many_records_expire(void **state)
{
    (void)state;
    lab_store lab;
    open_many(&lab);
    moor_records_disconnect(lab.records, 7);
    let_go = 0;
    assert_int_equal(moor_records_expire(lab.records, moor_now_ns() + 2000000000u), RECORDS / 2);
    assert_in_range(let_go, RECORDS / 2 / MOOR_FREED_AT_ONCE, RECORDS);
    assert_int_equal(lab_stats(&lab).records, 0);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_with_many_leases_ends),
        cmocka_unit_test(many_records_expire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
