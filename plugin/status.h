/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.h — what an instance is doing, as text. Called by hosts through the ABI (`moor status`, an engine's /metrics,
 * Store.stats()). Reads the shared state, which needs no server, and asks the stores for their numbers over their sockets, for a
 * second at most. Changes nothing; owns nothing, no lock.
 */
#ifndef MOOR_STATUS_H
#define MOOR_STATUS_H

#include <moor/moor.h>

#include "../allocator/error.h"

moor_status moor_status_text(const char *instance, const char *dir, const char *format, char **out, size_t *len);
/* The object of format "json", for the client's instance. */
moor_status moor_client_stats(moor_client *client, char **json, size_t *len);

#endif
