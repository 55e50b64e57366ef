/* SPDX-License-Identifier: Apache-2.0 */
/* SEMANTICS 1.15 and 1.16: rows of cached prefixes, from the KV-slot index. */
#include "support/lab.h"

static const int32_t eight[] = {10, 11, 12, 13, 14, 15, 16, 17};

static lab_request prompt_of(const char *id, uint64_t start, uint32_t count, const int32_t *kv, uint32_t n_kv)
{
    return (lab_request){.id = id, .start = start, .count = count, .kv = kv, .n_kv = n_kv};
}

/* "a" computes 16 tokens in blocks 10…13; sealed. */
static void first_request(lab_store *lab)
{
    lab_request a = prompt_of("a", 0, 16, eight, 4);
    lab_step(lab, &a, 1);
    assert_status(lab_seal(lab, "a", 16), MOOR_OK);
}

static void S1_15_a_prefix_hit_gets_the_rows_of_its_blocks_without_a_copy(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    first_request(&lab);
    uint64_t bytes = lab_stats(&lab).live_bytes;
    lab.epoch = 2;
    lab_request b = prompt_of("b", 12, 6, eight, 5);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 18), MOOR_OK);
    moor_view *a = lab_view(&lab, "a"), *view = lab_view(&lab, "b");
    assert_int_equal(view->rows, 18);
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "a", 0, 12, 1); /* a's rows, with a's weights */
    lab_assert_rows(&lab, view, "b", 12, 18, 2);
    assert_int_equal(view->n_versions, 2);
    assert_int_equal(view->versions[1].start, 12);
    assert_int_equal(view->versions[1].epoch, 2);
    assert_int_equal(view->segments[0].offset, a->segments[0].offset); /* the same memory */
    assert_int_equal(lab_count(&lab, MOOR_C_ROWS_PREFIX), 12);
    assert_int_equal(lab_stats(&lab).live_bytes - bytes, 16 << 10); /* one block of the least size, for b's own rows */
    lab_unview(&lab, a);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_rows_of_a_prefix_outlive_the_record_that_made_them(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    first_request(&lab);
    moor_handle handle;
    assert_status(moor_records_find(lab.records, "a", 1, &handle), MOOR_OK);
    assert_status(moor_records_event(lab.records, handle, MOOR_EVENT_DISCARD), MOOR_OK);
    assert_int_equal(lab_stats(&lab).records, 0);
    assert_true(lab_stats(&lab).live_bytes > 0); /* the index holds them */
    lab_request b = prompt_of("b", 16, 1, eight, 5);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 17), MOOR_OK);
    assert_status(moor_records_kv_reset(lab.records), MOOR_OK); /* now only b holds them */
    moor_view *view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "a", 0, 16, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_a_block_that_was_handed_out_again_has_no_rows(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    first_request(&lab);
    const int32_t gone = 11;
    assert_status(moor_records_kv_handed_out(lab.records, &gone, 1), MOOR_OK);
    lab_request b = prompt_of("b", 16, 1, eight, 5);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 17), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "a", 0, 4, 1);
    lab_assert_missing(view, 4, 8, MOOR_REASON_PREFIX_UNKNOWN);
    lab_assert_rows(&lab, view, "a", 8, 16, 1);
    lab_assert_rows(&lab, view, "b", 16, 17, 1);
    assert_int_equal(view->missing_rows, 4);
    lab_unview(&lab, view);
    /* Its new occupant is found, the earlier one never. */
    const int32_t other[] = {11, 30};
    lab.epoch = 3;
    lab_request c = prompt_of("c", 0, 5, other, 2);
    lab_step(&lab, &c, 1);
    lab_request d = prompt_of("d", 4, 1, other, 1);
    const int32_t mixed[] = {11, 31};
    d.kv = mixed;
    d.n_kv = 2;
    lab_step(&lab, &d, 1);
    assert_status(lab_seal(&lab, "d", 5), MOOR_OK);
    view = lab_view(&lab, "d");
    lab_assert_rows(&lab, view, "c", 0, 4, 3);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_rows_from_outside_and_unknown_blocks_are_missing(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    first_request(&lab);
    struct {
        const char *id;
        const int32_t *kv;
        uint32_t n_kv, flags;
    } cases[] = {{"unproven", eight, 5, MOOR_STEP_PREFIX_UNPROVEN},
                 {"no blocks", NULL, 0, 0},
                 {"never written", eight + 4, 4, 0}};
    for (int i = 0; i < 3; i++) {
        lab_request b = {.id = cases[i].id,
                         .start = 12,
                         .count = 3,
                         .kv = cases[i].kv,
                         .n_kv = cases[i].n_kv,
                         .flags = cases[i].flags};
        lab_step(&lab, &b, 1);
        assert_status(lab_seal(&lab, b.id, 15), MOOR_OK);
        moor_view *view = lab_view(&lab, b.id);
        assert_int_equal(view->missing_rows, 12);
        lab_assert_missing(view, 0, 12, MOOR_REASON_PREFIX_UNKNOWN);
        lab_assert_rows(&lab, view, b.id, 12, 15, 1);
        assert_int_equal(view->n_versions, 2);
        assert_int_equal(view->versions[0].epoch, 0); /* nobody knows */
        assert_int_equal(view->versions[1].start, 12);
        lab_unview(&lab, view);
    }
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_a_reset_empties_the_index_an_update_does_not(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    first_request(&lab);
    lab.epoch = 7; /* a weight update: rows keep their old version */
    lab_request b = prompt_of("b", 16, 1, eight, 5);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 17), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    assert_int_equal(view->missing_rows, 0);
    assert_int_equal(view->versions[0].epoch, 1);
    assert_int_equal(view->versions[1].epoch, 7);
    lab_unview(&lab, view);
    assert_int_equal(lab_stats(&lab).kv_entries, 5); /* 4 of a and the partial one of b */
    assert_status(moor_records_kv_reset(lab.records), MOOR_OK);
    assert_int_equal(lab_stats(&lab).kv_entries, 0);
    lab_request c = prompt_of("c", 16, 1, eight, 5);
    lab_step(&lab, &c, 1);
    assert_status(lab_seal(&lab, "c", 17), MOOR_OK);
    view = lab_view(&lab, "c");
    assert_int_equal(view->missing_rows, 16);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_rows_computed_again_under_other_weights_are_not_given_to_others(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    first_request(&lab); /* not to be confused */
    lab_request a = prompt_of("p", 0, 8, eight + 4, 2);
    lab_step(&lab, &a, 1);
    /* Preempted, weights updated, computed again into blocks 20, 21: the record keeps version 1, the KV cache has version 2. */
    const int32_t again[] = {20, 21, 22};
    lab.epoch = 2;
    a = prompt_of("p", 0, 12, again, 3);
    lab_step(&lab, &a, 1);
    lab_request b = prompt_of("q", 12, 1, again, 3);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "q", 13), MOOR_OK);
    moor_view *view = lab_view(&lab, "q");
    lab_assert_missing(view, 0, 8, MOOR_REASON_PREFIX_UNKNOWN);
    lab_assert_rows(&lab, view, "p", 8, 12, 2);
    lab_unview(&lab, view);
    /* Under the same weights they are the same rows. */
    const int32_t third[] = {23, 24, 25};
    a = prompt_of("p", 8, 5, (const int32_t[]){20, 21, 23, 24}, 4);
    lab_step(&lab, &a, 1);
    b = prompt_of("r", 4, 1, third, 2);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "r", 5), MOOR_OK);
    view = lab_view(&lab, "r");
    assert_int_equal(view->missing_rows, 0);
    const uint8_t *row = lab_row(&lab, view, 0);
    assert_int_equal(row[0], lab_id(&lab, "p", 8, 0, 0, 2));
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_decoded_and_speculative_rows_reach_the_index_when_accepted(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request a = prompt_of("a", 0, 3, eight, 1);
    lab_step(&lab, &a, 1);
    a = prompt_of("a", 3, 1, eight, 1);
    lab_step(&lab, &a, 1);
    a = (lab_request){.id = "a", .start = 4, .count = 4, .spec = 3, .kv = eight, .n_kv = 2};
    lab_step(&lab, &a, 1);
    lab_request b = prompt_of("b", 8, 1, (const int32_t[]){10, 11, 40}, 3);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 9), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "a", 0, 5, 1);
    lab_assert_missing(view, 5, 8, MOOR_REASON_PREFIX_UNKNOWN); /* undecided so far */
    lab_unview(&lab, view);
    a = prompt_of("a", 8, 1, eight, 3); /* all were accepted */
    lab_step(&lab, &a, 1);
    lab_request c = prompt_of("c", 8, 1, (const int32_t[]){10, 11, 41}, 3);
    lab_step(&lab, &c, 1);
    assert_status(lab_seal(&lab, "c", 9), MOOR_OK);
    view = lab_view(&lab, "c");
    lab_assert_rows(&lab, view, "a", 0, 8, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_a_preempted_request_that_hits_its_own_blocks_keeps_its_rows(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request a = prompt_of("a", 0, 8, eight, 4); /* first half of a prefill */
    lab_step(&lab, &a, 1);
    lab.epoch = 2;
    lab_request b = prompt_of("b", 0, 16, (const int32_t[]){30, 31, 32, 33}, 4);
    lab_step(&lab, &b, 1); /* meanwhile another one computes the same prompt */
    a = prompt_of("a", 12, 6, (const int32_t[]){10, 11, 32, 33, 34},
                  5); /* a comes back with a hit beyond its own rows */
    lab_step(&lab, &a, 1);
    assert_status(lab_seal(&lab, "a", 18), MOOR_OK);
    moor_view *view = lab_view(&lab, "a");
    lab_assert_rows(&lab, view, "a", 0, 8, 1);
    lab_assert_rows(&lab, view, "b", 8, 12, 2);
    lab_assert_rows(&lab, view, "a", 12, 18, 2);
    assert_int_equal(view->missing_rows, 0);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_16_siblings_store_the_prompt_once(void **state)
{
    (void)state;
    enum { N = 16, PROMPT = 400, COMPLETION = 40, SHARED = PROMPT / LAB_BLOCK };
    lab_store lab;
    lab_defaults(&lab);
    lab.config.kv_blocks = 4096;
    lab.config.layers = 61; /* DeepSeek-V3's shape, so that rows outweigh the least size of a block */
    lab.config.top_k = 8;
    lab.config.num_experts = 256;
    lab_open_with(&lab);
    static int32_t kv[N][SHARED + 64];
    char id[N][8];
    int32_t next = 0;
    lab_request group[N];
    for (int s = 0; s < N; s++) {
        snprintf(id[s], sizeof(id[s]), "s%d", s);
        for (int i = 0; i < SHARED + 64; i++)
            kv[s][i] = i < SHARED && s ? kv[0][i] : next++;
        /* All in one step: the others hit blocks that the first one computes in this very step. */
        group[s] = (lab_request){.id = id[s],
                                 .start = s ? PROMPT - LAB_BLOCK : 0,
                                 .count = s ? LAB_BLOCK : PROMPT,
                                 .kv = kv[s],
                                 .n_kv = SHARED,
                                 .hint = PROMPT + COMPLETION};
        if (s) /* vLLM computes the last block of a full hit anew */
            kv[s][SHARED - 1] = next++;
    }
    lab_request backwards[N]; /* whatever the batch order */
    for (int s = 0; s < N; s++)
        backwards[s] = group[N - 1 - s];
    lab_step(&lab, backwards, N);
    for (int t = 0; t < COMPLETION; t++) {
        for (int s = 0; s < N; s++) {
            group[s].start = (uint64_t)(PROMPT + t);
            group[s].count = 1;
            group[s].n_kv = SHARED + 64;
        }
        lab_step(&lab, group, N);
    }
    for (int s = 0; s < N; s++)
        assert_status(lab_seal(&lab, id[s], PROMPT + COMPLETION), MOOR_OK);
    for (int s = 0; s < N; s++) {
        moor_view *view = lab_view(&lab, id[s]);
        assert_int_equal(view->missing_rows, 0);
        lab_assert_rows(&lab, view, id[0], 0, PROMPT - LAB_BLOCK, 1);
        lab_assert_rows(&lab, view, id[s], PROMPT - LAB_BLOCK, PROMPT + COMPLETION, 1);
        assert_true(view->n_segments <= 3);
        lab_unview(&lab, view);
    }
    uint64_t row = moor_records_row_bytes(lab.records);
    uint64_t once = (PROMPT + N * (COMPLETION + LAB_BLOCK)) * row, each = N * (PROMPT + COMPLETION) * row;
    uint64_t live = lab_stats(&lab).live_bytes;
    assert_true(live < once * 3 / 2); /* size classes */
    assert_true(live < each / 3);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_16_a_chain_of_siblings_in_one_step_is_resolved(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const int32_t ab[] = {10, 11}, abc[] = {10, 11, 12, 13};
    lab_request step[] = {prompt_of("c", 12, 2, abc, 4), prompt_of("b", 8, 4, abc, 3), prompt_of("a", 0, 8, ab, 2)};
    lab_step(&lab, step, 3);
    assert_status(lab_seal(&lab, "c", 14), MOOR_OK);
    moor_view *view = lab_view(&lab, "c");
    assert_int_equal(view->missing_rows, 0);
    lab_assert_rows(&lab, view, "a", 0, 8, 1);
    lab_assert_rows(&lab, view, "b", 8, 12, 1);
    lab_assert_rows(&lab, view, "c", 12, 14, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_17_rows_that_only_the_index_holds_give_way(void **state)
{
    (void)state;
    lab_store lab;
    lab_defaults(&lab);
    lab.config.arena_bytes = 1 << 20;
    lab.config.kv_blocks = 16384;
    lab_open_with(&lab);
    static int32_t kv[16384];
    for (int32_t i = 0; i < 16384; i++)
        kv[i] = i;
    char id[8];
    for (int i = 0; i < 6; i++) { /* more than the arena holds, each freed at its end, no KV block handed out twice */
        snprintf(id, sizeof(id), "r%d", i);
        lab_request request = prompt_of(id, 0, 8000, kv + 2000 * i, 2000);
        request.hint = 8000;
        lab_step(&lab, &request, 1);
        assert_status(lab_seal(&lab, id, 8000), MOOR_OK);
        moor_view *view = lab_view(&lab, id);
        assert_int_equal(view->missing_rows, 0);
        lab_assert_rows(&lab, view, id, 0, 8000, 1);
        lab_unview(&lab, view);
        if (i == 0)
            continue; /* this one stays, and stays in the index */
        moor_handle handle;
        assert_status(moor_records_find(lab.records, id, 2, &handle), MOOR_OK);
        assert_status(moor_records_event(lab.records, handle, MOOR_EVENT_DISCARD), MOOR_OK);
    }
    lab_request hit = prompt_of("h", 40, 4, kv, 2000);
    lab_step(&lab, &hit, 1);
    assert_status(lab_seal(&lab, "h", 44), MOOR_OK);
    moor_view *view = lab_view(&lab, "h");
    lab_assert_rows(&lab, view, "r0", 0, 40, 1);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void KV_index_refuses_what_it_cannot_hold(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const int32_t wrong[] = {3, 256, 4, -1};
    assert_status(moor_records_kv_handed_out(lab.records, wrong, 4), MOOR_E_RANGE);
    assert_text("-1");
    assert_text("256 blocks");
    lab_request a =
        prompt_of("a", 0, 8, (const int32_t[]){255, 256}, 2); /* a block beyond the index is no block of it */
    lab_step(&lab, &a, 1);
    assert_int_equal(lab_stats(&lab).kv_entries, 1);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

/* A preempted request comes back onto blocks that another one filled with newer weights, and computes only the last token of the prompt
 * again, in the last of these blocks: its own old rows are not what the block holds. */
static void S1_15_a_shared_block_keeps_the_rows_that_it_holds(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const int32_t old[] = {30, 31}, shared[] = {20, 21, 22};
    lab_request a = prompt_of("a", 0, 8, old, 2);
    lab_step(&lab, &a, 1);
    lab.epoch = 2;
    lab_request x = prompt_of("x", 0, 8, shared, 2);
    lab_step(&lab, &x, 1);
    a = prompt_of("a", 7, 1, shared, 2);
    lab_step(&lab, &a, 1);
    lab_request b = prompt_of("b", 8, 1, shared, 3);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 9), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "x", 0, 7, 2);
    lab_assert_missing(view, 7, 8, MOOR_REASON_PREFIX_UNKNOWN);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_slots_that_a_failed_step_may_have_written_are_unknown(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    lab_request a = prompt_of("a", 0, 8, eight, 2);
    lab_step(&lab, &a, 1);
    lab.epoch = 2;
    lab_request again = prompt_of("c", 7, 1, eight, 2); /* the last token of the shared prompt */
    assert_status(lab_begin(&lab, &again, 1), MOOR_OK);
    assert_status(moor_records_step_abandon(lab.records), MOOR_OK);
    lab_request b = prompt_of("b", 8, 1, eight, 3);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 9), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "a", 0, 7, 1);
    lab_assert_missing(view, 7, 8, MOOR_REASON_PREFIX_UNKNOWN);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

static void S1_15_slots_behind_the_step_are_not_told(void **state)
{
    (void)state;
    lab_store lab;
    lab_open(&lab);
    const int32_t fresh[] = {40, 41, 42};
    lab_request a = prompt_of("a", 0, 8, eight, 2);
    lab_step(&lab, &a, 1);
    /* Preempted; a first chunk of 6 tokens is computed again: slots 6 and 7 of the new blocks hold nothing yet. */
    a = prompt_of("a", 0, 6, fresh, 2);
    lab_step(&lab, &a, 1);
    lab_request b = prompt_of("b", 8, 1, fresh, 3);
    lab_step(&lab, &b, 1);
    assert_status(lab_seal(&lab, "b", 9), MOOR_OK);
    moor_view *view = lab_view(&lab, "b");
    lab_assert_rows(&lab, view, "a", 0, 6, 1);
    lab_assert_missing(view, 6, 8, MOOR_REASON_PREFIX_UNKNOWN);
    lab_unview(&lab, view);
    lab_assert_empty(&lab);
    lab_close(&lab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_15_a_shared_block_keeps_the_rows_that_it_holds),
        cmocka_unit_test(S1_15_slots_that_a_failed_step_may_have_written_are_unknown),
        cmocka_unit_test(S1_15_slots_behind_the_step_are_not_told),
        cmocka_unit_test(S1_15_a_prefix_hit_gets_the_rows_of_its_blocks_without_a_copy),
        cmocka_unit_test(S1_15_rows_of_a_prefix_outlive_the_record_that_made_them),
        cmocka_unit_test(S1_15_a_block_that_was_handed_out_again_has_no_rows),
        cmocka_unit_test(S1_15_rows_from_outside_and_unknown_blocks_are_missing),
        cmocka_unit_test(S1_15_a_reset_empties_the_index_an_update_does_not),
        cmocka_unit_test(S1_15_rows_computed_again_under_other_weights_are_not_given_to_others),
        cmocka_unit_test(S1_15_decoded_and_speculative_rows_reach_the_index_when_accepted),
        cmocka_unit_test(S1_15_a_preempted_request_that_hits_its_own_blocks_keeps_its_rows),
        cmocka_unit_test(S1_16_siblings_store_the_prompt_once),
        cmocka_unit_test(S1_16_a_chain_of_siblings_in_one_step_is_resolved),
        cmocka_unit_test(S1_17_rows_that_only_the_index_holds_give_way),
        cmocka_unit_test(KV_index_refuses_what_it_cannot_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
