/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as operations on a record store and on the model of it (tests/unit/model): they agree after each. */
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"
#include "play.h"

size_t fuzz_n_seeds(void)
{
    return 24;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t room)
{
    uint64_t x = (index + 1) * 0x9E3779B97F4A7C15u;
    size_t n = 200 + index * 60 < room ? 200 + index * 60 : room;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out[i] = (uint8_t)(x >> 40);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[512];
    int failed;
    size_t used;
    uint64_t ops = play_bytes(data, size, 0, &failed, why, &used);
    if (failed) {
        fprintf(stderr, "operation %llu, byte %zu: %s\n", (unsigned long long)ops, used, why);
        abort();
    }
    return 0;
}
