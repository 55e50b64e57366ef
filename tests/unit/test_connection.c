/* SPDX-License-Identifier: Apache-2.0 */
/* client/connection.c, whose counters no test could bring to their end from outside: it is compiled in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/connection.c" /* NOLINT(bugprone-suspicious-include) */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tags_go_around_without_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
