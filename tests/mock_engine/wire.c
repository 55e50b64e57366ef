/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mock.h"

void mk_buffer_clear(mk_buffer *b)
{
    free(b->data);
    *b = (mk_buffer){0};
}

void mk_put(mk_buffer *b, const void *data, size_t size)
{
    if (b->len + size > b->cap) {
        b->cap = (b->len + size) * 2;
        b->data = mk_grow(b->data, b->cap);
    }
    if (size)
        memcpy(b->data + b->len, data, size);
    b->len += size;
}

void mk_get(mk_buffer *b, void *data, size_t size)
{
    if (size > b->len - b->at)
        mk_die("a message is too short: %zu bytes wanted at %zu of %zu", size, b->at, b->len);
    if (size)
        memcpy(data, b->data + b->at, size);
    b->at += size;
}

void mk_put_u32(mk_buffer *b, uint32_t value)
{
    mk_put(b, &value, sizeof value);
}

uint32_t mk_get_u32(mk_buffer *b)
{
    uint32_t value;
    mk_get(b, &value, sizeof value);
    return value;
}

void mk_put_u64(mk_buffer *b, uint64_t value)
{
    mk_put(b, &value, sizeof value);
}

uint64_t mk_get_u64(mk_buffer *b)
{
    uint64_t value;
    mk_get(b, &value, sizeof value);
    return value;
}

void mk_put_text(mk_buffer *b, const char *text)
{
    uint32_t size = (uint32_t)strlen(text) + 1;
    mk_put_u32(b, size);
    mk_put(b, text, size);
}

const char *mk_get_text(mk_buffer *b)
{
    uint32_t size = mk_get_u32(b);
    if (!size || size > b->len - b->at || b->data[b->at + size - 1])
        mk_die("a message holds a text without an end");
    b->at += size;
    return (const char *)b->data + b->at - size;
}

void mk_put_batch(mk_buffer *b, const mk_batch *batch)
{
    mk_put_u32(b, batch->n);
    mk_put_u32(b, batch->tokens);
    for (uint32_t i = 0; i < batch->n; i++) {
        mk_put(b, &batch->request[i], sizeof batch->request[i]);
        mk_put(b, batch->request[i].blocks, batch->request[i].n_blocks * sizeof(int32_t));
    }
    mk_put_u32(b, batch->n_handed_out);
    mk_put(b, batch->handed_out, batch->n_handed_out * sizeof(int32_t));
    mk_put_u32(b, batch->n_finished);
    mk_put(b, batch->finished, batch->n_finished * sizeof *batch->finished);
}

void mk_get_batch(mk_buffer *b, mk_batch *out)
{
    *out = (mk_batch){.n = mk_get_u32(b)};
    out->tokens = mk_get_u32(b);
    out->request = mk_alloc((out->n + 1) * sizeof *out->request);
    for (uint32_t i = 0; i < out->n; i++) {
        mk_batch_request *r = &out->request[i];
        mk_get(b, r, sizeof *r);
        r->blocks = mk_alloc((r->n_blocks + 1) * sizeof(int32_t));
        mk_get(b, r->blocks, r->n_blocks * sizeof(int32_t));
    }
    out->n_handed_out = mk_get_u32(b);
    out->handed_out = mk_alloc((out->n_handed_out + 1) * sizeof(int32_t));
    mk_get(b, out->handed_out, out->n_handed_out * sizeof(int32_t));
    out->n_finished = mk_get_u32(b);
    out->finished = mk_alloc((out->n_finished + 1) * sizeof *out->finished);
    mk_get(b, out->finished, out->n_finished * sizeof *out->finished);
}

static int send_all(int fd, const void *data, size_t size, int more)
{
    const char *p = data;
    while (size) {
        ssize_t sent = send(fd, p, size, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        p += sent;
        size -= (size_t)sent;
    }
    return 0;
}

static int receive_all(int fd, void *data, size_t size)
{
    char *p = data;
    while (size) {
        ssize_t got = recv(fd, p, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        p += got;
        size -= (size_t)got;
    }
    return 0;
}

int mk_send(int fd, uint32_t type, const mk_buffer *body)
{
    uint32_t head[2] = {type, body ? (uint32_t)body->len : 0};
    if (send_all(fd, head, sizeof head, head[1] != 0))
        return -1;
    return head[1] ? send_all(fd, body->data, body->len, 0) : 0;
}

int mk_receive(int fd, uint32_t *type, mk_buffer *body)
{
    uint32_t head[2];
    if (receive_all(fd, head, sizeof head))
        return -1;
    *type = head[0];
    body->len = body->at = 0;
    if (head[1] > body->cap) {
        body->cap = head[1];
        body->data = mk_grow(body->data, body->cap);
    }
    body->len = head[1];
    return receive_all(fd, body->data, head[1]);
}

int mk_send_line(int fd, uint32_t type, uint32_t line)
{
    mk_buffer body = {0};
    mk_put_u32(&body, line);
    int gone = mk_send(fd, type, &body);
    mk_buffer_clear(&body);
    return gone;
}

int mk_send_done(int fd, moor_status status, const char *text)
{
    mk_buffer body = {0};
    mk_put_u32(&body, (uint32_t)status);
    mk_put_text(&body, text ? text : "");
    int gone = mk_send(fd, MK_DONE, &body);
    mk_buffer_clear(&body);
    return gone;
}
