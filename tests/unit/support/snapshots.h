/* SPDX-License-Identifier: Apache-2.0 */
/* snapshots.h — a scratch directory, a store that has something of everything, and the question whether two stores say the same. */
#ifndef MOOR_TEST_SNAPSHOTS_H
#define MOOR_TEST_SNAPSHOTS_H

#include <limits.h>

#include "allocator/snapfile.h"
#include "allocator/snapshot.h"
#include "lab.h"

typedef struct snap_dir {
    char path[PATH_MAX]; /* of the snapshot directory, which does not exist yet */
    char base[64];
} snap_dir;

void snap_dir_make(snap_dir *dir);
void snap_dir_remove(snap_dir *dir);                      /* asserts that nothing but the store's file is left */
void snap_path(const snap_dir *dir, char path[PATH_MAX]); /* the store's file */
int snap_temporary_left(const snap_dir *dir);             /* 1 when a temporary file is there */
size_t snap_read(const snap_dir *dir, uint8_t **out);     /* the whole file; free() */
void snap_write(const snap_dir *dir, const void *data, size_t n);

moor_status snap_save(lab_store *lab, const snap_dir *dir);
moor_status snap_restore(lab_store *lab, const snap_dir *dir);

/* Records a (http#0, rollout, 2 epochs), b and c (a's siblings by the KV index; c: http#1, trace_store), gap (rows missing for two reasons),
 * dup twice (one id, two records), none (owner none), long (several blocks), read (opened), and slots whose records were freed. */
void snap_fill(lab_store *lab);
/* And sessions: see fill_sessions. They are released before the store is emptied. */
void snap_release_sessions(lab_store *lab);
enum { SNAP_RECORDS = 12 };
/* A store of one record "only" with `rows` rows. */
void snap_fill_one(lab_store *lab, uint32_t rows);

/* lab_assert_empty, sessions first. */
void snap_empty(lab_store *lab);

/* Every record of `a` is in `b` under the same handle, with the same rows, and nothing else is. */
void snap_assert_same(lab_store *a, lab_store *b);
/* The store is as new. */
void snap_assert_new(lab_store *lab);

#endif
