/* SPDX-License-Identifier: Apache-2.0 */
/* client/resolve.c beside threads that attach at the same time: it is compiled in, so that one thread can be several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/resolve.c" /* NOLINT(bugprone-suspicious-include) */
#include "hooks/record.h"
#include "plugin/server.h"
#include "support/member.h"

static moor_store *open_store(moor_process *process)
{
    static const int32_t layer_ids[2] = {1, 3};
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    moor_step_request request = {.id = "a", .id_len = 1, .count = 2};
    static const uint8_t ids[2] = {1, 2};
    moor_ids capture = {.data = ids, .dtype = MOOR_DTYPE_U8, .tokens = 2, .top_k = 1};
    moor_store *store = NULL;
    args.layers = 2;
    args.top_k = 1;
    args.num_experts = 8;
    args.layer_ids = layer_ids;
    args.model_layers = 4;
    args.max_step_tokens = 8;
    args.arena_bytes = 8u << 20;
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
    assert_int_equal(moor_step_begin(store, &request, 1), MOOR_OK);
    for (uint32_t layer = 0; layer < 2; layer++)
        assert_int_equal(moor_capture(store, layer, &capture, NULL), MOOR_OK);
    assert_int_equal(moor_step_commit(store, NULL, 0), MOOR_OK);
    assert_int_equal(moor_seal(process, 0, "a", 1, 2, 0), MOOR_OK);
    return store;
}

static void resolve_a(char *instance, size_t size)
{
    moor_client *client;
    moor_record *record;
    moor_ref parsed;
    char ref[300];
    assert_int_equal(moor_attach(NULL, NULL, 5, &client), MOOR_OK);
    assert_int_equal(moor_open(client, "a", 1, 5, 0, 0, &record), MOOR_OK);
    assert_int_equal(moor_record_ref(record, ref, sizeof(ref)), MOOR_OK);
    moor_record_release(record);
    moor_detach(client);
    assert_int_equal(moor_ref_parse(ref, strlen(ref), &parsed), MOOR_OK);
    snprintf(instance, size, "%s", parsed.instance);
    moor_status status = moor_resolve(ref, strlen(ref), 5, &record);
    assert_string_equal(status ? moor_last_error() : "", "");
    moor_record_release(record);
}

/* A data loader's threads resolve their first refs at once; then the server is started again. */
static void however_many_attached_the_next_server_is_found(void **state)
{
    (void)state;
    struct cached *others[2];
    char instance[64];
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    moor_store *store = open_store(process);
    resolve_a(instance, sizeof(instance));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cache_attach(instance, 5, &others[i]), MOOR_OK);
        cache_put(others[i], 0);
    }
    moor_store_close(store);
    assert_int_equal(support_end(process), 1);
    process = support_start(NULL, MOOR_ROLE_WORKER);
    store = open_store(process);
    resolve_a(instance, sizeof(instance));
    assert_non_null(cache);
    assert_null(cache->next); /* of the servers that are gone nothing is kept */
    cache_put(cache_get(instance), 1);
    moor_store_close(store);
    assert_int_equal(support_end(process), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(however_many_attached_the_next_server_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
