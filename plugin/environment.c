/* SPDX-License-Identifier: Apache-2.0 */
#include "environment.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

/* A list that was published: kept for ever, since somebody may still walk it. One for each name that was new. */
struct published {
    struct published *before;
    char *text;
    char *entries[];
};

static struct published *latest;

static size_t count(char *const *entries)
{
    size_t n = 0;
    while (entries && entries[n])
        n++;
    return n;
}

/* The list `now` with "name=value" behind it. */
static struct published *extend(char *const *now, size_t n, const char *name, const char *value)
{
    size_t name_len = strlen(name), value_len = strlen(value);
    struct published *list = malloc(sizeof(*list) + (n + 2) * sizeof(list->entries[0]) + name_len + value_len + 2);
    if (!list)
        return NULL;
    list->text = (char *)&list->entries[n + 2];
    memcpy(list->text, name, name_len);
    list->text[name_len] = '=';
    memcpy(list->text + name_len + 1, value, value_len + 1);
    if (n)
        memcpy(list->entries, now, n * sizeof(list->entries[0]));
    list->entries[n] = list->text;
    list->entries[n + 1] = NULL;
    return list;
}

static int publish(const char *name, const char *value)
{
    for (;;) {
        char **now = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
        struct published *list = extend(now, count(now), name, value);
        if (!list)
            return -1;
        list->before = latest;
        if (__atomic_compare_exchange_n(&environ, &now, list->entries, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            latest = list;
            return 0;
        }
        free(list); /* somebody else's setenv came first */
    }
}

int moor_environment_put(const char *name, const char *value)
{
    return getenv(name) ? setenv(name, value, 1) : publish(name, value);
}
