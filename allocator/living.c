/* SPDX-License-Identifier: Apache-2.0 */
#include "living.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "dirs.h"
#include "locks.h"

int moor_living(int base_fd, const char *name)
{
    int fd = openat(base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return 0;
    int alive = moor_locks_server_alive(fd);
    close(fd);
    return alive;
}

void moor_living_each(int base_fd, void (*each)(void *user, int base_fd, const char *name), void *user)
{
    int copy = openat(base_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *entry;
    if (!dir) {
        if (copy >= 0)
            close(copy);
        return;
    }
    while ((entry = readdir(dir))) {
        char path[NAME_MAX + 16];
        if (!moor_dirs_name_ok(entry->d_name))
            continue;
        snprintf(path, sizeof(path), "%s/locks", entry->d_name);
        if (faccessat(base_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            each(user, base_fd, entry->d_name);
    }
    closedir(dir);
}
