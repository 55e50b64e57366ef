/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a configuration: parsed or refused with a text, nothing else. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "plugin/config.h"

static const char *const seeds[] = {
    "{}",
    "{\"instance\":\"a-${HOME}\",\"dir\":\"/tmp\",\"on_error\":\"strict\",\"log\":\"debug\"}",
    "{\"record\":{\"enabled\":true,\"deliver\":\"ref\",\"arena_bytes\":\"64MiB\",\"validate\":\"seal\"}}",
    "{\"record\":{\"always\":true,\"keep_s\":1.5,\"keep_bytes\":7}}",
    "{\"gate\":{\"mode\":\"enforce\",\"drain_timeout_s\":2},\"barrier\":{\"external\":3,\"spin_us\":\"${USER}\"}}",
    "{\"cleanup\":{\"mode\":\"light\",\"escalate_free_bytes\":1e9},\"weights\":{\"transport\":\"auto\"}}",
};

size_t fuzz_n_seeds(void)
{
    return sizeof(seeds) / sizeof(seeds[0]);
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t room)
{
    size_t n = strlen(seeds[index]);
    if (n > room)
        n = room;
    memcpy(out, seeds[index], n);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    moor_config *config = NULL;
    moor_config_values values = MOOR_CONFIG_VALUES_INIT;
    unsetenv("MOOR_CONFIG");
    moor_status status = moor_config_parse((const char *)data, size, &config);
    if (status ? status != MOOR_E_CONFIG || !moor_last_error()[0]
               : moor_config_get_values(config, &values) != MOOR_OK || !values.arena_bytes)
        abort();
    moor_config_free(config);
    return 0;
}
