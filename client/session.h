/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h — the consumer's side of sessions: which store has one, the requests, and checked results.
 *
 * Called by hosts through the ABI (moor.h says what each function does). Owns nothing between calls and has no lock: a moor_client and its
 * connections are thread-safe. A result is one malloc'ed piece.
 *
 * With several stores (data-parallel replicas) a session is in one of them: that of its first record. A start tells all of them, so that each
 * knows the id; before an insert the others are asked whether they hold keys of it; a reader asks the one that does.
 */
#ifndef MOOR_CLIENT_SESSION_H
#define MOOR_CLIENT_SESSION_H

#include "client.h"
#include "wire.h"

moor_status moor_client_session_start(moor_client *client, const char *id, uint32_t id_len, uint32_t flags);
moor_status moor_client_session_insert(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                       uint32_t key_len, const moor_segment_args *args);
moor_status moor_client_session_search(moor_client *client, const char *id, uint32_t id_len, const char *text,
                                       uint32_t text_len, moor_found_key **out);
moor_status moor_client_session_keys(moor_client *client, const char *id, uint32_t id_len, moor_key_list **out);
moor_status moor_client_session_export(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                       uint32_t key_len, moor_exported **out);
moor_status moor_client_session_rollback(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                         uint32_t key_len, const int32_t *tokens, uint64_t n_tokens,
                                         uint64_t min_tokens, uint64_t *kept, uint32_t *key_left);
moor_status moor_client_session_release_key(moor_client *client, const char *id, uint32_t id_len, const char *key,
                                            uint32_t key_len);
moor_status moor_client_session_release(moor_client *client, const char *id, uint32_t id_len);
/* Moves reader to the records' views of an export's reply. 0: it is none. */
int moor_client_exported_views(moor_wire_reader *reader);
void moor_client_session_free(void *result);

#endif
