/* SPDX-License-Identifier: Apache-2.0 */
/*
 * locate.h — finds a live instance by name in the candidate directories (allocator/dirs.h). Called by client.c and by
 * plugin/status.c. Changes nothing, owns nothing, no lock.
 */
#ifndef MOOR_LOCATE_H
#define MOOR_LOCATE_H

#include "../allocator/dirs.h"

typedef struct moor_located {
    char name[MOOR_NAME_MAX + 1];
    char dir[PATH_MAX]; /* <base>/<name> */
} moor_located;

/* One look. instance NULL → $MOOR_INSTANCE, else "default". dir NULL → every candidate; a match in $MOOR_DIR wins, as the
 * directory that somebody named. MOOR_E_NOT_FOUND lists what lives in those directories, MOOR_E_AMBIGUOUS what matches. */
moor_status moor_locate(const char *instance, const char *dir, moor_located *out);

/* Once more, by who will not look again: the error says when the instance has lost its files while its server runs. MOOR_E_NOT_FOUND. */
moor_status moor_locate_why(const char *instance, const char *dir);

#endif
