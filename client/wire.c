/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../allocator/memfd.h"

enum { LARGE_LIMIT = 1 << 30 };

const void *moor_wire_take(moor_wire_reader *reader, size_t n)
{
    if (n > reader->left)
        return NULL;
    const void *at = reader->at;
    reader->at += n;
    reader->left -= n;
    return at;
}

int moor_wire_get(moor_wire_reader *reader, void *out, size_t n)
{
    const void *at = moor_wire_take(reader, n);
    if (at && n)
        memcpy(out, at, n);
    return at != NULL;
}

void moor_wire_put(moor_wire_buffer *buffer, const void *data, size_t n)
{
    if (buffer->failed || n == 0)
        return;
    if (n > buffer->room - buffer->used) {
        size_t room = buffer->room ? buffer->room : 256;
        while (room - buffer->used < n)
            room *= 2;
        unsigned char *grown = realloc(buffer->data, room);
        if (!grown) {
            buffer->failed = 1;
            return;
        }
        buffer->data = grown;
        buffer->room = room;
    }
    memcpy(buffer->data + buffer->used, data, n);
    buffer->used += n;
}

void moor_wire_pad(moor_wire_buffer *buffer)
{
    static const unsigned char zeros[8];
    moor_wire_put(buffer, zeros, (8 - buffer->used % 8) % 8);
}

void moor_wire_buffer_free(moor_wire_buffer *buffer)
{
    free(buffer->data);
    *buffer = (moor_wire_buffer){0};
}

int moor_wire_frame(const void *data, size_t n, moor_wire_header *header)
{
    if (n < sizeof(*header))
        return 0;
    memcpy(header, data, sizeof(*header));
    if (header->length < sizeof(*header) || header->length > MOOR_WIRE_LIMIT)
        return -1;
    return n >= header->length;
}

moor_status moor_wire_large_make(const void *data, size_t n, int *fd)
{
    moor_status status = moor_file_fits("a reply", n);
    if (status)
        return status;
    int made = moor_memfd("moor-reply");
    if (made < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "memfd_create");
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(made, (const char *)data + done, n - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            int err = errno;
            close(made);
            return moor_fail_errno(MOOR_E_IO, err, "a reply of %zu bytes cannot be written to a memfd", n);
        }
        done += (size_t)wrote;
    }
    *fd = made;
    return MOOR_OK;
}

moor_status moor_wire_large_read(int fd, uint64_t length, void **out)
{
    struct stat st;
    if (length > LARGE_LIMIT || fstat(fd, &st) < 0 || (uint64_t)st.st_size != length)
        return moor_fail(MOOR_E_CORRUPT, "a reply says that it has %llu bytes and has not", (unsigned long long)length);
    char *data = malloc(length ? length : 1);
    if (!data)
        return moor_fail(MOOR_E_NOMEM, "no memory for a reply of %llu bytes", (unsigned long long)length);
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(fd, data + done, length - done, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(data);
            return moor_fail(MOOR_E_CORRUPT, "a reply of %llu bytes ends after %zu", (unsigned long long)length, done);
        }
        done += (size_t)got;
    }
    *out = data;
    return MOOR_OK;
}
