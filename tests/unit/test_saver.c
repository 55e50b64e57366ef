/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer asks for a snapshot (plugin/peer.c, plugin/saver.c): the server's thread waits for nobody, one at a time, and a store that
 * closes gives it up. */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "allocator/snapfile.h"
#include "hooks/persist.h"
#include "hooks/weights.h"
#include "plugin/config.h"
#include "plugin/peer.h"
#include "plugin/process.h"

static char dir[32], target[64], file[96];
static moor_process *process;
static moor_store *store;
static moor_peer *peer;
static moor_peer_home home;
static moor_saver saver;
static int wake_fd;
static const int32_t layer_ids[1] = {0};
static _Atomic int held, release;

static int hold_at_fsync(const char *call)
{
    if (strcmp(call, "fsync"))
        return 0;
    atomic_store(&held, 1);
    while (!atomic_load(&release))
        usleep(500);
    return 0;
}

static moor_status open_store(void)
{
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.layers = args.model_layers = 1;
    args.top_k = 1;
    args.num_experts = 8;
    args.layer_ids = layer_ids;
    args.max_step_tokens = 8;
    args.arena_bytes = 8u << 20;
    return moor_recorder_create(process, &args, &store);
}

static int begin(void **state)
{
    (void)state;
    moor_process_args args = MOOR_PROCESS_ARGS_INIT;
    strcpy(dir, "/tmp/moor-saver-XXXXXX");
    unsetenv("MOOR_INSTANCE");
    moor_config *config;
    if (!mkdtemp(dir) || setenv("MOOR_DIR", dir, 1) || moor_config_parse("{\"log\":\"error\"}", 15, &config) ||
        moor_process_join(config, &args, &process))
        return -1;
    moor_config_free(config);
    snprintf(target, sizeof(target), "%s/snapshot", dir);
    snprintf(file, sizeof(file), "%s/store-0.moor", target);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    moor_saver_init(&saver, wake_fd);
    atomic_store(&held, 0);
    atomic_store(&release, 0);
    if (open_store())
        return -1;
    home = (moor_peer_home){store, 1, 1, 1, 8, 1, layer_ids, &saver};
    return moor_peer_create(&home, 7, &peer);
}

static int end(void **state)
{
    (void)state;
    moor_snapfile_set_hook(NULL);
    if (peer)
        moor_peer_destroy(peer);
    moor_recorder_destroy(store);
    moor_process_leave(process);
    close(wake_fd);
    unlink(file);
    rmdir(target);
    return rmdir(dir); /* nothing is left */
}

static void record(const char *id, int sealed)
{
    uint8_t expert = 3;
    moor_step_request request = {.id = id, .id_len = (uint32_t)strlen(id), .count = 1};
    moor_ids ids = {.data = &expert, .dtype = MOOR_DTYPE_U8, .tokens = 1, .top_k = 1};
    assert_int_equal(moor_step_begin(store, &request, 1), MOOR_OK);
    assert_int_equal(moor_capture(store, 0, &ids, NULL), MOOR_OK);
    assert_int_equal(moor_step_commit(store, NULL, 0), MOOR_OK);
    if (sealed)
        assert_int_equal(moor_records_seal(store->records, moor_id_hash(id, strlen(id)), 1, 0), MOOR_OK);
}

static moor_status send_hello(void)
{
    struct {
        moor_wire_header header;
        moor_wire_hello hello;
    } message = {{sizeof(message), MOOR_WIRE_HELLO, 0, 1, 0}, {MOOR_WIRE_MAGIC, MOOR_WIRE_VERSION, 1, 0}};
    return moor_peer_input(peer, &message, sizeof(message), 0);
}

/* n: bytes of the path that are sent; id_len: those it says. */
static moor_status send_save(uint32_t tag, const char *path, uint32_t n, uint32_t id_len, uint64_t timeout_ns)
{
    static struct {
        moor_wire_header header;
        moor_wire_open open;
        char path[PATH_MAX + 16];
    } message;
    uint32_t length = (uint32_t)(sizeof(message.header) + sizeof(message.open)) + n;
    message.header = (moor_wire_header){length, MOOR_WIRE_SAVE, 0, tag, 0};
    message.open = (moor_wire_open){timeout_ns, 0, 0, id_len};
    memcpy(message.path, path, n);
    return moor_peer_input(peer, &message, length, moor_now_ns());
}

static moor_status ask(uint32_t tag)
{
    return send_save(tag, target, (uint32_t)strlen(target), (uint32_t)strlen(target), 60000000000u);
}

static int reply(uint32_t tag, const char *text)
{
    moor_wire_header header;
    moor_peer_reply *first = moor_peer_first(peer);
    assert_non_null(first);
    memcpy(&header, first->data, sizeof(header));
    assert_int_equal(header.tag, tag);
    /* the text ends with the message, without a zero */
    if (text && !memmem((char *)first->data + sizeof(header), first->length - sizeof(header), text, strlen(text)))
        fail_msg("\"%.*s\" does not say \"%s\"", (int)(first->length - sizeof(header)),
                 (char *)first->data + sizeof(header), text);
    moor_peer_sent(peer, first->length);
    return header.status;
}

/* As the server does. */
static void wait_saved(moor_saved *saved)
{
    struct pollfd fd = {wake_fd, POLLIN, 0};
    assert_int_equal(poll(&fd, 1, 30000), 1);
    assert_int_equal(moor_saver_take(&saver, saved), 1);
}

static void the_answer_comes_when_it_is_done(void **state)
{
    (void)state;
    moor_saved saved;
    send_hello();
    reply(1, NULL);
    record("a", 1);
    moor_snapfile_set_hook(hold_at_fsync);
    assert_int_equal(ask(2), MOOR_OK); /* returns at once */
    while (!atomic_load(&held))
        usleep(500);
    assert_null(moor_peer_first(peer));
    assert_int_not_equal(access(file, F_OK), 0);
    assert_int_equal(moor_saver_take(&saver, &saved), 0);
    assert_int_equal(ask(3), MOOR_OK);
    assert_int_equal(reply(3, "is being written"), MOOR_E_STATE);
    record("b", 1); /* the store goes on meanwhile */
    atomic_store(&release, 1);
    wait_saved(&saved);
    assert_int_equal(saved.client, moor_peer_client(peer));
    assert_int_equal(saved.status, MOOR_OK);
    moor_peer_saved(peer, &saved);
    assert_int_equal(reply(2, NULL), MOOR_OK);
    assert_int_equal(access(file, F_OK), 0);
    assert_int_equal(moor_saver_take(&saver, &saved), 0);
    assert_int_equal(ask(4), MOOR_OK); /* and again */
    wait_saved(&saved);
    moor_peer_saved(peer, &saved);
    assert_int_equal(reply(4, NULL), MOOR_OK);
}

static void what_is_open_is_told_to_the_one_who_asked(void **state)
{
    (void)state;
    moor_saved saved;
    send_hello();
    reply(1, NULL);
    record("still-running", 0);
    assert_int_equal(ask(2), MOOR_OK);
    wait_saved(&saved);
    moor_peer_saved(peer, &saved);
    assert_int_equal(reply(2, "still-running"), MOOR_E_STATE);
}

static void paths_are_checked_before_anything_begins(void **state)
{
    (void)state;
    static char path[PATH_MAX + 8];
    send_hello();
    reply(1, NULL);
    memset(path, '/', sizeof(path));
    assert_int_equal(send_save(2, path, PATH_MAX, PATH_MAX, 1), MOOR_OK);
    assert_int_equal(reply(2, "4096 bytes"), MOOR_E_INVALID);
    assert_int_equal(send_save(3, path, 0, 0, 1), MOOR_OK);
    assert_int_equal(reply(3, "0 bytes"), MOOR_E_INVALID);
    assert_int_equal(send_save(4, "/a\0b", 4, 4, 1), MOOR_OK);
    assert_int_equal(reply(4, NULL), MOOR_E_INVALID);
    assert_int_equal(saver.busy, 0);
    home.saver = NULL;
    assert_int_equal(ask(5), MOOR_OK);
    assert_int_equal(reply(5, NULL), MOOR_E_UNSUPPORTED);
    assert_int_equal(send_save(6, target, 5, 6, 1), MOOR_E_CORRUPT); /* says more than it sends: that connection ends */
}

static void a_store_that_closes_gives_it_up(void **state)
{
    (void)state;
    send_hello();
    reply(1, NULL);
    record("a", 1);
    moor_snapfile_set_hook(hold_at_fsync);
    assert_int_equal(ask(2), MOOR_OK);
    while (!atomic_load(&held))
        usleep(500);
    moor_peer_destroy(peer); /* who asked is gone */
    peer = NULL;
    assert_int_equal(moor_saver_stop(&saver, moor_now_ns() + 20000000), 0); /* it hangs in a system call */
    atomic_store(&release, 1);
    assert_int_equal(moor_saver_stop(&saver, moor_now_ns() + 30000000000u), 1);
    assert_int_not_equal(access(file, F_OK), 0); /* it was on the disk, but never got its name */
}

static void S2_6_a_restored_store_never_says_an_old_epoch_of_new_rows(void **state)
{
    (void)state;
    moor_state *shared = process->state;
    char label[64];
    record("a", 1);
    moor_weights_label(process, "before");
    assert_int_equal(moor_weights_touched(process, MOOR_WEIGHTS_UPDATE, "test"), MOOR_OK);
    moor_weights_label(process, "trained");
    record("b", 1);
    uint64_t last = moor_weights_epoch(process);
    assert_int_equal(last, 2);
    assert_int_equal(moor_store_save(store, target, 30), MOOR_OK);
    moor_peer_destroy(peer);
    /* The same directory is another server's from here on: a new instance has epoch 1 and its own label. */
    moor_recorder_destroy(store);
    atomic_store(&shared->gate.epoch, 1);
    atomic_store(&shared->weights.used_epoch, 0);
    for (int i = 0; i < MOOR_EPOCH_LABELS; i++)
        atomic_store(&shared->gate.labels[i].epoch, 0);
    moor_weights_label(process, "base");
    assert_int_equal(open_store(), MOOR_OK);
    home.store = store;
    assert_int_equal(moor_store_restore(store, target), MOOR_OK);
    assert_int_equal(moor_peer_create(&home, 7, &peer), MOOR_OK);
    assert_int_equal(moor_weights_epoch(process), last + 1);
    moor_weights_label_of(shared, 1, label, sizeof(label));
    assert_string_equal(label, "before");
    moor_weights_label_of(shared, 2, label, sizeof(label));
    assert_string_equal(label, "trained");
    moor_weights_label_of(shared, 3, label, sizeof(label));
    assert_string_equal(label, "base");
    record("c", 1);
    moor_view *view = NULL;
    assert_int_equal(moor_records_open(store->records, 1, "c", 1, 0, 0, &view), MOOR_OK);
    assert_int_equal(view->versions[0].epoch, last + 1);
    moor_view_free(view);
    /* Once more, a snapshot that is older than what there is: nothing moves back. */
    moor_weights_restore(shared, 1, "");
    assert_int_equal(moor_weights_epoch(process), last + 1);
    moor_records_disconnect(store->records, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_answer_comes_when_it_is_done, begin, end),
        cmocka_unit_test_setup_teardown(what_is_open_is_told_to_the_one_who_asked, begin, end),
        cmocka_unit_test_setup_teardown(paths_are_checked_before_anything_begins, begin, end),
        cmocka_unit_test_setup_teardown(a_store_that_closes_gives_it_up, begin, end),
        cmocka_unit_test_setup_teardown(S2_6_a_restored_store_never_says_an_old_epoch_of_new_rows, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
