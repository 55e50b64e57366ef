/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h — creates and maps the instance's `state` file (layout: abi/state.h). Called by plugin/instance.c, by the
 * client and by status. Owns nothing after it returned: the mapping is the caller's, ended by moor_state_unmap. No lock;
 * create is called under the base directory's lock.
 */
#ifndef MOOR_PLUGIN_STATE_H
#define MOOR_PLUGIN_STATE_H

#include "../abi/state.h"
#include "../allocator/error.h"

/* Makes <dir>/state under another name and renames it, so that whoever sees the file sees it whole. All pages but those
 * of the seal rings are allocated now: a full file system is an error here, not a SIGBUS later. `dir` is for messages. */
moor_status moor_state_create(int dir_fd, const char *dir, const char *instance, moor_state **out);

/* Maps an existing one after checking magic, version and size. write: 0 maps it read-only. MOOR_E_NOT_FOUND, MOOR_E_CORRUPT,
 * MOOR_E_VERSION (with both numbers), MOOR_E_ACCESS. */
moor_status moor_state_map(int dir_fd, const char *dir, int write, moor_state **out);
void moor_state_unmap(moor_state *state);

/* Allocates the pages of one seal ring; the store's owner calls it before it opens. */
moor_status moor_state_reserve_ring(int dir_fd, const char *dir, uint32_t store_index);

#endif
