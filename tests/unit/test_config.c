/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/config.c and plugin/memory.c: every key, every wrong value, layers, expansion, machine-dependent defaults. */
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

#include "plugin/config.h"
#include "plugin/memory.h"

static moor_config_values parse_ok(const char *json)
{
    moor_config *config = NULL;
    moor_config_values values = MOOR_CONFIG_VALUES_INIT;
    if (moor_config_parse(json, json ? strlen(json) : 0, &config))
        fail_msg("%s: %s", json ? json : "NULL", moor_last_error());
    assert_int_equal(moor_config_get_values(config, &values), MOOR_OK);
    moor_config_free(config);
    return values; /* its strings are gone */
}

static void parse_bad(const char *json, const char *text)
{
    moor_config *config = (moor_config *)1;
    moor_status status = moor_config_parse(json, strlen(json), &config);
    if (status != MOOR_E_CONFIG || !strstr(moor_last_error(), text))
        fail_msg("%s: status %d, \"%s\", expected \"%s\"", json, status, moor_last_error(), text);
    assert_ptr_equal(config, (moor_config *)1); /* outputs are written on success only */
}

static int clean_environment(void **state)
{
    (void)state;
    unsetenv("MOOR_CONFIG");
    return 0;
}

static void defaults_observe_and_delay_nothing(void **state)
{
    (void)state;
    moor_config_values v = parse_ok("{}");
    assert_null(v.instance);
    assert_null(v.dir);
    assert_int_equal(v.on_error, MOOR_ON_ERROR_OPEN);
    assert_int_equal(v.log_level, MOOR_LOG_INFO);
    assert_int_equal(v.record_enabled, 1);
    assert_int_equal(v.deliver, MOOR_DELIVER_NATIVE);
    assert_int_equal(v.deliver_always, 0);
    assert_int_equal(v.validate_at_seal, 0);
    assert_int_equal(v.kv_index, 1);
    assert_null(v.record_restore);
    assert_int_equal(v.gate_mode, MOOR_MODE_OBSERVE);
    assert_int_equal(v.barrier_mode, MOOR_MODE_OBSERVE);
    assert_int_equal(v.cleanup_mode, MOOR_CLEANUP_ENGINE);
    assert_int_equal(v.barrier_external, 0);
    assert_true(v.arena_bytes >= 64u << 20);
    assert_true(v.keep_bytes == v.arena_bytes / 2);
    moor_config_values none = parse_ok(NULL);
    assert_int_equal(none.gate_mode, MOOR_MODE_OBSERVE);
}

static void every_key_is_taken(void **state)
{
    (void)state;
    moor_config *config;
    const char *json =
        "{\"instance\":\"a.b-1\",\"dir\":\"/tmp/x\",\"on_error\":\"strict\",\"log\":\"debug\","
        "\"record\":{\"enabled\":false,\"deliver\":\"ref\",\"always\":true,\"arena_bytes\":\"64MiB\",\"keep_s\":1.5,"
        "\"keep_bytes\":7,"
        "\"validate\":\"seal\",\"kv_index\":false,\"restore\":\"/var/kept\"},"
        "\"gate\":{\"mode\":\"enforce\",\"drain_timeout_s\":2},"
        "\"barrier\":{\"mode\":\"off\",\"external\":3,\"timeout_s\":4,\"spin_us\":5,\"across_hosts\":\"none\"},"
        "\"cleanup\":{\"mode\":\"light\",\"escalate_free_bytes\":6},"
        "\"weights\":{\"bucket_bytes\":8192,\"timeout_s\":9,\"transport\":\"shm\"}}";
    moor_config_values v = MOOR_CONFIG_VALUES_INIT;
    assert_int_equal(moor_config_parse(json, strlen(json), &config), MOOR_OK);
    assert_int_equal(moor_config_get_values(config, &v), MOOR_OK);
    assert_string_equal(v.instance, "a.b-1");
    assert_string_equal(v.dir, "/tmp/x");
    assert_int_equal(v.on_error, MOOR_ON_ERROR_STRICT);
    assert_int_equal(v.log_level, MOOR_LOG_DEBUG);
    assert_int_equal(v.record_enabled, 0);
    assert_int_equal(v.deliver, MOOR_DELIVER_REF);
    assert_int_equal(v.deliver_always, 1);
    assert_int_equal(v.arena_bytes, 64 << 20);
    assert_true(v.keep_s == 1.5);
    assert_int_equal(v.keep_bytes, 7);
    assert_int_equal(v.validate_at_seal, 1);
    assert_int_equal(v.kv_index, 0);
    assert_string_equal(v.record_restore, "/var/kept");
    assert_int_equal(v.gate_mode, MOOR_MODE_ENFORCE);
    assert_true(v.drain_timeout_s == 2 && v.barrier_timeout_s == 4 && v.weights_timeout_s == 9);
    assert_int_equal(v.barrier_mode, MOOR_MODE_OFF);
    assert_int_equal(v.barrier_external, 3);
    assert_int_equal(v.barrier_spin_us, 5);
    assert_int_equal(v.cleanup_mode, MOOR_CLEANUP_LIGHT);
    assert_int_equal(v.escalate_free_bytes, 6);
    assert_int_equal(v.bucket_bytes, 8192);
    moor_config_free(config);
}

static void unknown_keys_name_the_nearest(void **state)
{
    (void)state;
    parse_bad("{\"instanse\":\"x\"}", "unknown key \"instanse\"; the nearest known one is \"instance\"");
    parse_bad("{\"record\":{\"arena_byte\":1}}",
              "unknown key \"record.arena_byte\"; the nearest known one is \"record.arena_bytes\"");
    parse_bad("{\"gates\":{}}", "nearest known one is \"gate\"");
    parse_bad("{\"drain_timeout_s\":1}", "nearest known one is \"gate.drain_timeout_s\"");
    parse_bad("{\"gate\":{\"external\":1}}", "nearest known one is \"barrier.external\"");
    parse_bad("{\"allow_uids\":[1000]}", "unknown key \"allow_uids\""); /* was one, and let nobody in */
    parse_bad("{\"\":1}", "unknown key");
    char longest[2000] = "{\"record\":{\"";
    memset(longest + 12, 'a', 1500);
    strcpy(longest + 1512, "\":1}}");
    parse_bad(longest, "unknown key");
}

static void wrong_values_name_key_value_and_type(void **state)
{
    (void)state;
    parse_bad("{\"on_error\":\"opne\"}", "\"on_error\" is \"opne\", expected one of open|strict");
    parse_bad("{\"on_error\":1}", "\"on_error\" is 1, expected one of open|strict");
    parse_bad("{\"record\":{\"enabled\":\"yes\"}}", "\"record.enabled\" is \"yes\", expected true or false");
    parse_bad("{\"record\":{\"enabled\":1}}", "\"record.enabled\" is 1, expected true or false");
    parse_bad("{\"record\":{\"arena_bytes\":\"12 potatoes\"}}", "expected a number of bytes");
    parse_bad("{\"record\":{\"arena_bytes\":true}}", "\"record.arena_bytes\" is true");
    parse_bad("{\"record\":{\"keep_s\":\"fast\"}}", "\"record.keep_s\" is \"fast\", expected a number of seconds");
    parse_bad("{\"record\":{\"keep_s\":null}}", "\"record.keep_s\" is null");
    parse_bad("{\"record\":[]}", "\"record\" must be an object");
    parse_bad("{\"barrier\":{\"external\":1.5}}", "\"barrier.external\" is 1.5, expected a whole number");
    parse_bad("{\"instance\":\"a/b\"}", "\"instance\" is \"a/b\", expected a string (an instance name");
    parse_bad("{\"instance\":\"holds\"}", "\"instance\" is \"holds\"");
    parse_bad("{\"instance\":\"\"}", "\"instance\" is \"\"");
    parse_bad("{\"instance\":\"..\"}", "\"instance\"");
    parse_bad("{\"instance\":7}", "\"instance\" is 7");
    parse_bad("{\"dir\":\"relative\"}", "\"dir\" is \"relative\", expected a string (an absolute path)");
    parse_bad("[]", "must be a JSON object");
    parse_bad("{\"log\":\"info\"", "line 1");
    parse_bad("{\"log\":\"info\",\"log\":\"warn\"}", "duplicate");
    parse_bad("\xff", "configuration");
}

static void ranges_are_checked(void **state)
{
    (void)state;
    parse_bad("{\"record\":{\"arena_bytes\":4096}}", "\"record.arena_bytes\" is 4096, allowed is 1048576 to");
    parse_bad("{\"record\":{\"keep_s\":-1}}", "\"record.keep_s\" is -1, allowed is 0 to");
    parse_bad("{\"barrier\":{\"external\":65}}", "is 65, allowed is 0 to 64"); /* what the barrier itself can hold */
    parse_bad("{\"barrier\":{\"external\":-1}}", "is -1");
    parse_bad("{\"record\":{\"arena_bytes\":1e30}}", "allowed is");
    parse_bad("{\"gate\":{\"drain_timeout_s\":1e7}}", "allowed is 0 to 1000000");
}

static void what_this_version_cannot_do_is_refused(void **state)
{
    (void)state;
    parse_bad("{\"barrier\":{\"across_hosts\":\"nccl\"}}", "\"barrier.across_hosts\"");
    parse_bad("{\"weights\":{\"transport\":\"cuda_ipc\"}}", "\"weights.transport\"");
}

static void names_are_expanded_from_the_environment(void **state)
{
    (void)state;
    moor_config *config;
    moor_config_values v = MOOR_CONFIG_VALUES_INIT;
    const char *json =
        "{\"instance\":\"verl-${MOOR_T_RANK}.${MOOR_T_RANK}x\",\"barrier\":{\"external\":\"${MOOR_T_RANK}\"}}";
    setenv("MOOR_T_RANK", "12", 1);
    unsetenv("MOOR_T_UNSET");
    assert_int_equal(moor_config_parse(json, strlen(json), &config), MOOR_OK);
    moor_config_get_values(config, &v);
    assert_string_equal(v.instance, "verl-12.12x");
    assert_int_equal(v.barrier_external, 12);
    moor_config_free(config);
    parse_bad("{\"instance\":\"a-${MOOR_T_UNSET}\"}", "\"instance\" uses ${MOOR_T_UNSET}, which is not set");
    parse_bad("{\"instance\":\"a-${MOOR_T_RANK\"}", "malformed ${NAME}");
    parse_bad("{\"instance\":\"a-${}\"}", "malformed ${NAME}");
    /* The value is text, never JSON. */
    setenv("MOOR_T_RANK", "x\",\"log\":\"debug", 1);
    parse_bad(json, "\"instance\"");
}

static void host_text_wins_over_the_environment_key_by_key(void **state)
{
    (void)state;
    setenv("MOOR_CONFIG", " {\"log\":\"warn\",\"gate\":{\"mode\":\"off\",\"drain_timeout_s\":7}}", 1);
    moor_config_values v = parse_ok("{\"gate\":{\"mode\":\"enforce\"}}");
    assert_int_equal(v.log_level, MOOR_LOG_WARN);
    assert_int_equal(v.gate_mode, MOOR_MODE_ENFORCE);
    assert_true(v.drain_timeout_s == 7);
    setenv("MOOR_CONFIG", "{\"lag\":1}", 1);
    parse_bad("{}", "$MOOR_CONFIG: unknown key \"lag\"; the nearest known one is \"log\"");
    setenv("MOOR_CONFIG", "", 1);
    parse_ok("{}");
}

static void environment_names_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/moor-config-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\n\"log\":\"error\"}\n", 17), 17);
    setenv("MOOR_CONFIG", path, 1);
    assert_int_equal(parse_ok(NULL).log_level, MOOR_LOG_ERROR);
    assert_int_equal(ftruncate(fd, 8), 0);
    close(fd);
    parse_bad("{}", path);
    unlink(path);
    parse_bad("{}", "cannot be read");
}

static void callee_clamps_to_the_callers_size(void **state)
{
    (void)state;
    moor_config *config;
    moor_config_values v;
    memset(&v, 0x5A, sizeof(v));
    v.size = offsetof(moor_config_values, log_level);
    assert_int_equal(moor_config_parse("{}", 2, &config), MOOR_OK);
    assert_int_equal(moor_config_get_values(config, &v), MOOR_OK);
    assert_int_equal(v.on_error, 0);
    assert_int_equal(v.log_level, 0x5A5A5A5A);
    assert_int_equal(v.size, offsetof(moor_config_values, log_level));
    v.size = 0;
    assert_int_equal(moor_config_get_values(config, &v), MOOR_E_INVALID);
    assert_int_equal(moor_config_get_values(NULL, &v), MOOR_E_INVALID);
    moor_config_free(config);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void put(const char *root, const char *path, const char *text)
{
    char whole[512], *slash;
    snprintf(whole, sizeof(whole), "%s/%s", root, path);
    for (slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void memory_is_the_smallest_limit(void **state)
{
    (void)state;
    char root[] = "/tmp/moor-memory-XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    assert_true(moor_memory_limit(root) == UINT64_MAX);
    put(root, "proc/meminfo", "MemFree: 1 kB\nMemTotal:        1048576 kB\n");
    assert_true(moor_memory_limit(root) == 1u << 30);
    /* v2: the limit of an ancestor binds, "max" does not */
    put(root, "proc/self/cgroup", "0::/a/b\n");
    put(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_true(moor_memory_limit(root) == 1u << 30);
    put(root, "sys/fs/cgroup/a/memory.max", "536870912\n");
    assert_true(moor_memory_limit(root) == 512u << 20);
    /* a container that sees its own group as the root */
    put(root, "proc/self/cgroup", "0::/../elsewhere\n");
    put(root, "sys/fs/cgroup/memory.max", "268435456\n");
    assert_true(moor_memory_limit(root) == 256u << 20);
    /* v1 */
    put(root, "proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/y\n");
    put(root, "sys/fs/cgroup/memory/y/memory.limit_in_bytes", "134217728\n");
    assert_true(moor_memory_limit(root) == 128u << 20);
    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void arena_is_a_sixteenth_within_bounds(void **state)
{
    (void)state;
    assert_true(moor_memory_default_arena(16ull << 30) == 1ull << 30);
    assert_true(moor_memory_default_arena((16ull << 30) + 12345678) == 1ull << 30);
    assert_true(moor_memory_default_arena(0) == 64ull << 20);
    assert_true(moor_memory_default_arena(UINT64_MAX) == 64ull << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(defaults_observe_and_delay_nothing, clean_environment),
        cmocka_unit_test_setup(every_key_is_taken, clean_environment),
        cmocka_unit_test_setup(unknown_keys_name_the_nearest, clean_environment),
        cmocka_unit_test_setup(wrong_values_name_key_value_and_type, clean_environment),
        cmocka_unit_test_setup(ranges_are_checked, clean_environment),
        cmocka_unit_test_setup(what_this_version_cannot_do_is_refused, clean_environment),
        cmocka_unit_test_setup(names_are_expanded_from_the_environment, clean_environment),
        cmocka_unit_test_setup_teardown(host_text_wins_over_the_environment_key_by_key, clean_environment,
                                        clean_environment),
        cmocka_unit_test_setup_teardown(environment_names_a_file, clean_environment, clean_environment),
        cmocka_unit_test_setup(callee_clamps_to_the_callers_size, clean_environment),
        cmocka_unit_test(memory_is_the_smallest_limit),
        cmocka_unit_test(arena_is_a_sixteenth_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
