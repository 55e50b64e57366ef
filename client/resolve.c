/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "ref.h"
#include "stages.h"

/* A cached client. Counted: a thread that found its server gone replaces it while others still call it. */
struct cached {
    struct cached *next;
    moor_client *client;
    char instance[64];
    uint32_t refs; /* one of the list, one of each user */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cached *cache, *parents; /* parents: a forked child's inheritance, never touched */

static void after_fork_child(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&mutex, &fresh, sizeof(fresh));
    if (cache)
        parents = cache;
    cache = NULL;
}

static void register_fork(void)
{
    pthread_atfork(NULL, NULL, after_fork_child);
}

/* ---- the cache -------------------------------------------------------------------------------------------------- */

static struct cached *cache_get(const char *instance)
{
    pthread_mutex_lock(&mutex);
    struct cached *entry = cache;
    while (entry && strcmp(entry->instance, instance))
        entry = entry->next;
    if (entry)
        entry->refs++;
    pthread_mutex_unlock(&mutex);
    return entry;
}

/* A user's reference ends; gone: its server is, so nobody shall find the entry any more. */
static void cache_put(struct cached *entry, int gone)
{
    pthread_mutex_lock(&mutex);
    for (struct cached **at = &cache; gone && *at; at = &(*at)->next)
        if (*at == entry) {
            *at = entry->next;
            entry->refs--;
            break;
        }
    int last = --entry->refs == 0;
    pthread_mutex_unlock(&mutex);
    if (last) {
        moor_detach(entry->client);
        free(entry);
    }
}

/* Two threads may attach at the same time; both entries are good, the newer one is found from then on. */
static moor_status cache_attach(const char *instance, double timeout, struct cached **out)
{
    struct cached *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return moor_fail(MOOR_E_NOMEM, "resolve: no memory");
    moor_status status = moor_attach(instance, NULL, timeout, &entry->client);
    if (status) {
        free(entry);
        return status;
    }
    snprintf(entry->instance, sizeof(entry->instance), "%s", instance);
    entry->refs = 2;
    pthread_mutex_lock(&mutex);
    entry->next = cache;
    cache = entry;
    pthread_mutex_unlock(&mutex);
    *out = entry;
    return MOOR_OK;
}

static moor_status check_shape(const moor_ref *ref, moor_record *record)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    moor_record_get_info(record, &info);
    if (info.dtype == ref->dtype && info.layers == ref->layers && info.top_k == ref->top_k)
        return MOOR_OK;
    return moor_fail(MOOR_E_CORRUPT,
                     "resolve: the ref says %u layers, top %u, dtype %u, the record of request %s has %u, %u, %u",
                     ref->layers, ref->top_k, ref->dtype, info.request_id, info.layers, info.top_k, info.dtype);
}

/* One store's part of a ref, as a whole. */
static moor_status resolve_one(const moor_ref *ref, double timeout, moor_record **out)
{
    char host[256] = "";
    moor_record *record = NULL;
    moor_status status = MOOR_OK;
    gethostname(host, sizeof(host) - 1);
    if (strcmp(host, ref->host))
        return moor_fail(MOOR_E_NOT_FOUND, "resolve: the ref is of host %s, this is %s", ref->host, host);
    pthread_once(&once, register_fork);
    for (int fresh = 0; !fresh;) {
        struct cached *entry = cache_get(ref->instance);
        fresh = !entry;
        if (fresh && (status = cache_attach(ref->instance, timeout, &entry)))
            return status;
        uint64_t begin_ns = moor_now_ns(), patience_ns = moor_client_patience_ns(entry->client);
        status = moor_client_open_handle(entry->client, ref->store_index, ref->nonce, ref->handle, &record);
        /* One that was waited for in vain only hangs: its client remembers that, and another would wait as long. */
        int gone = status == MOOR_E_CLOSED && moor_now_ns() - begin_ns < patience_ns;
        cache_put(entry, gone);
        if (!gone)
            break;
    }
    if (!status && (status = check_shape(ref, record)))
        moor_record_release(record);
    if (!status)
        *out = record;
    return status;
}

/* Of pipeline stages one record each. rows: which ones all of the parts name. */
static moor_status resolve_parts(const char *ref, size_t ref_len, double timeout, moor_record **parts, uint32_t *n,
                                 moor_ref *rows)
{
    const char *text;
    size_t at = 0, length;
    while (moor_ref_next(ref, ref_len, &at, &text, &length)) {
        moor_ref part;
        moor_status status = moor_ref_parse(text, length, &part);
        if (!status && *n == MOOR_CLIENT_STORES)
            status = moor_fail(MOOR_E_INVALID, "resolve: a ref of more than %d stores", MOOR_CLIENT_STORES);
        if (!status && *n && (part.start != rows->start || part.rows != rows->rows))
            status =
                moor_fail(MOOR_E_INVALID,
                          "resolve: the parts of a ref name different rows, %llu from %llu on and %llu from %llu on",
                          (unsigned long long)rows->rows, (unsigned long long)rows->start,
                          (unsigned long long)part.rows, (unsigned long long)part.start);
        if (!status)
            status = resolve_one(&part, timeout, &parts[*n]);
        if (status)
            return status;
        ++*n;
        *rows = part;
    }
    return MOOR_OK;
}

/* The rows that the ref names; a record that was cut since has fewer. */
static moor_status keep_rows(moor_record *record, const moor_ref *ref)
{
    uint64_t rows = record->info.rows;
    if (ref->start > rows)
        return moor_fail(MOOR_E_RANGE, "resolve: the ref names rows from %llu on, the record of request %s has %llu",
                         (unsigned long long)ref->start, record->info.request_id, (unsigned long long)rows);
    moor_record_narrow_to(record, ref->start, ref->rows < rows - ref->start ? ref->start + ref->rows : rows);
    return MOOR_OK;
}

moor_status moor_resolve(const char *ref, size_t ref_len, double timeout, moor_record **out)
{
    moor_record *parts[MOOR_CLIENT_STORES];
    moor_ref rows = {.start = 0};
    uint32_t n = 0;
    if (!out || !ref)
        return moor_fail(MOOR_E_INVALID, "resolve: out or the ref is NULL");
    moor_status status = resolve_parts(ref, ref_len, timeout, parts, &n, &rows);
    if (!status && (status = moor_stages_join(parts, &n)) == MOOR_E_TIMEOUT)
        status = MOOR_E_INVALID; /* nothing is waited for: the ref lacks a stage */
    if (!status && n != 1)
        status = moor_fail(MOOR_E_INVALID, "resolve: a ref of %u records", n);
    if (!status)
        status = keep_rows(parts[0], &rows);
    if (!status) {
        *out = parts[0];
        return MOOR_OK;
    }
    for (uint32_t i = 0; i < n; i++)
        moor_record_release(parts[i]);
    return status;
}
