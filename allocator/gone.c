/* SPDX-License-Identifier: Apache-2.0 */
#include "gone.h"

void moor_gone_add(moor_gone *gone, moor_hash128 id, int expired, uint64_t now_ns)
{
    uint64_t i = id.hi % MOOR_GONE_PLACES;
    gone->forgot |= gone->places[i].hash && gone->places[i].hash != id.lo;
    gone->places[i].hash = id.lo;
    gone->places[i].freed = (now_ns & ~(uint64_t)1) | (expired != 0);
}

int moor_gone_find(const moor_gone *gone, moor_hash128 id, int *expired, uint64_t *when_ns)
{
    uint64_t i = id.hi % MOOR_GONE_PLACES;
    if (!id.lo || gone->places[i].hash != id.lo)
        return 0;
    *expired = (int)(gone->places[i].freed & 1);
    *when_ns = gone->places[i].freed;
    return 1;
}
