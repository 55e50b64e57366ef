/* SPDX-License-Identifier: Apache-2.0 */
#include "send.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../allocator/error.h"
#include "../allocator/heap.h"
#include "../allocator/interrupt.h"

int moor_send_wait(int fd, short events, uint64_t deadline_ns)
{
    uint64_t now_ns = moor_now_ns();
    struct pollfd poll_fd = {fd, events, 0};
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
    int rc = poll(&poll_fd, 1, ms > 60000 ? 60000 : (int)ms);
    return rc > 0 || (rc < 0 && errno == EINTR);
}

/* The bytes of a request as they go over the socket: one message, or several where one cannot hold it. */
static void put_frames(unsigned char *out, const moor_wire_header *header, const void *head, size_t head_n,
                       const void *tail, size_t tail_n)
{
    size_t left = head_n + tail_n, at = 0;
    do {
        moor_wire_header part = *header;
        size_t n = left < MOOR_SEND_PIECE ? left : MOOR_SEND_PIECE, of_head = at < head_n ? head_n - at : 0;
        of_head = of_head < n ? of_head : n;
        part.length = (uint32_t)(sizeof(part) + n);
        part.flags = n < left ? MOOR_WIRE_MORE : 0;
        memcpy(out, &part, sizeof(part));
        if (of_head)
            memcpy(out + sizeof(part), (const unsigned char *)head + at, of_head);
        if (n > of_head)
            memcpy(out + sizeof(part) + of_head, (const unsigned char *)tail + (at + of_head - head_n), n - of_head);
        out += part.length;
        at += n;
        left -= n;
    } while (left);
}

/* Until the socket takes more. 0: the deadline passed, or the caller was interrupted; what ends a lease is sent nevertheless. Who comes
 * back late from what interrupts it looks once more. */
static int wait_writable(int fd, uint16_t type, uint64_t deadline_ns)
{
    int patient = type == MOOR_WIRE_RELEASE;
    for (int late = 0; !late && (patient || !moor_interrupted());) {
        late = moor_now_ns() >= deadline_ns;
        if (moor_send_wait(fd, POLLOUT, patient ? deadline_ns : moor_interrupt_slice(deadline_ns)))
            return 1;
    }
    return 0;
}

enum moor_sent moor_send_request(int fd, const moor_wire_header *header, const void *head, size_t head_n,
                                 const void *tail, size_t tail_n, uint64_t deadline_ns)
{
    unsigned char small[512];
    size_t payload = head_n + tail_n, frames = payload ? (payload + MOOR_SEND_PIECE - 1) / MOOR_SEND_PIECE : 1;
    size_t total = frames * sizeof(*header) + payload, sent = 0;
    unsigned char *data = total <= sizeof(small) ? small : moor_heap_raw(total);
    enum moor_sent result = MOOR_SENT;
    if (!data)
        return MOOR_NO_MEMORY;
    put_frames(data, header, head, head_n, tail, tail_n);
    while (sent < total && result == MOOR_SENT) {
        ssize_t n = send(fd, data + sent, total - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            sent += (size_t)n;
        else if (n < 0 && errno == EAGAIN && !wait_writable(fd, header->type, deadline_ns))
            result = sent || moor_now_ns() >= deadline_ns ? MOOR_STUCK : MOOR_UNSENT;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            result = MOOR_GONE;
    }
    if (data != small)
        free(data);
    return result;
}
