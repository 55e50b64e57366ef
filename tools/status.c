/* SPDX-License-Identifier: Apache-2.0 */
/* `moor status`: what libmoor says of an instance. */
#include "cmd.h"

#include <getopt.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char help[] = "usage: moor status [--json | --prometheus] [--watch[=SECONDS]] [--dir DIR]\n"
                           "                   [INSTANCE]\n"
                           "\n"
                           "Requests, records, gate, barrier, leases of a server on this host. INSTANCE: its\n"
                           "name; else $MOOR_INSTANCE, else \"default\".\n"
                           "\n"
                           "      --json            one JSON object\n"
                           "      --prometheus      metrics in Prometheus' text format\n"
                           "  -w, --watch[=SECONDS] again every SECONDS (default 2), until interrupted\n"
                           "      --dir DIR         the folder of instances; else the configured candidates\n"
                           "                        are searched\n"
                           "exit codes: 0; 1 failed; 2 wrong usage; 3 no such instance; 4 several, name one.\n";

static int show(const char *instance, const char *dir, const char *format, int clear)
{
    char *text = NULL;
    size_t len = 0;
    moor_status status = api->status_text(instance, dir, format, &text, &len);
    if (status)
        return fail_status(status);
    if (clear)
        fputs("\033[H\033[2J", stdout);
    fwrite(text, 1, len, stdout);
    if (len && text[len - 1] != '\n')
        putchar('\n');
    api->text_free(text);
    return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

static void pause_s(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&left, NULL);
}

int cmd_status(int argc, char **argv)
{
    static const struct option options[] = {{"json", 0, NULL, 'j'},  {"prometheus", 0, NULL, 'p'},
                                            {"watch", 2, NULL, 'w'}, {"dir", 1, NULL, 'd'},
                                            {"help", 0, NULL, 'h'},  {0}};
    const char *dir = NULL, *format = NULL;
    double every = 0;
    int c;
    while ((c = getopt_long(argc, argv, "w::h", options, NULL)) != -1) {
        switch (c) {
        case 'j':
        case 'p':
            if (format)
                return fail(EXIT_USAGE, "status: --json or --prometheus, not both");
            format = c == 'j' ? "json" : "prometheus";
            break;
        case 'w':
            every = optarg ? parse_seconds(optarg) : 2;
            if (every < 0.05)
                return fail(EXIT_USAGE, "status: --watch=%s: seconds from 0.05 are needed", optarg);
            break;
        case 'd':
            dir = optarg;
            break;
        case 'h':
            return fputs(help, stdout), EXIT_OK;
        default:
            return fputs(help, stderr), EXIT_USAGE;
        }
    }
    if (argc - optind > 1)
        return fail(EXIT_USAGE, "status: one instance, not \"%s\" and \"%s\"", argv[optind], argv[optind + 1]);
    const char *instance = optind < argc ? argv[optind] : NULL;
    int clear = every > 0 && !format && isatty(STDOUT_FILENO);
    for (;;) {
        int code = show(instance, dir, format ? format : "human", clear);
        if (code || !every)
            return code;
        pause_s(every);
    }
}
