/* SPDX-License-Identifier: Apache-2.0 */
/* The `moor` command: main, `moor check`, `moor path`. */
#include "cmd.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const moor_api *api;

static const char help[] = "usage: moor COMMAND [OPTION…]\n"
                           "\n"
                           "  moor run [-c CONFIG] -- PROGRAM [ARG…]  start a program with Moor in it and in\n"
                           "                                          all its children\n"
                           "  moor status [INSTANCE]                  what the server INSTANCE is doing\n"
                           "  moor dump REQUEST_ID                    the recorded experts of one request\n"
                           "  moor gate status | acknowledge          the gate of a server, and its poison\n"
                           "  moor check [ENGINE]                     are Moor's join points in the engine?\n"
                           "  moor path                               where library and package are\n"
                           "  moor COMMAND --help                     more about one of them\n"
                           "  moor --version\n"
                           "\n"
                           "exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 no such request\n"
                           "or instance; 4 the id means several; 5 timed out; 6 rows are missing; 126, 127\n"
                           "the program of `moor run` or the Python of `moor check` cannot be run.\n";

int fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("moor: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

int fail_status(moor_status status)
{
    const char *text = api->last_error();
    fail(0, "%s", text && *text ? text : api->status_name(status));
    switch (status) {
    case MOOR_E_INVALID:
    case MOOR_E_CONFIG:
        return EXIT_USAGE;
    case MOOR_E_NOT_FOUND:
    case MOOR_E_GONE:
        return EXIT_NOT_FOUND;
    case MOOR_E_AMBIGUOUS:
        return EXIT_AMBIGUOUS;
    case MOOR_E_TIMEOUT:
        return EXIT_TIMED_OUT;
    case MOOR_E_INCOMPLETE:
        return EXIT_INCOMPLETE;
    default:
        return EXIT_FAILED;
    }
}

double parse_seconds(const char *text)
{
    char *end;
    double seconds = strtod(text, &end);
    return end != text && !*end && seconds >= 0 && seconds <= 1e9 ? seconds : -1; /* a NaN fails both */
}

/* libmoor's real file: the loader may know it by a link, and the package lies beside the file. */
static int library(char *buf)
{
    const char *path = api->library_path();
    if (!realpath(path, buf))
        return fail(EXIT_FAILED, "the library \"%s\": %s", path, strerror(errno));
    return 0;
}

int package_dir(char *buf, size_t size)
{
    char path[PATH_MAX];
    int code = library(path);
    if (code)
        return code;
    *strrchr(path, '/') = 0;
    if (snprintf(buf, size, "%s", *path ? path : "/") >= (int)size)
        return fail(EXIT_FAILED, "the path \"%s\" is too long", path);
    return 0;
}

/* ---- moor path --------------------------------------------------------------------------------------------------------- */

static const char path_help[] = "usage: moor path [--library | --package]\n"
                                "\n"
                                "The paths of libmoor.so.1 and of the Python package moor beside it; with an\n"
                                "option, one of them alone. PYTHONPATH is the package's parent.\n";

static int cmd_path(int argc, char **argv)
{
    static const struct option options[] = {
        {"library", 0, NULL, 'l'}, {"package", 0, NULL, 'p'}, {"help", 0, NULL, 'h'}, {0}};
    int which = 0, c;
    while ((c = getopt_long(argc, argv, "lph", options, NULL)) != -1) {
        if (c == 'h')
            return fputs(path_help, stdout), EXIT_OK;
        if (c == '?' || which)
            return fputs(path_help, stderr), EXIT_USAGE;
        which = c;
    }
    if (optind < argc)
        return fail(EXIT_USAGE, "path: unexpected argument \"%s\"", argv[optind]);
    char lib[PATH_MAX], package[PATH_MAX];
    int code = library(lib);
    if (!code)
        code = package_dir(package, sizeof(package));
    if (code)
        return code;
    if (which)
        puts(which == 'l' ? lib : package);
    else
        printf("library %s\npackage %s\n", lib, package);
    return EXIT_OK;
}

/* ---- moor check -------------------------------------------------------------------------------------------------------- */

static const char check_help[] = "usage: moor check [--python PYTHON] [ENGINE]\n"
                                 "\n"
                                 "Imports ENGINE (default: vllm) and says of each join point: installed, fired or\n"
                                 "missing. Nothing is started. The Python is the one that has the engine:\n"
                                 "--python, $MOOR_PYTHON, that of $VIRTUAL_ENV, or python3 on $PATH.\n"
                                 "exit codes: 0 all required join points are there; 1 some are not; 2 cannot be\n"
                                 "checked; 126, 127 no such Python.\n";

/* The package beside this library, whatever else that Python can import under the name moor. */
static const char check_program[] =
    "import importlib.util as u, runpy, sys\n"
    "d = sys.argv.pop(1)\n"
    "s = u.spec_from_file_location('moor', d + '/__init__.py', submodule_search_locations=[d])\n"
    "if s is None: sys.exit('moor: there is no Python package in ' + d)\n"
    "m = sys.modules['moor'] = u.module_from_spec(s)\n"
    "s.loader.exec_module(m)\n"
    "runpy.run_module('moor', run_name='__main__', alter_sys=True)\n";

static const char *python(const char *given, char *buf, size_t size)
{
    const char *env = getenv("MOOR_PYTHON");
    if (given)
        return given;
    if (env && *env)
        return env;
    env = getenv("VIRTUAL_ENV");
    if (env && *env && snprintf(buf, size, "%s/bin/python", env) < (int)size)
        return buf;
    return "python3";
}

static int cmd_check(int argc, char **argv)
{
    static const struct option options[] = {{"python", 1, NULL, 'p'}, {"help", 0, NULL, 'h'}, {0}};
    const char *given = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "p:h", options, NULL)) != -1) {
        if (c == 'h')
            return fputs(check_help, stdout), EXIT_OK;
        if (c == '?')
            return fputs(check_help, stderr), EXIT_USAGE;
        given = optarg;
    }
    if (argc - optind > 1)
        return fail(EXIT_USAGE, "check: one engine, not \"%s\" and \"%s\"", argv[optind], argv[optind + 1]);
    char package[PATH_MAX], buf[PATH_MAX];
    int code = package_dir(package, sizeof(package));
    if (code)
        return code;
    const char *program = python(given, buf, sizeof(buf));
    const char *engine = optind < argc ? argv[optind] : "vllm";
    execlp(program, program, "-c", check_program, package, "check", engine, (char *)NULL);
    return fail(errno == ENOENT ? EXIT_NO_PROGRAM : EXIT_CANNOT_RUN, "check: the Python \"%s\": %s", program,
                strerror(errno));
}

/* ---- main -------------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int, char **);
    } commands[] = {{"run", cmd_run},   {"status", cmd_status}, {"dump", cmd_dump},
                    {"gate", cmd_gate}, {"check", cmd_check},   {"path", cmd_path}};
    uint32_t have = 0;
    api = moor_get_api(MOOR_API_VERSION, &have);
    if (!api)
        return fail(EXIT_FAILED, "this command needs version %u of the C ABI, libmoor.so.1 has up to %u",
                    MOOR_API_VERSION, have);
    if (argc < 2)
        return fputs(help, stderr), EXIT_USAGE;
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return fputs(help, stdout), EXIT_OK;
    if (!strcmp(argv[1], "--version"))
        return printf("moor %s\n", api->version_string()), EXIT_OK;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(argv[1], commands[i].name))
            continue;
        int code = commands[i].run(argc - 1, argv + 1);
        if ((fflush(stdout) || ferror(stdout)) && code == EXIT_OK)
            return fail(EXIT_FAILED, "stdout: %s", strerror(errno));
        return code;
    }
    fail(0, "there is no command \"%s\"", argv[1]);
    return fputs(help, stderr), EXIT_USAGE;
}
