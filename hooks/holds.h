/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holds.h — "I hold memory on this device": a file with an fcntl lock in <base>/holds/<device>/ (SEMANTICS 5.1). Taken by trainers
 * of any instance or none, read by the barrier. Which base a process uses hangs on its environment, so a hold lies in every base that
 * anybody may have chosen (moor_dirs_all), under one name, and is looked for in all of them. The kernel ends a hold with its process; the file of a dead holder is removed by
 * whoever sees it. A file appears under its name only when it is locked and whole, so unlocked means dead.
 * The lock belongs to the process and ends when *any* descriptor of the file is closed in it, so a process never opens its own
 * holds: it knows them by a list, which a mutex protects (held for no system call but the scan's lookup).
 */
#ifndef MOOR_HOLDS_H
#define MOOR_HOLDS_H

#include <moor/moor.h>

#include "../abi/state.h"
#include "../allocator/dirs.h"

/* dir: a base besides the others, which must be usable; NULL: none. */
moor_status moor_hold_take(const char *dir, const char *device, const char *label, uint64_t bytes, moor_hold **out);
/* NULL: no-op. In a forked child: frees the object, the hold stays the parent's. */
void moor_hold_release(moor_hold *hold);
/* "<base>/<instance>\n" of each server that lives in a base where the hold lies; malloc'ed. */
moor_status moor_hold_seen_by(const moor_hold *hold, char **out, size_t *len);

enum {
    MOOR_HOLDS_NAMED = 8,
    MOOR_HOLDS_TOLD_APART = 64, /* beyond so many on one device a hold may count more than once */
    MOOR_HOLDS_DEVICES = 64     /* that moor_holds_each knows */
};

typedef struct moor_holder {
    char label[MOOR_LABEL_BYTES];
    uint32_t pid; /* as the holder wrote it */
    uint64_t bytes;
} moor_holder;

typedef struct moor_holders {
    uint32_t count;                        /* all of them */
    uint64_t names[MOOR_HOLDS_TOLD_APART]; /* hashes of the files' names */
    moor_holder named[MOOR_HOLDS_NAMED];   /* the first ones */
} moor_holders;

/* Adds the holds of other processes on the device to *out (initialise it with {0}). except_pid: holds of that process do not
 * count either (0: none). A device nobody ever held has none. */
moor_status moor_holds_read(const moor_dirs *bases, const char *device, uint32_t except_pid, moor_holders *out);
/* Removes what dead holders left, and folders that are empty. For whoever makes an instance. */
void moor_holds_sweep(const moor_dirs *bases);
/* The first MOOR_HOLDS_NAMED of each device, this process' own too; device: its folder's name. */
void moor_holds_each(const moor_dirs *bases, void (*each)(void *user, const char *device, const moor_holder *holder),
                     void *user);
/* "trainer (pid 12, 1073741824 bytes), …" */
void moor_holders_text(const moor_holders *holders, char *out, size_t size);
/* The device's folder name: letters, digits, ".-_:" stay, others become "_" and a hash is appended when anything changed. */
moor_status moor_hold_device_name(const char *device, char out[MOOR_LABEL_BYTES]);

#endif
