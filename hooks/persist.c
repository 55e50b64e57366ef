/* SPDX-License-Identifier: Apache-2.0 */
#include "persist.h"

#include "../allocator/snapshot.h"
#include "weights.h"

_Static_assert((int)MOOR_SNAP_LABEL_BYTES == (int)MOOR_LABEL_BYTES, "a label of the state fits into a snapshot");

static void label_of(void *user, uint64_t epoch, char text[MOOR_SNAP_LABEL_BYTES])
{
    moor_weights_label_of(user, epoch, text, MOOR_SNAP_LABEL_BYTES);
}

static void label_told(void *user, uint64_t epoch, const char *text)
{
    moor_weights_restore_label(user, epoch, text);
}

static moor_status check(const moor_store *store, const char *what)
{
    if (!store)
        return moor_fail(MOOR_E_INVALID, "%s: no store", what);
    return moor_process_check(store->process, what);
}

moor_status moor_store_save_until(moor_store *store, const char *dir, uint64_t deadline_ns, const _Atomic int *cancel,
                                  uint64_t *bytes)
{
    moor_status status = check(store, "store_save");
    if (status)
        return status;
    moor_state *state = store->process->state;
    moor_save save = {.dir = dir,
                      .deadline_ns = deadline_ns,
                      .cancel = cancel,
                      .epoch = atomic_load(&state->gate.epoch),
                      .label_of = label_of,
                      .user = state};
    return moor_records_save(store->records, &save, bytes);
}

moor_status moor_store_save(moor_store *store, const char *dir, double timeout)
{
    uint64_t ns = timeout > 0 ? (timeout > 1e9 ? (uint64_t)1e18 : (uint64_t)(timeout * 1e9)) : 0;
    return moor_store_save_until(store, dir, moor_now_ns() + ns, NULL, NULL);
}

moor_status moor_store_restore(moor_store *store, const char *dir)
{
    moor_status status = check(store, "store_restore");
    if (status)
        return status;
    moor_state *state = store->process->state;
    moor_restore restore = {.dir = dir, .label = label_told, .user = state};
    moor_restored restored;
    char label[MOOR_LABEL_BYTES]; /* of the weights now: an epoch of the snapshot may take its place */
    moor_weights_label_of(state, atomic_load(&state->gate.epoch), label, sizeof(label));
    status = moor_records_restore(store->records, &restore, &restored);
    if (status)
        return status;
    moor_weights_restore(state, restored.epoch, label);
    moor_log(MOOR_LOG_INFO, "store %u: restored %llu records, %llu rows, from %s", store->store_index,
             (unsigned long long)restored.records, (unsigned long long)restored.rows, dir);
    return MOOR_OK;
}
