/* SPDX-License-Identifier: Apache-2.0 */
/* `moor run`: preloads libmoor.so.1 into a program and all it starts, and becomes that program. */
#include "cmd.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] = "usage: moor run [-c CONFIG] [--] PROGRAM [ARG…]\n"
                           "\n"
                           "Adds libmoor.so.1 to LD_PRELOAD, behind what is there, and executes PROGRAM.\n"
                           "Programs that are no Python with an engine in it notice nothing.\n"
                           "\n"
                           "  -c, --config CONFIG   sets MOOR_CONFIG: JSON text, or the path of a file with\n"
                           "                        it. It is checked here first. What the engine's own\n"
                           "                        configuration says wins.\n"
                           "exit codes: those of PROGRAM; 1 failed; 2 wrong usage or configuration; 126, 127\n"
                           "PROGRAM cannot be run or found.\n";

/* The dynamic linker splits LD_PRELOAD at both and knows no quoting. */
static const char splits[] = " :";

/* Whether list, an LD_PRELOAD, has the library already, under whatever name. */
static int has_library(const char *list, const char *path)
{
    char real[PATH_MAX], entry[PATH_MAX];
    while (*list) {
        size_t n = strcspn(list, splits);
        if (n > 0 && n < sizeof(entry)) {
            memcpy(entry, list, n);
            entry[n] = 0;
            if (!strcmp(entry, path) || (realpath(entry, real) && !strcmp(real, path)))
                return 1;
        }
        list += n + strspn(list + n, splits);
    }
    return 0;
}

/* The library as LD_PRELOAD can take it: its real path, or the one that it was loaded by. */
static int preload_path(char *path)
{
    const char *name = api->library_path();
    if (!realpath(name, path))
        return fail(EXIT_FAILED, "run: the library \"%s\": %s", name, strerror(errno));
    size_t at = strcspn(path, splits);
    if (!path[at])
        return 0;
    if (*name == '/' && !name[strcspn(name, splits)] && strlen(name) < PATH_MAX) {
        memcpy(path, name, strlen(name) + 1);
        return 0;
    }
    return fail(EXIT_FAILED,
                "run: the library's path \"%s\" has a %s in it, at which LD_PRELOAD is cut: install Moor somewhere "
                "else, or put a link to its "
                "folder where there is none and that folder into LD_LIBRARY_PATH",
                path, path[at] == ' ' ? "space" : "colon");
}

static int set_preload(void)
{
    char path[PATH_MAX];
    const char *old = getenv("LD_PRELOAD");
    int code = preload_path(path);
    if (code)
        return code;
    if (!old || !*old)
        return setenv("LD_PRELOAD", path, 1) ? fail(EXIT_FAILED, "run: LD_PRELOAD: %s", strerror(errno)) : 0;
    if (has_library(old, path))
        return 0;
    char *both;
    if (asprintf(&both, "%s:%s", old, path) < 0)
        return fail(EXIT_FAILED, "run: out of memory");
    int failed = setenv("LD_PRELOAD", both, 1);
    free(both);
    return failed ? fail(EXIT_FAILED, "run: LD_PRELOAD: %s", strerror(errno)) : 0;
}

static int set_config(const char *config)
{
    char real[PATH_MAX];
    const char *text = config + strspn(config, " \t\r\n");
    if (*text != '{') { /* a path, which must still be right when PROGRAM changes its directory */
        if (!realpath(config, real))
            return fail(EXIT_USAGE, "run: the configuration \"%s\": %s", config, strerror(errno));
        config = real;
    }
    return setenv("MOOR_CONFIG", config, 1) ? fail(EXIT_FAILED, "run: MOOR_CONFIG: %s", strerror(errno)) : 0;
}

/* A wrong configuration is said now, not in the log of an engine's tenth process. */
static int check_config(void)
{
    moor_config *config = NULL;
    moor_status status = api->config_parse(NULL, 0, &config);
    if (status)
        return fail_status(status);
    api->config_free(config);
    return 0;
}

int cmd_run(int argc, char **argv)
{
    static const struct option options[] = {{"config", 1, NULL, 'c'}, {"help", 0, NULL, 'h'}, {0}};
    const char *config = NULL;
    int c, code = 0;
    while ((c = getopt_long(argc, argv, "+c:h", options, NULL)) != -1) {
        if (c == 'h')
            return fputs(help, stdout), EXIT_OK;
        if (c == '?')
            return fputs(help, stderr), EXIT_USAGE;
        config = optarg;
    }
    if (optind == argc) {
        fail(0, "run: which program?");
        return fputs(help, stderr), EXIT_USAGE;
    }
    if (config)
        code = set_config(config);
    if (!code)
        code = check_config();
    if (!code)
        code = set_preload();
    if (code)
        return code;
    execvp(argv[optind], &argv[optind]);
    return fail(errno == ENOENT ? EXIT_NO_PROGRAM : EXIT_CANNOT_RUN, "run: \"%s\": %s", argv[optind], strerror(errno));
}
