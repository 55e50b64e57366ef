/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model test (S1 to S3): random sequences of operations on a store and on the model of it, compared after each. Without arguments: the
 * kept sequences of $MOOR_SOURCE_DIR/tests/fuzz/corpus-model, then STEPS operations.
 *   test_model steps N [SEED]      N operations, from a seed
 *   test_model replay [-v] FILE…   one or more sequences; -v tells each operation
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "play.h"

enum { LENGTH = 12000, STEPS = 25000 };

static uint64_t state;

static uint8_t random_byte(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint8_t)(state >> 40);
}

static int report(const uint8_t *data, size_t used, const char *why, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "model-%s.bin", name);
    FILE *file = fopen(path, "wb");
    if (file) {
        fwrite(data, 1, used, file);
        fclose(file);
    }
    printf("store and model differ: %s\nreplay: test_model replay -v %s   (keep it in tests/fuzz/corpus-model)\n", why,
           path);
    return 1;
}

static int play_random(uint64_t steps, uint64_t seed)
{
    static uint8_t data[LENGTH];
    uint64_t done = 0, plays = 0;
    clock_t begin = clock();
    while (done < steps) {
        char why[512], name[64];
        int failed;
        size_t used;
        state = seed * 0x9E3779B97F4A7C15u + 1;
        for (size_t i = 0; i < LENGTH; i++)
            data[i] = random_byte();
        done += play_bytes(data, LENGTH, 0, &failed, why, &used);
        plays++;
        snprintf(name, sizeof(name), "seed-%llu", (unsigned long long)seed++);
        if (failed)
            return report(data, used, why, name);
    }
    printf("%llu operations in %llu sequences, store and model agree after each; %.1f s of CPU\n",
           (unsigned long long)done, (unsigned long long)plays, (double)(clock() - begin) / CLOCKS_PER_SEC);
    return 0;
}

static int replay(const char *path, int trace)
{
    static uint8_t data[1 << 20];
    FILE *file = fopen(path, "rb");
    char why[512];
    int failed;
    size_t used;
    if (!file) {
        perror(path);
        return 1;
    }
    size_t n = fread(data, 1, sizeof(data), file);
    fclose(file);
    uint64_t ops = play_bytes(data, n, trace, &failed, why, &used);
    if (failed)
        printf("%s: operation %llu, byte %zu: %s\n", path, (unsigned long long)ops, used, why);
    return failed;
}

static int replay_kept(void)
{
    char dir[512], path[1024];
    const char *source = getenv("MOOR_SOURCE_DIR");
    int failed = 0, n = 0;
    snprintf(dir, sizeof(dir), "%s/tests/fuzz/corpus-model", source ? source : ".");
    DIR *list = opendir(dir);
    if (!list) {
        printf("no kept sequences in %s\n", dir);
        return source != NULL;
    }
    for (struct dirent *entry; (entry = readdir(list)); n++) {
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (entry->d_name[0] != '.')
            failed |= replay(path, 0);
    }
    closedir(list);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && !strcmp(argv[1], "steps"))
        return play_random(strtoull(argv[2], NULL, 10), argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
    if (argc >= 3 && !strcmp(argv[1], "replay")) {
        int trace = !strcmp(argv[2], "-v"), failed = 0;
        for (int i = 2 + trace; i < argc; i++)
            failed |= replay(argv[i], trace);
        return failed;
    }
    return replay_kept() | play_random(STEPS, 1);
}
