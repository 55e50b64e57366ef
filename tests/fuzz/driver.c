/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver — runs a libFuzzer target without libFuzzer, with any compiler: seeds that the target names, and mutations of them
 * from a fixed random sequence, so that every test run does the same. Arguments: files (replayed once each), or a count.
 * With clang and -DMOOR_FUZZ=ON the targets link libFuzzer instead.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 8192, DEFAULT_ROUNDS = 20000 };

static uint64_t seed = 0x9E3779B97F4A7C15u;

static uint32_t next(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 33) % below;
}

static size_t mutate(uint8_t *data, size_t n)
{
    static const uint32_t interesting[] = {0,     1,     15,    16,         17,         255,       256,
                                           65535, 65536, 65537, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    for (uint32_t times = 1 + next(6); times--;) {
        uint32_t at = n ? next((uint32_t)n) : 0, word = interesting[next(sizeof(interesting) / sizeof(interesting[0]))];
        switch (next(6)) {
        case 0:
            if (n)
                data[at] ^= (uint8_t)(1u << next(8));
            break;
        case 1:
            if (n)
                data[at] = (uint8_t)next(256);
            break;
        case 2:
            if (n >= 4)
                memcpy(data + (at > n - 4 ? n - 4 : at), &word, 4);
            break;
        case 3:
            n = at;
            break;
        case 4: /* a piece twice */
            if (n && n < LARGEST / 2) {
                size_t part = 1 + next((uint32_t)n - at);
                memcpy(data + n, data + at, part);
                n += part;
            }
            break;
        default:
            if (n < LARGEST)
                data[n++] = (uint8_t)next(256);
        }
    }
    return n;
}

static int replay(const char *path)
{
    static uint8_t data[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    size_t n = fread(data, 1, sizeof(data), file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, n);
    return 0;
}

int main(int argc, char **argv)
{
    static uint8_t data[LARGEST + 1];
    char *end;
    long rounds = argc > 1 ? strtol(argv[1], &end, 10) : DEFAULT_ROUNDS;
    if (argc > 1 && *end) {
        int failed = 0;
        for (int i = 1; i < argc; i++)
            failed |= replay(argv[i]);
        return failed;
    }
    for (size_t i = 0; i < fuzz_n_seeds(); i++) {
        size_t n = fuzz_seed(i, data, LARGEST);
        LLVMFuzzerTestOneInput(data, n);
    }
    for (long i = 0; i < rounds; i++) {
        size_t n = fuzz_seed(next((uint32_t)fuzz_n_seeds()), data, LARGEST);
        n = mutate(data, n);
        LLVMFuzzerTestOneInput(data, n);
    }
    printf("%ld inputs\n", rounds);
    return 0;
}
