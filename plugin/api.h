/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.h — the function table, and what else belongs to the library as a whole. moor_get_api is the one exported
 * function. Immutable, no lock. Every member is a function moor_<member> of the module that provides it, where that name
 * is not already a struct's; a member that no module provides yet is NULL.
 */
#ifndef MOOR_PLUGIN_API_H
#define MOOR_PLUGIN_API_H

#include "../allocator/error.h"

const char *moor_version_string(void);
const char *moor_library_path(void);

#endif
