/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <string.h>

static const moor_dtype dtypes[] = {
    {MOOR_DTYPE_U8, 1, 0xFF, "uint8", "B"},       {MOOR_DTYPE_U16, 2, 0xFFFF, "uint16", "H"},
    {MOOR_DTYPE_I16, 2, 0x7FFF, "int16", "h"},    {MOOR_DTYPE_I32, 4, 0x7FFFFFFF, "int32", "i"},
    {MOOR_DTYPE_I64, 8, INT64_MAX, "int64", "q"},
};
enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

const moor_dtype *moor_dtype_of(uint32_t code)
{
    for (unsigned i = 0; i < N_DTYPES; i++)
        if (dtypes[i].code == code)
            return &dtypes[i];
    return NULL;
}

const moor_dtype *moor_dtype_named(const char *name)
{
    for (unsigned i = 0; i < N_DTYPES; i++)
        if (!strcmp(dtypes[i].name, name))
            return &dtypes[i];
    return NULL;
}

const moor_dtype *moor_dtype_format(const char *format, size_t size)
{
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    if (!*format || format[1])
        return NULL;
    bool is_signed = strchr("hilq", *format) != NULL;
    if (!is_signed && !strchr("BH", *format))
        return NULL;
    for (unsigned i = 0; i < N_DTYPES; i++)
        if (dtypes[i].size == size && (dtypes[i].code >= MOOR_DTYPE_I16) == is_signed)
            return &dtypes[i];
    return NULL;
}

bool moor_rows_missing(const moor_rows *rows, uint64_t from, uint64_t *start, uint64_t *stop)
{
    bool found = false;
    for (uint32_t i = 0; i < rows->n_segments; i++) {
        const moor_segment *s = &rows->segments[i];
        if (s->present || !s->rows || s->start + s->rows <= from) {
            if (found && s->rows)
                return true;
            continue;
        }
        if (!found)
            *start = s->start;
        *stop = s->start + s->rows; /* adjacent missing segments are one range */
        found = true;
    }
    return found;
}

bool moor_rows_incomplete(const moor_rows *rows, uint64_t start, uint64_t stop)
{
    uint64_t first, last;
    return start < stop && moor_rows_missing(rows, start, &first, &last) && first < stop;
}

const void *moor_rows_address(const moor_rows *rows, uint64_t start, uint64_t stop)
{
    if (start >= stop)
        return NULL;
    for (uint32_t i = 0; i < rows->n_segments; i++) {
        const moor_segment *s = &rows->segments[i];
        if (start < s->start || start >= s->start + s->rows)
            continue;
        if (!s->present || stop > s->start + s->rows)
            return NULL;
        return (const char *)s->data + (start - s->start) * moor_rows_bytes(rows, false, rows->dtype);
    }
    return NULL;
}

size_t moor_rows_bytes(const moor_rows *rows, bool model_layout, const moor_dtype *dtype)
{
    return (size_t)(model_layout ? rows->model_layers : rows->layers) * rows->top_k * dtype->size;
}

#define CONVERT(from, to)                                                                                              \
    static void convert_##from##_##to(const void *src, void *dst, size_t n)                                            \
    {                                                                                                                  \
        const from *s = src;                                                                                           \
        to *d = dst;                                                                                                   \
        for (size_t i = 0; i < n; i++)                                                                                 \
            d[i] = (to)s[i];                                                                                           \
    }
CONVERT(uint8_t, uint8_t)
CONVERT(uint8_t, uint16_t)
CONVERT(uint8_t, uint32_t)
CONVERT(uint8_t, uint64_t)
CONVERT(uint16_t, uint16_t)
CONVERT(uint16_t, uint32_t)
CONVERT(uint16_t, uint64_t)
#undef CONVERT

typedef void convert_fn(const void *src, void *dst, size_t n);

/* Signed destinations are written as unsigned ones of their size: the caller has checked that every id fits. */
static convert_fn *convert_for(uint32_t from_size, uint32_t to_size)
{
    if (from_size == 1)
        return to_size == 1   ? convert_uint8_t_uint8_t
               : to_size == 2 ? convert_uint8_t_uint16_t
               : to_size == 4 ? convert_uint8_t_uint32_t
                              : convert_uint8_t_uint64_t;
    return to_size == 2   ? convert_uint16_t_uint16_t
           : to_size == 4 ? convert_uint16_t_uint32_t
                          : convert_uint16_t_uint64_t;
}

static void copy_segment(const moor_rows *rows, const char *src, uint64_t n, bool model_layout, const moor_dtype *dtype,
                         char *dst)
{
    convert_fn *convert = convert_for(rows->dtype->size, dtype->size);
    size_t ids = (size_t)rows->layers * rows->top_k;
    if (!model_layout) {
        if (rows->dtype->size == dtype->size)
            memcpy(dst, src, n * ids * dtype->size);
        else
            convert(src, dst, n * ids);
        return;
    }
    size_t in = (size_t)rows->top_k * rows->dtype->size, out = (size_t)rows->top_k * dtype->size;
    size_t row_out = moor_rows_bytes(rows, true, dtype);
    memset(dst, 0, n * row_out); /* dense layers */
    for (uint64_t r = 0; r < n; r++, dst += row_out)
        for (uint32_t l = 0; l < rows->layers; l++, src += in)
            convert(src, dst + (size_t)rows->layer_ids[l] * out, rows->top_k);
}

void moor_rows_copy(const moor_rows *rows, uint64_t start, uint64_t stop, bool model_layout, const moor_dtype *dtype,
                    void *dst)
{
    size_t row_in = moor_rows_bytes(rows, false, rows->dtype), row_out = moor_rows_bytes(rows, model_layout, dtype);
    for (uint32_t i = 0; i < rows->n_segments; i++) {
        const moor_segment *s = &rows->segments[i];
        uint64_t a = s->start > start ? s->start : start;
        uint64_t b = s->start + s->rows < stop ? s->start + s->rows : stop;
        if (a >= b)
            continue;
        char *to = (char *)dst + (a - start) * row_out;
        if (s->present)
            copy_segment(rows, (const char *)s->data + (a - s->start) * row_in, b - a, model_layout, dtype, to);
        else
            memset(to, 0, (b - a) * row_out);
    }
}

void moor_rows_mask(const moor_rows *rows, uint64_t start, uint64_t stop, uint8_t *mask)
{
    for (uint32_t i = 0; i < rows->n_segments; i++) {
        const moor_segment *s = &rows->segments[i];
        uint64_t a = s->start > start ? s->start : start;
        uint64_t b = s->start + s->rows < stop ? s->start + s->rows : stop;
        if (a < b)
            memset(mask + (a - start), s->present ? 1 : 0, b - a);
    }
}
