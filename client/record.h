/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h — an opened record in the consumer: one lease, and the view of the mapped arena that it gives.
 *
 * record_* are called by hosts through the ABI, moor_record_from_* by client.c. Immutable after it was made, so any thread
 * may read it and there is no lock. Owns its arrays and one reference of its connection (which keeps the mapping): it stays
 * readable after detach and after the server's death; its lease ends with release or with the connection. A forked child has it, too,
 * leased as in the parent: it reads and releases it (inherit.h); what it would change is MOOR_E_FORKED there.
 */
#ifndef MOOR_RECORD_VIEW_H
#define MOOR_RECORD_VIEW_H

#include "connection.h"
#include "wire.h"

struct moor_record {
    moor_connection *connection; /* NULL: of parts */
    pid_t pid;
    int private; /* opened with MOOR_OPEN_PRIVATE */
    uint32_t index;
    moor_record_info info;
    /* What pipeline stages have of it (stages.h), each a record of its own, and the rows put together. */
    moor_record **parts;
    uint32_t n_parts;
    void *rows;
    /* Arrays and strings that info points to, in the same allocation: segments, versions, labels, id, session id. */
    _Alignas(8) unsigned char space[];
};

/* A reply for which there is no memory: the leases in it are given back. data: n bytes, or fd >= 0: a file of n bytes with it. */
void moor_records_refuse_reply(moor_connection *connection, uint16_t type, const void *data, int fd, uint64_t n);
/* A reply's views → records. Everything in it is checked against the shape of the store; MOOR_E_CORRUPT names what is off.
 * *out: malloc'ed array of *n. On failure the leases of all views that could be read are given back. */
moor_status moor_records_from_reply(moor_connection *connection, const void *payload, size_t size, moor_record ***out,
                                    uint32_t *n);

/* The store where it was opened, and its handle there; MOOR_E_FORKED in a forked child. */
moor_status moor_record_home(const moor_record *record, const moor_shape **shape, uint64_t *handle);
void moor_record_make_private(moor_record *record);
uint32_t moor_record_alias_index(const moor_record *record); /* place among the records of the id it was opened by */

/* record_info of the ABI (its own name is taken by the struct). */
moor_status moor_record_get_info(const moor_record *record, moor_record_info *out);
moor_status moor_record_copy(const moor_record *record, uint64_t start, uint64_t stop, int model_layout,
                             uint32_t dst_dtype, void *dst, size_t dst_bytes, uint8_t *mask);
/* Rows start…stop-1 of it are all that it has from now on; for one that nobody else has seen yet. Its store knows it as a whole. */
void moor_record_narrow_to(moor_record *record, uint64_t start, uint64_t stop);
/* ref.h */
moor_status moor_record_ref(const moor_record *record, char *buf, size_t size);
moor_status moor_record_event(moor_record *record, uint32_t event);
moor_status moor_record_claim(moor_record *record, uint32_t owner);
void moor_record_release(moor_record *record);
/* A malloc'ed array of them: releases all and frees it. */
void moor_records_drop(moor_record **records, uint32_t n);

#endif
