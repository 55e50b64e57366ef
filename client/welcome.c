/* SPDX-License-Identifier: Apache-2.0 */
#include "welcome.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy.h"

static moor_status map_arena(int fd, const moor_wire_welcome *welcome, moor_shape *shape)
{
    struct stat st;
    int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
    moor_status status = MOOR_OK;
    /* Without the seal the file could shrink below the mapping, and reading would be a SIGBUS. */
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 || (uint64_t)st.st_size < welcome->arena_bytes ||
        !welcome->arena_bytes)
        status = moor_fail(MOOR_E_CORRUPT, "store %u: what it sent is no arena of %llu bytes", welcome->store_index,
                           (unsigned long long)welcome->arena_bytes);
    void *at = status ? MAP_FAILED : mmap(NULL, welcome->arena_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (!status && at == MAP_FAILED)
        status = moor_fail_errno(MOOR_E_IO, errno, "store %u: its arena of %llu bytes cannot be mapped",
                                 welcome->store_index, (unsigned long long)welcome->arena_bytes);
    if (!status) {
        shape->arena = at;
        shape->arena_bytes = welcome->arena_bytes;
    }
    return status;
}

static moor_status take(moor_wire_reader reader, int fd, moor_shape *shape, int32_t **layer_ids)
{
    moor_wire_welcome welcome = {0};
    if (!moor_wire_get(&reader, &welcome, 4) || welcome.version != MOOR_WIRE_VERSION)
        return moor_fail(MOOR_E_VERSION, "the store speaks wire version %u, this library %u", welcome.version,
                         MOOR_WIRE_VERSION);
    if (!moor_wire_get(&reader, (char *)&welcome + 4, sizeof(welcome) - 4) ||
        reader.left != (size_t)welcome.layers * sizeof(int32_t) || !welcome.layers || !welcome.top_k ||
        (welcome.dtype != MOOR_DTYPE_U8 && welcome.dtype != MOOR_DTYPE_U16) || !welcome.num_experts ||
        !moor_copy_dtype_holds(welcome.dtype, welcome.num_experts) ||
        welcome.row_bytes != (uint64_t)welcome.layers * welcome.top_k * welcome.dtype ||
        welcome.stages > MOOR_CLIENT_STORES)
        return moor_fail(MOOR_E_CORRUPT, "store %u: a greeting of %zu bytes that does not add up", shape->store_index,
                         reader.left);
    shape->layers = welcome.layers;
    shape->top_k = welcome.top_k;
    shape->num_experts = welcome.num_experts;
    shape->model_layers = welcome.model_layers;
    shape->dtype = welcome.dtype; /* MOOR_DTYPE_U8 and _U16 are their own width in bytes */
    shape->row_bytes = welcome.row_bytes;
    shape->nonce = welcome.nonce;
    shape->stages = welcome.stages ? welcome.stages : 1; /* 0: a store of an earlier version */
    int32_t *ids = *layer_ids = malloc(reader.left);
    if (!ids)
        return moor_fail(MOOR_E_NOMEM, "no memory for the list of layers");
    shape->layer_ids = ids;
    moor_wire_get(&reader, ids, reader.left);
    for (uint32_t i = 0; i < shape->layers; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= shape->model_layers || (i && ids[i] <= ids[i - 1]))
            return moor_fail(MOOR_E_CORRUPT, "store %u: column %u is layer %d of %u, behind layer %d",
                             shape->store_index, i, ids[i], shape->model_layers, i ? ids[i - 1] : -1);
    return map_arena(fd, &welcome, shape);
}

moor_status moor_welcome_take(moor_wire_reader reader, int fd, moor_shape *shape, int32_t **layer_ids)
{
    moor_status status = take(reader, fd, shape, layer_ids);
    if (fd >= 0)
        close(fd);
    return status;
}
