/* SPDX-License-Identifier: Apache-2.0 */
/* File systems that lack something, sandboxes, and limits: what works goes on, what cannot is refused with what it needs, and no signal
 * ends the process. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utime.h>

#include "allocator/dirs.h"
#include "allocator/memfd.h"
#include "allocator/region.h"
#include "client/wire.h"
#include "hooks/holds.h"
#include "hooks/record.h"
#include "plugin/config.h"
#include "plugin/process.h"
#include "plugin/report.h"
#include "plugin/state.h"
#include "support/sandbox.h"
#include "support/snapshots.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

enum { MIB = 1 << 20, ROWS = 50000, NOT_ALLOWED = 77 };

static snap_dir dir;

static int begin(void **state)
{
    (void)state;
    unsetenv("MOOR_INSTANCE");
    unsetenv("MOOR_DIR");
    unsetenv("MOOR_CONFIG");
    snap_dir_make(&dir);
    return 0;
}

static int end(void **state)
{
    (void)state;
    snap_dir_remove(&dir);
    return 0;
}

static int warnings;
static char last_warning[512];

static void hear(void *user, int level, const char *text)
{
    (void)user;
    if (level != MOOR_LOG_WARN)
        return;
    warnings++;
    snprintf(last_warning, sizeof(last_warning), "%s", text);
}

static void listen_to_log(void)
{
    static moor_host host = MOOR_HOST_INIT;
    host.log = hear;
    warnings = 0;
    moor_log_configure(&host, MOOR_LOG_WARN);
}

static int says(const char *text)
{
    return strstr(moor_last_error(), text) != NULL;
}

static int restores(uint64_t rows)
{
    lab_store lab;
    lab_open(&lab);
    int ok = snap_restore(&lab, &dir) == MOOR_OK && lab_stats(&lab).blocks > 0;
    if (ok) {
        moor_view *view = lab_view(&lab, "only");
        ok = view->rows == rows;
        lab_unview(&lab, view);
    }
    snap_empty(&lab);
    lab_close(&lab);
    return ok;
}

/* ---- file systems ---- */

static int save_without_locks(int err)
{
    char other[PATH_MAX + 64], young[PATH_MAX + 64], name[32];
    lab_store lab;
    lab_open(&lab);
    snap_fill_one(&lab, ROWS);
    CHECK(snap_save(&lab, &dir) == MOOR_OK); /* with a lock: the directory is there */
    /* what killed writers left: one long ago, and one that may still write */
    moor_snapshot_name(0, name);
    snprintf(other, sizeof(other), "%s/.%s.1.1.tmp", dir.path, name);
    snprintf(young, sizeof(young), "%s/.%s.1.2.tmp", dir.path, name);
    close(open(other, O_CREAT | O_WRONLY, 0600));
    close(open(young, O_CREAT | O_WRONLY, 0600));
    CHECK(utime(other, &(struct utimbuf){1000000000, 1000000000}) == 0);
    sandbox_refuse(SYS_flock, err);
    listen_to_log();
    for (int i = 0; i < 2; i++) {
        CHECK(snap_save(&lab, &dir) == MOOR_OK);
        CHECK(warnings == 1 && strstr(last_warning, "has no locks"));
        CHECK(access(other, F_OK) < 0 && access(young, F_OK) == 0);
    }
    CHECK(unlink(young) == 0);
    CHECK(!snap_temporary_left(&dir));
    CHECK(restores(ROWS));
    snap_empty(&lab);
    lab_close(&lab);
    return 0;
}

static void S2_6_a_file_system_without_locks_keeps_snapshots(void **state)
{
    (void)state;
    static const int errors[] = {ENOSYS, EOPNOTSUPP, ENOLCK};
    for (int i = 0; i < 3; i++)
        assert_int_equal(sandbox_run(save_without_locks, errors[i]), 0);
}

static int sync_error;

static int refuse_directories(const char *call)
{
    return strncmp(call, "fsync of the", 12) == 0 ? sync_error : 0;
}

static int save_without_directory_sync(int err)
{
    lab_store lab;
    snap_dir fresh;
    snap_dir_make(&fresh);
    lab_open(&lab);
    snap_fill_one(&lab, ROWS);
    sync_error = err;
    moor_snapfile_set_hook(refuse_directories);
    listen_to_log();
    for (int i = 0; i < 2; i++)
        CHECK(snap_save(&lab, &fresh) == MOOR_OK); /* the first one makes the directory */
    CHECK(warnings == 1 && strstr(last_warning, "power failure"));
    moor_snapfile_set_hook(NULL);
    snap_empty(&lab);
    lab_close(&lab);
    snap_dir_remove(&fresh);
    return 0;
}

static void S2_6_a_file_system_that_syncs_no_directory_keeps_snapshots(void **state)
{
    (void)state;
    static const int errors[] = {EINVAL, EOPNOTSUPP, ENOSYS};
    for (int i = 0; i < 3; i++)
        assert_int_equal(sandbox_run(save_without_directory_sync, errors[i]), 0);
}

static int join_without_locks(int err)
{
    char text[PATH_MAX + 32];
    moor_config *config;
    moor_process *process;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    sandbox_refuse(SYS_flock, err);
    int n = snprintf(text, sizeof(text), "{\"log\":\"error\",\"dir\":\"%s\"}", dir.base);
    CHECK(moor_config_parse(text, (size_t)n, &config) == MOOR_OK);
    CHECK(moor_process_join(config, &args, &process) == MOOR_E_IO && says(dir.base) && says("one on a tmpfs can"));
    return 0;
}

static void an_instance_says_where_there_are_locks(void **state)
{
    (void)state;
    assert_int_equal(sandbox_run(join_without_locks, ENOLCK), 0);
}

/* ---- memfd ---- */

static int open_arena(int unused)
{
    moor_region region;
    int fd;
    (void)unused;
    CHECK(moor_region_open(&region, MIB) == MOOR_OK);
    region.base[MIB - 1] = 1;
    moor_region_close(&region);
    CHECK(moor_wire_large_make("text", 4, &fd) == MOOR_OK);
    close(fd);
    return 0;
}

/* vm.memfd_noexec=2 */
static int only_not_executable(int unused)
{
    sandbox_refuse_some(SYS_memfd_create, 1, MFD_NOEXEC_SEAL, 0, EACCES);
    return open_arena(unused);
}

/* Linux before 6.3 */
static int knows_no_such_flag(int unused)
{
    sandbox_refuse_some(SYS_memfd_create, 1, MFD_NOEXEC_SEAL, MFD_NOEXEC_SEAL, EINVAL);
    return open_arena(unused);
}

static void memfds_are_made_as_the_kernel_wants_them(void **state)
{
    (void)state;
    assert_int_equal(sandbox_run(only_not_executable, 0), 0);
    assert_int_equal(sandbox_run(knows_no_such_flag, 0), 0);
}

/* ---- RLIMIT_FSIZE ---- */

static void limit_files(rlim_t bytes)
{
    struct rlimit limit = {bytes, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_DFL);
    setrlimit(RLIMIT_FSIZE, &limit);
}

static int grow_beyond_the_limit(int unused)
{
    static char reply[3 * MIB];
    char text[PATH_MAX + 64];
    lab_store lab;
    moor_region region;
    moor_config *config;
    moor_process *process;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    moor_hold *hold;
    int fd;
    (void)unused;
    lab_open(&lab);
    snap_fill_one(&lab, ROWS);
    CHECK(snap_save(&lab, &dir) == MOOR_OK);
    limit_files(MIB);
    CHECK(moor_region_open(&region, 2 * MIB) == MOOR_E_IO && says("2097152") && says("1048576") && says("ulimit -f"));
    CHECK(moor_wire_large_make(reply, sizeof(reply), &fd) == MOOR_E_IO && says("RLIMIT_FSIZE"));
    CHECK(snap_save(&lab, &dir) == MOOR_E_IO && says("RLIMIT_FSIZE") && says(dir.path));
    CHECK(!snap_temporary_left(&dir));
    int n = snprintf(text, sizeof(text), "{\"log\":\"error\",\"dir\":\"%s\"}", dir.base);
    CHECK(moor_config_parse(text, (size_t)n, &config) == MOOR_OK);
    CHECK(moor_process_join(config, &args, &process) == MOOR_E_IO && says("RLIMIT_FSIZE"));
    limit_files(16);
    CHECK(moor_hold_take(dir.base, "cpu:0", "trainer", 1, &hold) == MOOR_E_IO && says("RLIMIT_FSIZE"));
    limit_files(RLIM_INFINITY);
    CHECK(restores(ROWS));
    CHECK(moor_process_join(config, &args, &process) == MOOR_OK);
    moor_process_leave(process);
    moor_config_free(config);
    snap_empty(&lab);
    lab_close(&lab);
    return 0;
}

static void a_limit_on_files_is_an_error_that_names_it(void **state)
{
    (void)state;
    assert_int_equal(sandbox_run(grow_beyond_the_limit, 0), 0);
}

/* Each byte of both sides of the bound. */
static int grow_up_to_the_limit(int unused)
{
    char page[4096] = "";
    int fd;
    (void)unused;
    limit_files(sizeof(page));
    CHECK(moor_wire_large_make(page, sizeof(page), &fd) == MOOR_OK);
    close(fd);
    limit_files(sizeof(page) - 1);
    CHECK(moor_wire_large_make(page, sizeof(page), &fd) == MOOR_E_IO);
    return 0;
}

static void the_limit_itself_is_allowed(void **state)
{
    (void)state;
    assert_int_equal(sandbox_run(grow_up_to_the_limit, 0), 0);
}

/* ---- no room ---- */

static int files_in_base(void)
{
    DIR *list = opendir(dir.base);
    const struct dirent *entry;
    int n = 0;
    while (list && (entry = readdir(list)))
        n += entry->d_name[0] != '.';
    if (list)
        closedir(list);
    return n;
}

static moor_status join_here(moor_process **process)
{
    char text[PATH_MAX + 64];
    moor_config *config;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    int n = snprintf(text, sizeof(text), "{\"log\":\"error\",\"dir\":\"%s\"}", dir.base);
    moor_status status = moor_config_parse(text, (size_t)n, &config);
    if (!status)
        status = moor_process_join(config, &args, process);
    moor_config_free(config);
    return status;
}

static int join_on_a_small_tmpfs(int kib)
{
    moor_process *process;
    if (sandbox_tmpfs(dir.base, (unsigned long)kib << 10))
        return NOT_ALLOWED;
    CHECK(join_here(&process) == MOOR_E_IO && says("bytes cannot be allocated") && !files_in_base());
    return 0;
}

static void fill_up(const char *name)
{
    static const char bytes[4096];
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/%s", dir.base, name);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    while (write(fd, bytes, sizeof(bytes)) > 0)
        ;
    close(fd);
}

/* Nothing that a process does with the state takes another page of the tmpfs. */
static int live_on_a_full_tmpfs(int unused)
{
    moor_process *process;
    (void)unused;
    if (sandbox_tmpfs(dir.base, 64 * MIB))
        return NOT_ALLOWED;
    CHECK(join_here(&process) == MOOR_OK);
    CHECK(moor_state_reserve_ring(moor_process_dir_fd(process), process->dir, 1) == MOOR_OK);
    fill_up("filler");
    char ring[32];
    snprintf(ring, sizeof(ring), "%zu bytes", sizeof(moor_state_seal_ring));
    CHECK(moor_state_reserve_ring(moor_process_dir_fd(process), process->dir, 0) == MOOR_E_IO && says(ring));
    for (size_t at = 0; at < offsetof(moor_state, seals); at += 4096)
        __atomic_fetch_add((uint8_t *)process->state + at, 0, __ATOMIC_RELAXED);
    for (size_t at = 0; at < sizeof(moor_state_seal_ring); at += 4096)
        __atomic_fetch_add((uint8_t *)&process->state->seals[1] + at, 0, __ATOMIC_RELAXED);
    uint8_t alive[MOOR_MAX_PROCESSES] = {0};
    moor_located where = {0};
    snprintf(where.dir, sizeof(where.dir), "%s", process->dir);
    json_decref(moor_report(&where, process->state, alive));
    for (uint32_t store = 0; store < MOOR_MAX_STORES; store++)
        CHECK(moor_seal(process, store, "a", 1, 1, 0) == MOOR_OK); /* none has opened */
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/filler", dir.base);
    unlink(path);
    moor_process_leave(process);
    CHECK(!files_in_base());
    return 0;
}

static void a_small_tmpfs_is_refused_at_the_start(void **state)
{
    (void)state;
    int result = sandbox_run(join_on_a_small_tmpfs, 1024);
    if (result == NOT_ALLOWED)
        skip();
    assert_int_equal(result, 0);
}

static void a_tmpfs_that_fills_up_later_is_no_signal(void **state)
{
    (void)state;
    int result = sandbox_run(live_on_a_full_tmpfs, 0);
    if (result == NOT_ALLOWED)
        skip();
    assert_int_equal(result, 0);
}

static int hold_without_room(int unused)
{
    moor_hold *hold = NULL;
    (void)unused;
    for (unsigned fd = 4; fd < 64; fd *= 2) /* files, not stdout: writes take nothing, and no error is told */
        sandbox_refuse_some(SYS_write, 0, ~(fd - 1), fd, 0);
    CHECK(moor_hold_take(dir.base, "cpu:0", "trainer", 1, &hold) == MOOR_E_IO && !hold && says(strerror(ENOSPC)));
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/holds", dir.base);
    CHECK(access(path, F_OK) < 0);
    return 0;
}

static void a_hold_that_cannot_be_written_is_none(void **state)
{
    (void)state;
    assert_int_equal(sandbox_run(hold_without_room, 0), 0);
}

static int open_strictly(int err)
{
    char file[PATH_MAX];
    moor_region region;
    snprintf(file, sizeof(file), "%s/overcommit_memory", dir.base);
    int fd = open(file, O_CREAT | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "2\n", 2) == 2);
    close(fd);
    moor_region_set_policy_file(file);
    if (err) {
        sandbox_refuse(SYS_fallocate, err);
        CHECK(moor_region_open(&region, 8 * MIB) == MOOR_E_IO && says("8388608") && says("overcommit_memory"));
    } else {
        CHECK(moor_region_open(&region, 8 * MIB) == MOOR_OK);
        CHECK(moor_region_resident(&region) == 8 * MIB);
        CHECK(moor_region_punch(&region, region.base, MIB) != 0); /* never to be had again, perhaps */
        CHECK(moor_region_resident(&region) == 8 * MIB);
        moor_region_close(&region);
    }
    unlink(file);
    return 0;
}

static void without_overcommit_the_arena_has_its_memory_at_the_start(void **state)
{
    (void)state;
    assert_int_equal(sandbox_run(open_strictly, 0), 0);
    assert_int_equal(sandbox_run(open_strictly, ENOSPC), 0);
    assert_int_equal(sandbox_run(open_strictly, ENOMEM), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S2_6_a_file_system_without_locks_keeps_snapshots),
        cmocka_unit_test(S2_6_a_file_system_that_syncs_no_directory_keeps_snapshots),
        cmocka_unit_test(an_instance_says_where_there_are_locks),
        cmocka_unit_test(memfds_are_made_as_the_kernel_wants_them),
        cmocka_unit_test(a_limit_on_files_is_an_error_that_names_it),
        cmocka_unit_test(the_limit_itself_is_allowed),
        cmocka_unit_test(a_small_tmpfs_is_refused_at_the_start),
        cmocka_unit_test(a_tmpfs_that_fills_up_later_is_no_signal),
        cmocka_unit_test(a_hold_that_cannot_be_written_is_none),
        cmocka_unit_test(without_overcommit_the_arena_has_its_memory_at_the_start),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
