/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../allocator/memfd.h"
#include "../hooks/gate.h"

_Static_assert(sizeof(moor_state) < UINT32_MAX, "the header holds the size in 32 bits");

static moor_status map_fd(int fd, const char *dir, int write, moor_state **out)
{
    void *at = mmap(NULL, sizeof(moor_state), write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return moor_fail_errno(MOOR_E_IO, errno, "%s/state cannot be mapped", dir);
    *out = at;
    return MOOR_OK;
}

static moor_status allocate(int fd, const char *dir, size_t offset, size_t length)
{
    int err;
    do
        err = posix_fallocate(fd, (off_t)offset, (off_t)length);
    while (err == EINTR);
    if (err)
        return moor_fail_errno(MOOR_E_IO, err, "%s/state: %zu bytes cannot be allocated", dir, length);
    return MOOR_OK;
}

moor_status moor_state_create(int dir_fd, const char *dir, const char *instance, moor_state **out)
{
    struct timespec now;
    moor_state *state = NULL;
    moor_status status = moor_file_fits("state", sizeof(moor_state));
    if (status)
        return status;
    int fd = openat(dir_fd, "state.new", O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "%s/state.new cannot be made", dir);
    if (ftruncate(fd, sizeof(moor_state)) < 0)
        status = moor_fail_errno(MOOR_E_IO, errno, "%s/state.new cannot be set to %zu bytes", dir, sizeof(moor_state));
    if (!status)
        status = allocate(fd, dir, 0, offsetof(moor_state, seals));
    for (uint32_t i = 0; i < MOOR_MAX_STORES && !status;
         i++) /* what anybody reads of a ring whose store never opened */
        status = allocate(fd, dir, offsetof(moor_state, seals) + i * sizeof(moor_state_seal_ring),
                          offsetof(moor_state_seal_ring, entry));
    if (!status)
        status = map_fd(fd, dir, 1, &state);
    if (!status) {
        clock_gettime(CLOCK_REALTIME, &now);
        state->version = MOOR_STATE_VERSION;
        state->size = sizeof(*state);
        state->created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        snprintf(state->instance, sizeof(state->instance), "%s", instance);
        moor_gate_init(state);
        state->magic = MOOR_STATE_MAGIC;
        if (renameat(dir_fd, "state.new", dir_fd, "state") < 0) {
            status = moor_fail_errno(MOOR_E_IO, errno, "%s/state.new cannot be renamed", dir);
            moor_state_unmap(state);
        }
    }
    close(fd);
    if (status)
        unlinkat(dir_fd, "state.new", 0);
    else
        *out = state;
    return status;
}

/* Header first, by read(): a file of another version may be shorter than our struct, and touching a mapping beyond the
 * end of its file is a SIGBUS. */
static moor_status check_header(int fd, const char *dir)
{
    struct {
        uint64_t magic;
        uint32_t version, size;
    } header;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "%s/state", dir);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return moor_fail(MOOR_E_ACCESS, "%s/state belongs to uid %u, not to us (uid %u), or is no file", dir,
                         (unsigned)st.st_uid, (unsigned)geteuid());
    if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) || header.magic != MOOR_STATE_MAGIC)
        return moor_fail(MOOR_E_CORRUPT, "%s/state is not a state file of Moor", dir);
    if (header.version != MOOR_STATE_VERSION)
        return moor_fail(MOOR_E_VERSION, "%s/state has version %u, this library understands version %u", dir,
                         header.version, MOOR_STATE_VERSION);
    if (header.size != sizeof(moor_state) || st.st_size != (off_t)sizeof(moor_state))
        return moor_fail(MOOR_E_CORRUPT, "%s/state has %lld bytes and says %u, expected %zu", dir,
                         (long long)st.st_size, header.size, sizeof(moor_state));
    return MOOR_OK;
}

moor_status moor_state_map(int dir_fd, const char *dir, int write, moor_state **out)
{
    int fd = openat(dir_fd, "state", (write ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return moor_fail_errno(errno == ENOENT ? MOOR_E_NOT_FOUND : MOOR_E_IO, errno, "%s/state cannot be opened", dir);
    moor_status status = check_header(fd, dir);
    if (!status)
        status = map_fd(fd, dir, write, out);
    close(fd);
    return status;
}

void moor_state_unmap(moor_state *state)
{
    if (state)
        munmap(state, sizeof(*state));
}

moor_status moor_state_reserve_ring(int dir_fd, const char *dir, uint32_t store_index)
{
    if (store_index >= MOOR_MAX_STORES)
        return moor_fail(MOOR_E_INVALID, "store %u: an instance has at most %d", store_index, MOOR_MAX_STORES);
    int fd = openat(dir_fd, "state", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "%s/state cannot be opened", dir);
    moor_status status = allocate(fd, dir, offsetof(moor_state, seals) + store_index * sizeof(moor_state_seal_ring),
                                  sizeof(moor_state_seal_ring));
    close(fd);
    return status;
}
