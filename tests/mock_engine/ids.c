/* SPDX-License-Identifier: Apache-2.0 */
#include "ids.h"

/* Ids at which a narrowing, a sign or a sentinel would show; a quarter of the tokens start at one of them. */
static const uint32_t g_edges[] = {127, 128, 255, 256, 383, 511, 895, 32767, 32768, 65535};

uint64_t mk_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a + 0x9e3779b97f4a7c15ull * (b + 1); /* splitmix64's finaliser */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t mk_token_seed(const mk_tokens *tokens, uint64_t position)
{
    uint32_t i = 0;
    while (i + 1 < tokens->n && position >= tokens->run[i].stop)
        i++;
    uint64_t seed = tokens->run[i].seed;
    return tokens->fork && position >= tokens->fork_at ? mk_mix(seed, tokens->fork) : seed;
}

uint64_t mk_token(const mk_tokens *tokens, uint64_t position)
{
    return mk_mix(mk_token_seed(tokens, position), position);
}

uint64_t mk_rejected_token(uint64_t token)
{
    return mk_mix(token, 0x7265);
}

void mk_experts(const mk_engine *engine, uint64_t token, uint64_t position, uint32_t layer, uint64_t generation,
                uint32_t *out)
{
    uint64_t h = mk_mix(mk_mix(mk_mix(token, position), layer), generation);
    uint32_t first = (uint32_t)(h % engine->experts), edge = g_edges[(h >> 8) % (sizeof g_edges / sizeof *g_edges)];
    if (h >> 62 == 0 && edge < engine->experts)
        first = edge;
    /* k * step < experts for every k, hence distinct */
    uint32_t room = engine->top_k > 1 ? (engine->experts - 1) / (engine->top_k - 1) : 1;
    uint32_t step = 1 + (uint32_t)((h >> 32) % room);
    for (uint32_t k = 0; k < engine->top_k; k++)
        out[k] = (first + k * step) % engine->experts;
}
