/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <jemalloc/jemalloc.h>

#include "error.h"
#include "heap.h"

/* Read by our private jemalloc when it starts: no arenas, caches and threads that nobody asked for; and freed ranges are used again however
 * large they have become (the default leaves those of more than 64 times the size alone, and takes fresh pages, which fault). */
extern const char *moor_je_malloc_conf;
const char *moor_je_malloc_conf = "narenas:1,tcache:false,background_thread:false,lg_extent_max_active_fit:48";

/* What "experimental.arenas_create_ext" takes (arena_config_t, which jemalloc.h does not declare). */
typedef struct arena_config {
    extent_hooks_t *extent_hooks;
    bool metadata_use_hooks;
} arena_config;

/* The hooks of one arena, and the region they reach through them. */
typedef struct arena_hooks {
    extent_hooks_t table;
    moor_region *region;
} arena_hooks;

typedef struct arena_whole {
    moor_arena arena;
    arena_hooks hooks;
} arena_whole;

enum {
    ROW_ALIGNMENT = 64,
    /* jemalloc's smallest large class. Smaller ones lie in slabs, cannot grow in place, and their pages are not joined with their
     * neighbours' when freed. */
    LEAST_BYTES = 16 << 10
};

static moor_region *region_of(extent_hooks_t *hooks)
{
    return ((arena_hooks *)(void *)hooks)->region;
}

static void *hook_alloc(extent_hooks_t *hooks, void *at, size_t size, size_t alignment, bool *zero, bool *commit,
                        unsigned index)
{
    (void)index;
    void *memory = moor_region_take(region_of(hooks), at, size, alignment);
    if (!memory)
        return NULL;
    *zero = true; /* the region is taken once only: these pages were never written */
    *commit = true;
    return memory;
}

/* true = "not done": the address space stays with jemalloc, which then purges the pages and reuses the range. */
static bool hook_dalloc(extent_hooks_t *hooks, void *memory, size_t size, bool committed, unsigned index)
{
    (void)hooks, (void)memory, (void)size, (void)committed, (void)index;
    return true;
}

static void hook_destroy(extent_hooks_t *hooks, void *memory, size_t size, bool committed, unsigned index)
{
    (void)hooks, (void)memory, (void)size, (void)committed, (void)index; /* the region goes as a whole */
}

static bool hook_purge(extent_hooks_t *hooks, void *memory, size_t size, size_t offset, size_t length, unsigned index)
{
    (void)size, (void)index;
    return moor_region_punch(region_of(hooks), (uint8_t *)memory + offset, length) != 0;
}

static bool hook_split(extent_hooks_t *hooks, void *memory, size_t size, size_t a, size_t b, bool committed,
                       unsigned index)
{
    (void)hooks, (void)memory, (void)size, (void)a, (void)b, (void)committed, (void)index;
    return false;
}

static bool hook_merge(extent_hooks_t *hooks, void *a, size_t size_a, void *b, size_t size_b, bool committed,
                       unsigned index)
{
    (void)hooks, (void)a, (void)size_a, (void)b, (void)size_b, (void)committed, (void)index;
    return false;
}

static int flags_of(const moor_arena *arena)
{
    return (int)(MALLOCX_ARENA(arena->index) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(ROW_ALIGNMENT));
}

static int control(const moor_arena *arena, const char *what, ssize_t *value)
{
    char name[64];
    snprintf(name, sizeof(name), "arena.%u.%s", arena->index, what);
    return moor_je_mallctl(name, NULL, NULL, value, value ? sizeof(*value) : 0);
}

/* jemalloc never joins free ranges that came from the region in different calls. So it gets nearly all of it in one, once, and has it as one
 * free range. No page is touched. */
static void take_whole(moor_arena *arena)
{
    size_t size = arena->region.size;
    void *whole = NULL;
    while (size > LEAST_BYTES && !(whole = moor_je_mallocx(size, flags_of(arena))))
        size -= size / 8;
    if (whole)
        moor_je_dallocx(whole, flags_of(arena));
    (void)control(arena, "purge", NULL);
}

moor_status moor_arena_create(uint64_t bytes, moor_arena **out)
{
    arena_whole *whole = moor_heap_alloc(sizeof(*whole));
    if (!whole)
        return moor_fail(MOOR_E_NOMEM, "arena: no memory for its description");
    moor_arena *arena = &whole->arena;
    moor_status status = moor_region_open(&arena->region, bytes);
    if (status) {
        moor_heap_free(whole);
        return status;
    }
    whole->hooks.region = &arena->region;
    whole->hooks.table = (extent_hooks_t){.alloc = hook_alloc,
                                          .dalloc = hook_dalloc,
                                          .destroy = hook_destroy,
                                          .purge_forced = hook_purge,
                                          .split = hook_split,
                                          .merge = hook_merge};
    arena_config config = {&whole->hooks.table, false};
    size_t size = sizeof(arena->index);
    int err = moor_je_mallctl("experimental.arenas_create_ext", &arena->index, &size, &config, sizeof(config));
    if (err) {
        moor_region_close(&arena->region);
        moor_heap_free(whole);
        return moor_fail_errno(MOOR_E_NOMEM, err, "jemalloc refused an arena over %llu bytes",
                               (unsigned long long)bytes);
    }
    ssize_t never = -1;
    (void)control(arena, "dirty_decay_ms", &never);
    (void)control(arena, "muzzy_decay_ms", &never);
    take_whole(arena);
    *out = arena;
    return MOOR_OK;
}

void moor_arena_destroy(moor_arena *arena)
{
    if (!arena)
        return;
    (void)control(arena, "destroy", NULL);
    moor_region_close(&arena->region);
    moor_heap_free(arena); /* the first member of arena_whole */
}

void *moor_arena_alloc(moor_arena *arena, size_t size)
{
    if (size < LEAST_BYTES)
        size = LEAST_BYTES;
    void *memory = moor_fault_hit() ? NULL : moor_je_mallocx(size, flags_of(arena));
    if (!memory && atomic_load_explicit(&arena->dirty, memory_order_relaxed)) {
        /* Free ranges that still have their pages are not joined with those that have none: purging joins them. */
        moor_arena_purge(arena);
        memory = moor_je_mallocx(size, flags_of(arena));
    }
    if (!memory) {
        atomic_fetch_add_explicit(&arena->refused, 1, memory_order_relaxed);
        return NULL;
    }
    atomic_fetch_add_explicit(&arena->live, moor_arena_usable(arena, memory), memory_order_relaxed);
    return memory;
}

size_t moor_arena_usable(const moor_arena *arena, const void *memory)
{
    return moor_je_sallocx(memory, flags_of(arena));
}

size_t moor_arena_grow(moor_arena *arena, void *memory, size_t least, size_t most)
{
    if (moor_fault_hit())
        return 0;
    size_t before = moor_arena_usable(arena, memory);
    /* What it returns is not believed: jemalloc 5.3 says "as before" when it grew to `least` but could not to `most`. */
    (void)moor_je_xallocx(memory, least, most > least ? most - least : 0, flags_of(arena));
    size_t after = moor_arena_usable(arena, memory);
    atomic_fetch_add_explicit(&arena->live, after - before, memory_order_relaxed);
    return after >= least ? after : 0;
}

size_t moor_arena_shrink(moor_arena *arena, void *memory, size_t size)
{
    size_t before = moor_arena_usable(arena, memory);
    (void)moor_je_xallocx(memory, size < LEAST_BYTES ? LEAST_BYTES : size, 0, flags_of(arena));
    size_t after = moor_arena_usable(arena, memory);
    atomic_fetch_sub_explicit(&arena->live, before - after, memory_order_relaxed);
    atomic_store_explicit(&arena->dirty, 1, memory_order_relaxed);
    return after;
}

void moor_arena_free(moor_arena *arena, void *memory)
{
    atomic_fetch_sub_explicit(&arena->live, moor_arena_usable(arena, memory), memory_order_relaxed);
    moor_je_dallocx(memory, flags_of(arena));
    atomic_store_explicit(&arena->dirty, 1, memory_order_relaxed);
}

void moor_arena_purge(moor_arena *arena)
{
    if (atomic_exchange_explicit(&arena->dirty, 0, memory_order_relaxed))
        (void)control(arena, "purge", NULL);
}

uint64_t moor_arena_offset(const moor_arena *arena, const void *memory)
{
    return (uint64_t)((const uint8_t *)memory - arena->region.base);
}
