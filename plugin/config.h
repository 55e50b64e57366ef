/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h — the configuration: JSON text in, checked values out. One table (config.c) names every key once.
 *
 * Called by moor_process_join and by hosts through the ABI. A moor_config owns its strings, never changes after it was
 * parsed, and is counted: config_parse gives one reference, process_join takes another, config_free gives one back. No
 * lock: the count is an atomic.
 *
 * Layers, later ones win key by key: the defaults, $MOOR_CONFIG (inline JSON when it begins with '{', else a path), the
 * host's text. In strings ${NAME} is replaced from the environment; an unset one is an error that names it. A number may
 * be written as such a string ("${PORT}"), a size also as "64MiB". Defaults that depend on the machine:
 *   record.arena_bytes  1/16 of the smaller of this cgroup's memory limit and the host's memory, at least 64 MiB, at
 *                       most 64 GiB, in whole 2 MiB; it is address space until rows fill it
 *   record.keep_bytes   half of arena_bytes
 */
#ifndef MOOR_CONFIG_H
#define MOOR_CONFIG_H

#include <moor/moor.h>

#include "../allocator/error.h"

enum { MOOR_ACROSS_HOSTS_NONE = 0, MOOR_ACROSS_HOSTS_NCCL = 1 };
enum { MOOR_TRANSPORT_AUTO = 0, MOOR_TRANSPORT_SHM = 1, MOOR_TRANSPORT_CUDA_IPC = 2, MOOR_TRANSPORT_VMM_FD = 3 };

moor_status moor_config_parse(const char *json, size_t json_len, moor_config **out);
/* config_values of the ABI (its own name is taken by the struct). */
moor_status moor_config_get_values(const moor_config *config, moor_config_values *out);
void moor_config_free(moor_config *config);

/* One more reference, ended by moor_config_free. */
const moor_config *moor_config_retain(const moor_config *config);

#endif
