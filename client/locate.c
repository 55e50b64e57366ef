/* SPDX-License-Identifier: Apache-2.0 */
#include "locate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../allocator/living.h"

/* What was seen on the way, for the error's text. */
struct look {
    char text[700];
    size_t used;
};

static void note(struct look *look, const char *format, const char *a, const char *b)
{
    if (look->used + 1 < sizeof(look->text)) {
        int n = snprintf(look->text + look->used, sizeof(look->text) - look->used, format, a, b);
        look->used += n > 0 ? (size_t)n : 0;
    }
}

struct listing {
    struct look *look;
    const char *base;
};

static void list_living(void *user, int base_fd, const char *name)
{
    const struct listing *listing = user;
    if (moor_living(base_fd, name))
        note(listing->look, "; %s/%s lives", listing->base, name);
}

static const char *name_of(const char *given)
{
    const char *env = getenv("MOOR_INSTANCE");
    return given && given[0] ? given : env && env[0] ? env : "default";
}

moor_status moor_locate(const char *instance, const char *dir, moor_located *out)
{
    moor_dirs dirs;
    struct look seen = {.used = 0}, matches = {.used = 0};
    struct stat st, first = {0};
    int found = 0;
    instance = name_of(instance);
    if (!moor_dirs_name_ok(instance))
        return moor_fail(MOOR_E_INVALID, "\"%.100s\" is no instance name: 1 to %d letters, digits, '.', '_', '-'",
                         instance, MOOR_NAME_MAX);
    moor_status status = moor_dirs_candidates(dir, &dirs);
    for (int i = 0; i < dirs.n && !status; i++) {
        int fd;
        moor_status opened = moor_dirs_open(dirs.path[i], 0, &fd);
        if (opened) {
            if (opened != MOOR_E_NOT_FOUND || (dirs.named && i == 0))
                note(&seen, "; %s%s", moor_last_error(), "");
            continue;
        }
        /* $MOOR_DIR is often one of the others: the same directory is one match. */
        if (moor_living(fd, instance) && fstat(fd, &st) == 0 &&
            !(found && st.st_dev == first.st_dev && st.st_ino == first.st_ino)) {
            if (!found++) {
                first = st;
                snprintf(out->name, sizeof(out->name), "%s", instance);
                snprintf(out->dir, sizeof(out->dir), "%.*s/%s", PATH_MAX - MOOR_NAME_MAX - 2, dirs.path[i], instance);
            }
            note(&matches, "%s%s", matches.used ? ", " : "", dirs.path[i]);
        }
        if (!found)
            moor_living_each(fd, list_living, &(struct listing){&seen, dirs.path[i]});
        close(fd);
        if (found && dirs.named && i == 0)
            return MOOR_OK;
    }
    if (status)
        return status;
    if (found > 1)
        return moor_fail(MOOR_E_AMBIGUOUS, "instance \"%s\" lives in several directories, name one: %s", instance,
                         matches.text);
    if (!found) {
        char looked[256] = "";
        for (int i = 0; i < dirs.n; i++)
            snprintf(looked + strlen(looked), sizeof(looked) - strlen(looked), "%s%.100s", i ? ", " : "", dirs.path[i]);
        return moor_fail(MOOR_E_NOT_FOUND, "no live instance \"%s\" in %s%s", instance, looked, seen.text);
    }
    return MOOR_OK;
}

moor_status moor_locate_why(const char *instance, const char *dir)
{
    char path[PATH_MAX], before[MOOR_ERROR_TEXT];
    moor_dirs dirs;
    snprintf(before, sizeof(before), "%s", moor_last_error());
    moor_status status = moor_dirs_candidates(dir, &dirs);
    for (int i = 0; i < dirs.n && !status; i++) {
        snprintf(path, sizeof(path), "%.*s/%s", PATH_MAX - MOOR_NAME_MAX - 2, dirs.path[i], name_of(instance));
        pid_t pid = moor_dirs_served_without(path);
        if (pid)
            return moor_fail(MOOR_E_NOT_FOUND,
                             "the files of instance \"%s\" in %s were removed while its server (pid %d) runs: nobody "
                             "new can attach until "
                             "it is started again",
                             name_of(instance), path, (int)pid);
    }
    return moor_fail(MOOR_E_NOT_FOUND, "%s", before);
}
