/* SPDX-License-Identifier: Apache-2.0 */
#include "reply_store.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "allocator/locks.h"
#include "client/locate.h"
#include "driver.h"

enum { STORES = 3, CONNECTIONS = 16, SILENCES = 2, SILENCE_MS = 2 };

typedef struct connection {
    int fd; /* -1: none */
    uint32_t store;
    size_t have;
    reply_answer rest; /* its second piece is still to be sent */
    size_t sent;
    int hangs_up;
    uint8_t input[MOOR_WIRE_LIMIT];
} connection;

int __real_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);

static char base[] = "/tmp/moor-fuzz-XXXXXX", dirs[2][sizeof(base) + 8];
static int listeners[STORES], lock_fds[2], active, silences;
static connection connections[CONNECTIONS];

/* ---- life ------------------------------------------------------------------------------------------------------- */

static void listen_at(uint32_t i)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/store-%u.sock", dirs[i > 0], i > 0 ? i - 1 : 0);
    listeners[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listeners[i] < 0 || bind(listeners[i], (struct sockaddr *)&address, sizeof(address)) ||
        listen(listeners[i], CONNECTIONS))
        abort();
}

void reply_store_make(void)
{
    if (!mkdtemp(base) || setenv("MOOR_DIR", base, 1))
        abort();
    for (int i = 0; i < 2; i++) {
        int dir_fd;
        uint32_t slot;
        snprintf(dirs[i], sizeof(dirs[i]), "%s/%s", base, i ? "two" : "one");
        if (mkdir(dirs[i], 0700))
            abort();
        MUST(moor_dirs_open(dirs[i], 0, &dir_fd));
        MUST(moor_locks_join(dir_fd, dirs[i], 1, NULL, &lock_fds[i], &slot));
        close(dir_fd);
    }
    for (uint32_t i = 0; i < STORES; i++)
        listen_at(i);
    for (int i = 0; i < CONNECTIONS; i++)
        connections[i].fd = -1;
}

const char *reply_store_dir(int two)
{
    return dirs[two != 0];
}

static void forget_answer(reply_answer *answer)
{
    moor_wire_buffer_free(&answer->bytes);
    if (answer->made >= 0)
        close(answer->made);
    *answer = (reply_answer){.made = -1};
}

static void hang_up(connection *c)
{
    if (c->fd < 0)
        return;
    close(c->fd);
    c->fd = -1;
    forget_answer(&c->rest);
}

void reply_store_begin(void)
{
    active = 1;
    silences = 0;
}

void reply_store_end(void)
{
    active = 0;
    for (int i = 0; i < CONNECTIONS; i++)
        hang_up(&connections[i]);
    for (uint32_t i = 0; i < STORES; i++)
        for (int fd; (fd = accept(listeners[i], NULL, NULL)) >= 0;)
            close(fd);
}

/* ---- a turn ----------------------------------------------------------------------------------------------------- */

/* The bytes up to `end`; the first of them bring the descriptors. */
static void send_piece(connection *c, size_t end)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int) * REPLY_FDS)];
    } control;
    reply_answer *answer = &c->rest;
    struct iovec part = {answer->bytes.data + c->sent, end - c->sent};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (answer->n_fds && !c->sent) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)answer->n_fds);
        memset(&control, 0, sizeof(control));
        control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                          .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(sizeof(int) * (size_t)answer->n_fds)};
        memcpy(CMSG_DATA(&control.header), answer->fds, sizeof(int) * (size_t)answer->n_fds);
    }
    ssize_t sent = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    c->sent = sent < 0 ? answer->bytes.used : c->sent + (size_t)sent; /* it is gone */
    if (c->sent < answer->bytes.used)
        return;
    int ends = answer->hangs_up;
    forget_answer(answer);
    if (ends)
        hang_up(c);
}

/* One whole request. */
static void take_request(connection *c, const moor_wire_header *request)
{
    if (request->type == MOOR_WIRE_RELEASE || request->flags & MOOR_WIRE_MORE)
        return;
    forget_answer(&c->rest);
    reply_answer_make(request, c->store, &c->rest);
    c->sent = 0;
    if (c->rest.silent) {
        silences = SILENCES;
        forget_answer(&c->rest);
    } else if (c->rest.bytes.used) {
        send_piece(c, c->rest.first);
    } else {
        hang_up(c);
    }
}

/* 1: it did something. */
static int turn_of(connection *c)
{
    moor_wire_header header;
    int did = 0, whole = 0;
    if (c->fd >= 0 && c->rest.bytes.used) {
        send_piece(c, c->rest.bytes.used);
        did = 1;
    }
    ssize_t got = c->fd >= 0 ? recv(c->fd, c->input + c->have, sizeof(c->input) - c->have, MSG_DONTWAIT) : -1;
    if (got == 0)
        hang_up(c);
    c->have += got > 0 ? (size_t)got : 0;
    while (c->fd >= 0 && (whole = moor_wire_frame(c->input, c->have, &header)) > 0) {
        take_request(c, &header);
        c->have -= header.length;
        memmove(c->input, c->input + header.length, c->have);
    }
    if (whole < 0)
        abort(); /* what the client says is well-formed, whatever it was told */
    return did || got > 0;
}

static int accept_all(uint32_t store)
{
    int did = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        if (connections[i].fd >= 0)
            continue;
        connections[i].fd = accept4(listeners[store], NULL, NULL, SOCK_CLOEXEC);
        connections[i].store = store > 0 ? store - 1 : 0;
        connections[i].have = 0;
        connections[i].rest = (reply_answer){.made = -1};
        if (connections[i].fd < 0)
            break;
        did = 1;
    }
    return did;
}

/* poll of the whole program. Nobody but the stores makes anything come: a client that waits for what will not is not kept waiting
 * (but now and then until its patience ends), and then hung up on. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    int did = 0;
    if (!active)
        return __real_poll(fds, n, timeout);
    for (uint32_t i = 0; i < STORES; i++)
        did |= accept_all(i);
    for (int i = 0; i < CONNECTIONS; i++)
        did |= turn_of(&connections[i]);
    int ready = __real_poll(fds, n, 0);
    if (did || ready || !timeout)
        return ready;
    if (silences) {
        silences--;
        return __real_poll(fds, n, timeout > SILENCE_MS ? SILENCE_MS : timeout);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        hang_up(&connections[i]);
    return 0;
}

__attribute__((destructor)) static void remove_all(void)
{
    char path[128];
    for (uint32_t i = 0; i < STORES && dirs[0][0]; i++) {
        snprintf(path, sizeof(path), "%s/store-%u.sock", dirs[i > 0], i > 0 ? i - 1 : 0);
        unlink(path);
    }
    for (int i = 0; i < 2 && dirs[i][0]; i++) {
        snprintf(path, sizeof(path), "%s/locks", dirs[i]);
        unlink(path);
        rmdir(dirs[i]);
    }
    if (dirs[0][0])
        rmdir(base);
}
