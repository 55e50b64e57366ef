/* SPDX-License-Identifier: Apache-2.0 */
/* make_snapshot_v1 FILE: writes tests/unit/data/snapshot-v1.moor, which is what a reader of today must still load. */
#include <stdio.h>

#include "support/snapshot_v1.h"

int main(int argc, char **argv)
{
    static uint8_t data[4096];
    FILE *file = argc == 2 ? fopen(argv[1], "wb") : NULL;
    size_t n = snapshot_v1(data, sizeof(data));
    if (!file || fwrite(data, 1, n, file) != n || fclose(file)) {
        perror(argc == 2 ? argv[1] : "make_snapshot_v1 FILE");
        return 1;
    }
    return 0;
}
