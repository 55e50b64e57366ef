/* SPDX-License-Identifier: Apache-2.0 */
/* Every bound that store_open, the configuration, an instance's name and the wire check, from both sides: the last value that is accepted,
 * and the first that is refused, by a text that names it. Those of a snapshot: test_snapshot_bounds.c. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "abi/wire.h"
#include "allocator/dirs.h"
#include "allocator/locks.h"
#include "client/client.h"
#include "client/wire.h"
#include "plugin/config.h"
#include "plugin/process.h"
#include "plugin/server.h"
#include "support/member.h"

static void assert_refused(moor_status got, moor_status want, const char *what, const char *text)
{
    if (got != want || !strstr(moor_last_error(), text))
        fail_msg("%s: status %d (%s), expected %d with \"%s\"", what, got, got ? moor_last_error() : "", want, text);
}

/* ---- store_open -------------------------------------------------------------------------------------------------- */

static int32_t layer_ids[MOOR_MAX_LAYERS + 1];

/* One member of the arguments, and another one that goes with it. */
struct store_case {
    const char *name;
    size_t at;
    uint32_t value;
    size_t with;
    uint32_t with_value;
    const char *text; /* NULL: accepted */
};

#define M(member) offsetof(moor_store_args, member)
static const struct store_case store_cases[] = {
    {"store_index", M(store_index), 63, 0, 0, NULL},
    {"store_index", M(store_index), 64, 0, 0, "store_index is 64, an instance has at most 64 stores"},
    {"layers", M(layers), 0, 0, 0, "layers is 0 (1 to 4096)"},
    {"layers", M(layers), 1, M(model_layers), 1, NULL},
    {"layers", M(layers), 4096, M(model_layers), 4096, NULL},
    {"layers", M(layers), 4097, M(model_layers), 4097, "layers is 4097 (1 to 4096)"},
    {"model_layers", M(model_layers), 2, 0, 0, NULL},
    {"model_layers", M(model_layers), 1, 0, 0, "layer_ids run from 0 to 1, the model has 1 layers"},
    {"top_k", M(top_k), 0, 0, 0, "0 ids a token"},
    {"top_k", M(top_k), 1, 0, 0, NULL},
    {"top_k", M(top_k), 8, M(num_experts), 8, NULL},
    {"top_k", M(top_k), 9, M(num_experts), 8, "9 of 8 experts a token"},
    {"num_experts", M(num_experts), 0, 0, 0, "0 experts"},
    {"num_experts", M(num_experts), 1, M(top_k), 1, NULL},
    {"num_experts", M(num_experts), 65536, 0, 0, NULL},
    {"num_experts", M(num_experts), 65537, 0, 0, "65537 experts: more than the 65536"},
    {"max_step_tokens", M(max_step_tokens), 0, 0, 0, "0 tokens a step"},
    {"max_step_tokens", M(max_step_tokens), 1, 0, 0, NULL},
    {"kv_blocks", M(kv_blocks), 1, M(kv_block_size), 1, NULL},
    {"kv_blocks", M(kv_blocks), 1, M(kv_block_size), 0, "1 KV blocks of 0 tokens"},
    {"kv_blocks", M(kv_blocks), 0, M(kv_block_size), 1, "0 KV blocks of 1 tokens"},
    {"kv_blocks", M(kv_blocks), 1u << 31, M(kv_block_size), 1, "2147483648 KV blocks of 1 tokens"},
    {"dp_rank", M(dp_rank), 1, M(dp_size), 2, NULL},
    {"dp_rank", M(dp_rank), 2, M(dp_size), 2, "data parallel rank 2 of 2"},
    {"tp_rank", M(tp_rank), 1, M(tp_size), 2, NULL},
    {"tp_rank", M(tp_rank), 2, M(tp_size), 2, "tensor parallel rank 2 of 2"},
    {"stages", M(stages), 64, 0, 0, NULL},
    {"stages", M(stages), 65, 0, 0, "65 pipeline stages, an instance has 64 stores"},
};
#undef M

static moor_store_args good_args(void)
{
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.layers = args.model_layers = 2;
    args.top_k = 2;
    args.num_experts = 8;
    args.layer_ids = layer_ids;
    args.max_step_tokens = 8;
    args.arena_bytes = 8u << 20;
    return args;
}

static void of_store_open(void **state)
{
    (void)state;
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    for (int i = 0; i <= MOOR_MAX_LAYERS; i++)
        layer_ids[i] = i;
    for (size_t i = 0; i < sizeof(store_cases) / sizeof(store_cases[0]); i++) {
        const struct store_case *c = &store_cases[i];
        moor_store_args args = good_args();
        moor_store *store = NULL;
        char what[64];
        memcpy((char *)&args + c->at, &c->value, sizeof(c->value));
        if (c->with)
            memcpy((char *)&args + c->with, &c->with_value, sizeof(c->with_value));
        snprintf(what, sizeof(what), "%s %u", c->name, c->value);
        moor_status status = moor_store_open(process, &args, &store);
        if (c->text)
            assert_refused(status, MOOR_E_INVALID, what, c->text);
        else if (status)
            fail_msg("%s: %s", what, moor_last_error());
        moor_store_close(store);
    }
    moor_store_args args = good_args();
    moor_store *store = NULL;
    int32_t twice[2] = {1, 1}, backwards[2] = {1, 0}, negative[2] = {-1, 0};
    args.layer_ids = twice;
    assert_refused(moor_store_open(process, &args, &store), MOOR_E_INVALID, "layer_ids", "layer_ids[1] is 1 after 1");
    args.layer_ids = backwards;
    assert_refused(moor_store_open(process, &args, &store), MOOR_E_INVALID, "layer_ids", "layer_ids[1] is 0 after 1");
    args.layer_ids = negative;
    assert_refused(moor_store_open(process, &args, &store), MOOR_E_INVALID, "layer_ids", "run from -1 to 0");
    args.layer_ids = NULL;
    assert_refused(moor_store_open(process, &args, &store), MOOR_E_INVALID, "layer_ids", "layer_ids is NULL");
    assert_int_equal(support_end(process), 1);
}

static void of_process_join(void **state)
{
    (void)state;
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER), *again;
    static const struct {
        uint32_t rank, world;
        moor_status status;
        const char *text;
    } cases[] = {{0, 1, MOOR_OK, NULL},
                 {1, 1, MOOR_E_INVALID, "rank 1 of world_size 1"},
                 {0, 0, MOOR_E_INVALID, "rank 0 of world_size 0"},
                 {1023, 1024, MOOR_OK, NULL},
                 {1024, 1025, MOOR_E_FULL, "world_size is 1025, a barrier has 1024 ranks"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moor_process_args args = MOOR_PROCESS_ARGS_INIT;
        args.rank = cases[i].rank;
        args.world_size = cases[i].world;
        moor_status status = moor_process_join(NULL, &args, &again);
        if (cases[i].text)
            assert_refused(status, cases[i].status, "join", cases[i].text);
        else
            assert_int_equal(status, MOOR_OK);
        if (!status)
            moor_process_leave(again);
    }
    assert_int_equal(support_end(process), 1);
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static void of_the_configuration(void **state)
{
    (void)state;
    static const struct {
        const char *group, *key, *least, *below, *most, *above;
    } cases[] = {
        {"record", "arena_bytes", "1048576", "1048575", "70368744177664", "70368744177665"},
        {"record", "keep_s", "0", "-0.001", "1000000000", "1000000001"},
        {"record", "keep_bytes", "0", "-1", "70368744177664", "70368744177665"},
        {"gate", "drain_timeout_s", "0", "-0.5", "1000000", "1000000.5"},
        {"barrier", "external", "0", "-1", "64", "65"},
        {"barrier", "timeout_s", "0", "-0.5", "1000000", "1000000.5"},
        {"barrier", "spin_us", "0", "-1", "1000000", "1000001"},
        {"cleanup", "escalate_free_bytes", "0", "-1", "70368744177664", "70368744177665"},
        {"weights", "bucket_bytes", "4096", "4095", "1099511627776", "1099511627777"},
        {"weights", "timeout_s", "0", "-0.5", "1000000", "1000000.5"},
    };
    unsetenv("MOOR_CONFIG");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int side = 0; side < 4; side++) {
            const char *value = side == 0   ? cases[i].least
                                : side == 1 ? cases[i].most
                                : side == 2 ? cases[i].below
                                            : cases[i].above;
            char json[128], text[128];
            moor_config *config = NULL;
            snprintf(json, sizeof(json), "{\"%s\":{\"%s\":%s}}", cases[i].group, cases[i].key, value);
            snprintf(text, sizeof(text), "\"%s.%s\" is %.17g, allowed is %.17g to %.17g", cases[i].group, cases[i].key,
                     atof(value), atof(cases[i].least), atof(cases[i].most));
            moor_status status = moor_config_parse(json, strlen(json), &config);
            if (side >= 2)
                assert_refused(status, MOOR_E_CONFIG, json, text);
            else if (status)
                fail_msg("%s: %s", json, moor_last_error());
            moor_config_free(config);
        }
}

/* An instance's name has 1 to 48 bytes; a variable's, in ${…}, up to 127. */
static void of_names(void **state)
{
    (void)state;
    char json[256], name[200];
    moor_config *config = NULL;
    memset(name, 'n', sizeof(name));
    unsetenv("MOOR_CONFIG");
    for (int n = 0; n <= 49; n++) {
        snprintf(json, sizeof(json), "{\"instance\":\"%.*s\"}", n, name);
        moor_status status = moor_config_parse(json, strlen(json), &config);
        if (n < 1 || n > MOOR_NAME_MAX)
            assert_refused(status, MOOR_E_CONFIG, json, "expected a string (an instance name: 1 to 48");
        else
            assert_int_equal(status, MOOR_OK);
        if (!status)
            moor_config_free(config);
    }
    for (int n = 127; n <= 128; n++) {
        snprintf(json, sizeof(json), "{\"instance\":\"${%.*s}\"}", n, name);
        assert_refused(moor_config_parse(json, strlen(json), &config), MOOR_E_CONFIG, json,
                       n == 127 ? "which is not set in the environment" : "malformed ${NAME}");
    }
}

/* ---- an instance that is taken ----------------------------------------------------------------------------------- */

/* "default" and its suffixes -2 to -99: the last one is given, and behind it there is none. */
static void of_suffixes(void **state)
{
    (void)state;
    char dir[] = "/tmp/moor-names-XXXXXX", path[64], text[128];
    int locks[100];
    moor_process *process;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    unsetenv("MOOR_INSTANCE");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(setenv("MOOR_DIR", dir, 1), 0);
    for (int n = 1; n <= 99; n++) {
        uint32_t slot;
        snprintf(path, sizeof(path), n == 1 ? "%s/default" : "%s/default-%d", dir, n);
        if (n == 99) {
            assert_int_equal(moor_process_join(NULL, &args, &process), MOOR_OK);
            assert_string_equal(moor_process_instance(process), "default-99");
            moor_process_leave(process);
        }
        assert_int_equal(mkdir(path, 0700), 0);
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(moor_locks_join(fd, path, 1, NULL, &locks[n], &slot), MOOR_OK);
        close(fd);
    }
    snprintf(text, sizeof(text),
             "live servers have the instance names \"default\" and \"default-2\" to \"default-99\" in %s", dir);
    assert_refused(moor_process_join(NULL, &args, &process), MOOR_E_EXISTS, "join", text);
    for (int n = 1; n <= 99; n++)
        moor_locks_leave(locks[n], 1);
    unsetenv("MOOR_DIR");
    snprintf(text, sizeof(text), "rm -rf %s", dir);
    assert_int_equal(system(text), 0);
}

/* ---- the wire ---------------------------------------------------------------------------------------------------- */

static void of_a_message(void **state)
{
    (void)state;
    static unsigned char bytes[MOOR_WIRE_LIMIT + 1];
    static const struct {
        uint32_t length;
        size_t have;
        int want;
    } cases[] = {{16, 15, 0}, {16, 16, 1},       {15, 16, -1},      {17, 16, 0},
                 {17, 17, 1}, {65536, 65535, 0}, {65536, 65536, 1}, {65537, 65537, -1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        moor_wire_header header = {.length = cases[i].length}, out;
        memcpy(bytes, &header, sizeof(header));
        assert_int_equal(moor_wire_frame(bytes, cases[i].have, &out), cases[i].want);
    }
}

static void of_what_is_read(void **state)
{
    (void)state;
    moor_wire_reader reader = {(const unsigned char *)"abcd", 4};
    char out[5];
    assert_int_equal(moor_wire_get(&reader, out, 5), 0);
    assert_int_equal(reader.left, 4);
    assert_int_equal(moor_wire_get(&reader, out, 4), 1);
    assert_int_equal(moor_wire_get(&reader, out, 0), 1);
    assert_int_equal(moor_wire_get(&reader, out, 1), 0);
}

/* The longest id fills a message to its last byte. */
static void of_ids(void **state)
{
    (void)state;
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    moor_store_args args = good_args();
    moor_store *store;
    moor_client *client;
    moor_record *record;
    static char id[MOOR_WIRE_LIMIT];
    const uint32_t most = MOOR_WIRE_LIMIT - sizeof(moor_wire_header) - sizeof(moor_wire_open);
    memset(id, 'i', sizeof(id));
    for (int i = 0; i < 2; i++)
        layer_ids[i] = i;
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
    assert_int_equal(moor_attach(NULL, NULL, 5, &client), MOOR_OK);
    assert_int_equal(moor_open(client, id, most, 0, 0, 0, &record), MOOR_E_NOT_FOUND);
    assert_int_equal(moor_client_truncate(client, id, most, 0), MOOR_E_NOT_FOUND);
    assert_refused(moor_open(client, id, most + 1, 0, 0, 0, &record), MOOR_E_INVALID, "open", "an id of 65497 bytes");
    assert_refused(moor_client_truncate(client, id, most + 1, 0), MOOR_E_INVALID, "truncate", "an id of 65497 bytes");
    assert_refused(moor_open(client, id, 0, 0, 0, 0, &record), MOOR_E_INVALID, "open", "id is empty");
    assert_int_equal(moor_open(client, id, 1, 0, 0, 0, &record), MOOR_E_NOT_FOUND); /* the connection stands */
    moor_detach(client);
    moor_store_close(store);
    assert_int_equal(support_end(process), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_store_open),   cmocka_unit_test(of_process_join), cmocka_unit_test(of_the_configuration),
        cmocka_unit_test(of_names),        cmocka_unit_test(of_suffixes),     cmocka_unit_test(of_a_message),
        cmocka_unit_test(of_what_is_read), cmocka_unit_test(of_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
