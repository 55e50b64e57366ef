/* SPDX-License-Identifier: Apache-2.0 */
#include "saver.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../hooks/futex.h"
#include "../hooks/persist.h"

void moor_saver_init(moor_saver *saver, int wake_fd)
{
    memset(saver, 0, sizeof(*saver));
    saver->wake_fd = wake_fd;
}

static void *save_main(void *user)
{
    moor_saver *saver = user;
    uint64_t one = 1;
    saver->saved.status = moor_store_save_until(saver->store, saver->dir, saver->deadline_ns, &saver->cancel, NULL);
    snprintf(saver->saved.text, sizeof(saver->saved.text), "%s", saver->saved.status ? moor_last_error() : "");
    atomic_store(&saver->done, 1);
    ssize_t wrote = write(saver->wake_fd, &one, sizeof(one)); /* a full eventfd wakes as well */
    (void)wrote;
    moor_futex_raise(&saver->ended);
    return NULL;
}

moor_status moor_saver_start(moor_saver *saver, moor_store *store, uint64_t client, const moor_wire_header *request,
                             const char *dir, size_t n, uint64_t deadline_ns)
{
    sigset_t all, before;
    if (saver->busy)
        return moor_fail(MOOR_E_STATE, "store %u: a snapshot is being written to %s already", store->store_index,
                         saver->dir);
    saver->store = store;
    saver->deadline_ns = deadline_ns;
    saver->saved = (moor_saved){.client = client, .request = *request};
    memcpy(saver->dir, dir, n);
    saver->dir[n] = 0;
    atomic_store(&saver->done, 0);
    atomic_store(&saver->ended, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&saver->thread, NULL, save_main, saver);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return moor_fail_errno(MOOR_E_NOMEM, err, "store %u: no thread to write a snapshot", store->store_index);
    pthread_setname_np(saver->thread, "moor-save");
    saver->busy = 1;
    return MOOR_OK;
}

int moor_saver_take(moor_saver *saver, moor_saved *out)
{
    uint64_t count;
    ssize_t got =
        read(saver->wake_fd, &count, sizeof(count)); /* first: a wake that comes later is seen by the next poll */
    (void)got;
    if (!saver->busy || !atomic_load(&saver->done))
        return 0;
    pthread_join(saver->thread, NULL); /* it has nothing left to do */
    saver->busy = 0;
    *out = saver->saved;
    return 1;
}

int moor_saver_stop(moor_saver *saver, uint64_t deadline_ns)
{
    if (!saver->busy)
        return 1;
    atomic_store(&saver->cancel, 1);
    while (!atomic_load(&saver->ended) && moor_now_ns() < deadline_ns)
        moor_futex_wait(&saver->ended, 0, deadline_ns);
    if (!atomic_load(&saver->ended))
        return 0;
    pthread_join(saver->thread, NULL);
    saver->busy = 0;
    return 1;
}
