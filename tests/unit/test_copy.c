/* SPDX-License-Identifier: Apache-2.0 */
/* client/copy.c, client/wire.c, client/resolve.c: what a consumer makes of bytes. SEMANTICS 1.3: ids survive exactly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/copy.h"
#include "client/ref.h"
#include "client/wire.h"

static int64_t value_at(const void *data, uint32_t dtype, size_t i)
{
    switch (dtype) {
    case MOOR_DTYPE_U8:
        return ((const uint8_t *)data)[i];
    case MOOR_DTYPE_U16:
        return ((const uint16_t *)data)[i];
    case MOOR_DTYPE_I16:
        return ((const int16_t *)data)[i];
    case MOOR_DTYPE_I32:
        return ((const int32_t *)data)[i];
    default:
        return ((const int64_t *)data)[i];
    }
}

/* Every value of the source dtype that the destination holds, at every length and offset around a vector. */
static void S1_3_ids_survive_between_all_dtypes(void **state)
{
    (void)state;
    enum { N = 65536 + 64 };
    uint16_t *wide = malloc(N * sizeof(*wide));
    uint8_t *narrow = malloc(N), *out = malloc(N * 8 + 8);
    for (uint32_t i = 0; i < N; i++) {
        wide[i] = (uint16_t)i;
        narrow[i] = (uint8_t)i;
    }
    for (uint32_t to = MOOR_DTYPE_U8; to <= MOOR_DTYPE_I64; to++)
        for (uint32_t from = MOOR_DTYPE_U8; from <= MOOR_DTYPE_U16; from++) {
            const void *source = from == MOOR_DTYPE_U8 ? (const void *)narrow : wide;
            size_t most = from == MOOR_DTYPE_U8 || to == MOOR_DTYPE_U8 ? 256 : to == MOOR_DTYPE_I16 ? 32768 : 65536;
            moor_copy_ids(out, to, source, from, most);
            for (size_t i = 0; i < most; i++)
                assert_int_equal(value_at(out, to, i), value_at(source, from, i));
            for (size_t n = 0; n < 70; n++) {
                memset(out, 0xEE, 80 * 8);
                moor_copy_ids(out, to, source, from, n);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(value_at(out, to, i), value_at(source, from, i));
                assert_int_equal(out[n * moor_copy_dtype_bytes(to)], 0xEE);
            }
        }
    free(wide);
    free(narrow);
    free(out);
}

static void S1_3_a_dtype_that_cannot_hold_the_ids_is_known(void **state)
{
    (void)state;
    assert_true(moor_copy_dtype_holds(MOOR_DTYPE_U8, 256) && !moor_copy_dtype_holds(MOOR_DTYPE_U8, 257));
    assert_true(moor_copy_dtype_holds(MOOR_DTYPE_I16, 32768) && !moor_copy_dtype_holds(MOOR_DTYPE_I16, 32769));
    assert_true(moor_copy_dtype_holds(MOOR_DTYPE_U16, 65536) && !moor_copy_dtype_holds(MOOR_DTYPE_U16, 65537));
    assert_true(moor_copy_dtype_holds(MOOR_DTYPE_I32, 65536) && moor_copy_dtype_holds(MOOR_DTYPE_I64, 65536));
    assert_int_equal(moor_copy_dtype_bytes(0), 0);
    assert_int_equal(moor_copy_dtype_bytes(6), 0);
}

static void frames_are_whole_partial_or_malformed(void **state)
{
    (void)state;
    moor_wire_header header = {.length = 20, .type = 3}, seen;
    unsigned char bytes[32] = {0};
    memcpy(bytes, &header, sizeof(header));
    for (size_t n = 0; n < 20; n++)
        assert_int_equal(moor_wire_frame(bytes, n, &seen), 0);
    assert_int_equal(moor_wire_frame(bytes, 20, &seen), 1);
    assert_int_equal(moor_wire_frame(bytes, 32, &seen), 1);
    assert_int_equal(seen.type, 3);
    static const uint32_t bad[] = {0, 15, MOOR_WIRE_LIMIT + 1, 0x80000000, 0xFFFFFFFF};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memcpy(bytes, &bad[i], 4);
        assert_int_equal(moor_wire_frame(bytes, 32, &seen), -1);
    }
}

static void readers_stop_at_the_end(void **state)
{
    (void)state;
    unsigned char bytes[4] = {1, 2, 3, 4}, out[8];
    moor_wire_reader reader = {bytes, sizeof(bytes)};
    assert_int_equal(moor_wire_get(&reader, out, 3), 1);
    assert_int_equal(moor_wire_get(&reader, out, 2), 0);
    assert_null(moor_wire_take(&reader, SIZE_MAX));
    assert_int_equal(moor_wire_get(&reader, out, 1), 1);
    assert_int_equal(out[0], 4);
    assert_non_null(moor_wire_take(&reader, 0));
    assert_null(moor_wire_take(&reader, 1));
}

static void large_replies_must_be_what_they_say(void **state)
{
    (void)state;
    void *out = NULL;
    int fd;
    assert_int_equal(moor_wire_large_make("hello", 5, &fd), MOOR_OK);
    assert_int_equal(moor_wire_large_read(fd, 6, &out), MOOR_E_CORRUPT);
    assert_int_equal(moor_wire_large_read(fd, UINT64_MAX, &out), MOOR_E_CORRUPT);
    assert_null(out);
    assert_int_equal(moor_wire_large_read(fd, 5, &out), MOOR_OK);
    assert_memory_equal(out, "hello", 5);
    free(out);
    close(fd);
}

static void refs_are_read_exactly(void **state)
{
    (void)state;
    moor_ref ref;
    const char *good = "moor1:host-1.example:default:3.0000002a:0000000100000007:u16:120x48x8";
    assert_int_equal(moor_ref_parse(good, strlen(good), &ref), MOOR_OK);
    assert_string_equal(ref.host, "host-1.example");
    assert_string_equal(ref.instance, "default");
    assert_int_equal(ref.store_index, 3);
    assert_int_equal(ref.nonce, 42);
    assert_true(ref.handle == 0x100000007u);
    assert_int_equal(ref.dtype, MOOR_DTYPE_U16);
    assert_int_equal(ref.rows, 120);
    assert_int_equal(ref.start, 0);
    assert_int_equal(ref.layers, 48);
    assert_int_equal(ref.top_k, 8);
    static const char *const bad[] = {"",
                                      "moor1",
                                      "moor2:h:i:3.2a:7:u8:1x1x1",
                                      "moor1:h:i:3:7:u8:1x1x1",
                                      "moor1:h:i:64.2a:7:u8:1x1x1",
                                      "moor1:h:i:3.2a:7:u32:1x1x1",
                                      "moor1:h:i:3.2a:7:u8:1x1",
                                      "moor1:h:i:3.2a:7:u8:1x1x1x1",
                                      "moor1:h:i:3.2a:-7:u8:1x1x1",
                                      "moor1:h:i:3.2a:g:u8:1x1x1",
                                      "moor1:h:i:3.2a:10000000000000000:u8:1x1x1",
                                      "moor1::i:3.2a:7:u8:1x1x1",
                                      "moor1:h:i:3.2a:7:u8:1x1x1@",
                                      "moor1:h:i:3.2a:7:u8:1x1x1@x",
                                      "moor1:h:i:3.2a:7:u8:1x1x1@-1",
                                      "moor1:h:i:3.2a:7:u8:1@1x1x1",
                                      "moor1:h:i:3.2a:7:u8:1x1x1@1@2",
                                      "moor1:h:i:3.2a:7:u8:1x1x1@18446744073709551615",
                                      "moor1:h:i:3.2a:7:u8:1x1x99999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(moor_ref_parse(bad[i], strlen(bad[i]), &ref), MOOR_E_INVALID);
    for (size_t n = 0; n < strlen(good) - 1; n++) /* cut anywhere (but inside the last number) */
        assert_int_equal(moor_ref_parse(good, n, &ref), MOOR_E_INVALID);
    assert_int_equal(moor_ref_parse(NULL, 0, &ref), MOOR_E_INVALID);
}

static void S1_27_a_ref_of_a_part(void **state)
{
    (void)state;
    moor_ref ref;
    char part[200], again[200], two[200];
    const char *whole = "moor1:h:i:3.0000002a:0000000100000007:u8:120x48x8";
    assert_int_equal(moor_ref_part(whole, strlen(whole), 3, 2, part, sizeof(part)), MOOR_OK);
    assert_string_equal(part, "moor1:h:i:3.0000002a:0000000100000007:u8:115x48x8@3");
    assert_int_equal(moor_ref_parse(part, strlen(part), &ref), MOOR_OK);
    assert_int_equal(ref.rows, 115);
    assert_int_equal(ref.start, 3);
    assert_int_equal(moor_ref_part(part, strlen(part), 1, 0, again, sizeof(again)), MOOR_OK);
    assert_string_equal(again, "moor1:h:i:3.0000002a:0000000100000007:u8:114x48x8@4");
    assert_int_equal(moor_ref_part(again, strlen(again), 100, 14, again, sizeof(again)), MOOR_OK);
    assert_string_equal(again, "moor1:h:i:3.0000002a:0000000100000007:u8:0x48x8@104");
    /* of pipeline stages: the same rows of each */
    const char *stages = "moor1:h:i:0.2a:1:u8:9x2x8+moor1:h:i:1.2a:1:u8:9x3x8";
    assert_int_equal(moor_ref_part(stages, strlen(stages), 0, 4, two, sizeof(two)), MOOR_OK);
    assert_string_equal(
        two, "moor1:h:i:0.0000002a:0000000000000001:u8:5x2x8+moor1:h:i:1.0000002a:0000000000000001:u8:5x3x8");
    assert_int_equal(moor_ref_part(stages, strlen(stages), 5, 5, two, sizeof(two)), MOOR_E_RANGE);
    assert_int_equal(moor_ref_part(stages, strlen(stages), 10, 0, two, sizeof(two)), MOOR_E_RANGE);
    assert_int_equal(moor_ref_part(stages, strlen(stages), 0, UINT64_MAX, two, sizeof(two)), MOOR_E_RANGE);
    assert_int_equal(moor_ref_part(stages, strlen(stages) - 1, 0, 0, two, sizeof(two)), MOOR_E_INVALID);
    assert_int_equal(moor_ref_part(whole, strlen(whole), 3, 2, part, strlen(part)), MOOR_E_INVALID);
    assert_int_equal(moor_ref_part(whole, strlen(whole), 3, 2, NULL, 0), MOOR_E_INVALID);
    assert_int_equal(moor_ref_part(NULL, 0, 0, 0, part, sizeof(part)), MOOR_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_3_ids_survive_between_all_dtypes),
        cmocka_unit_test(S1_3_a_dtype_that_cannot_hold_the_ids_is_known),
        cmocka_unit_test(frames_are_whole_partial_or_malformed),
        cmocka_unit_test(readers_stop_at_the_end),
        cmocka_unit_test(large_replies_must_be_what_they_say),
        cmocka_unit_test(refs_are_read_exactly),
        cmocka_unit_test(S1_27_a_ref_of_a_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
