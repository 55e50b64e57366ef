/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engines.h: the engines that _moor knows.  Each adapter defines one table; plugin/python/module.c registers it when the
 * engine's package is imported (or was imported already).  Owns nothing; const data.
 */
#ifndef MOOR_HOOKS_ENGINE_ENGINES_H
#define MOOR_HOOKS_ENGINE_ENGINES_H

#include "joinpoint.h"

/* weak: an adapter that is not part of a build is NULL in the list of engines (plugin/python/loading.c). */
extern const moor_engine moor_engine_vllm __attribute__((weak));
extern const moor_engine moor_engine_sglang __attribute__((weak));
extern const moor_engine moor_engine_lmdeploy __attribute__((weak));

#endif
