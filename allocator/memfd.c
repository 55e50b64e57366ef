/* SPDX-License-Identifier: Apache-2.0 */
#include "memfd.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

int moor_memfd(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

moor_status moor_file_fits(const char *what, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur)
        return MOOR_OK;
    return moor_fail(
        MOOR_E_IO,
        "%s: a file of %llu bytes is needed, and those of this process may have %llu (RLIMIT_FSIZE, ulimit -f)", what,
        (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
}
