/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* First number in a file; UINT64_MAX when there is none ("max") or no file. */
static uint64_t read_number(const char *path)
{
    char line[64];
    uint64_t value = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (!file)
        return value;
    if (fgets(line, sizeof(line), file) && isdigit((unsigned char)line[0]))
        value = strtoull(line, NULL, 10);
    fclose(file);
    return value;
}

static uint64_t host_memory(const char *root)
{
    char path[PATH_MAX], line[256];
    unsigned long long kib, value = UINT64_MAX;
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return value;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1)
            value = kib * 1024;
    fclose(file);
    return value;
}

/* The smallest limit of `group` and its ancestors below `mount`. A limit of an ancestor binds as well, and inside a
 * container the group's own path may not be visible while the mount's root is. */
static uint64_t group_limit(const char *mount, char *group, const char *file)
{
    uint64_t smallest = UINT64_MAX;
    for (;;) {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof(path), "%s%s/%s", mount, group, file);
        uint64_t limit = read_number(path);
        if (limit < smallest)
            smallest = limit;
        char *slash = strrchr(group, '/');
        if (!slash)
            return smallest;
        *slash = 0;
    }
}

/* A line is "id:controllers:path"; v2 has the one line "0::path". */
static uint64_t line_limit(const char *root, char *line)
{
    char mount[PATH_MAX];
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return UINT64_MAX;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    if (strcmp(controllers, ":") == 0) {
        snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup", root);
        return group_limit(mount, group, "memory.max");
    }
    for (char *save = NULL, *name = strtok_r(controllers, ":,", &save); name; name = strtok_r(NULL, ":,", &save))
        if (strcmp(name, "memory") == 0) {
            snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/memory", root);
            return group_limit(mount, group, "memory.limit_in_bytes");
        }
    return UINT64_MAX;
}

uint64_t moor_memory_limit(const char *root)
{
    char path[PATH_MAX], line[PATH_MAX];
    uint64_t smallest = host_memory(root);
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return smallest;
    while (fgets(line, sizeof(line), file)) {
        uint64_t limit = line_limit(root, line);
        if (limit < smallest)
            smallest = limit;
    }
    fclose(file);
    return smallest;
}

uint64_t moor_memory_default_arena(uint64_t limit)
{
    const uint64_t mib = 1u << 20, least = 64 * mib, most = 65536 * mib;
    uint64_t share = limit / 16;
    if (share < least)
        return least;
    if (share > most)
        return most;
    return share / (2 * mib) * (2 * mib);
}
