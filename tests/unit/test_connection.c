/* SPDX-License-Identifier: Apache-2.0 */
/* client/connection.c, whose counters no test could bring to their end from outside: it is compiled in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/connection.c" /* NOLINT(bugprone-suspicious-include) */
#include "client/welcome.h"
#include <fcntl.h>

typedef struct caller {
    pthread_t thread;
    moor_connection *connection;
    moor_status status;
    char *payload;
    size_t n;
} caller;

static void *call_it(void *user)
{
    caller *c = user;
    void *payload = NULL;
    c->status = moor_connection_call(c->connection, MOOR_WIRE_STATS, NULL, 0, NULL, 0, moor_now_ns() + 20000000000u,
                                     &payload, &c->n);
    c->payload = payload;
    return NULL;
}

static void answer(int fd, const moor_wire_header *request, char payload)
{
    moor_wire_header header = *request;
    char message[sizeof(header) + 1];
    header.length = sizeof(message);
    header.flags = MOOR_WIRE_REPLY;
    memcpy(message, &header, sizeof(header));
    message[sizeof(header)] = payload;
    assert_int_equal(send(fd, message, sizeof(message), MSG_NOSIGNAL), sizeof(message));
}

/* Tag 0 is nobody's: a store that refuses a connection says so under it. */
static void tags_go_around_without_0(void **state)
{
    (void)state;
    int fds[2];
    caller callers[3];
    moor_wire_header requests[3];
    moor_connection *connection;
    assert_int_equal(allocate("x", &connection), MOOR_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    connection->inherit.fd = fds[0];
    connection->next_tag = UINT32_MAX - 1;
    for (int i = 0; i < 3; i++) {
        callers[i] = (caller){.connection = connection};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_it, &callers[i]), 0);
        assert_int_equal(recv(fds[1], &requests[i], sizeof(requests[i]), MSG_WAITALL), sizeof(requests[i]));
    }
    for (int i = 0; i < 3; i++)
        answer(fds[1], &requests[i], (char)('a' + i));
    for (int i = 0; i < 3; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_int_equal(callers[i].status, MOOR_OK);
        assert_int_equal(callers[i].n, 1);
        assert_int_equal(callers[i].payload[0], 'a' + i);
        free(callers[i].payload);
    }
    moor_connection_disown(connection);
    close(fds[1]);
}

/* ---- the greeting's answer: every bound, from both sides --------------------------------------------------------- */

enum { ARENA = 4096 };

struct greeting {
    moor_wire_welcome welcome;
    int32_t layer_ids[2];
    int more, seals; /* bytes behind it; seals of the arena */
};

static moor_status greet(const struct greeting *g)
{
    moor_connection *connection;
    unsigned char payload[128] = {0};
    size_t n = sizeof(g->welcome) + sizeof(g->layer_ids);
    memcpy(payload, &g->welcome, sizeof(g->welcome));
    memcpy(payload + sizeof(g->welcome), g->layer_ids, sizeof(g->layer_ids));
    assert_int_equal(allocate("x", &connection), MOOR_OK);
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, ARENA) == 0 && fcntl(fd, F_ADD_SEALS, g->seals) == 0);
    moor_status status = moor_welcome_take((moor_wire_reader){payload, n + (size_t)g->more}, fd, &connection->shape,
                                           &connection->layer_ids);
    moor_connection_disown(connection);
    return status;
}

#define AT(member) offsetof(struct greeting, member)
static const struct {
    size_t at;
    uint32_t good, bad; /* 32 bits there: both are tried */
    const char *text;
} bounds[] = {
    {AT(welcome.version), MOOR_WIRE_VERSION, MOOR_WIRE_VERSION + 1, "the store speaks wire version 2, this library 1"},
    {AT(welcome.layers), 2, 1, "does not add up"},
    {AT(welcome.layers), 2, 3, "does not add up"},
    {AT(more), 0, 4, "does not add up"},
    {AT(welcome.top_k), 3, 0, "does not add up"},
    {AT(welcome.dtype), MOOR_DTYPE_U8, MOOR_DTYPE_U16, "does not add up"}, /* rows of another length */
    {AT(welcome.dtype), MOOR_DTYPE_U8, 0, "does not add up"},
    {AT(welcome.num_experts), 1, 0, "does not add up"},
    {AT(welcome.num_experts), 256, 257, "does not add up"},
    {AT(welcome.row_bytes), 6, 5, "does not add up"},
    {AT(welcome.row_bytes), 6, 7, "does not add up"},
    {AT(welcome.stages), MOOR_CLIENT_STORES, MOOR_CLIENT_STORES + 1, "does not add up"},
    {AT(welcome.arena_bytes), ARENA, ARENA + 1, "is no arena of 4097 bytes"},
    {AT(welcome.arena_bytes), 1, 0, "is no arena of 0 bytes"},
    {AT(seals), F_SEAL_SHRINK, F_SEAL_GROW, "is no arena"},
    {AT(layer_ids[1]), 7, 8, "column 1 is layer 8 of 8, behind layer 0"},
    {AT(layer_ids[1]), 1, 0, "column 1 is layer 0 of 8, behind layer 0"},
    {AT(layer_ids[0]), 0, (uint32_t)-1, "column 0 is layer -1 of 8"},
};

static void greetings_from_both_sides_of_their_bounds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
        for (int bad = 0; bad < 2; bad++) {
            struct greeting g = {.welcome = {.version = MOOR_WIRE_VERSION,
                                             .layers = 2,
                                             .top_k = 3,
                                             .num_experts = 8,
                                             .model_layers = 8,
                                             .dtype = MOOR_DTYPE_U8,
                                             .row_bytes = 6,
                                             .arena_bytes = ARENA,
                                             .stages = 1},
                                 .layer_ids = {0, 5},
                                 .seals = F_SEAL_SHRINK};
            memcpy((char *)&g + bounds[i].at, bad ? &bounds[i].bad : &bounds[i].good, sizeof(uint32_t));
            moor_status status = greet(&g);
            if (bad ? status != MOOR_E_CORRUPT && status != MOOR_E_VERSION : status != MOOR_OK)
                fail_msg("bound %zu, %s: status %d (%s)", i, bad ? "beyond" : "at", status, moor_last_error());
            if (bad && !strstr(moor_last_error(), bounds[i].text))
                fail_msg("bound %zu: \"%s\" does not say \"%s\"", i, moor_last_error(), bounds[i].text);
        }
}

/* ---- a store that hangs ------------------------------------------------------------------------------------------ */

static moor_connection *connected(int fds[2])
{
    moor_connection *connection;
    assert_int_equal(allocate("x", &connection), MOOR_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    connection->inherit.fd = fds[0];
    return connection;
}

static void a_store_that_did_not_answer_stirs_when_it_does(void **state)
{
    (void)state;
    int fds[2];
    void *payload;
    size_t n;
    moor_connection *connection = connected(fds);
    assert_int_equal(
        moor_connection_call(connection, MOOR_WIRE_STATS, NULL, 0, NULL, 0, moor_now_ns() + 20000000u, &payload, &n),
        MOOR_E_CLOSED);
    assert_int_equal(moor_connection_hung(connection), 1);
    assert_int_equal(moor_connection_stirs(connection), 0); /* that there is room for more says nothing */
    assert_int_equal(send(fds[1], "x", 1, MSG_NOSIGNAL), 1);
    assert_int_equal(moor_connection_stirs(connection), 1);
    moor_connection_disown(connection);
    close(fds[1]);
}

/* What it has of the message it will never answer. */
static void a_store_that_took_no_message_stirs_when_it_takes_some(void **state)
{
    (void)state;
    static char large[4 << 20];
    int fds[2];
    void *payload;
    size_t n;
    moor_connection *connection = connected(fds);
    assert_int_equal(moor_connection_call(connection, MOOR_WIRE_SESSION_INSERT, large, sizeof(large), NULL, 0,
                                          moor_now_ns() + 20000000u, &payload, &n),
                     MOOR_E_CLOSED);
    assert_int_equal(moor_connection_hung(connection), 1);
    assert_int_equal(moor_connection_stirs(connection), 0);
    while (recv(fds[1], large, sizeof(large), MSG_DONTWAIT) > 0)
        ;
    assert_int_equal(moor_connection_stirs(connection), 1);
    moor_connection_disown(connection);
    close(fds[1]);
}

static struct late {
    int fd, asked;
    uint64_t deadline_ns;
} late;

/* The host takes longer than the deadline, and the store's answer comes meanwhile. */
static int come_back_late(void *user)
{
    struct late *l = user;
    moor_wire_header request;
    if (!l->asked++) {
        assert_int_equal(recv(l->fd, &request, sizeof(request), MSG_WAITALL), sizeof(request));
        answer(l->fd, &request, 'a');
    }
    while (moor_now_ns() < l->deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return 0;
}

static void an_answer_that_is_there_at_the_deadline_is_taken(void **state)
{
    (void)state;
    int fds[2];
    void *payload = NULL;
    size_t n = 0;
    moor_connection *connection = connected(fds);
    late = (struct late){.fd = fds[1]};
    moor_wait_check(come_back_late, &late);
    late.deadline_ns = moor_now_ns() + 300000000u; /* the host asks before */
    moor_status status =
        moor_connection_call(connection, MOOR_WIRE_STATS, NULL, 0, NULL, 0, late.deadline_ns, &payload, &n);
    moor_wait_check(NULL, NULL);
    assert_true(late.asked);
    assert_int_equal(status, MOOR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(moor_connection_hung(connection), 0);
    free(payload);
    moor_connection_disown(connection);
    close(fds[1]);
}

/* What a call waits for before its message goes, and who ends that wait while its host is away until after the deadline. */
static moor_connection *awaited;

static int come_back_to_a_free_right(void *user)
{
    pthread_mutex_lock(&awaited->mutex);
    awaited->writing = 0;
    pthread_mutex_unlock(&awaited->mutex);
    late.asked = 1;
    return come_back_late(user);
}

static int come_back_to_room(void *user)
{
    static char junk[65536];
    while (recv(((struct late *)user)->fd, junk, sizeof(junk), MSG_DONTWAIT) > 0)
        ;
    late.asked = 1;
    return come_back_late(user);
}

static void call_late(int (*check)(void *user), moor_connection *connection, const int fds[2])
{
    void *payload = NULL;
    size_t n = 0;
    moor_wire_header first = {.type = MOOR_WIRE_STATS, .tag = connection->next_tag + 1};
    answer(fds[1], &first, 'a'); /* found once the message has gone */
    awaited = connection;
    late = (struct late){.fd = fds[1]};
    moor_wait_check(check, &late);
    late.deadline_ns = moor_now_ns() + 300000000u;
    moor_status status =
        moor_connection_call(connection, MOOR_WIRE_STATS, NULL, 0, NULL, 0, late.deadline_ns, &payload, &n);
    moor_wait_check(NULL, NULL);
    assert_true(late.asked);
    assert_string_equal(status ? moor_last_error() : "", "");
    free(payload);
    moor_connection_disown(connection);
    close(fds[1]);
}

static void a_right_that_is_free_at_the_deadline_is_taken(void **state)
{
    (void)state;
    int fds[2];
    moor_connection *connection = connected(fds);
    connection->writing = 1;
    call_late(come_back_to_a_free_right, connection, fds);
}

static void room_that_is_there_at_the_deadline_is_taken(void **state)
{
    (void)state;
    static const char junk[65536];
    int fds[2];
    moor_connection *connection = connected(fds);
    while (send(fds[0], junk, sizeof(junk), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        ;
    call_late(come_back_to_room, connection, fds);
}

/* ---- a fork ------------------------------------------------------------------------------------------------------ */

/* Between its last user's end and that one's look somebody opened a record, and a fork came: that record's lease is not the look's to end. */
static void S2_8_who_came_before_a_fork_keeps_the_connection(void **state)
{
    (void)state;
    int fds[2];
    moor_connection *connection = connected(fds);
    moor_connection_lease(connection);
    atomic_store(&connection->inherit.handed_on, 1);
    end_if_handed_on(connection);
    assert_true(connection->inherit.fd >= 0);
    moor_connection_unlease(connection, 1);
    assert_int_equal(connection->inherit.fd, -1);
    moor_connection_disown(connection);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_go_around_without_0),
        cmocka_unit_test(greetings_from_both_sides_of_their_bounds),
        cmocka_unit_test(a_store_that_did_not_answer_stirs_when_it_does),
        cmocka_unit_test(a_store_that_took_no_message_stirs_when_it_takes_some),
        cmocka_unit_test(an_answer_that_is_there_at_the_deadline_is_taken),
        cmocka_unit_test(a_right_that_is_free_at_the_deadline_is_taken),
        cmocka_unit_test(room_that_is_there_at_the_deadline_is_taken),
        cmocka_unit_test(S2_8_who_came_before_a_fork_keeps_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
