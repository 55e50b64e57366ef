/* SPDX-License-Identifier: Apache-2.0 */
/* uthash as the adapters use it. Its default for a failed allocation is to end the process, and a plugin never does that:
 * here the element stays out of the table, and its hh.tbl is NULL afterwards (MOOR_TABLE_HAS). The GIL guards the tables. */
#ifndef MOOR_ENGINE_TABLE_H
#define MOOR_ENGINE_TABLE_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define MOOR_TABLE_HAS(element) ((element)->hh.tbl != NULL)

#endif
