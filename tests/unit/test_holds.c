/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 5.1: holds as files. Who sees them is another process, so most tests fork. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hooks/holds.h"
#include "support/member.h"

static char base[64];
static moor_dirs bases;
static _Atomic int *go;

static int start(void **state)
{
    (void)state;
    snprintf(base, sizeof(base), "/tmp/moor-holds-XXXXXX");
    go = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!mkdtemp(base) || go == MAP_FAILED)
        return -1;
    setenv("MOOR_HOLDS_DIR", base, 1); /* alone on this machine */
    return moor_dirs_all(NULL, &bases) ? -1 : 0;
}

static int stop(void **state)
{
    (void)state;
    char path[PATH_MAX];
    munmap((void *)go, 4096);
    snprintf(path, sizeof(path), "rm -rf %s", base);
    return system(path);
}

#define assert_ok(call) assert_int_equal((call), MOOR_OK)

static uint32_t holders(const char *device, moor_holders *out)
{
    *out = (moor_holders){0};
    assert_ok(moor_holds_read(&bases, device, 0, out));
    return out->count;
}

/* What another process sees of the device. */
static int seen_by_child(const char *device)
{
    pid_t child = fork();
    if (!child) {
        moor_holders out = {0};
        _exit(moor_holds_read(&bases, device, 0, &out) ? 99 : (int)out.count);
    }
    return support_wait(child);
}

static uint32_t files_in(const char *device)
{
    char path[PATH_MAX];
    uint32_t n = 0;
    snprintf(path, sizeof(path), "%s/holds/%s", base, device);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        n += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    if (dir)
        closedir(dir);
    return n;
}

static void S5_1_a_hold_is_seen_by_others_until_it_is_released(void **state)
{
    (void)state;
    moor_hold *a, *b;
    moor_holders out;
    assert_ok(moor_hold_take(base, "cpu:0", "trainer", 1 << 20, &a));
    assert_ok(moor_hold_take(base, "cpu:0", "trainer", 1 << 20, &b));
    assert_int_equal(seen_by_child("cpu:0"), 2);
    assert_int_equal(seen_by_child("cpu:1"), 0);
    assert_int_equal(holders("cpu:0", &out), 0); /* ours */
    assert_int_equal(seen_by_child("cpu:0"), 2); /* looking has not dropped the locks */
    moor_hold_release(a);
    assert_int_equal(seen_by_child("cpu:0"), 1);
    moor_hold_release(b);
    assert_int_equal(seen_by_child("cpu:0"), 0);
    assert_int_not_equal(rmdir(base), -1); /* nothing is left: no file, no folder */
    assert_int_equal(mkdir(base, 0700), 0);
    moor_hold_release(NULL);
}

/* A child that takes a hold and keeps it until *go or its death. */
static pid_t holder(const char *device, const char *label, uint64_t bytes)
{
    atomic_store(go, 0);
    pid_t child = fork();
    if (!child) {
        moor_hold *hold;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (moor_hold_take(base, device, label, bytes, &hold))
            _exit(1);
        atomic_store(go, 1);
        while (atomic_load(go) != 2)
            support_sleep_ms(1);
        moor_hold_release(hold);
        _exit(0);
    }
    for (int i = 0; i < 20000 && atomic_load(go) != 1; i++)
        support_sleep_ms(1);
    return child;
}

static void count_device(void *user, const char *device, const moor_holder *holder)
{
    assert_string_equal(holder->label, "trainer");
    *(int *)user += !strcmp(device, "cpu:0");
}

/* The barrier waits for none of its own; who asks what there is gets those, too. */
static void own_holds_are_listed(void **state)
{
    (void)state;
    moor_hold *hold;
    int listed = 0;
    assert_ok(moor_hold_take(base, "cpu:0", "trainer", 1 << 20, &hold));
    moor_holds_each(&bases, count_device, &listed);
    assert_int_equal(listed, 1);
    moor_hold_release(hold);
    moor_holds_each(&bases, count_device, &listed);
    assert_int_equal(listed, 1);
}

/* A trainer of another container may have a rank's process number: who has the lock is what counts. */
static void S5_1_a_process_number_alone_makes_no_rank(void **state)
{
    (void)state;
    char path[PATH_MAX], text[128];
    pid_t child = holder("cpu:0", "trainer", 7);
    moor_holders out = {0};
    assert_ok(moor_holds_read(&bases, "cpu:0", (uint32_t)child, &out));
    assert_int_equal(out.count, 0); /* the rank's own */
    atomic_store(go, 2);
    assert_int_equal(support_wait(child), 0);
    child = fork();
    if (!child) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(path, sizeof(path), "%s/holds", base);
        mkdir(path, 0700);
        snprintf(path, sizeof(path), "%s/holds/cpu:0", base);
        mkdir(path, 0700);
        snprintf(path, sizeof(path), "%s/holds/cpu:0/%d.0.1", base, (int)getppid());
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        int n = snprintf(text, sizeof(text), "moor-hold 1\npid %d\nbytes 7\nlabel other\n", (int)getppid());
        if (fcntl(fd, F_SETLK, &lock) || write(fd, text, (size_t)n) != n)
            _exit(1);
        atomic_store(go, 1);
        while (atomic_load(go) != 3)
            support_sleep_ms(1);
        _exit(0);
    }
    for (int i = 0; i < 20000 && atomic_load(go) != 1; i++)
        support_sleep_ms(1);
    out = (moor_holders){0};
    assert_ok(moor_holds_read(&bases, "cpu:0", (uint32_t)getpid(), &out));
    assert_int_equal(out.count, 1);
    assert_int_equal(out.named[0].pid, getpid());
    atomic_store(go, 3);
    assert_int_equal(support_wait(child), 0);
}

/* Whoever cannot open a hold's file does not go on as if there were none. */
static void S5_1_a_hold_that_cannot_be_opened_counts(void **state)
{
    (void)state;
    char path[PATH_MAX];
    moor_holders out = {0};
    snprintf(path, sizeof(path), "%s/holds", base);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/holds/cpu:0", base);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/holds/cpu:0/1.0.1", base); /* open() of a socket: ENXIO, whoever asks */
    assert_int_equal(mknod(path, S_IFSOCK | 0600, 0), 0);
    assert_ok(moor_holds_read(&bases, "cpu:0", 0, &out));
    assert_int_equal(out.count, 1);
    assert_string_equal(out.named[0].label, "a hold that cannot be opened");
}

static void S5_3_holders_are_named(void **state)
{
    (void)state;
    moor_holders out;
    char text[256], expected[128];
    pid_t child = holder("GPU-0c25", "verl\ntrainer 0", 81604378624);
    assert_int_equal(holders("GPU-0c25", &out), 1);
    assert_string_equal(out.named[0].label, "verl trainer 0");
    moor_holders_text(&out, text, sizeof(text));
    snprintf(expected, sizeof(expected), "verl trainer 0 (pid %d, 81604378624 bytes)", (int)child);
    assert_string_equal(text, expected);
    out = (moor_holders){0};
    assert_ok(moor_holds_read(&bases, "GPU-0c25", (uint32_t)child, &out));
    assert_int_equal(out.count, 0);
    atomic_store(go, 2);
    assert_int_equal(support_wait(child), 0);
    assert_int_equal(holders("GPU-0c25", &out), 0);
}

/* It ends with its process, and whoever looks clears away. */
static void S5_1_a_killed_holder_holds_nothing(void **state)
{
    (void)state;
    moor_holders out;
    pid_t child = holder("cpu:0", "doomed", 5);
    assert_int_equal(holders("cpu:0", &out), 1);
    assert_int_equal(files_in("cpu:0"), 1);
    kill(child, SIGKILL);
    assert_int_equal(support_wait(child), 128 + SIGKILL);
    assert_int_equal(files_in("cpu:0"), 1);
    assert_int_equal(holders("cpu:0", &out), 0);
    assert_int_equal(files_in("cpu:0"), 0);
}

/* A forked child of a holder has no hold: neither its exit nor its release ends the parent's. */
static void S5_1_a_fork_inherits_nothing(void **state)
{
    (void)state;
    moor_hold *hold;
    assert_ok(moor_hold_take(base, "cpu:0", "parent", 5, &hold));
    pid_t child = fork();
    if (!child) {
        moor_holders out = {0};
        int seen = moor_holds_read(&bases, "cpu:0", 0, &out) == MOOR_OK && out.count == 1; /* another process' now */
        moor_hold_release(hold);
        out = (moor_holders){0};
        seen = seen && moor_holds_read(&bases, "cpu:0", 0, &out) == MOOR_OK && out.count == 1;
        _exit(seen ? 0 : 1);
    }
    assert_int_equal(support_wait(child), 0);
    assert_int_equal(seen_by_child("cpu:0"), 1);
    moor_hold_release(hold);
    assert_int_equal(seen_by_child("cpu:0"), 0);
}

static void files_are_private(void **state)
{
    (void)state;
    moor_hold *hold;
    struct stat st;
    char path[PATH_MAX];
    mode_t old = umask(0);
    assert_ok(moor_hold_take(base, "cpu:0", "x", 5, &hold));
    umask(old);
    snprintf(path, sizeof(path), "%s/holds", base);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    snprintf(path, sizeof(path), "%s/holds/cpu:0", base);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.') {
            assert_int_equal(fstatat(dirfd(dir), entry->d_name, &st, 0), 0);
            assert_int_equal(st.st_mode & 0777, 0600);
        }
    closedir(dir);
    moor_hold_release(hold);
}

/* Names of devices become names of folders; two devices never share one. */
static void device_names_are_made_safe(void **state)
{
    (void)state;
    char a[MOOR_LABEL_BYTES], b[MOOR_LABEL_BYTES], text[200];
    assert_ok(moor_hold_device_name("GPU-3f2b-11", a));
    assert_string_equal(a, "GPU-3f2b-11");
    assert_ok(moor_hold_device_name("cpu:0", a));
    assert_string_equal(a, "cpu:0");
    const char *odd[] = {"../../etc", "a/b", "a_b", ".", "..", "a b"};
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        assert_ok(moor_hold_device_name(odd[i], a));
        assert_null(strchr(a, '/'));
        assert_int_not_equal(a[0], '.');
        for (size_t k = 0; k < i; k++) {
            assert_ok(moor_hold_device_name(odd[k], b));
            assert_string_not_equal(a, b);
        }
    }
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    assert_ok(moor_hold_device_name(text, a));
    text[sizeof(text) - 2] = 'y';
    assert_ok(moor_hold_device_name(text, b));
    assert_string_not_equal(a, b);
    /* A name made safe stays itself when it is made safe again: arrive and read agree. */
    assert_ok(moor_hold_device_name(a, b));
    assert_string_equal(a, b);
    assert_int_equal(moor_hold_device_name("", a), MOOR_E_INVALID);
    assert_int_equal(moor_hold_device_name(NULL, a), MOOR_E_INVALID);
}

static void failures_are_named(void **state)
{
    (void)state;
    moor_hold *hold = NULL;
    moor_holders out = {0};
    char path[PATH_MAX];
    assert_int_equal(moor_hold_take("relative", "cpu:0", "x", 0, &hold), MOOR_E_INVALID);
    assert_int_equal(moor_hold_take(base, "", "x", 0, &hold), MOOR_E_INVALID);
    assert_int_equal(moor_hold_take(base, "cpu:0", "x", 0, NULL), MOOR_E_INVALID);
    snprintf(path, sizeof(path), "%s/holds", base);
    int fd = open(path, O_CREAT | O_WRONLY, 0600); /* a file where the folder should be */
    close(fd);
    assert_int_not_equal(moor_hold_take(base, "cpu:0", "x", 0, &hold), MOOR_OK);
    assert_non_null(strstr(moor_last_error(), path));
    assert_null(hold);
    assert_int_equal(moor_holds_read(&bases, "cpu:0", 0, &out), MOOR_E_IO);
    unlink(path);
    assert_ok(moor_holds_read(&bases, "cpu:0", 0, &out)); /* a device nobody ever held */
    assert_int_equal(out.count, 0);
}

/* A holder that comes and goes while another comes and goes in the same folder. */
static void folders_may_vanish_under_a_taker(void **state)
{
    (void)state;
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (!children[i]) {
            for (int n = 0; n < 500; n++) {
                moor_hold *hold;
                if (moor_hold_take(base, "cpu:0", "x", 0, &hold))
                    _exit(1);
                moor_hold_release(hold);
            }
            _exit(0);
        }
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(support_wait(children[i]), 0);
    assert_int_equal(seen_by_child("cpu:0"), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)
    const struct CMUnitTest tests[] = {
        TEST(S5_1_a_hold_is_seen_by_others_until_it_is_released),
        TEST(own_holds_are_listed),
        TEST(S5_1_a_process_number_alone_makes_no_rank),
        TEST(S5_1_a_hold_that_cannot_be_opened_counts),
        TEST(S5_3_holders_are_named),
        TEST(S5_1_a_killed_holder_holds_nothing),
        TEST(S5_1_a_fork_inherits_nothing),
        TEST(files_are_private),
        TEST(device_names_are_made_safe),
        TEST(failures_are_named),
        TEST(folders_may_vanish_under_a_taker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
