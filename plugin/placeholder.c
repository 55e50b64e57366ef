/* SPDX-License-Identifier: Apache-2.0 */
/* Lets the house link until plugin/ defines moor_get_api; goes when that lands. */
#include <stddef.h>
#include <stdint.h>

const void *moor_get_api(uint32_t want, uint32_t *have);

__attribute__((visibility("default"), weak)) const void *moor_get_api(uint32_t want, uint32_t *have)
{
    (void)want;
    (void)have;
    return NULL;
}
