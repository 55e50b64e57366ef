/* SPDX-License-Identifier: Apache-2.0 */
#include "api.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "config.h"
#include "process.h"

const char *moor_version_string(void)
{
    return MOOR_VERSION_STRING;
}

const char *moor_library_path(void)
{
    Dl_info info;
    if (!dladdr((const void *)(uintptr_t)&moor_get_api, &info) || !info.dli_fname)
        return "";
    return info.dli_fname;
}

static void text_free(char *text)
{
    free(text);
}

static const moor_api table = {
    .size = sizeof(moor_api),
    .version = MOOR_API_VERSION,
    .version_string = moor_version_string,
    .status_name = moor_status_name,
    .last_error = moor_last_error,
    .library_path = moor_library_path,

    .config_parse = moor_config_parse,
    .config_values = moor_config_get_values,
    .config_free = moor_config_free,

    .process_join = moor_process_join,
    .process_leave = moor_process_leave,
    .process_config = moor_process_config,
    .process_instance = moor_process_instance,
    .process_dir = moor_process_dir,
    .log = moor_process_log,

    .count = moor_count,
    .text_free = text_free,
};

__attribute__((visibility("default"))) const moor_api *moor_get_api(uint32_t want, uint32_t *have)
{
    if (have)
        *have = MOOR_API_VERSION;
    return want == MOOR_API_VERSION ? &table : NULL;
}
