/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance.h — one server's directory <base>/<name>: takes a name, makes or joins the instance, and removes it.
 *
 * Called by plugin/process.c only. Owns the directory's descriptor, the slot lock and the mapped state. Names are
 * decided, and files of an instance made and removed, under an exclusive flock of the base directory itself (no lock file is left
 * behind), waited for with a deadline; nothing else is done under it.
 *
 * Which name: the configuration's; else $MOOR_INSTANCE; else "default". $MOOR_INSTANCE together with $MOOR_DIR of the same
 * base is what the first process of a server exports for its children: such a process joins that instance when it lives.
 * A name that another live server has: MOOR_E_EXISTS when it was given, else "-2", "-3", … is added.
 * Instances whose server is dead (nobody holds MOOR_LOCKS_SERVER) are removed whenever a process enters.
 */
#ifndef MOOR_INSTANCE_H
#define MOOR_INSTANCE_H

#include <limits.h>

#include "../abi/state.h"
#include "../allocator/dirs.h"

typedef struct moor_instance {
    char base[PATH_MAX], dir[PATH_MAX], name[64];
    moor_dirs hold_bases;
    int base_fd, dir_fd, locks_fd;
    uint32_t slot;
    int created; /* this process made it (it is the server's first) */
    moor_state *state;
    char note[2][256]; /* what the caller should log once it holds no lock; "" when nothing */
} moor_instance;

/* name, dir: of the configuration, NULL when not given. */
moor_status moor_instance_enter(const char *name, const char *dir, moor_instance *out);
/* Gives the slot up; the last process of the server removes the files. unmap 0 (at exit, while other threads may run):
 * leaves mapping and descriptors to the kernel. */
void moor_instance_leave(moor_instance *instance, int unmap);

#endif
