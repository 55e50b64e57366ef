/* SPDX-License-Identifier: Apache-2.0 */
/* For libFuzzer builds: writes a target's seeds into $MOOR_FUZZ_SEEDS, a corpus directory, before libFuzzer reads it. */
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static uint8_t data[8192];
    const char *dir = getenv("MOOR_FUZZ_SEEDS");
    (void)argc;
    (void)argv;
    for (size_t i = 0; dir && i < fuzz_n_seeds(); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/seed-%zu", dir, i);
        FILE *file = fopen(path, "wb");
        if (!file)
            return 1;
        fwrite(data, 1, fuzz_seed(i, data, sizeof(data)), file);
        fclose(file);
    }
    return 0;
}
