/* SPDX-License-Identifier: Apache-2.0 */
/* A program outside the project: knows the installed header and nothing else. */
#include <moor/moor.h>
#include <stdio.h>

int main(void)
{
    uint32_t have = 0;
    const moor_api *api = moor_get_api(MOOR_API_VERSION, &have);
    if (!api) {
        fprintf(stderr, "no table of version %u; the library has %u\n", MOOR_API_VERSION, have);
        return 1;
    }
    if (api->size != sizeof(moor_api) || api->version != MOOR_API_VERSION || have < MOOR_API_VERSION) {
        fprintf(stderr, "table: size %u (header %zu), version %u, newest %u\n", api->size, sizeof(moor_api),
                api->version, have);
        return 1;
    }
    if (moor_get_api(9999, NULL)) {
        fprintf(stderr, "a table of version 9999 was handed out\n");
        return 1;
    }
    puts("consumer ok");
    return 0;
}
