/* SPDX-License-Identifier: Apache-2.0 */
/* The store's socket and those who are not Moor's clients: wrong bytes, other versions, other users (plugin/server.c, peer.c). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi/wire.h"
#include "support/actors.h"

static int stranger(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/default/store-0.sock", actors_dir);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    struct timeval limit = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return fd;
}

/* Reads to the end; returns the status of the first reply, 1 when there was none. */
static int last_words(int fd, char *text, size_t size)
{
    unsigned char bytes[4096];
    size_t have = 0;
    ssize_t got;
    while (have < sizeof(bytes) && (got = recv(fd, bytes + have, sizeof(bytes) - have, 0)) > 0)
        have += (size_t)got;
    close(fd);
    moor_wire_header header;
    if (have < sizeof(header))
        return 1;
    memcpy(&header, bytes, sizeof(header));
    snprintf(text, size, "%.*s", (int)(header.length - sizeof(header)), (char *)bytes + sizeof(header));
    return header.status;
}

static void malformed_messages_close_their_connection_only(void **state)
{
    (void)state;
    actor server, consumer;
    char text[512];
    start_server(&server);
    record(&server, "safe", 4);
    start_consumer(&consumer);
    struct {
        moor_wire_header header;
        moor_wire_hello hello;
    } good = {{sizeof(good), MOOR_WIRE_HELLO, 0, 1, 0}, {MOOR_WIRE_MAGIC, MOOR_WIRE_VERSION, 1, 0}}, bad;
    struct {
        moor_wire_header header;
        moor_wire_open open;
    } open_message = {{sizeof(open_message), MOOR_WIRE_OPEN, 0, 2, 0}, {0, 0, 0, 1u << 31}};
    int fd;
    /* too long, too short, not a greeting, something else first */
    for (int i = 0; i < 5; i++) {
        bad = good;
        if (i == 0)
            bad.header.length = MOOR_WIRE_LIMIT + 1;
        else if (i == 1)
            bad.header.length = 15;
        else if (i == 2)
            bad.hello.magic ^= 1;
        else if (i == 3) /* a question that would be answered after a greeting */
            bad.header = (moor_wire_header){sizeof(bad.header), MOOR_WIRE_STATS, 0, 1, 0};
        else
            bad.header.flags = MOOR_WIRE_REPLY;
        fd = stranger();
        size_t size = bad.header.length < sizeof(bad) ? bad.header.length : sizeof(bad);
        if (i == 1)
            size = sizeof(bad);
        assert_int_equal(send(fd, &bad, size, MSG_NOSIGNAL), size);
        assert_int_equal(last_words(fd, text, sizeof(text)), 1);
    }
    /* greeted, then an id longer than its message */
    fd = stranger();
    assert_int_equal(send(fd, &good, sizeof(good), MSG_NOSIGNAL), sizeof(good));
    assert_int_equal(send(fd, &open_message, sizeof(open_message), MSG_NOSIGNAL), sizeof(open_message));
    assert_int_equal(last_words(fd, text, sizeof(text)), 0);
    /* one that says nothing does not keep others out */
    int silent = stranger();
    actor_say(&consumer, "ok safe", "open safe 1");
    close(silent);
}

static void another_wire_version_is_told_both_numbers(void **state)
{
    (void)state;
    actor server;
    char text[512];
    start_server(&server);
    struct {
        moor_wire_header header;
        moor_wire_hello hello;
        char more[100]; /* a later version may say more */
    } hello = {{sizeof(hello), MOOR_WIRE_HELLO, 0, 1, 0}, {MOOR_WIRE_MAGIC, 9, 1, 0}, ""};
    int fd = stranger();
    assert_int_equal(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
    assert_int_equal(last_words(fd, text, sizeof(text)), -16);
    assert_string_equal(text, "the store speaks wire version 1, the client 9");
}

/* What a connection as uid 4321 is told first: its status. The directory alone would keep it out. */
static int as_another_user(char *text, size_t size)
{
    char dir[128], path[128];
    if (geteuid() != 0) {
        print_message("only root can become somebody else\n");
        skip();
    }
    snprintf(dir, sizeof(dir), "%s/default", actors_dir);
    snprintf(path, sizeof(path), "%s/default/store-0.sock", actors_dir);
    assert_int_equal(chmod(actors_dir, 0755) | chmod(dir, 0755) | chmod(path, 0777), 0);
    int pipe_fds[2], answer = 1;
    assert_int_equal(pipe(pipe_fds), 0);
    pid_t child = fork();
    if (child == 0) {
        struct {
            moor_wire_header header;
            moor_wire_hello hello;
        } hello = {{sizeof(hello), MOOR_WIRE_HELLO, 0, 1, 0}, {MOOR_WIRE_MAGIC, MOOR_WIRE_VERSION, 1, 0}};
        if (setresuid(4321, 4321, 4321))
            _exit(9);
        int fd = stranger();
        (void)!(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) + shutdown(fd, SHUT_WR));
        answer = last_words(fd, text, size);
        (void)!(write(pipe_fds[1], &answer, sizeof(answer)) + write(pipe_fds[1], text, size));
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(read(pipe_fds[0], &answer, sizeof(answer)), sizeof(answer));
    assert_int_equal(read(pipe_fds[0], text, size), size);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    assert_int_equal(chmod(actors_dir, 0700) | chmod(dir, 0700), 0);
    return answer;
}

static void another_user_is_refused(void **state)
{
    (void)state;
    actor server, consumer;
    char text[512] = "";
    start_server(&server);
    assert_int_equal(as_another_user(text, sizeof(text)), -15);
    assert_non_null(strstr(text, "runs as uid 4321"));
    start_consumer(&consumer);
}

/* A worker was killed, and two take its place at once: one of them has the store. */
static void of_two_workers_one_takes_over_a_store(void **state)
{
    (void)state;
    actor front, two[2];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    actor_start(&front, NULL);
    actor_say(&front, "ok default ", "join {}");
    for (int i = 0; i < 2; i++) {
        actor_start(&two[i], "MOOR_INSTANCE=default", NULL);
        actor_say(&two[i], "ok default ", "join {}");
    }
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/default/store-0.sock", actors_dir);
    for (int round = 0; round < 1000; round++) {
        int left = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(left, (struct sockaddr *)&address, sizeof(address)), 0);
        close(left); /* what is left of a killed worker's */
        for (int i = 0; i < 2; i++)
            actor_send(&two[i], "store 0");
        int has[2];
        for (int i = 0; i < 2; i++) {
            const char *said = actor_hear(&two[i], "");
            has[i] = strncmp(said, "ok", 2) == 0;
            if (!has[i] && strncmp(said, "MOOR_E_EXISTS", 13) != 0)
                fail_msg("round %d: %s", round, said);
        }
        if (has[0] == has[1])
            fail_msg("round %d: %d workers have the store", round, has[0] + has[1]);
        actor_say(&two[has[1]], "ok", "close");
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, actors_begin, actors_end)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(of_two_workers_one_takes_over_a_store),
        TEST(malformed_messages_close_their_connection_only),
        TEST(another_wire_version_is_told_both_numbers),
        TEST(another_user_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
