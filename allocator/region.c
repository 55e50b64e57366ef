/* SPDX-License-Identifier: Apache-2.0 */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "memfd.h"

static const char *policy_file = "/proc/sys/vm/overcommit_memory";

void moor_region_set_policy_file(const char *path)
{
    policy_file = path;
}

/* vm.overcommit_memory is 2: the kernel promises no more memory than it has. A memfd is promised nothing when it is made: a page that
 * is touched when there is no more of it to promise is a SIGBUS. */
static int is_strict(void)
{
    char policy = 0;
    int fd = open(policy_file, O_RDONLY | O_CLOEXEC);
    int strict = fd >= 0 && read(fd, &policy, 1) == 1 && policy == '2';
    if (fd >= 0)
        close(fd);
    return strict;
}

/* All of it, a part at a time: one that a signal interrupts is given back by the kernel, and taken again. */
static int commit(const moor_region *region)
{
    enum { PART = 64 << 20 };
    for (size_t at = 0; at < region->size;) {
        size_t part = region->size - at < PART ? region->size - at : PART;
        if (fallocate(region->fd, 0, (off_t)at, (off_t)part) == 0)
            at += part;
        else if (errno != EINTR)
            return -1;
    }
    return 0;
}

/* NULL, or the step that failed, with errno. */
static const char *set_up(const moor_region *region, void **base)
{
    if (ftruncate(region->fd, (off_t)region->size))
        return "ftruncate";
    if (region->committed && commit(region))
        return "fallocate (vm.overcommit_memory is 2: all of it is taken now)";
    *base = mmap(NULL, region->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, region->fd, 0);
    if (*base == MAP_FAILED)
        return "mmap";
    /* A child of the engine must not write rows into its parent's arena. F_SEAL_FUTURE_WRITE is not used: it would forbid
     * punching holes, and no memory could ever be returned. */
    if (madvise(*base, region->size, MADV_DONTFORK))
        return "madvise(MADV_DONTFORK)";
    if (fcntl(region->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return "sealing";
    return fchmod(region->fd, 0400) ? "fchmod" : NULL;
}

moor_status moor_region_open(moor_region *region, uint64_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0 || bytes > (uint64_t)INT64_MAX - page)
        return moor_fail(MOOR_E_INVALID, "arena of %llu bytes", (unsigned long long)bytes);
    memset(region, 0, sizeof(*region));
    region->fd = -1;
    region->page = page;
    region->size = (size_t)((bytes + page - 1) / page * page);
    region->committed = is_strict();
    moor_status status = moor_file_fits("arena", region->size);
    if (status)
        return status;
    region->fd = moor_memfd("moor-arena");
    if (region->fd < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "memfd_create for the arena");
    void *base = MAP_FAILED;
    const char *failed = set_up(region, &base);
    if (!failed) {
        region->base = base;
        pthread_mutex_init(&region->lock, NULL);
        return MOOR_OK;
    }
    int err = errno;
    if (base != MAP_FAILED)
        munmap(base, region->size);
    close(region->fd);
    region->fd = -1;
    return moor_fail_errno(MOOR_E_IO, err, "arena of %zu bytes: %s", region->size, failed);
}

void moor_region_close(moor_region *region)
{
    if (!region->base)
        return;
    munmap(region->base, region->size);
    close(region->fd);
    pthread_mutex_destroy(&region->lock);
    region->base = NULL;
    region->fd = -1;
}

void *moor_region_take(moor_region *region, void *at, size_t size, size_t alignment)
{
    pthread_mutex_lock(&region->lock);
    uintptr_t base = (uintptr_t)region->base;
    uintptr_t start = (base + region->used + alignment - 1) / alignment * alignment;
    void *taken = NULL;
    if (start - base <= region->size && size <= region->size - (start - base) && (!at || (uintptr_t)at == start)) {
        taken = (void *)start;
        region->used = start - base + size;
    }
    pthread_mutex_unlock(&region->lock);
    return taken;
}

int moor_region_punch(moor_region *region, void *address, size_t length)
{
    off_t offset = (off_t)((uint8_t *)address - region->base);
    if (region->committed) /* what is given back may not be there to be taken again */
        return -1;
    return fallocate(region->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)length);
}

moor_status moor_region_readonly_fd(const moor_region *region, int *fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", region->fd);
    int copy = open(path, O_RDONLY | O_CLOEXEC);
    if (copy < 0)
        return moor_fail_errno(MOOR_E_IO, errno, "read-only reopen of the arena (%s)", path);
    *fd = copy;
    return MOOR_OK;
}

uint64_t moor_region_resident(const moor_region *region)
{
    struct stat status;
    return fstat(region->fd, &status) == 0 ? (uint64_t)status.st_blocks * 512u : 0;
}
