/* SPDX-License-Identifier: Apache-2.0 */
#include "watch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "futex.h"
#include "gate.h"

/* Longest sleep without a look: a process may die between what it did and waking, and the dead say nothing. */
#define SLICE_NS 250000000u
enum { LEAVE_S = 5 };

typedef struct watch {
    struct watch *next;
    moor_process *process; /* NULL: it has left */
    int fd;
    uint32_t call;
    uint64_t seq; /* of moor_gate_answers */
    uint32_t cell;
    int told; /* for this word and this `settled` */
    uint64_t told_word;
    uint32_t told_settled;
} watch;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    watch *first;
    moor_process *process; /* whose gate the thread looks at; NULL: there is no thread */
    int stop;
} watcher;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int ready; /* the mutex is made, and a fork is seen */

static int make(void)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_condattr_t attr;
    memset(&watcher, 0, sizeof(watcher));
    memcpy(&watcher.mutex, &mutex, sizeof(mutex));
    if (pthread_condattr_init(&attr))
        return 0;
    int made = !pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) && !pthread_cond_init(&watcher.ended, &attr);
    pthread_condattr_destroy(&attr);
    return made;
}

/* The thread and the event loops are the parent's. A descriptor of theirs would take their signals away. */
static void child_after_fork(void)
{
    for (watch *w = watcher.first; w; w = w->next)
        close(w->fd);
    ready = make();
}

static void set_up(void)
{
    ready = make() && pthread_atfork(NULL, NULL, child_after_fork) == 0;
}

/* ---- telling ---------------------------------------------------------------------------------------------------- */

static void tell(const watch *w)
{
    uint64_t one = 1;
    ssize_t wrote = write(w->fd, &one, sizeof(one)); /* one that is full is readable as well */
    (void)wrote;
}

/* Under the mutex. `settled` was read before: what happens after this look changes it. */
static void look(watch *w, uint32_t settled)
{
    moor_member member = moor_member_of(w->process);
    uint64_t word = atomic_load(&member.state->gate.word);
    if (w->told && w->told_word == word && w->told_settled == settled)
        return;
    if (!moor_gate_answers(&member, w->call, &w->seq, &w->cell))
        return;
    w->told = 1;
    w->told_word = word;
    w->told_settled = settled;
    tell(w);
}

/* ---- the thread ------------------------------------------------------------------------------------------------- */

/* 1 when a drain or a reopen is among them: they wait for processes that may die. */
static int look_at_all(const moor_process *process, uint32_t settled)
{
    int deaths = 0;
    for (watch *w = watcher.first; w; w = w->next) {
        if (w->process != process)
            continue;
        look(w, settled);
        deaths |= w->call != MOOR_GATE_FOR_ENTER;
    }
    return deaths;
}

static int is_watched(const moor_process *process)
{
    for (const watch *w = watcher.first; w; w = w->next)
        if (w->process == process)
            return 1;
    return 0;
}

static void *watch_main(void *arg)
{
    moor_process *process = arg;
    moor_member member = moor_member_of(process);
    _Atomic uint32_t *futex = &process->state->gate.settled;
    pthread_mutex_lock(&watcher.mutex);
    while (!watcher.stop && is_watched(process)) {
        uint32_t settled = atomic_load(futex);
        int deaths = look_at_all(process, settled);
        pthread_mutex_unlock(&watcher.mutex);
        if (deaths)
            moor_gate_sweep(&member); /* what it finds changes the word */
        moor_futex_wait(futex, settled, moor_now_ns() + SLICE_NS);
        pthread_mutex_lock(&watcher.mutex);
    }
    watcher.process = NULL;
    pthread_cond_broadcast(&watcher.ended);
    pthread_mutex_unlock(&watcher.mutex);
    return NULL;
}

/* Under the mutex. */
static moor_status start(moor_process *process)
{
    pthread_t thread;
    sigset_t all, before;
    if (watcher.process)
        return watcher.process == process
                   ? MOOR_OK
                   : moor_fail(MOOR_E_STATE, "gate_watch: the thread of a membership that was left "
                                             "has not ended");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&thread, NULL, watch_main, process);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return moor_fail_errno(MOOR_E_NOMEM, err, "gate_watch: no thread");
    pthread_setname_np(thread, "moor-gate");
    pthread_detach(thread);
    watcher.process = process;
    return MOOR_OK;
}

/* ---- the interface ---------------------------------------------------------------------------------------------- */

static moor_status add(moor_process *process, watch *w)
{
    pthread_mutex_lock(&watcher.mutex);
    moor_status status = start(process);
    if (!status) {
        w->next = watcher.first;
        watcher.first = w;
        /* The thread may sleep, and there may be an answer already. */
        look(w, atomic_load(&process->state->gate.settled));
    }
    pthread_mutex_unlock(&watcher.mutex);
    return status;
}

moor_status moor_gate_watch(moor_process *process, uint32_t call, int *fd)
{
    moor_status status = moor_process_check(process, "gate_watch");
    if (status)
        return status;
    if (!fd || call > MOOR_GATE_FOR_REOPEN)
        return moor_fail(MOOR_E_INVALID, "gate_watch: %s", !fd ? "no place for the descriptor" : "no such call");
    pthread_once(&once, set_up);
    if (!ready)
        return moor_fail(MOOR_E_NOMEM, "gate_watch: no condition variable, or pthread_atfork failed");
    watch *w = calloc(1, sizeof(*w));
    if (!w)
        return moor_fail(MOOR_E_NOMEM, "gate_watch: no memory");
    w->process = process;
    w->call = call;
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    status = w->fd < 0 ? moor_fail_errno(MOOR_E_IO, errno, "gate_watch: eventfd") : add(process, w);
    if (status) {
        if (w->fd >= 0)
            close(w->fd);
        free(w);
        return status;
    }
    *fd = w->fd;
    return MOOR_OK;
}

void moor_gate_unwatch(int fd)
{
    pthread_once(&once, set_up);
    if (!ready)
        return;
    pthread_mutex_lock(&watcher.mutex);
    watch **at = &watcher.first;
    while (*at && (*at)->fd != fd)
        at = &(*at)->next;
    watch *w = *at;
    if (w)
        *at = w->next;
    pthread_mutex_unlock(&watcher.mutex);
    if (!w)
        return;
    close(w->fd);
    free(w);
}

int moor_watch_leave(moor_process *process)
{
    struct timespec deadline;
    pthread_once(&once, set_up);
    if (!ready)
        return 1; /* there never was a watch */
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += LEAVE_S;
    pthread_mutex_lock(&watcher.mutex);
    for (watch *w = watcher.first; w; w = w->next)
        if (w->process == process) {
            w->process = NULL;
            tell(w);
        }
    int err = 0;
    watcher.stop = watcher.process == process;
    if (watcher.stop)
        moor_futex_raise(&process->state->gate.settled);
    while (watcher.process == process && !err)
        err = pthread_cond_timedwait(&watcher.ended, &watcher.mutex, &deadline);
    int ended = watcher.process != process;
    if (ended)
        watcher.stop = 0;
    pthread_mutex_unlock(&watcher.mutex);
    if (!ended)
        moor_log(MOOR_LOG_ERROR, "the gate's thread did not end within %d s; the shared state is left to it", LEAVE_S);
    return ended;
}
