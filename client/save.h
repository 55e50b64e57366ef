/* SPDX-License-Identifier: Apache-2.0 */
/* save.h — a consumer asks every store of the instance for a snapshot. Called by hosts through the ABI, any thread; owns nothing. */
#ifndef MOOR_CLIENT_SAVE_H
#define MOOR_CLIENT_SAVE_H

#include "client.h"

/* Stores save one after the other; each file is replaced as a whole, and the first that fails ends it. */
moor_status moor_client_save(moor_client *client, const char *dir, double timeout);

#endif
