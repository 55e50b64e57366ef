/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h — the consumer's side of an instance: attach and find the stores (client.c), open records by id (open.c).
 *
 * Called by hosts through the ABI, and by plugin/visit.c and plugin/status.c. A moor_client owns one connection per store of
 * the instance, made when first needed and again when a store's process was replaced. A mutex protects the table of connections
 * and is never held during a socket call. Counted inside, because moor_resolve shares clients among threads. In a forked child
 * everything returns MOOR_E_FORKED; in the parent a connection over which records were open then is replaced by a new one (inherit.h).
 *
 * A store that did not answer in time is waited for once, not in every call: it is left out, and said to be, until something comes from it.
 *
 * With one store an open waits on the store's side. With several (data-parallel replicas) each is asked; the one that knows
 * the id but has not sealed it is waited on, and while none knows it they are asked again every few milliseconds. What pipeline stages
 * have of a record is one record (stages.h).
 */
#ifndef MOOR_CLIENT_H
#define MOOR_CLIENT_H

#include "locate.h"
#include "record.h"

moor_status moor_attach(const char *instance, const char *dir, double timeout, moor_client **out);
enum { MOOR_CLIENT_PATIENCE_S = 5 }; /* a store that does not answer for so long after it should is given up */
void moor_detach(moor_client *client);
const char *moor_client_instance(const moor_client *client);

moor_status moor_open(moor_client *client, const char *id, uint32_t id_len, double timeout, uint32_t flags,
                      uint64_t rows, moor_record **out);
moor_status moor_open_all(moor_client *client, const char *id, uint32_t id_len, double timeout, moor_record ***out,
                          uint32_t *n);
void moor_records_free(moor_record **records, uint32_t n);
moor_status moor_client_truncate(moor_client *client, const char *id, uint32_t id_len, uint64_t rows);
moor_status moor_client_truncate_within(moor_client *client, const char *id, uint32_t id_len, uint64_t rows,
                                        uint64_t min_rows);

/* ---- inside libmoor ---- */

/* Attaches to what moor_locate found, without waiting for it. patience: seconds after which a store that does not answer is
 * given up (5 for moor_attach). */
moor_status moor_client_make(const moor_located *where, double patience, moor_client **out);
/* Of the instance whose directory dir_fd is, whatever has become of its name; takes dir_fd, also when it fails. Nothing is connected yet. */
moor_status moor_client_make_at(const moor_located *where, int dir_fd, double patience, moor_client **out);
/* The client that sessions are asked for by. A session ends with the connection it was started over, and over these no record is opened, so
 * that no fork hands them on. Made when first needed, and the client's. */
moor_status moor_client_for_sessions(moor_client *client, moor_client **out);
/* Connections to all stores there are now, one reference each, given back with moor_client_give. */
moor_status moor_client_take(moor_client *client, moor_connection *out[MOOR_CLIENT_STORES], uint32_t *n);
/* MOOR_E_TIMEOUT, with `what` and the store's number, when there is a store that was given up and has not stirred since: it is not among those
 * that are taken, and what it has is not known. MOOR_OK: none. */
moor_status moor_client_unanswered(moor_client *client, const char *what);
void moor_client_give(moor_connection **connections, uint32_t n);
uint64_t moor_client_patience_ns(const moor_client *client); /* how long one answer is waited for */
const moor_located *moor_client_where(const moor_client *client);
int moor_client_dir_fd(const moor_client *client);
/* A JSON array with an object per store; malloc'ed. Each is waited for with the client's patience, not less: one that is given up is so for
 * every call of the client. */
moor_status moor_client_store_stats(moor_client *client, char **json);
moor_status moor_client_check(const moor_client *client, const char *what);
/* MOOR_E_CLOSED when its server is gone. */
moor_status moor_client_lives(moor_client *client);
/* For what needs the state: MOOR_E_CLOSED also when the server lives and its files were removed. */
moor_status moor_client_has_files(moor_client *client, const char *what);
/* Opens by handle at the store with this nonce: how a ref is resolved. */
moor_status moor_client_open_handle(moor_client *client, uint32_t store_index, uint32_t nonce, moor_handle handle,
                                    moor_record **out);

/* 1 when the server said that it records nothing, and why: no store will come. One small read of the state file. */
int moor_client_recording_off(const moor_client *client, char *why, size_t size);

/* The plugin's part of a client (its visit in the shared state): set once, freed by detach. */
void *moor_client_visit(moor_client *client);
/* Returns the one that stays: `visit`, or an earlier one. */
void *moor_client_set_visit(moor_client *client, void *visit, void (*end)(void *visit));

#endif
