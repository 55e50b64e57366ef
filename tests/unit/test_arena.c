/* SPDX-License-Identifier: Apache-2.0 */
/* Region and arena: what a consumer gets, what a full one says, that memory returns, that a fork is harmless. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "allocator/arena.h"
#include "support/lab.h"

static void the_consumers_descriptor_is_sealed_and_read_only(void **state)
{
    (void)state;
    moor_arena *arena = NULL;
    assert_status(moor_arena_create(1 << 20, &arena), MOOR_OK);
    int fd = -1;
    assert_status(moor_region_readonly_fd(&arena->region, &fd), MOOR_OK);
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    assert_int_equal(status.st_size, 1 << 20);
    assert_int_equal(status.st_mode & 0777, 0400);
    enum { NOT_EXECUTABLE = 0x20 }; /* F_SEAL_EXEC, where the kernel has it */
    assert_int_equal(fcntl(fd, F_GET_SEALS) & ~NOT_EXECUTABLE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(ftruncate(arena->region.fd, 4096), -1);
    assert_int_equal(fcntl(arena->region.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    const char *shared = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, fd, 0);
    char *memory = moor_arena_alloc(arena, 100000);
    assert_non_null(memory);
    memset(memory, 0x5A, 100000);
    assert_memory_equal(shared + moor_arena_offset(arena, memory), memory, 100000);
    assert_int_equal((uintptr_t)memory % 64, 0);
    moor_arena_free(arena, memory);
    munmap((void *)(uintptr_t)shared, 1 << 20);
    close(fd);
    moor_arena_destroy(arena);
}

static void a_full_arena_says_no_and_is_whole_again_after_frees(void **state)
{
    (void)state;
    moor_arena *arena = NULL;
    assert_status(moor_arena_create(8 << 20, &arena), MOOR_OK);
    void *all[4096];
    for (int round = 0; round < 20; round++) {
        int n = 0;
        size_t size = 16384u << (round % 6);
        while (n < 4096 && (all[n] = moor_arena_alloc(arena, size)))
            n++;
        assert_true((size_t)n * size > (4u << 20)); /* at least half of it can be used */
        assert_true((size_t)n * size <= (8u << 20));
        assert_int_equal(atomic_load(&arena->refused), round + 1);
        for (int i = 0; i < n; i++)
            moor_arena_free(arena, all[i]);
        assert_int_equal(atomic_load(&arena->live), 0);
    }
    assert_null(moor_arena_alloc(arena, 64 << 20));
    moor_arena_destroy(arena);
}

/* A range without pages next to one that still has them is one range for whoever needs all of it. */
static void free_ranges_are_joined_before_the_arena_is_full(void **state)
{
    (void)state;
    moor_arena *arena = NULL;
    assert_status(moor_arena_create(8 << 20, &arena), MOOR_OK);
    char *part[64];
    int n = 0;
    while (n < 64 && (part[n] = moor_arena_alloc(arena, 256 << 10)))
        n++;
    assert_in_range(n, 24, 32);
    for (int i = 0; i < n; i += 2)
        moor_arena_free(arena, part[i]);
    moor_arena_purge(arena);
    for (int i = 1; i < n; i += 2)
        moor_arena_free(arena, part[i]);
    char *whole = moor_arena_alloc(arena, 4 << 20);
    assert_non_null(whole);
    moor_arena_free(arena, whole);
    moor_arena_destroy(arena);
}

static void purging_gives_pages_back_to_the_kernel(void **state)
{
    (void)state;
    moor_arena *arena = NULL;
    assert_status(moor_arena_create(64 << 20, &arena), MOOR_OK);
    char *memory[16];
    for (int i = 0; i < 16; i++) {
        memory[i] = moor_arena_alloc(arena, 2 << 20);
        assert_non_null(memory[i]);
        memset(memory[i], 1, 2 << 20);
    }
    uint64_t full = moor_region_resident(&arena->region);
    assert_true(full >= 32u << 20);
    for (int i = 0; i < 16; i += 2)
        moor_arena_free(arena, memory[i]);
    assert_int_equal(moor_region_resident(&arena->region), full); /* not on the freeing path */
    moor_arena_purge(arena);
    assert_true(moor_region_resident(&arena->region) <= full - (15u << 20));
    for (int i = 1; i < 16; i += 2) {
        assert_int_equal(memory[i][12345], 1);
        moor_arena_free(arena, memory[i]);
    }
    moor_arena_purge(arena);
    assert_true(moor_region_resident(&arena->region) < 1u << 20);
    moor_arena_destroy(arena);
}

static void growing_is_in_place_or_not_at_all(void **state)
{
    (void)state;
    moor_arena *arena = NULL;
    assert_status(moor_arena_create(8 << 20, &arena), MOOR_OK);
    char *memory = moor_arena_alloc(arena, 64 << 10);
    memset(memory, 7, 64 << 10);
    size_t usable = moor_arena_grow(arena, memory, 128 << 10, 256 << 10);
    assert_true(usable >= 128 << 10);
    assert_int_equal(usable, moor_arena_usable(arena, memory));
    assert_int_equal(atomic_load(&arena->live), usable);
    assert_int_equal(memory[(64 << 10) - 1], 7);
    char *wall = moor_arena_alloc(arena, 64 << 10), *other = NULL;
    while (wall && wall < memory + usable)
        wall = moor_arena_alloc(arena, 64 << 10);
    other = moor_arena_alloc(arena, 3 << 20);
    assert_non_null(other);
    assert_int_equal(moor_arena_grow(arena, memory, 7 << 20, 7 << 20), 0);
    assert_int_equal(moor_arena_usable(arena, memory), usable);
    size_t less = moor_arena_shrink(arena, memory, 20 << 10);
    assert_true(less >= 20 << 10 && less < 32 << 10);
    moor_arena_destroy(arena);
}

/* jemalloc 5.3 grows to the least size when the largest does not fit, and says that it did nothing. */
static void S2_7_live_bytes_follow_every_growth(void **state)
{
    (void)state;
    moor_arena *arena;
    void *memory[64] = {NULL};
    uint64_t random = 88172645463325252u, live = 0;
    int grown = 0;
    assert_status(moor_arena_create(4 << 20, &arena), MOOR_OK);
    for (int i = 0; i < 20000; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        void **at = &memory[random >> 20 & 63];
        size_t n = 1 + (random >> 30) % 120000, before = *at ? moor_arena_usable(arena, *at) : 0;
        if (!before) {
            *at = moor_arena_alloc(arena, n);
        } else if (random >> 50 & 1) {
            size_t after = moor_arena_grow(arena, *at, before + 1, before + n);
            assert_int_equal(after ? after : before, moor_arena_usable(arena, *at)); /* 0: unchanged */
            grown += after != 0;
        } else {
            moor_arena_free(arena, *at);
            *at = NULL;
        }
        live += (*at ? moor_arena_usable(arena, *at) : 0) - before;
        assert_int_equal(atomic_load(&arena->live), live);
    }
    assert_true(grown > 100);
    moor_arena_destroy(arena);
}

static void a_forked_child_neither_sees_nor_harms_the_arena(void **state)
{
    (void)state;
    moor_arena *arena = NULL;
    assert_status(moor_arena_create(4 << 20, &arena), MOOR_OK);
    char *memory = moor_arena_alloc(arena, 64 << 10);
    memset(memory, 3, 64 << 10);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            unsigned char in_core;
            _exit(mincore(arena->region.base, 4096, &in_core) == -1 && errno == ENOMEM ? 0 : 1); /* not mapped here */
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        char *more = moor_arena_alloc(arena, 100000);
        assert_non_null(more);
        moor_arena_free(arena, more);
    }
    assert_int_equal(memory[1000], 3);
    moor_arena_free(arena, memory);
    moor_arena_destroy(arena);
}

static void nothing_is_refused_without_a_reason(void **state)
{
    (void)state;
    moor_arena *arena = NULL;
    assert_status(moor_arena_create(0, &arena), MOOR_E_INVALID);
    assert_status(moor_arena_create(UINT64_MAX, &arena), MOOR_E_INVALID);
    assert_null(arena);
    for (int i = 0; i < 50; i++) { /* arenas come and go */
        assert_status(moor_arena_create(1 << 20, &arena), MOOR_OK);
        assert_non_null(moor_arena_alloc(arena, 5000));
        moor_arena_destroy(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_consumers_descriptor_is_sealed_and_read_only),
        cmocka_unit_test(a_full_arena_says_no_and_is_whole_again_after_frees),
        cmocka_unit_test(free_ranges_are_joined_before_the_arena_is_full),
        cmocka_unit_test(purging_gives_pages_back_to_the_kernel),
        cmocka_unit_test(growing_is_in_place_or_not_at_all),
        cmocka_unit_test(S2_7_live_bytes_follow_every_growth),
        cmocka_unit_test(a_forked_child_neither_sees_nor_harms_the_arena),
        cmocka_unit_test(nothing_is_refused_without_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
