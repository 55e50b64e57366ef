/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dirs.h — where Moor's files lie: the base directories, which of them is usable, and the names inside one.
 *
 * Called by plugin/instance.c (which makes instances), client/ (which looks for them) and hooks/holds.c (whose files lie
 * in <base>/holds, of several bases). Like error.h it belongs to the lowest layer, because all of those need it. Owns nothing, no lock, no
 * state; every file descriptor it gives out is close-on-exec and the caller's.
 *
 * Candidates, in order: the directory that the caller was given; else $MOOR_DIR; else $XDG_RUNTIME_DIR/moor,
 * /dev/shm/moor-UID, /tmp/moor-UID. One that somebody named must be usable or it is an error; of the others the first
 * usable one is taken. Usable: a directory (not a link to one) that is ours, with mode 0700.
 */
#ifndef MOOR_DIRS_H
#define MOOR_DIRS_H

#include <limits.h>

#include "error.h"

enum {
    MOOR_DIRS_MAX = 5,
    MOOR_NAME_MAX = 48,        /* an instance's name */
    MOOR_SOCKET_PATH_MAX = 107 /* sockaddr_un.sun_path without its NUL */
};

typedef struct moor_dirs {
    int n;
    int named; /* path[0] was given by the caller or by $MOOR_DIR: it is the only one to create in */
    char path[MOOR_DIRS_MAX][PATH_MAX];
} moor_dirs;

/* The candidates. given: NULL or "" when the caller has none. A relative or overlong name is MOOR_E_INVALID. When $MOOR_DIR
 * names path[0], the others follow it, for whoever looks for an instance. */
moor_status moor_dirs_candidates(const char *given, moor_dirs *out);

/* Every directory that anybody of this user may have chosen, so that two processes meet whatever their environments were: the given one,
 * then $MOOR_DIR and the others; the first one is `named` when it is one of these two. $MOOR_HOLDS_DIR takes the place of all but the given one, for a rig that is to be alone on its
 * machine. MOOR_E_INVALID as above, of $MOOR_DIR only when none is given. */
moor_status moor_dirs_all(const char *given, moor_dirs *out);

/* Opens a base directory after checking owner and mode; create: makes it (0700, last component only) when it is absent.
 * MOOR_E_NOT_FOUND (absent), MOOR_E_ACCESS (names owner and mode), MOOR_E_IO. */
moor_status moor_dirs_open(const char *path, int create, int *fd);

/* The base directory to create things in, made when absent. instance: one that will have its sockets there (NULL: none), for which a path
 * may be too long. When nobody named one, MOOR_E_IO lists why no candidate is usable. */
moor_status moor_dirs_choose(const char *given, const char *instance, char path[PATH_MAX], int *fd);

/* What a lock says on a file system that has none (Lustre without -o flock, some FUSE). */
int moor_dirs_no_locks(int err);

/* Takes the exclusive flock of an open directory; flock(fd, LOCK_UN) ends it, closing does not where a forked child has the descriptor
 * too. `path` is for messages. MOOR_E_TIMEOUT after wait_s seconds, MOOR_E_IO. */
moor_status moor_dirs_lock(int fd, const char *path, int wait_s);

/* 1…48 of [A-Za-z0-9._-], not beginning with '.', not "holds". */
int moor_dirs_name_ok(const char *name);

/* "<dir>/store-<n>.sock"; MOOR_E_INVALID with path and length when it does not fit a socket address. */
moor_status moor_dirs_socket_path(const char *dir, unsigned store_index, char path[MOOR_SOCKET_PATH_MAX + 1]);

#endif
