/* SPDX-License-Identifier: Apache-2.0 */
#include "ref.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* ---- reading ---------------------------------------------------------------------------------------------------- */

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

/* RxLxK[@START] */
static int read_rows(char *text, moor_ref *out)
{
    char *rows, *layers, *start = strchr(text, '@');
    uint64_t l, k;
    if (start)
        *start++ = 0;
    if (!field(&text, 'x', &rows) || !field(&text, 'x', &layers) || !number(rows, 10, UINT64_MAX, &out->rows) ||
        !number(layers, 10, UINT32_MAX, &l) || !number(text, 10, UINT32_MAX, &k))
        return 0;
    out->layers = (uint32_t)l;
    out->top_k = (uint32_t)k;
    out->start = 0;
    return !start || number(start, 10, UINT64_MAX - out->rows, &out->start);
}

moor_status moor_ref_parse(const char *ref, size_t ref_len, moor_ref *out)
{
    char text[512], *at = text, *part[7];
    uint64_t store, nonce;
    if (!ref || ref_len >= sizeof(text) || memchr(ref, 0, ref_len))
        return moor_fail(MOOR_E_INVALID, "resolve: no ref");
    memcpy(text, ref, ref_len);
    text[ref_len] = 0;
    int good = field(&at, ':', &part[0]) && field(&at, ':', &part[1]) && field(&at, ':', &part[2]) &&
               field(&at, '.', &part[3]) && field(&at, ':', &part[4]) && field(&at, ':', &part[5]) &&
               field(&at, ':', &part[6]);
    good = good && strcmp(part[0], "moor1") == 0 && strlen(part[1]) < sizeof(out->host) &&
           strlen(part[2]) < sizeof(out->instance) && number(part[3], 10, MOOR_CLIENT_STORES - 1, &store) &&
           number(part[4], 16, UINT32_MAX, &nonce) && number(part[5], 16, UINT64_MAX, &out->handle) &&
           (strcmp(part[6], "u8") == 0 || strcmp(part[6], "u16") == 0) && read_rows(at, out);
    if (!good)
        return moor_fail(MOOR_E_INVALID,
                         "resolve: \"%.*s\" is no ref (moor1:HOST:INSTANCE:STORE:HANDLE:DTYPE:RxLxK[@START])",
                         (int)(ref_len > 200 ? 200 : ref_len), ref);
    memcpy(out->host, part[1], strlen(part[1]) + 1);
    memcpy(out->instance, part[2], strlen(part[2]) + 1);
    out->store_index = (uint32_t)store;
    out->nonce = (uint32_t)nonce;
    out->dtype = strcmp(part[6], "u8") == 0 ? MOOR_DTYPE_U8 : MOOR_DTYPE_U16;
    return MOOR_OK;
}

int moor_ref_next(const char *ref, size_t ref_len, size_t *at, const char **part, size_t *part_len)
{
    if (*at > ref_len)
        return 0;
    const char *plus = memchr(ref + *at, '+', ref_len - *at);
    *part = ref + *at;
    *part_len = plus ? (size_t)(plus - *part) : ref_len - *at;
    *at += *part_len + 1;
    return 1;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

void moor_ref_put(moor_ref_text *out, const moor_ref *part)
{
    char start[24] = "";
    char *at = out->buf && out->used < out->size ? out->buf + out->used : NULL;
    if (part->start)
        snprintf(start, sizeof(start), "@%llu", (unsigned long long)part->start);
    out->used += (size_t)snprintf(at, at ? out->size - out->used : 0, "%smoor1:%s:%s:%u.%08x:%016llx:%s:%llux%ux%u%s",
                                  out->used ? "+" : "", part->host, part->instance, part->store_index, part->nonce,
                                  (unsigned long long)part->handle, part->dtype == MOOR_DTYPE_U8 ? "u8" : "u16",
                                  (unsigned long long)part->rows, part->layers, part->top_k, start);
}

moor_status moor_ref_end(const moor_ref_text *out, const char *what)
{
    if (out->buf && out->used < out->size)
        return MOOR_OK;
    return moor_fail(MOOR_E_INVALID, "%s: the text needs %zu bytes, the buffer has %zu", what, out->used + 1,
                     out->buf ? out->size : 0);
}

moor_status moor_ref_part(const char *ref, size_t ref_len, uint64_t head, uint64_t tail, char *buf, size_t size)
{
    moor_ref_text out = {buf, size, 0};
    const char *text;
    size_t at = 0, length;
    if (!ref)
        return moor_fail(MOOR_E_INVALID, "ref_part: the ref is NULL");
    while (moor_ref_next(ref, ref_len, &at, &text, &length)) {
        moor_ref part;
        moor_status status = moor_ref_parse(text, length, &part);
        if (status)
            return status;
        if (head > part.rows || tail > part.rows - head)
            return moor_fail(MOOR_E_RANGE, "ref_part: %llu rows without the first %llu and the last %llu",
                             (unsigned long long)part.rows, (unsigned long long)head, (unsigned long long)tail);
        part.start += head;
        part.rows -= head + tail;
        moor_ref_put(&out, &part);
    }
    return moor_ref_end(&out, "ref_part");
}
