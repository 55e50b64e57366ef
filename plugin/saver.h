/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saver.h — a snapshot for a consumer that asks: written by a thread of its own, because the server's thread waits for nobody.
 *
 * Called by plugin/peer.c (start) and plugin/server.c (the rest), on the server's thread but for init and stop. One snapshot at a
 * time; a second is refused at once. Owns the thread while one is being written. The two threads share `done` and `cancel`; everything
 * else belongs to the saving thread from its start until done is 1. When it is done it writes to the server's wake descriptor.
 */
#ifndef MOOR_SAVER_H
#define MOOR_SAVER_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "../abi/wire.h"
#include "../allocator/error.h"
#include "../hooks/record.h"

typedef struct moor_saved {
    uint64_t client; /* who asked */
    moor_wire_header request;
    moor_status status;
    char text[MOOR_ERROR_TEXT];
} moor_saved;

typedef struct moor_saver {
    int wake_fd, busy; /* busy: the server's thread only */
    _Atomic int done, cancel;
    _Atomic uint32_t
        ended; /* a futex: the thread does nothing more. A join has no deadline of a monotonic clock that ThreadSanitizer knows */
    pthread_t thread;
    moor_store *store;
    uint64_t deadline_ns;
    moor_saved saved;
    char dir[PATH_MAX];
} moor_saver;

void moor_saver_init(moor_saver *saver, int wake_fd);
/* dir: n < PATH_MAX bytes. MOOR_E_STATE while another one is being written. */
moor_status moor_saver_start(moor_saver *saver, moor_store *store, uint64_t client, const moor_wire_header *request,
                             const char *dir, size_t n, uint64_t deadline_ns);
/* Empties the wake descriptor. 1: a snapshot ended, *out says how. */
int moor_saver_take(moor_saver *saver, moor_saved *out);
/* Gives up what is being written, until the deadline (moor_now_ns). 1: no thread is left. */
int moor_saver_stop(moor_saver *saver, uint64_t deadline_ns);

#endif
