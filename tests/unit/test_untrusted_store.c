/* SPDX-License-Identifier: Apache-2.0 */
/* client/: stores that answer what they should not, by a thread that plays one. fuzz_reply looks for more of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "allocator/heap.h"
#include "allocator/locks.h"
#include "client/client.h"

enum { ROWS = 4096, NONCE = 7, SEEN_MOST = 8 };

/* What the store does: greets with a message of this type, then answers in turn. */
typedef struct answer {
    uint16_t type, flags; /* type 0: that of the request */
    moor_status status;
    moor_wire_buffer body;
    int fd; /* comes along; 0: none */
} answer;

static char dir[40];
static int listener, locks_fd, arena;
static _Atomic int accepted, looked; /* looked: at the descriptor, by the test */
static pthread_t thread;
static uint16_t greets_as;
static uint32_t num_experts;
static answer answers[2];
static uint64_t released[SEEN_MOST];
static unsigned n_released;

/* ---- the store -------------------------------------------------------------------------------------------------- */

static void send_answer(int fd, const moor_wire_header *request, const answer *a)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    moor_wire_header header = {.length = (uint32_t)(sizeof(header) + a->body.used),
                               .type = a->type ? a->type : request->type,
                               .flags = MOOR_WIRE_REPLY | a->flags,
                               .tag = request->tag,
                               .status = a->status};
    struct iovec parts[2] = {{&header, sizeof(header)}, {a->body.data, a->body.used}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (a->fd > 0) {
        memset(&control, 0, sizeof(control));
        control.header =
            (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(&control.header), &a->fd, sizeof(int));
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
    }
    (void)!sendmsg(fd, &message, MSG_NOSIGNAL);
}

static answer greeting(uint16_t type, uint32_t layers)
{
    answer a = {.type = type, .fd = arena};
    moor_wire_welcome welcome = {.version = MOOR_WIRE_VERSION,
                                 .layers = layers,
                                 .top_k = 1,
                                 .num_experts = num_experts,
                                 .model_layers = layers,
                                 .dtype = MOOR_DTYPE_U8,
                                 .row_bytes = layers,
                                 .arena_bytes = ROWS,
                                 .nonce = NONCE};
    moor_wire_put(&a.body, &welcome, sizeof(welcome));
    for (uint32_t i = 0; i < layers; i++)
        moor_wire_put(&a.body, &i, sizeof(i));
    return a;
}

static void *store(void *unused)
{
    moor_wire_header header;
    uint8_t body[512];
    unsigned next = 0;
    int fd = accept(listener, NULL, NULL);
    atomic_store(&accepted, fd);
    while (recv(fd, &header, sizeof(header), MSG_WAITALL) == sizeof(header)) {
        size_t n = header.length - sizeof(header);
        if (n > sizeof(body) || (n && recv(fd, body, n, MSG_WAITALL) != (ssize_t)n))
            break;
        if (header.type == MOOR_WIRE_HELLO) {
            answer a = greeting(greets_as, 1);
            send_answer(fd, &header, &a);
            moor_wire_buffer_free(&a.body);
        } else if (header.type != MOOR_WIRE_RELEASE) {
            send_answer(fd, &header, &answers[next++ % 2]);
        } else if (n_released < SEEN_MOST) {
            memcpy(&released[n_released++], body, sizeof(released[0]));
        }
    }
    (void)atomic_load(&looked); /* ThreadSanitizer does not know that what ends recv came after the look */
    close(fd);
    return unused;
}

/* Views of one row range each of the whole arena, `segments` times. */
static answer views(uint32_t n, uint32_t segments)
{
    answer a = {.type = 0};
    moor_wire_views head = {.n = n};
    moor_wire_put(&a.body, &head, sizeof(head));
    for (uint32_t i = 0; i < n; i++) {
        moor_wire_view view = {
            .handle = 11 + i, .rows = (uint64_t)segments * ROWS, .n_segments = segments, .id_len = 1, .index = i};
        moor_wire_put(&a.body, &view, sizeof(view));
        for (uint32_t s = 0; s < segments; s++) {
            moor_wire_segment segment = {.start = (uint64_t)s * ROWS, .rows = ROWS, .present = 1};
            moor_wire_put(&a.body, &segment, sizeof(segment));
        }
        moor_wire_put(&a.body, "a", 1);
        moor_wire_pad(&a.body);
    }
    return a;
}

/* ---- the consumer ----------------------------------------------------------------------------------------------- */

static int begin(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int dir_fd;
    uint32_t slot;
    (void)state;
    strcpy(dir, "/tmp/moor-untrusted-XXXXXX");
    if (!mkdtemp(dir) || moor_dirs_open(dir, 0, &dir_fd) || moor_locks_join(dir_fd, dir, 1, NULL, &locks_fd, &slot))
        return -1;
    close(dir_fd);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/store-0.sock", dir);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    arena = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    greets_as = MOOR_WIRE_HELLO;
    num_experts = 8;
    n_released = 0;
    memset(answers, 0, sizeof(answers));
    return bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 4) ||
           ftruncate(arena, ROWS) || fcntl(arena, F_ADD_SEALS, F_SEAL_SHRINK) ||
           pthread_create(&thread, NULL, store, NULL);
}

static int end(void **state)
{
    char path[64];
    (void)state;
    for (int i = 0; i < 2; i++)
        moor_wire_buffer_free(&answers[i].body);
    close(listener);
    close(arena);
    moor_locks_leave(locks_fd, 1);
    snprintf(path, sizeof(path), "%s/store-0.sock", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/locks", dir);
    unlink(path);
    return rmdir(dir);
}

static moor_client *attach(void)
{
    moor_located where = {.name = "x"};
    moor_client *client = NULL;
    snprintf(where.dir, sizeof(where.dir), "%s", dir);
    assert_int_equal(moor_client_make(&where, 10, &client), MOOR_OK);
    return client;
}

/* Detaches; afterwards the store has seen all that it was told. */
static void detach(moor_client *client)
{
    moor_detach(client);
    pthread_join(thread, NULL);
}

static void a_greeting_that_answers_something_else_is_none(void **state)
{
    (void)state;
    moor_connection *connection;
    greets_as = MOOR_WIRE_OPEN;
    assert_int_equal(moor_connection_open(dir, "x", 0, moor_now_ns() + 10000000000ull, &connection), MOOR_E_CLOSED);
    assert_non_null(strstr(moor_last_error(), "answered what nobody asked"));
    pthread_join(thread, NULL);
}

/* A dtype that cannot hold the ids of so many experts. */
static void a_greeting_that_does_not_add_up_is_none(void **state)
{
    (void)state;
    moor_connection *connection;
    num_experts = 257;
    assert_int_equal(moor_connection_open(dir, "x", 0, moor_now_ns() + 10000000000ull, &connection), MOOR_E_CORRUPT);
    pthread_join(thread, NULL);
}

static void an_answer_to_something_else_is_none(void **state)
{
    (void)state;
    moor_record *record;
    char *json;
    answers[0] = views(1, 1);
    answers[1] = greeting(MOOR_WIRE_HELLO, 3);
    moor_client *client = attach();
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_OK);
    assert_int_equal(moor_client_store_stats(client, &json), MOOR_E_CLOSED);
    assert_non_null(strstr(moor_last_error(), "answered what nobody asked"));
    assert_int_equal(moor_connection_shape(record->connection)->layers, 1);
    assert_int_equal(moor_connection_shape(record->connection)->row_bytes, 1);
    moor_record_release(record);
    detach(client);
}

static void an_open_of_no_record_is_not_believed(void **state)
{
    (void)state;
    moor_record *record, **records;
    uint32_t n;
    answers[0] = views(0, 0);
    answers[1] = views(0, 0);
    moor_client *client = attach();
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_E_CORRUPT);
    assert_string_equal(moor_last_error(), "store 0 answered with 0 records");
    assert_int_equal(moor_open_all(client, "a", 1, 0, &records, &n), MOOR_E_CORRUPT);
    detach(client);
}

static void leases_of_more_than_was_asked_for_are_given_back(void **state)
{
    (void)state;
    moor_record *record;
    answers[0] = views(2, 1);
    answers[1] = views(2, 1);
    moor_client *client = attach();
    assert_int_equal(moor_client_open_handle(client, 0, NONCE, 11, &record), MOOR_E_CORRUPT);
    assert_string_equal(moor_last_error(), "store 0 answered with 2 records");
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_E_CORRUPT);
    detach(client);
    assert_int_equal(n_released, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(released[i], 11 + i % 2);
}

static void an_error_in_a_descriptor_is_one(void **state)
{
    (void)state;
    char *json;
    moor_wire_large large = {.length = 7};
    assert_int_equal(moor_wire_large_make("too bad", 7, &answers[0].fd), MOOR_OK);
    answers[0].flags = MOOR_WIRE_IN_FD;
    answers[0].status = MOOR_E_STATE;
    moor_wire_put(&answers[0].body, &large, sizeof(large));
    moor_client *client = attach();
    assert_int_equal(moor_client_store_stats(client, &json), MOOR_E_STATE);
    assert_string_equal(moor_last_error(), "too bad");
    detach(client);
    close(answers[0].fd);
}

/* An answer that came, and no memory to take it with: the connection stands, and what was leased by the answer is given back. */
static void S2_5_without_memory_for_an_answer_its_leases_are_given_back(void **state)
{
    (void)state;
    moor_record *record, *kept;
    moor_wire_large large;
    answer inside = views(3, 1);
    large.length = inside.body.used;
    assert_int_equal(moor_wire_large_make(inside.body.data, inside.body.used, &answers[1].fd), MOOR_OK);
    moor_wire_buffer_free(&inside.body);
    answers[1].flags = MOOR_WIRE_IN_FD;
    moor_wire_put(&answers[1].body, &large, sizeof(large));
    answers[0] = views(1, 1);
    moor_client *client = attach();
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &kept), MOOR_OK); /* answers[0]; the next one is answers[1] */
    moor_fault_arm(1);
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_E_NOMEM);
    assert_true(moor_fault_fired());
    moor_fault_arm(1);
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_E_NOMEM);
    assert_non_null(strstr(moor_last_error(), "no memory for a reply of"));
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record),
                     MOOR_E_CORRUPT); /* of three records, so the connection stands */
    assert_int_equal(moor_connection_spent(kept->connection), 0);
    moor_record_release(kept);
    detach(client);
    static const uint64_t want[] = {11, 12, 13, 11, 11, 12, 13, 11};
    assert_int_equal(n_released, 8);
    assert_memory_equal(released, want, sizeof(want));
    close(answers[1].fd);
}

/* A large answer, and no descriptor to take it with. What is read meanwhile must not lose its lease. */
static void without_descriptors_the_leases_stay(void **state)
{
    (void)state;
    struct rlimit before, few;
    int used[64], n = 0;
    char byte;
    moor_record *record;
    moor_wire_large large = {.length = 7};
    answers[0] = views(1, 1);
    assert_int_equal(moor_wire_large_make("[12345]", 7, &answers[1].fd), MOOR_OK);
    answers[1].flags = MOOR_WIRE_IN_FD;
    moor_wire_put(&answers[1].body, &large, sizeof(large));
    moor_client *client = attach();
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (n < 64 && (used[n] = dup(listener)) >= 0)
        n++;
    moor_connection *connection = moor_connection_retain(record->connection);
    void *payload = NULL;
    size_t size;
    moor_status status = moor_connection_call(connection, MOOR_WIRE_STATS, NULL, 0, NULL, 0,
                                              moor_now_ns() + 10000000000u, &payload, &size);
    while (n)
        close(used[--n]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, MOOR_E_CLOSED);
    assert_non_null(strstr(moor_last_error(), "descriptor"));
    assert_int_equal(recv(atomic_load(&accepted), &byte, 1, MSG_PEEK | MSG_DONTWAIT),
                     -1); /* not 0: the connection stands */
    assert_int_equal(errno, EAGAIN);
    atomic_store(&looked, 1);
    moor_connection_release(connection);
    moor_record_release(record);
    detach(client);
    close(answers[1].fd);
}

static void rows_beyond_what_the_arena_has_are_not_believed(void **state)
{
    (void)state;
    moor_record *record;
    answers[0] = views(1, 1);
    answers[1] = views(1, 2);
    moor_client *client = attach();
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_OK);
    assert_int_equal(record->info.rows, ROWS);
    moor_record_release(record);
    assert_int_equal(moor_open(client, "a", 1, 0, 0, 0, &record), MOOR_E_CORRUPT);
    assert_non_null(strstr(moor_last_error(), "more rows than its arena has"));
    detach(client);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_greeting_that_answers_something_else_is_none),
        TEST(a_greeting_that_does_not_add_up_is_none),
        TEST(an_answer_to_something_else_is_none),
        TEST(an_open_of_no_record_is_not_believed),
        TEST(leases_of_more_than_was_asked_for_are_given_back),
        TEST(an_error_in_a_descriptor_is_one),
        TEST(without_descriptors_the_leases_stay),
        TEST(S2_5_without_memory_for_an_answer_its_leases_are_given_back),
        TEST(rows_beyond_what_the_arena_has_are_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
