/* SPDX-License-Identifier: Apache-2.0 */
/* `moor dump`: one record, read as any consumer reads it. */
#include "cmd.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] = "usage: moor dump [--json | --npy FILE] [--allow-missing] [-t SECONDS]\n"
                           "                 [-i INSTANCE] [--dir DIR] REQUEST_ID\n"
                           "\n"
                           "The experts that were recorded for a request on this host. REQUEST_ID: as the\n"
                           "HTTP client sees it, the front end's or the engine core's; one that means\n"
                           "several records (n > 1) lists their ids.\n"
                           "\n"
                           "      --json            one JSON object: what is known of the record, and \"ids\"\n"
                           "                        as [rows][layers][top_k], null for a missing row\n"
                           "      --npy FILE        [rows, layers, top_k] as a NumPy file, \"-\" is stdout\n"
                           "      --allow-missing   of an incomplete record, too: with --npy what is missing\n"
                           "                        is 0\n"
                           "  -t, --timeout SECONDS how long to wait for the server and the end of the\n"
                           "                        request (default 5)\n"
                           "  -i, --instance NAME   the server; else $MOOR_INSTANCE, else \"default\"\n"
                           "      --dir DIR         the folder of instances; else the configured candidates\n"
                           "                        are searched\n"
                           "exit codes: 0; 1 failed; 2 wrong usage; 3 no such request or instance; 4 the id\n"
                           "means several; 5 not sealed in time; 6 rows are missing.\n";

typedef struct dump_args {
    const char *id, *instance, *dir, *npy;
    double timeout;
    int json, allow_missing;
} dump_args;

static uint32_t id_at(const moor_record_info *info, const void *data, uint64_t i)
{
    return info->dtype == MOOR_DTYPE_U8 ? ((const uint8_t *)data)[i] : ((const uint16_t *)data)[i];
}

static size_t row_bytes(const moor_record_info *info)
{
    return (size_t)info->layers * info->top_k * (info->dtype == MOOR_DTYPE_U8 ? 1 : 2);
}

static const char *owner_name(uint32_t owner)
{
    return owner == MOOR_OWNER_ROLLOUT ? "rollout" : owner == MOOR_OWNER_TRACE_STORE ? "trace_store" : "none";
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------- */

static void json_string(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void json_row(const moor_record_info *info, const void *row)
{
    putchar('[');
    for (uint32_t l = 0; l < info->layers; l++) {
        printf(l ? ",[" : "[");
        for (uint32_t k = 0; k < info->top_k; k++)
            printf(k ? ",%u" : "%u", id_at(info, row, (uint64_t)l * info->top_k + k));
        putchar(']');
    }
    putchar(']');
}

static void json_head(const moor_record_info *info)
{
    printf("{\"request_id\":");
    json_string(info->request_id);
    printf(",\"session_id\":");
    json_string(info->session_id);
    printf(",\"handle\":%" PRIu64 ",\"owner\":\"%s\",\"rows\":%" PRIu64 ",\"missing_rows\":%" PRIu64
           ",\"layers\":%u,\"model_layers\":%u,"
           "\"top_k\":%u,\"num_experts\":%u,\"dtype\":\"%s\",\"store_index\":%u,\"dropped_rows\":%" PRIu64
           ",\"layer_ids\":[",
           info->handle, owner_name(info->owner), info->rows, info->missing_rows, info->layers, info->model_layers,
           info->top_k, info->num_experts, info->dtype == MOOR_DTYPE_U8 ? "uint8" : "uint16", info->store_index,
           info->dropped_rows);
    for (uint32_t l = 0; l < info->layers; l++)
        printf(l ? ",%d" : "%d", info->layer_ids[l]);
    printf("],\"versions\":[");
    for (uint32_t v = 0; v < info->n_versions; v++) {
        printf("%s{\"start\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"label\":", v ? "," : "", info->versions[v].start,
               info->versions[v].epoch);
        json_string(info->versions[v].label ? info->versions[v].label : "");
        putchar('}');
    }
    putchar(']');
}

static void dump_json(const moor_record_info *info)
{
    size_t bytes = row_bytes(info);
    json_head(info);
    printf(",\"ids\":[");
    for (uint32_t i = 0; i < info->n_segments; i++) {
        const moor_segment *s = &info->segments[i];
        for (uint64_t r = 0; r < s->rows; r++) {
            if (s->start + r)
                putchar(',');
            if (s->present)
                json_row(info, (const char *)s->data + r * bytes);
            else
                printf("null");
        }
    }
    printf("]}\n");
}

/* ---- NumPy ------------------------------------------------------------------------------------------------------------- */

/* Format 1.0: magic, version, length of the header, header padded with spaces to a multiple of 64 and ended by a newline. */
static int npy_header(FILE *file, const moor_record_info *info)
{
    char text[256];
    int n = snprintf(text, sizeof(text), "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRIu64 ", %u, %u), }",
                     info->dtype == MOOR_DTYPE_U8 ? "|u1" : "<u2", info->rows, info->layers, info->top_k);
    size_t total = (10 + (size_t)n + 1 + 63) / 64 * 64, len = total - 10;
    const unsigned char magic[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(len & 0xFF), (unsigned char)(len >> 8)};
    fwrite(magic, 1, sizeof(magic), file);
    return fprintf(file, "%-*s\n", (int)len - 1, text) < 0 ? -1 : 0;
}

static void npy_rows(FILE *file, const moor_record_info *info)
{
    size_t bytes = row_bytes(info);
    for (uint32_t i = 0; i < info->n_segments; i++) {
        const moor_segment *s = &info->segments[i];
        if (s->present)
            fwrite(s->data, bytes, s->rows, file);
        else
            for (uint64_t b = 0; b < s->rows * bytes; b++)
                fputc(0, file);
    }
}

static int dump_npy(const moor_record_info *info, const char *name)
{
    FILE *file = strcmp(name, "-") ? fopen(name, "wb") : stdout;
    if (!file)
        return fail(EXIT_FAILED, "dump: \"%s\": %s", name, strerror(errno));
    npy_header(file, info);
    npy_rows(file, info);
    int bad = ferror(file) != 0;
    if ((file == stdout ? fflush(file) : fclose(file)) || bad) {
        int err = errno;
        if (file != stdout)
            unlink(name);
        return fail(EXIT_FAILED, "dump: \"%s\": %s", name, strerror(err));
    }
    return EXIT_OK;
}

/* ---- text -------------------------------------------------------------------------------------------------------------- */

static void text_rows(const moor_record_info *info)
{
    size_t bytes = row_bytes(info);
    for (uint32_t i = 0; i < info->n_segments; i++) {
        const moor_segment *s = &info->segments[i];
        if (!s->present) {
            printf("%" PRIu64 "-%" PRIu64 ": missing\n", s->start, s->start + s->rows - 1);
            continue;
        }
        for (uint64_t r = 0; r < s->rows; r++) {
            const char *row = (const char *)s->data + r * bytes;
            printf("%" PRIu64 ":", s->start + r);
            for (uint32_t l = 0; l < info->layers; l++)
                for (uint32_t k = 0; k < info->top_k; k++)
                    printf("%s%u", k ? "," : " ", id_at(info, row, (uint64_t)l * info->top_k + k));
            putchar('\n');
        }
    }
}

static void dump_text(const moor_record_info *info)
{
    printf("request  %s\nrows     %" PRIu64 ", %" PRIu64 " missing\nexperts  top-%u of %u in %u of %u layers:",
           info->request_id, info->rows, info->missing_rows, info->top_k, info->num_experts, info->layers,
           info->model_layers);
    for (uint32_t l = 0; l < info->layers; l++)
        printf(" %d", info->layer_ids[l]);
    printf("\nversions");
    for (uint32_t v = 0; v < info->n_versions; v++)
        printf("%s %" PRIu64 "%s%s%s from row %" PRIu64, v ? "," : "", info->versions[v].epoch,
               *info->versions[v].label ? " (" : "", info->versions[v].label, *info->versions[v].label ? ")" : "",
               info->versions[v].start);
    printf("\nowner    %s\nrow: ids of each layer\n", owner_name(info->owner));
    text_rows(info);
}

/* ---- the command ------------------------------------------------------------------------------------------------------- */

static int show(const dump_args *args, const moor_record *record)
{
    moor_record_info info = MOOR_RECORD_INFO_INIT;
    moor_status status = api->record_info(record, &info);
    if (status)
        return fail_status(status);
    if (args->npy && info.missing_rows && !args->allow_missing)
        return fail(EXIT_INCOMPLETE,
                    "dump: %" PRIu64 " of the %" PRIu64 " rows of %s are missing; --allow-missing writes them as 0",
                    info.missing_rows, info.rows, info.request_id);
    if (args->npy) {
        int code = dump_npy(&info, args->npy);
        if (code)
            return code;
    } else if (args->json) {
        dump_json(&info);
    } else {
        dump_text(&info);
    }
    return info.missing_rows && !args->allow_missing ? EXIT_INCOMPLETE : EXIT_OK;
}

/* What an ambiguous id means, for the user to choose from. */
static void list_ids(moor_client *client, const dump_args *args)
{
    moor_record **records = NULL;
    uint32_t n = 0;
    if (api->open_all(client, args->id, (uint32_t)strlen(args->id), 0, &records, &n))
        return;
    for (uint32_t i = 0; i < n; i++) {
        moor_record_info info = MOOR_RECORD_INFO_INIT;
        if (!api->record_info(records[i], &info))
            fprintf(stderr, "  %s\n", info.request_id);
        api->record_release(records[i]);
    }
    api->records_free(records, n);
}

static int dump(const dump_args *args)
{
    moor_client *client = NULL;
    moor_record *record = NULL;
    moor_status status = api->attach(args->instance, args->dir, args->timeout, &client);
    if (status)
        return fail_status(status);
    status = api->open(client, args->id, (uint32_t)strlen(args->id), args->timeout, 0, 0, &record);
    int code;
    if (status) {
        code = fail_status(status);
        if (status == MOOR_E_AMBIGUOUS)
            list_ids(client, args);
    } else {
        code = show(args, record);
        api->record_release(record);
    }
    api->detach(client);
    return code;
}

int cmd_dump(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", 0, NULL, 'j'},     {"npy", 1, NULL, 'n'}, {"allow-missing", 0, NULL, 'm'}, {"timeout", 1, NULL, 't'},
        {"instance", 1, NULL, 'i'}, {"dir", 1, NULL, 'd'}, {"help", 0, NULL, 'h'},          {0}};
    dump_args args = {.timeout = 5};
    int c;
    while ((c = getopt_long(argc, argv, "t:i:h", options, NULL)) != -1) {
        switch (c) {
        case 'j':
            args.json = 1;
            break;
        case 'n':
            args.npy = optarg;
            break;
        case 'm':
            args.allow_missing = 1;
            break;
        case 'i':
            args.instance = optarg;
            break;
        case 'd':
            args.dir = optarg;
            break;
        case 't':
            args.timeout = parse_seconds(optarg);
            if (args.timeout < 0)
                return fail(EXIT_USAGE, "dump: --timeout %s: seconds are needed", optarg);
            break;
        case 'h':
            return fputs(help, stdout), EXIT_OK;
        default:
            return fputs(help, stderr), EXIT_USAGE;
        }
    }
    if (argc - optind != 1 || !*argv[optind]) {
        fail(0, "dump: one request id is needed");
        return fputs(help, stderr), EXIT_USAGE;
    }
    if (args.json && args.npy)
        return fail(EXIT_USAGE, "dump: --json or --npy, not both");
    args.id = argv[optind];
    return dump(&args);
}
