/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfd.h — memory that has a descriptor, and the size that a file of this process may have.
 *
 * Called by whoever makes a file grow: allocator/ (arena, snapshot), plugin/ (state), hooks/ (holds), client/ (large replies).
 * Owns nothing. Thread-safe.
 */
#ifndef MOOR_MEMFD_H
#define MOOR_MEMFD_H

#include <stdint.h>

#include "error.h"

/* A new empty memfd that takes seals; not executable where the kernel knows that, which vm.memfd_noexec=2 asks for. -1 with errno. */
int moor_memfd(const char *name);

/* MOOR_E_IO when a file (a memfd is one) may not have so many bytes here: beyond RLIMIT_FSIZE a write or ftruncate is a
 * SIGXFSZ, which ends the process. `what` begins the error's text. Before every growth. */
moor_status moor_file_fits(const char *what, uint64_t bytes);

#endif
