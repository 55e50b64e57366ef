/* SPDX-License-Identifier: Apache-2.0 */
/* `moor gate`: the gate of an instance, from a shell. */
#include "cmd.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const char help[] = "usage: moor gate status | acknowledge [--dir DIR] [INSTANCE]\n"
                           "\n"
                           "The request gate of a server on this host. INSTANCE: its name; else\n"
                           "$MOOR_INSTANCE, else \"default\".\n"
                           "\n"
                           "  status        what it is, and why it is poisoned, in one line\n"
                           "  acknowledge   clears the poison: you have seen to the cause, which it prints.\n"
                           "                The gate stays closed until the engine resumes or is updated\n"
                           "      --dir DIR the folder of instances; else the candidates are searched\n"
                           "\n"
                           "exit codes: 0; 1 failed; 2 wrong usage; 3 no such instance; 4 several, name one.\n";

static void show(const moor_gate_status *gate)
{
    static const char *const states[] = {"open", "sealed", "drained"};
    printf("%s%s, %llu in flight, %llu waiting%s%s\n", gate->state < 3 ? states[gate->state] : "?",
           gate->flags & MOOR_GATE_KEPT ? " (requests kept)" : "", (unsigned long long)gate->in_flight,
           (unsigned long long)gate->waiting, gate->poisoned ? ", poisoned: " : "",
           gate->poisoned ? gate->poison_reason : "");
}

static moor_status run(moor_client *client, int acknowledge)
{
    moor_gate_status before = MOOR_GATE_STATUS_INIT, after = MOOR_GATE_STATUS_INIT;
    moor_status status = api->client_gate(client, "status", NULL, 0, &before);
    if (status || !acknowledge) {
        if (!status)
            show(&before);
        return status;
    }
    status = api->client_gate(client, "acknowledge", NULL, 0, &after);
    if (status)
        return status;
    if (before.poisoned)
        printf("acknowledged: %s\n", before.poison_reason);
    else
        puts("the gate is not poisoned; nothing done");
    show(&after);
    return MOOR_OK;
}

int cmd_gate(int argc, char **argv)
{
    static const struct option options[] = {{"dir", 1, NULL, 'd'}, {"help", 0, NULL, 'h'}, {0}};
    const char *dir = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == 'h')
            return fputs(help, stdout), EXIT_OK;
        if (c != 'd')
            return fputs(help, stderr), EXIT_USAGE;
        dir = optarg;
    }
    const char *verb = optind < argc ? argv[optind] : "";
    int acknowledge = !strcmp(verb, "acknowledge");
    if (!acknowledge && strcmp(verb, "status") != 0) {
        fail(0, "gate: \"%s\" is neither status nor acknowledge", verb);
        return fputs(help, stderr), EXIT_USAGE;
    }
    if (argc - optind > 2)
        return fail(EXIT_USAGE, "gate: one instance, not \"%s\" and \"%s\"", argv[optind + 1], argv[optind + 2]);
    moor_client *client = NULL;
    moor_status status = api->attach(optind + 1 < argc ? argv[optind + 1] : NULL, dir, 5.0, &client);
    if (!status)
        status = run(client, acknowledge);
    int code = status ? fail_status(status) : EXIT_OK;
    api->detach(client);
    return code;
}
