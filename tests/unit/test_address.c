/* SPDX-License-Identifier: Apache-2.0 */
/* What the store's thread does for the files that it is reached by (plugin/address.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin/address.h"
#include "support/member.h"

static moor_process *process;
static moor_address address;

static int start(void **state)
{
    (void)state;
    process = support_start(NULL, MOOR_ROLE_WORKER);
    return moor_address_open(&address, process, 3) ? -1 : 0;
}

static int stop(void **state)
{
    (void)state;
    moor_address_close(&address);
    return support_end(process) ? 0 : -1;
}

static const char *const names[] = {"state", "locks", "store-3.sock"};

static void path_of(const char *name, char path[PATH_MAX + 32])
{
    snprintf(path, PATH_MAX + 32, "%s/%s", process->dir, name);
}

static void make_old(void)
{
    char path[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        path_of(names[i], path);
        assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[2]){{.tv_sec = 1}, {.tv_sec = 1}}, 0), 0);
    }
}

static int how_many_are_old(void)
{
    char path[PATH_MAX + 32];
    struct stat st;
    int old = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        path_of(names[i], path);
        assert_int_equal(stat(path, &st), 0);
        old += st.st_mtim.tv_sec == 1 || st.st_atim.tv_sec == 1;
    }
    return old;
}

static void files_in_use_are_kept_young(void **state)
{
    (void)state;
    uint64_t now_ns = 7000000000ull;
    make_old();
    moor_address_tend(&address, now_ns);
    assert_int_equal(how_many_are_old(), 0);
    make_old();
    moor_address_tend(&address, now_ns + 10000000000ull); /* not every second */
    assert_int_equal(how_many_are_old(), 3);
    moor_address_tend(&address, now_ns + MOOR_ADDRESS_TOUCH_S * 1000000000ull);
    assert_int_equal(how_many_are_old(), 0);
}

static void files_that_are_gone_are_said_once(void **state)
{
    (void)state;
    char path[PATH_MAX + 32];
    path_of("locks", path);
    support_log_clear();
    moor_address_tend(&address, 1);
    assert_null(strstr(support_log(), "was removed"));
    assert_int_equal(unlink(path), 0);
    moor_address_tend(&address, 2);
    assert_non_null(strstr(support_log(), "its file \"locks\""));
    assert_non_null(strstr(support_log(), "was removed while this server runs"));
    support_log_clear();
    moor_address_tend(&address, 3);
    assert_null(strstr(support_log(), "was removed"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(files_in_use_are_kept_young),
        TEST(files_that_are_gone_are_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
