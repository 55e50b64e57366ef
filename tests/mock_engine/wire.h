/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h — messages between the mock engine's processes: length-framed over a socketpair, in host byte order (all ends are
 * the same executable). A buffer belongs to its user; reading past a message's end ends the program.
 */
#ifndef MOCK_WIRE_H
#define MOCK_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <moor/moor.h>

#include "sched.h"

enum mk_message {
    MK_STEP = 1,
    MK_RUN,
    MK_GO,
    MK_HALT,
    MK_ADD,
    MK_ABORT,
    MK_PREEMPT,
    MK_UPDATE,
    MK_RESET_CACHE,
    MK_SLEEP,
    MK_WAKE,
    MK_FILL,
    MK_TRUNCATE,
    MK_QUIT, /* commands */
    MK_EXPECT,
    MK_LEASE,
    MK_RELEASE,
    MK_EVENT,
    MK_CLIENT_GATE,
    MK_MEET, /* commands to the consumer */
    MK_DONE,
    MK_FREED,
    MK_READY,
    MK_DIED /* answers and events */
};

typedef struct mk_buffer {
    uint8_t *data;
    size_t len, cap, at;
} mk_buffer;

void mk_buffer_clear(mk_buffer *buffer);
void mk_put(mk_buffer *buffer, const void *data, size_t size);
void mk_get(mk_buffer *buffer, void *data, size_t size);
void mk_put_u32(mk_buffer *buffer, uint32_t value);
uint32_t mk_get_u32(mk_buffer *buffer);
void mk_put_u64(mk_buffer *buffer, uint64_t value);
uint64_t mk_get_u64(mk_buffer *buffer);
void mk_put_text(mk_buffer *buffer, const char *text);
const char *mk_get_text(mk_buffer *buffer); /* lives as long as the buffer's content */

void mk_put_batch(mk_buffer *buffer, const mk_batch *batch);
void mk_get_batch(mk_buffer *buffer, mk_batch *out);

/* 0, or -1 when the other side is gone. */
int mk_send(int fd, uint32_t type, const mk_buffer *body);
int mk_receive(int fd, uint32_t *type, mk_buffer *body);

/* The two commonest bodies: a line number; a status with its text. */
int mk_send_line(int fd, uint32_t type, uint32_t line);
int mk_send_done(int fd, moor_status status, const char *text);

#endif
