/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.h — this process' membership in an instance: join, leave, who am I. What hooks see of it is hooks/process.h.
 *
 * Called by hosts through the ABI. A process is a member of at most one instance; a second join gives the same object,
 * with the roles united and one more reference, and every join is ended by one leave. Owns the moor_process, its
 * configuration, its slot, and the exported MOOR_INSTANCE and MOOR_DIR. A mutex protects joining and leaving; nothing of the host is
 * called under it. A forked child is no member (its parent's object returns MOOR_E_FORKED there) and joins by itself, as a
 * child of the same server. At exit() what was not left is left, so that the last process removes the files.
 */
#ifndef MOOR_PLUGIN_PROCESS_H
#define MOOR_PLUGIN_PROCESS_H

#include "../hooks/process.h"

moor_status moor_process_join(const moor_config *config, const moor_process_args *args, moor_process **out);
void moor_process_leave(moor_process *process);
const moor_config *moor_process_config(const moor_process *process);
const char *moor_process_instance(const moor_process *process);
const char *moor_process_dir(const moor_process *process);
/* log of the ABI (moor_log is the internal one). */
void moor_process_log(moor_process *process, int level, const char *text);
moor_status moor_count(moor_process *process, const char *name, uint64_t delta);

/* One more reference, ended by moor_process_leave: a store keeps its process. */
void moor_process_retain(moor_process *process);

/* The instance directory's descriptor, for whoever makes files in it. */
int moor_process_dir_fd(const moor_process *process);

#endif
