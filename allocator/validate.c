/* SPDX-License-Identifier: Apache-2.0 */
#include "validate.h"

#include <stdio.h>
#include <string.h>

static uint32_t id_at(const moor_records *records, const uint8_t *row, uint32_t i)
{
    if (records->id_bytes == 1)
        return row[i];
    uint16_t id;
    memcpy(&id, row + 2 * (size_t)i, sizeof(id));
    return id;
}

/* Index of an id in the row that cannot be right, or -1. */
static int64_t bad_id(const moor_records *records, const uint8_t *row)
{
    uint32_t k = records->config.top_k;
    for (uint32_t layer = 0; layer < records->config.layers; layer++) {
        for (uint32_t i = 0; i < k; i++) {
            uint32_t id = id_at(records, row, layer * k + i);
            if (id >= records->config.num_experts)
                return layer * k + i;
            for (uint32_t j = 0; j < i; j++) {
                if (id_at(records, row, layer * k + j) == id)
                    return layer * k + i;
            }
        }
    }
    return -1;
}

static void complain(moor_records *records, const moor_record_slot *record, uint64_t row, uint32_t at, uint32_t id)
{
    if (records->complaint[0])
        return;
    uint32_t k = records->config.top_k;
    snprintf(records->complaint, sizeof(records->complaint),
             "request %.100s: token %llu, layer %d: id %u is %s; the row is missing", record->id,
             (unsigned long long)row, records->layer_ids[at / k], id,
             id >= records->config.num_experts ? "no expert of this model" : "there twice");
}

void moor_record_validate(moor_records *records, moor_record_slot *record)
{
    moor_rows *rows = &record->rows;
    for (uint64_t row = 0; row < rows->end; row++) {
        moor_piece *piece = &rows->piece[moor_rows_at(rows, row)];
        if (!piece->block) {
            row = piece->start + piece->rows - 1;
            continue;
        }
        const uint8_t *data = moor_piece_data(piece, row, records->row_bytes);
        int64_t at = bad_id(records, data);
        if (at < 0)
            continue;
        complain(records, record, row, (uint32_t)at, id_at(records, data, (uint32_t)at));
        uint64_t first = row, n = 1;
        if (moor_rows_reserve(rows, 2)) { /* without memory to split the segment, all of it is doubtful */
            first = piece->start;
            n = piece->rows;
        }
        moor_rows_void(rows, &records->blocks, first, n, MOOR_REASON_VALIDATION);
    }
}
