/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.h — the mock model: which experts a token chose. A pure function, so that whoever reads a record can check every
 * row without having seen the run. Used by worker (to capture), scheduler (token hashes) and consumer (to verify).
 */
#ifndef MOCK_IDS_H
#define MOCK_IDS_H

#include "script.h"

uint64_t mk_mix(uint64_t a, uint64_t b);
uint64_t mk_token_seed(const mk_tokens *tokens, uint64_t position);
/* The token at a position, as the prefix cache sees it. */
uint64_t mk_token(const mk_tokens *tokens, uint64_t position);

/* out[top_k]: the experts of one token in one layer under weights `generation`; distinct, each < experts. */
void mk_experts(const mk_engine *engine, uint64_t token, uint64_t position, uint32_t layer, uint64_t generation,
                uint32_t *out);
/* A draft token that the sampler rejects: another token than the one that ends up at the position. */
uint64_t mk_rejected_token(uint64_t token);

#endif
