/* SPDX-License-Identifier: Apache-2.0 */
#include "resolve.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
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

/* "1.0000002a" and the like: the next field up to `end`, cut off `*at`. */
static int field(char **at, char end, char **out)
{
    *out = *at;
    char *stop = strchr(*at, end);
    if (!stop || stop == *at)
        return 0;
    *stop = 0;
    *at = stop + 1;
    return 1;
}

static int number(const char *text, int base, uint64_t most, uint64_t *out)
{
    char *end;
    if (!*text || strspn(text, base == 16 ? "0123456789abcdef" : "0123456789") != strlen(text) || strlen(text) > 20)
        return 0;
    errno = 0;
    *out = strtoull(text, &end, base);
    return !errno && *out <= most;
}

moor_status moor_ref_parse(const char *ref, size_t ref_len, moor_ref *out)
{
    char text[512], *at = text, *part[10];
    uint64_t store, nonce, layers, top_k;
    if (!ref || ref_len >= sizeof(text) || memchr(ref, 0, ref_len))
        return moor_fail(MOOR_E_INVALID, "resolve: no ref");
    memcpy(text, ref, ref_len);
    text[ref_len] = 0;
    /* moor1:HOST:INSTANCE:STORE.NONCE:HANDLE:DTYPE:RxLxK */
    int good = field(&at, ':', &part[0]) && field(&at, ':', &part[1]) && field(&at, ':', &part[2]) &&
               field(&at, '.', &part[3]) && field(&at, ':', &part[4]) && field(&at, ':', &part[5]) &&
               field(&at, ':', &part[6]) && field(&at, 'x', &part[7]) && field(&at, 'x', &part[8]);
    part[9] = at;
    good = good && strcmp(part[0], "moor1") == 0 && strlen(part[1]) < sizeof(out->host) &&
           strlen(part[2]) < sizeof(out->instance) && number(part[3], 10, MOOR_CLIENT_STORES - 1, &store) &&
           number(part[4], 16, UINT32_MAX, &nonce) && number(part[5], 16, UINT64_MAX, &out->handle) &&
           (strcmp(part[6], "u8") == 0 || strcmp(part[6], "u16") == 0) && number(part[7], 10, UINT64_MAX, &out->rows) &&
           number(part[8], 10, UINT32_MAX, &layers) && number(part[9], 10, UINT32_MAX, &top_k);
    if (!good)
        return moor_fail(MOOR_E_INVALID, "resolve: \"%.*s\" is no ref (moor1:HOST:INSTANCE:STORE:HANDLE:DTYPE:RxLxK)",
                         (int)(ref_len > 200 ? 200 : ref_len), ref);
    memcpy(out->host, part[1], strlen(part[1]) + 1);
    memcpy(out->instance, part[2], strlen(part[2]) + 1);
    out->store_index = (uint32_t)store;
    out->nonce = (uint32_t)nonce;
    out->dtype = strcmp(part[6], "u8") == 0 ? MOOR_DTYPE_U8 : MOOR_DTYPE_U16;
    out->layers = (uint32_t)layers;
    out->top_k = (uint32_t)top_k;
    return MOOR_OK;
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

/* Two threads may attach at the same time; both entries are good, the older one is found from then on. */
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

/* One store's ref. */
static moor_status resolve_one(const char *ref_text, size_t ref_len, double timeout, moor_record **out)
{
    char host[256] = "";
    moor_ref ref;
    moor_record *record = NULL;
    moor_status status = moor_ref_parse(ref_text, ref_len, &ref);
    if (status)
        return status;
    gethostname(host, sizeof(host) - 1);
    if (strcmp(host, ref.host))
        return moor_fail(MOOR_E_NOT_FOUND, "resolve: the ref is of host %s, this is %s", ref.host, host);
    pthread_once(&once, register_fork);
    for (int attempt = 0; attempt < 2; attempt++) {
        struct cached *entry = cache_get(ref.instance);
        int fresh = !entry;
        if (fresh && (status = cache_attach(ref.instance, timeout, &entry)))
            return status;
        status = moor_client_open_handle(entry->client, ref.store_index, ref.nonce, ref.handle, &record);
        cache_put(entry, status == MOOR_E_CLOSED);
        if (status != MOOR_E_CLOSED || fresh)
            break;
    }
    if (!status && (status = check_shape(&ref, record)))
        moor_record_release(record);
    if (!status)
        *out = record;
    return status;
}

moor_status moor_resolve(const char *ref, size_t ref_len, double timeout, moor_record **out)
{
    moor_record *parts[MOOR_CLIENT_STORES];
    uint32_t n = 0;
    moor_status status = MOOR_OK;
    if (!out || !ref)
        return moor_fail(MOOR_E_INVALID, "resolve: out or the ref is NULL");
    for (size_t at = 0; !status && at <= ref_len;) { /* of pipeline stages one each, with "+" between them */
        const char *plus = memchr(ref + at, '+', ref_len - at);
        size_t length = plus ? (size_t)(plus - ref) - at : ref_len - at;
        if (n == MOOR_CLIENT_STORES)
            status = moor_fail(MOOR_E_INVALID, "resolve: a ref of more than %d stores", MOOR_CLIENT_STORES);
        else if (!(status = resolve_one(ref + at, length, timeout, &parts[n])))
            n++;
        at += length + 1;
    }
    if (!status)
        status = moor_stages_join(parts, &n);
    if (!status && n != 1)
        status = moor_fail(MOOR_E_INVALID, "resolve: a ref of %u records", n);
    if (!status) {
        *out = parts[0];
        return MOOR_OK;
    }
    for (uint32_t i = 0; i < n; i++)
        moor_record_release(parts[i]);
    return status == MOOR_E_TIMEOUT ? MOOR_E_INVALID : status; /* nothing is waited for: the ref lacks a stage */
}
