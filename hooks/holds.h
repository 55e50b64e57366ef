/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holds.h — "I hold memory on this device": a file with an fcntl lock in <base>/holds/<device>/ (SEMANTICS 5.1). Taken by trainers
 * of any instance or none, read by the barrier. The kernel ends a hold with its process; the file of a dead holder is removed by
 * whoever sees it. A file appears under its name only when it is locked and whole, so unlocked means dead.
 * The lock belongs to the process and ends when *any* descriptor of the file is closed in it, so a process never opens its own
 * holds: it knows them by a list, which a mutex protects (held for no system call but the scan's lookup).
 */
#ifndef MOOR_HOLDS_H
#define MOOR_HOLDS_H

#include <moor/moor.h>

#include "../abi/state.h"

/* dir: <base>; NULL → as allocator/dirs.h chooses. */
moor_status moor_hold_take(const char *dir, const char *device, const char *label, uint64_t bytes, moor_hold **out);
/* NULL: no-op. In a forked child: frees the object, the hold stays the parent's. */
void moor_hold_release(moor_hold *hold);

enum { MOOR_HOLDS_NAMED = 8 };

typedef struct moor_holder {
    char label[MOOR_LABEL_BYTES];
    uint32_t pid; /* as the holder wrote it */
    uint64_t bytes;
} moor_holder;

typedef struct moor_holders {
    uint32_t count;                      /* all of them */
    moor_holder named[MOOR_HOLDS_NAMED]; /* the first ones */
} moor_holders;

/* Adds the holds of other processes on the device to *out (initialise it with {0}). except_pid: holds of that process do not
 * count either (0: none). A device nobody ever held has none. */
moor_status moor_holds_read(const char *base, const char *device, uint32_t except_pid, moor_holders *out);
/* Removes what dead holders left below the base, and folders that are empty. For whoever makes an instance there. */
void moor_holds_sweep(const char *base);
/* "trainer (pid 12, 1073741824 bytes), …" */
void moor_holders_text(const moor_holders *holders, char *out, size_t size);
/* The device's folder name: letters, digits, ".-_:" stay, others become "_" and a hash is appended when anything changed. */
moor_status moor_hold_device_name(const char *device, char out[MOOR_LABEL_BYTES]);

#endif
