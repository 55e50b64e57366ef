/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/server.c as its own process sees it: what store_open refuses, and a store whose thread does not end in time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "allocator/heap.h"
#include "client/client.h"
#include "client/session.h"
#include "hooks/persist.h"
#include "hooks/record.h"
#include "plugin/process.h"
#include "plugin/server.h"
#include "plugin/status.h"
#include "support/member.h"

static const int32_t layer_ids[2] = {1, 3};

static moor_store_args args_of(const int32_t *ids, uint32_t model_layers)
{
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.layers = 2;
    args.top_k = 1;
    args.num_experts = 8;
    args.layer_ids = ids;
    args.model_layers = model_layers;
    args.max_step_tokens = 8;
    args.arena_bytes = 8u << 20;
    return args;
}

static void layers_of_the_model_only(void **state)
{
    (void)state;
    static const int32_t negative[2] = {-1, 3};
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    moor_store *store = NULL;
    moor_store_args args = args_of(layer_ids, 3);
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_E_INVALID);
    assert_non_null(strstr(moor_last_error(), "layer_ids run from 1 to 3, the model has 3 layers"));
    args = args_of(negative, 4);
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_E_INVALID);
    assert_null(store);
    args = args_of(layer_ids, 0); /* up to the last of them */
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
    moor_store_close(store);
    assert_int_equal(support_end(process), 1);
}

/* ---- a kernel without memory ------------------------------------------------------------------------------------ */

static _Atomic int shortages;

/* The server's. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static const int reasons[] = {ENOBUFS, ENOMEM, ETOOMANYREFS};
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "sendmsg");
    int left = atomic_load(&shortages);
    if (!left)
        return real(fd, message, flags);
    atomic_store(&shortages, left - 1);
    errno = reasons[left % 3];
    return -1;
}

static void record_a(moor_store *store)
{
    static const int32_t ids[3] = {1, 2, 3};
    moor_step_request request = {.id = "a", .id_len = 1, .count = 3};
    moor_ids captured = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = 3, .top_k = 1};
    assert_int_equal(moor_step_begin(store, &request, 1), MOOR_OK);
    for (uint32_t layer = 0; layer < 2; layer++)
        assert_int_equal(moor_capture(store, layer, &captured, NULL), MOOR_OK);
    assert_int_equal(moor_step_commit(store, NULL, 0), MOOR_OK);
    assert_int_equal(moor_request_finished(store, "a", 1), MOOR_OK);
}

static void a_shortage_of_memory_ends_no_connection(void **state)
{
    (void)state;
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    moor_store *store = NULL;
    moor_store_args args = args_of(layer_ids, 4);
    moor_client *client;
    moor_record *record;
    char *json;
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
    record_a(store);
    assert_int_equal(moor_attach(NULL, NULL, 5, &client), MOOR_OK);
    assert_int_equal(moor_open(client, "a", 1, 5, 0, 0, &record), MOOR_OK);
    atomic_store(&shortages, 6);
    assert_int_equal(moor_client_store_stats(client, &json), MOOR_OK);
    assert_int_equal(atomic_load(&shortages), 0);
    assert_non_null(strstr(json, "\"leases\":1,"));
    free(json);
    moor_record_release(record);
    moor_detach(client);
    moor_store_close(store);
    assert_int_equal(support_end(process), 1);
}

/* A question for statistics is patient: a store that is given up is so for all that the client does, and it only is slow. */
static void statistics_that_come_slowly_cost_no_connection(void **state)
{
    (void)state;
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    moor_store *store = NULL;
    moor_store_args args = args_of(layer_ids, 4);
    moor_located where;
    moor_client *client;
    char *json;
    size_t len;
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
    assert_int_equal(moor_locate(NULL, NULL, &where), MOOR_OK);
    assert_int_equal(moor_client_make(&where, 200, &client), MOOR_OK); /* whatever a tick takes on a busy machine */
    atomic_store(&shortages, 80); /* one a tick of the server's: more than a second */
    assert_int_equal(moor_client_stats(client, &json, &len), MOOR_OK);
    if (strstr(json, "stores_error"))
        fail_msg("%s", strstr(json, "stores_error"));
    free(json);
    assert_int_equal(moor_client_unanswered(client, "test"), MOOR_OK);
    moor_detach(client);
    moor_store_close(store);
    assert_int_equal(support_end(process), 1);
}

/* Server and consumer in one process: whichever allocation fails, on either side. */
static void S2_5_no_memory_on_either_side_ends_no_connection(void **state)
{
    (void)state;
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    moor_store *store = NULL;
    moor_store_args args = args_of(layer_ids, 4);
    moor_client *client;
    moor_record *kept, *record;
    char *json;
    int fired = 1, failed = 0;
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
    record_a(store);
    assert_int_equal(moor_attach(NULL, NULL, 5, &client), MOOR_OK);
    assert_int_equal(moor_open(client, "a", 1, 5, 0, 0, &kept), MOOR_OK);
    for (uint64_t nth = 1; fired; nth++) {
        moor_fault_arm(nth);
        moor_status status = moor_open(client, "a", 1, 5, 0, 0, &record);
        fired = moor_fault_fired();
        moor_fault_arm(0);
        if (!status)
            moor_record_release(record);
        else
            assert_int_equal(status, MOOR_E_NOMEM);
        failed += status != MOOR_OK;
        assert_int_equal(moor_client_store_stats(client, &json), MOOR_OK);
        if (!strstr(json, "\"leases\":1,"))
            fail_msg("the %llu. allocation: %s", (unsigned long long)nth, json);
        free(json);
    }
    assert_true(failed > 2);
    char id[600]; /* a request that needs memory to be sent */
    memset(id, 's', sizeof(id));
    fired = 1;
    for (int nth = 1; fired; nth++) {
        snprintf(id, sizeof(id), "%d", nth);
        moor_fault_arm((uint64_t)nth);
        moor_status status = moor_client_session_start(client, id, sizeof(id), 0);
        fired = moor_fault_fired();
        moor_fault_arm(0);
        assert_true(status == MOOR_OK || status == MOOR_E_NOMEM);
        assert_int_equal(moor_connection_spent(kept->connection), 0);
    }
    moor_record_release(kept);
    moor_detach(client);
    moor_store_close(store);
    assert_int_equal(support_end(process), 1);
}

/* ---- a thread that does not end ---------------------------------------------------------------------------------- */

static _Atomic int *stuck, *go_on;

static void slow_log(void *user, int level, const char *text)
{
    (void)user, (void)level;
    if (!strstr(text, "connection closed"))
        return;
    atomic_store(stuck, 1);
    while (!atomic_load(go_on))
        support_sleep_ms(1);
}

static void await(_Atomic int *what)
{
    for (int i = 0; i < 20000 && !atomic_load(what); i++)
        support_sleep_ms(1);
    if (!atomic_load(what))
        _exit(2);
}

static int open_a_stuck_store(const char *dir, moor_process **process, moor_store **store)
{
    moor_host host = MOOR_HOST_INIT;
    moor_process_args process_args = MOOR_PROCESS_ARGS_INIT;
    moor_store_args args = args_of(layer_ids, 4);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    host.log = slow_log;
    process_args.host = &host;
    setenv("MOOR_DIR", dir, 1);
    if (moor_process_join(NULL, &process_args, process) || moor_store_open(*process, &args, store))
        return 3;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/default/store-0.sock", dir);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) || send(fd, "no greeting at all", 18, 0) != 18)
        return 4;
    await(stuck);
    return 0;
}

/* In a process of its own: the thread is left behind with what it uses. */
static int close_a_stuck_store(const char *dir)
{
    moor_process *process;
    moor_store *store;
    int rc = open_a_stuck_store(dir, &process, &store);
    if (rc)
        return rc;
    uint64_t begun = moor_now_ns();
    moor_store_close(store);
    if (moor_now_ns() - begun > 20000000000ull)
        return 5;
    moor_process_leave(process);
    atomic_store(go_on, 1);
    support_sleep_ms(200); /* the thread ends now, and looks at the shared state on its way */
    return 0;
}

static _Atomic int set_back;

/* Somebody sets the time of day back by an hour. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (!rc && clock == CLOCK_REALTIME && atomic_load(&set_back))
        out->tv_sec -= 3600;
    return rc;
}

static void *go_on_soon(void *unused)
{
    support_sleep_ms(300);
    atomic_store(go_on, 1);
    return unused;
}

/* The thread takes a moment to end, and has it, whatever the time of day is. */
static int close_a_slow_store(const char *dir)
{
    moor_process *process;
    moor_store *store;
    pthread_t thread;
    int rc = open_a_stuck_store(dir, &process, &store);
    if (rc || pthread_create(&thread, NULL, go_on_soon, NULL))
        return rc ? rc : 5;
    atomic_store(&set_back, 1);
    moor_store_close(store);
    moor_process_leave(process);
    pthread_join(thread, NULL);
    return rmdir(dir) ? 6 : mkdir(dir, 0700); /* the instance is gone with its last process */
}

static void in_a_child(int (*what)(const char *dir))
{
    char dir[] = "/tmp/moor-stuck-XXXXXX", command[64];
    int status = -1;
    stuck = mmap(NULL, 2 * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    go_on = stuck + 1;
    unsetenv("MOOR_INSTANCE");
    assert_non_null(mkdtemp(dir));
    pid_t child = fork();
    if (child == 0)
        _exit(what(dir));
    assert_int_equal(waitpid(child, &status, 0), child);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
    munmap(stuck, 2 * sizeof(int));
    assert_int_equal(status, 0);
}

static void a_thread_that_does_not_end_keeps_what_it_uses(void **state)
{
    (void)state;
    in_a_child(close_a_stuck_store);
}

static void the_time_of_day_does_not_cut_an_end_short(void **state)
{
    (void)state;
    in_a_child(close_a_slow_store);
}

/* ---- a snapshot of more stores ----------------------------------------------------------------------------------- */

/* Two replicas were saved. One, or two stages where there were two replicas of two, would leave records out and say nothing. */
static void S2_6_fewer_stores_than_were_saved_are_refused(void **state)
{
    (void)state;
    moor_process *process = support_start(NULL, MOOR_ROLE_WORKER);
    moor_store *store = NULL;
    moor_store_args args = args_of(layer_ids, 4);
    char dir[96], file[128];
    snprintf(dir, sizeof(dir), "%s-saved", support_dir());
    snprintf(file, sizeof(file), "%s/store-0.moor", dir);
    args.dp_size = args.stages = 2;
    assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
    assert_int_equal(moor_store_save(store, dir, 60), MOOR_OK);
    moor_store_close(store);
    static const struct {
        uint32_t dp_size, stages, index;
        const char *has; /* NULL: they are enough */
    } cases[] = {{1, 1, 0, "has 1,"}, {1, 3, 0, "has 3,"}, {3, 1, 0, "has 3,"}, {2, 2, 0, NULL}, {5, 1, 0, NULL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        args.dp_size = cases[i].dp_size;
        args.stages = cases[i].stages;
        assert_int_equal(moor_store_open(process, &args, &store), MOOR_OK);
        moor_status status = moor_store_restore(store, dir);
        assert_int_equal(status, cases[i].has ? MOOR_E_INVALID : MOOR_OK);
        if (cases[i].has && (!strstr(moor_last_error(), file) || !strstr(moor_last_error(), "is one of 4, ") ||
                             !strstr(moor_last_error(), cases[i].has)))
            fail_msg("%s", moor_last_error());
        moor_store_close(store);
    }
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(support_end(process), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_the_model_only),
        cmocka_unit_test(a_shortage_of_memory_ends_no_connection),
        cmocka_unit_test(statistics_that_come_slowly_cost_no_connection),
        cmocka_unit_test(S2_5_no_memory_on_either_side_ends_no_connection),
        cmocka_unit_test(a_thread_that_does_not_end_keeps_what_it_uses),
        cmocka_unit_test(the_time_of_day_does_not_cut_an_end_short),
        cmocka_unit_test(S2_6_fewer_stores_than_were_saved_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
