/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: saved while the store goes on, restored into a second one that is compared as a whole, and may take over. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "allocator/error.h"
#include "allocator/heap.h"
#include "allocator/sessions.h"
#include "allocator/snapfile.h"
#include "allocator/snapshot.h"
#include "ops.h"

/* ---- system calls that fail ---- */

static _Thread_local uint32_t calls_left; /* 0: none fails */
static _Thread_local int call_failed, replaced;

static int fail_call(const char *call)
{
    if (!calls_left || --calls_left)
        return 0;
    call_failed = 1;
    replaced = strcmp(call, "fsync of the directory") == 0; /* the snapshot is in place by then */
    return ENOSPC;
}

static void fail_calls(uint32_t nth)
{
    calls_left = nth;
    call_failed = replaced = 0;
    moor_snapfile_set_hook(nth ? fail_call : NULL);
}

/* ---- saving ---- */

static int make_dir(play *p)
{
    if (p->dir[0])
        return 0;
    snprintf(p->dir, sizeof(p->dir), "%s/moor-model-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (mkdtemp(p->dir))
        return 0;
    p->dir[0] = 0;
    return check_fail(p->l, "no directory for snapshots");
}

static void label_of(void *user, uint64_t epoch, char text[MOOR_SNAP_LABEL_BYTES])
{
    (void)user;
    if (epoch % 3)
        snprintf(text, MOOR_SNAP_LABEL_BYTES, "label %llu", (unsigned long long)epoch);
}

/* The engine comes to rest: no step, no request, everything sealed. */
static int rest(play *p)
{
    lab *l = p->l;
    if (op_abandon(p))
        return 1;
    for (uint32_t i = 0; i < W_REQUESTS; i++) {
        w_request *q = &l->w.request[i];
        if (!q->state)
            continue;
        if (q->state == 1)
            w_end(&l->w, q);
        q->state = 0;
        m_finished(&l->m, q->name);
        if (same(p, moor_records_finished(l->s, check_id(q->name), 2), MOOR_OK, "finished"))
            return 1;
    }
    for (uint32_t i = 0; i < M_RECORDS; i++) { /* what was told of, and never ran */
        uint32_t name = l->m.record[i].name;
        while (l->m.record[i].used && !l->m.record[i].sealed) {
            moor_status want = m_seal_now(&l->m, name, M_ALIASES, 0, MOOR_SEAL_COMMITTED);
            if (same(p, moor_records_seal(l->s, check_hash(name), 0, MOOR_SEAL_COMMITTED), want, "seal"))
                return 1;
        }
    }
    return 0;
}

static int remember_saved(play *p)
{
    if (!p->saved) {
        p->saved = calloc(1, sizeof(*p->saved));
        if (!p->saved || !m_open(p->saved))
            return check_fail(p->l, "no memory for the test");
    }
    m_restore(p->saved, &p->l->m);
    p->saved_blocks = check_blocks(p->l->s);
    memcpy(p->saved_handles, p->old, sizeof(p->old));
    return 0;
}

static int op_save(play *p)
{
    lab *l = p->l;
    uint32_t how = play_take(p, 16);
    if (make_dir(p) || (how & 3 && rest(p)))
        return 1;
    SAY("save\n");
    moor_save save = {.dir = p->dir, .deadline_ns = UINT64_MAX, .epoch = l->w.epoch, .label_of = label_of};
    fail_calls(how > 11 ? 1 + play_take(p, 24) : 0);
    moor_fault_arm(p->fault);
    moor_status got = moor_records_save(l->s, &save, NULL), want = m_save(&l->m);
    int put = replaced, refused = call_failed;
    fail_calls(0);
    if (refused && !want && !without_memory(got)) {
        SAY("  a call failed\n");
        if (got != MOOR_E_IO)
            return same(p, got, MOOR_E_IO, "save");
        return put ? remember_saved(p) : 0;
    }
    if (without_memory(got)) /* what was there is there still: a restore will tell */
        return 0;
    return same(p, got, want, "save") || (!got && remember_saved(p));
}

/* ---- restoring ---- */

typedef struct labels {
    uint64_t last;
    int bad;
    uint64_t seen[256];
    uint32_t n;
} labels;

static void on_label(void *user, uint64_t epoch, const char *text)
{
    labels *told = user;
    char want[MOOR_SNAP_LABEL_BYTES] = "";
    label_of(NULL, epoch, want);
    told->bad |= epoch <= told->last || strcmp(text, want) != 0;
    told->last = epoch;
    if (told->n < 256)
        told->seen[told->n++] = epoch;
}

/* Each version that a row has was told of, if it has a label. */
static int labels_agree(lab *l, const labels *told)
{
    if (told->bad)
        return check_fail(l, "labels: not in order, or another text");
    for (uint32_t i = 0; i < M_RECORDS && told->n < 256; i++) {
        const m_record *r = &l->m.record[i];
        for (uint64_t row = 0; r->used && row < r->end; row++) {
            uint32_t k = 0;
            while (k < told->n && told->seen[k] != r->row[row].epoch)
                k++;
            if (r->row[row].seed && r->row[row].epoch % 3 && k == told->n)
                return check_fail(l, "no label of version %llu", (unsigned long long)r->row[row].epoch);
        }
    }
    return 0;
}

static int counts_agree(lab *l, const moor_restored *got, uint32_t blocks)
{
    uint64_t records = 0, rows = 0;
    for (uint32_t i = 0; i < M_RECORDS; i++) {
        records += l->m.record[i].used;
        rows += l->m.record[i].used ? l->m.record[i].end : 0;
    }
    AGREE(got->records, records, "restored records%s", "");
    AGREE(got->rows, rows, "restored rows%s", "");
    AGREE(l->s->blocks.live, blocks, "restored blocks%s", "");
    return 0;
}

/* A handle that was stale, or of a record that was freed and still read, is stale for good. */
static int stale_stays_stale(play *p, lab *fresh)
{
    for (uint32_t i = 0; i < PLAY_HANDLES; i++) {
        moor_handle handle = p->saved_handles[i];
        if (!handle || m_by_handle(&fresh->m, handle) || (uint32_t)handle >= fresh->s->slots.count)
            continue;
        moor_status got = moor_records_unlease(fresh->s, handle);
        if (got != MOOR_E_STALE)
            return check_fail(fresh, "handle %llx of a freed record: %s", (unsigned long long)handle,
                              moor_status_name(got));
    }
    return 0;
}

/* The restored store as a whole: what its model says, with blocks shared as they were. */
static int compare(play *p, lab *fresh, const moor_restored *got, const labels *told)
{
    m_restore(&fresh->m, p->saved);
    fresh->whole = 1;
    int bad = check_all(fresh) || check_audit(fresh) || counts_agree(fresh, got, p->saved_blocks) ||
              labels_agree(fresh, told) || stale_stays_stale(p, fresh);
    return bad ? check_fail(p->l, "restored: %.480s", fresh->why) : 0;
}

/* The sequence goes on in the restored store, with another engine: what was not saved is lost. */
static void take_over(play *p, lab *fresh)
{
    lab *old = p->l;
    play_forget_views(p, UINT32_MAX);
    fresh->w = old->w;
    world *w = &fresh->w;
    w_new_step(w);
    for (uint32_t i = 0; i < W_REQUESTS; i++) {
        if (w->request[i].state == 1)
            w_end(w, &w->request[i]);
        w->request[i].state = 0;
    }
    w_kv_reset(w);
    fresh->refused = fresh->s->arena->refused;
    p->l = fresh;
    play_lab_free(old);
    memcpy(p->old, p->saved_handles, sizeof(p->old)); /* those that came later were never given */
}

/* Nothing was restored: it is as it was, new. */
static int still_new(play *p, lab *fresh)
{
    fresh->whole = 1;
    if (check_all(fresh) || check_audit(fresh) || fresh->s->ids.groups || fresh->s->sessions->table.used)
        return check_fail(p->l, "after a refused restore: %.480s", fresh->why);
    return 0;
}

static int op_restore(play *p)
{
    uint32_t how = play_take(p, 8);
    labels told = {.n = 0};
    moor_restored got = {0};
    if (make_dir(p))
        return 1;
    lab *fresh = play_lab(p->l);
    moor_restore restore = {.dir = p->dir, .label = on_label, .user = &told};
    if (!fresh)
        return check_fail(p->l, "no memory for the test");
    SAY("restore, how %u\n", how);
    fail_calls(how == 7 ? 1 + play_take(p, 16) : 0);
    moor_fault_arm(p->fault);
    moor_status status = moor_records_restore(fresh->s, &restore, &got), want = p->saved ? MOOR_OK : MOOR_E_NOT_FOUND;
    int lost = without_memory(status) || (call_failed && status == MOOR_E_IO) ||
               (status == MOOR_E_FULL && fresh->s->arena->refused);
    fail_calls(0);
    moor_fault_arm(0);
    int bad = lost ? still_new(p, fresh) : same(p, status, want, "restore");
    if (!bad && !status)
        bad = compare(p, fresh, &got, &told);
    if (!bad && !status && how & 1) {
        take_over(p, fresh);
        return 0;
    }
    if (!bad && !status && how & 2 && play_empty(fresh))
        bad = check_fail(p->l, "restored, then released: %.480s", fresh->why);
    play_lab_free(fresh);
    return bad;
}

/* Only a new store is restored into. */
static int op_restore_here(play *p)
{
    lab *l = p->l;
    moor_restore restore = {.dir = p->dir};
    uint32_t sessions = 0;
    for (uint32_t i = 0; i < M_SESSIONS; i++)
        sessions += l->m.session[i].state != MOOR_SESSION_NEVER;
    if (make_dir(p) || (!l->m.created && !sessions))
        return l->why[0] != 0;
    SAY("restore into a store that is not new\n");
    return same(p, moor_records_restore(l->s, &restore, NULL), MOOR_E_STATE, "restore into a store that is not new");
}

int op_snapshot(play *p)
{
    uint32_t what = play_take(p, 16);
    if (play_take(p, 4) == 3)
        p->fault = 1 + play_take(p, 48);
    return what < 8 ? op_save(p) : what < 15 ? op_restore(p) : op_restore_here(p);
}
