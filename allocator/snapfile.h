/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapfile.h — the file of a snapshot: how it is replaced as a whole, and its frame of checked sections.
 *
 * Called by snapshot.c (writes) and restore.c (reads), outside of the store's lock. A writer owns two descriptors, a small buffer and
 * the temporary file, which nobody sees under the real name until it is complete and on the disk: write, fsync, rename, fsync of the
 * directory. Killed anywhere, what was there before is there still; what a killed writer left is overwritten by the next one.
 * Two writers of one name: the second is refused (flock on the temporary file). On a file system without locks each writes a file
 * of its own, and the later one stays.
 *
 *   offset 0   magic "MOORSNAP", u32 format, u32 sections, u64 file bytes, u64 offset of the table, u64 XXH3-64 of the table,
 *              u64 seconds since 1970, u64 0, u64 XXH3-64 of the 56 bytes before it
 *   64         the sections, one behind the other, without gaps
 *   table      a section each: u32 kind, u32 0, u64 offset, u64 bytes, u64 XXH3-64 (0 for the rows, which are checked block by block)
 * All numbers are little-endian. So every byte of the file is under some checksum.
 */
#ifndef MOOR_SNAPFILE_H
#define MOOR_SNAPFILE_H

#include <limits.h>
#include <stdatomic.h>

#include "snapbytes.h"

enum {
    MOOR_SNAP_FORMAT = 2,        /* what is written */
    MOOR_SNAP_FORMAT_OLDEST = 1, /* what is read; 1 knew no owners, labels and sessions */
    MOOR_SNAP_HEADER = 64,
    MOOR_SNAP_ENTRY = 32,
    MOOR_SNAP_BUFFER = 256 << 10,
    MOOR_SNAP_SYNC =
        64 << 20 /* bytes after which they go to the disk, so that the last fsync is not what takes the time */
};

enum {
    MOOR_SNAP_MODEL = 1,
    MOOR_SNAP_STORE = 2,
    MOOR_SNAP_LABELS = 3,
    MOOR_SNAP_BLOCKS = 4,
    MOOR_SNAP_RECORDS = 5,
    MOOR_SNAP_ROWS = 6,
    MOOR_SNAP_SESSIONS = 7,
    MOOR_SNAP_KINDS = 8
};

const char *moor_snap_kind_name(uint32_t kind);

/* ---- writing ---- */

typedef struct moor_snapfile {
    int dir_fd, fd;
    char path[PATH_MAX]; /* the real name */
    char name[64], temporary[112];
    uint64_t at, written, unsynced; /* bytes put so far, written, and written since they went to the disk */
    uint8_t *buffer;
    size_t used;
    uint64_t deadline_ns;
    const _Atomic int *cancel; /* may be NULL */
    uint32_t sections;
    uint64_t section_begin;
    uint8_t table[MOOR_SNAP_KINDS * MOOR_SNAP_ENTRY];
} moor_snapfile;

/* A temporary file for <dir>/<name>. dir: an absolute path; made (0700, last component only) when it is absent. Not before
 * moor_snapfile_commit, and not after deadline_ns or once *cancel is 1, does <dir>/<name> change. */
moor_status moor_snapfile_create(moor_snapfile *file, const char *dir, const char *name, uint64_t deadline_ns,
                                 const _Atomic int *cancel);
moor_status moor_snapfile_put(moor_snapfile *file, const void *data, size_t n);
/* Everything that was put since the last call is section `kind`. */
void moor_snapfile_section(moor_snapfile *file, uint32_t kind, uint64_t checksum);
moor_status moor_snapfile_commit(moor_snapfile *file);
/* Ends the writer, whatever happened; removes the temporary file unless it was committed. */
void moor_snapfile_close(moor_snapfile *file);

/* ---- reading ---- */

typedef struct moor_snapsection {
    uint64_t offset, length, checksum; /* offset 0: there is none */
} moor_snapsection;

typedef struct moor_snapsource {
    int fd;
    char path[PATH_MAX];
    uint32_t format;
    uint64_t size;
    moor_snapsection section[MOOR_SNAP_KINDS];
} moor_snapsource;

/* Opens <dir>/<name> and checks header and table. MOOR_E_NOT_FOUND, MOOR_E_VERSION (both numbers), MOOR_E_CORRUPT (the place). */
moor_status moor_snapsource_open(moor_snapsource *source, const char *dir, const char *name);
/* A whole section, checked; *memory is freed with moor_heap_free. An absent one reads as empty. */
moor_status moor_snapsource_read(const moor_snapsource *source, uint32_t kind, uint8_t **memory,
                                 moor_snapreader *reader);
/* n bytes at `offset` of the file. A file that ends there is MOOR_E_CORRUPT. */
moor_status moor_snapsource_bytes(const moor_snapsource *source, uint64_t offset, void *out, size_t n);
void moor_snapsource_close(moor_snapsource *source);

/* Tests: called before every system call that a writer or reader makes, with its name. Returns 0, an errno to fail with, or
 * MOOR_SNAP_SHORT (a write or read does half of what it should). Not to be set while one is under way. */
enum { MOOR_SNAP_SHORT = -1 };
void moor_snapfile_set_hook(int (*hook)(const char *call));

#endif
