/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h — what a fuzz target provides: libFuzzer's entry point, and seeds for driver.c. */
#ifndef MOOR_FUZZ_DRIVER_H
#define MOOR_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t fuzz_n_seeds(void);
size_t fuzz_seed(size_t index, uint8_t *out, size_t room); /* returns its length */

/* A target's own set-up: what fails there is no finding, and ends it with the reason (error.h). */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if (call) {                                                                                                    \
            fprintf(stderr, "%s: %s\n", #call, moor_last_error());                                                     \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
