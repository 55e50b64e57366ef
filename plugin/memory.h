/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h — how much memory this process may use at all, for the default size of the arena. Called by config.c. Owns
 * nothing, no lock, no state.
 */
#ifndef MOOR_MEMORY_H
#define MOOR_MEMORY_H

#include <stdint.h>

/* The smallest of the host's memory and the memory limits of this process' cgroup and its ancestors (v2 and v1), in
 * bytes. `root` is "" but for tests: a folder that stands for / (proc/self/cgroup, proc/meminfo, sys/fs/cgroup). */
uint64_t moor_memory_limit(const char *root);

/* 1/16 of it, at least 64 MiB, at most 64 GiB, in whole 2 MiB. */
uint64_t moor_memory_default_arena(uint64_t limit);

#endif
