/* SPDX-License-Identifier: Apache-2.0 */
/* hooks/record.c: data-parallel layouts (SEMANTICS 1.12), the epoch of a step, seals through the state, the gate's tickets, forks. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooks/gate.h"
#include "hooks/record.h"
#include "hooks/weights.h"
#include "support/lab.h"

enum { DP = 4, TP = 2, RANK = 2, LOCAL = 5 };

typedef struct host {
    moor_process process;
    moor_store *store;
} host;

static const int32_t layer_ids[] = {1, 2};

/* stages: with so many the store is number RANK % stages of a pipeline. */
static void host_open_stage(host *h, uint32_t stages)
{
    memset(h, 0, sizeof(*h));
    h->process.state = calloc(1, sizeof(moor_state)); /* sparse */
    assert_non_null(h->process.state);
    h->process.pid = getpid();
    h->process.config = (moor_config_values){
        .record_enabled = 1, .kv_index = 1, .arena_bytes = 4 << 20, .gate_mode = MOOR_MODE_ENFORCE};
    moor_gate_init(h->process.state);
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    args.layers = 2;
    args.top_k = 2;
    args.num_experts = 64;
    args.layer_ids = layer_ids;
    args.max_step_tokens = 64;
    args.dp_size = DP;
    args.dp_rank = RANK;
    args.tp_size = TP;
    args.store_index = RANK;
    args.stages = stages;
    assert_status(moor_recorder_create(&h->process, &args, &h->store), MOOR_OK);
}

static void host_open(host *h)
{
    host_open_stage(h, 0);
}

static void host_close(host *h)
{
    moor_recorder_destroy(h->store);
    free(h->process.state);
}

static moor_status begin(host *h, const char *id, uint64_t start, uint32_t count)
{
    moor_step_request request = {.id = id, .id_len = (uint32_t)strlen(id), .start = start, .count = count};
    return moor_step_begin(h->store, &request, 1);
}

/* A capture of `tokens` tokens of which ours, 10…14, begin at `ours`. */
static moor_status capture(host *h, uint32_t column, uint32_t tokens, uint32_t ours, const moor_dp_layout *dp)
{
    int32_t ids[64 * 2];
    for (uint32_t t = 0; t < tokens; t++) {
        ids[2 * t] = t >= ours && t < ours + LOCAL ? (int32_t)(10 + t - ours) : 60;
        ids[2 * t + 1] = 61;
    }
    moor_ids call = {.data = ids, .dtype = MOOR_DTYPE_I32, .tokens = tokens, .top_k = 2};
    return moor_capture(h->store, column, &call, dp);
}

static moor_view *sealed_view(host *h, const char *id)
{
    moor_view *view = NULL;
    assert_status(moor_records_open(h->store->records, 1, id, (uint32_t)strlen(id), 0, 0, &view), MOOR_OK);
    return view;
}

static void expect_rows(host *h, const char *id)
{
    moor_view *view = sealed_view(h, id);
    assert_int_equal(view->rows, LOCAL);
    assert_int_equal(view->missing_rows, 0);
    const uint8_t *rows = h->store->records->arena->region.base + view->segments[0].offset;
    for (uint32_t row = 0; row < LOCAL; row++) {
        for (uint32_t column = 0; column < 2; column++) {
            assert_int_equal(rows[row * 4 + column * 2], 10 + row);
            assert_int_equal(rows[row * 4 + column * 2 + 1], 61);
        }
    }
    moor_view_free(view);
}

static void S1_12_the_same_rows_from_every_layout(void **state)
{
    (void)state;
    host h;
    host_open(&h);
    const uint32_t counts[DP] = {3, 0, 5, 2};
    /* Sequence-parallel shards of two ranks each, rounded up: 2+2, 0+0, 3+3, 1+1. */
    const uint32_t shards[DP * TP] = {2, 2, 0, 0, 3, 3, 1, 1};
    const moor_dp_layout plain = {.tokens_per_dp = counts},
                         sharded = {.tokens_per_dp = counts, .shard_sizes = shards, .n_shards = DP * TP};
    const struct {
        const char *id;
        uint32_t tokens, ours;
        const moor_dp_layout *dp;
    } layouts[] = {
        {"no data parallel", 5, 0, NULL},       {"all ranks", 10, 3, &plain},   {"only ours", 5, 0, &plain},
        {"all shards", 12, 4, &sharded},        {"our shards", 6, 0, &sharded}, {"all ranks, sharded", 10, 3, &sharded},
        {"only ours, sharded", 5, 0, &sharded},
    };
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        assert_status(begin(&h, layouts[i].id, 0, LOCAL), MOOR_OK);
        for (uint32_t column = 0; column < 2; column++)
            assert_status(capture(&h, column, layouts[i].tokens, layouts[i].ours, layouts[i].dp), MOOR_OK);
        assert_status(moor_step_commit(h.store, NULL, 0), MOOR_OK);
        assert_status(moor_request_finished(h.store, layouts[i].id, (uint32_t)strlen(layouts[i].id)), MOOR_OK);
        expect_rows(&h, layouts[i].id);
    }
    host_close(&h);
}

/* Two ranks with one token each, in two shards each: 2 tokens are everybody's, or ours with one of padding. */
static void S1_12_one_count_of_two_layouts_is_read_as_it_was_given(void **state)
{
    (void)state;
    host h;
    const uint32_t counts[2] = {1, 1}, shards[4] = {1, 1, 1, 1};
    const moor_dp_layout plain = {.tokens_per_dp = counts},
                         sharded = {.tokens_per_dp = counts, .shard_sizes = shards, .n_shards = 4};
    const struct {
        const char *id;
        uint32_t tokens, ours;
        const moor_dp_layout *dp;
    } layouts[] = {{"all", 2, 1, &plain}, {"our shards", 2, 0, &sharded}, {"all shards", 4, 2, &sharded}};
    host_open(&h);
    h.store->dp_size = 2;
    h.store->dp_rank = 1;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        assert_status(begin(&h, layouts[i].id, 0, 1), MOOR_OK);
        for (uint32_t column = 0; column < 2; column++)
            assert_status(capture(&h, column, layouts[i].tokens, layouts[i].ours, layouts[i].dp), MOOR_OK);
        assert_status(moor_step_commit(h.store, NULL, 0), MOOR_OK);
        assert_status(moor_request_finished(h.store, layouts[i].id, (uint32_t)strlen(layouts[i].id)), MOOR_OK);
        moor_view *view = sealed_view(&h, layouts[i].id);
        const uint8_t *row = h.store->records->arena->region.base + view->segments[0].offset;
        assert_int_equal(view->rows, 1);
        assert_int_equal(row[0], 10);
        assert_int_equal(row[2], 10);
        moor_view_free(view);
    }
    host_close(&h);
}

static void S1_12_any_other_count_is_an_error_naming_the_numbers(void **state)
{
    (void)state;
    host h;
    host_open(&h);
    const uint32_t counts[DP] = {3, 0, 5, 2};
    const uint32_t shards[DP * TP] = {2, 2, 0, 0, 3, 3, 1, 1};
    const moor_dp_layout plain = {.tokens_per_dp = counts},
                         sharded = {.tokens_per_dp = counts, .shard_sizes = shards, .n_shards = DP * TP};
    const uint32_t wrong[] = {1, 3, 4, 7, 8, 9, 11, 12, 20, 6};
    assert_status(begin(&h, "a", 0, LOCAL), MOOR_OK);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char number[32];
        if (wrong[i] != 12 && wrong[i] != 6) { /* with the sizes these are shards; without, nothing */
            assert_status(capture(&h, 0, wrong[i], 0, &sharded), MOOR_E_INVALID);
            snprintf(number, sizeof(number), "%u tokens, expected", wrong[i]);
            assert_text(number);
            assert_text("rank's 5, all ranks' 10");
        }
        assert_status(capture(&h, 1, wrong[i], 0, &plain), MOOR_E_INVALID);
    }
    assert_status(moor_step_commit(h.store, NULL, 0), MOOR_OK);
    assert_status(moor_request_finished(h.store, "a", 1), MOOR_OK);
    moor_view *view = sealed_view(&h, "a");
    assert_int_equal(view->missing_rows, LOCAL); /* never half a layer */
    assert_int_equal(view->reasons, MOOR_REASON_LAYER_MISSING);
    moor_view_free(view);
    assert_true(atomic_load(&h.process.state->counters[MOOR_C_CAPTURE_ERRORS]) >= 17);
    host_close(&h);
}

static void S1_6_rows_carry_the_epoch_of_their_step_and_mark_it_used(void **state)
{
    (void)state;
    host h;
    host_open(&h);
    uint64_t first = moor_weights_epoch(&h.process);
    for (int i = 0; i < 2; i++) {
        assert_status(begin(&h, "a", (uint64_t)i * LOCAL, LOCAL), MOOR_OK);
        assert_int_equal(atomic_load(&h.process.state->weights.used_epoch), moor_weights_epoch(&h.process));
        assert_status(capture(&h, 0, LOCAL, 0, NULL), MOOR_OK);
        if (i == 0)
            assert_status(moor_weights_touched(&h.process, MOOR_WEIGHTS_LOAD, "test"),
                          MOOR_OK); /* in the middle of a step */
        assert_status(capture(&h, 1, LOCAL, 0, NULL), MOOR_OK);
        assert_status(moor_step_commit(h.store, NULL, 0), MOOR_OK);
    }
    assert_status(moor_seal(&h.process, RANK, "a", 1, 2 * LOCAL, 0), MOOR_OK);
    moor_view *view = sealed_view(&h, "a");
    assert_int_equal(view->rows, 2 * LOCAL);
    assert_int_equal(view->n_versions, 2);
    assert_int_equal(view->versions[0].epoch, first);
    assert_int_equal(view->versions[1].start, LOCAL);
    assert_int_equal(view->versions[1].epoch, first + 1);
    moor_view_free(view);
    host_close(&h);
}

/* The request's only record is sealed in a store; returns what a drain says then. */
static moor_status drain_with_stages(uint32_t stages)
{
    host h;
    host_open_stage(&h, stages);
    moor_ticket ticket = {0};
    assert_status(moor_gate_enter(&h.process, "http-0", 6, 1, 0, &ticket), MOOR_OK);
    assert_status(begin(&h, "http-0-12345678", 0, LOCAL), MOOR_OK);
    assert_status(moor_request_alias(h.store, "http-0-12345678", 15, "http-0", 6, 0), MOOR_OK);
    for (uint32_t column = 0; column < 2; column++)
        assert_status(capture(&h, column, LOCAL, 0, NULL), MOOR_OK);
    assert_status(moor_step_commit(h.store, NULL, 0), MOOR_OK);
    assert_status(moor_gate_seal(&h.process), MOOR_OK);
    assert_status(moor_gate_leave(&h.process, &ticket, MOOR_OUTCOME_FINISHED, NULL), MOOR_OK);
    assert_status(moor_gate_drain(&h.process, 0), MOOR_E_TIMEOUT); /* its record is not stored yet */
    assert_status(moor_seal(&h.process, RANK, "http-0-12345678", 15, LOCAL, 0), MOOR_OK);
    assert_int_equal(moor_records_drain(h.store->records), 1);
    moor_status status = moor_gate_drain(&h.process, 0);
    host_close(&h);
    return status;
}

static void S4_2_a_stored_record_settles_the_ticket_of_its_alias(void **state)
{
    (void)state;
    assert_status(drain_with_stages(1), MOOR_OK);
}

/* Else a request of two samples would be settled by two stages of the first. */
static void S1_12_of_pipeline_stages_the_last_tells_the_gate(void **state)
{
    (void)state;
    assert_status(drain_with_stages(RANK + 1), MOOR_OK);
    assert_status(drain_with_stages(RANK + 2), MOOR_E_TIMEOUT);
}

/* A worker that cannot record says so to all: nobody waits for a record that never comes. */
static void S1_21_without_recording_nothing_is_waited_for(void **state)
{
    (void)state;
    host h;
    host_open(&h);
    assert_int_equal(moor_recording_on(&h.process), 1);
    assert_status(moor_recording_off(&h.process, "a dense engine that was here before"), MOOR_OK);
    assert_status(moor_recording_off(&h.process, NULL), MOOR_OK);
    assert_int_equal(moor_recording_on(&h.process), 1);
    assert_status(moor_recording_off(&h.process, "no router"), MOOR_OK);
    assert_int_equal(moor_recording_on(&h.process), 0);
    moor_ticket ticket = {0};
    assert_status(moor_gate_enter(&h.process, "a", 1, 1, 0, &ticket), MOOR_OK);
    for (int i = 0; i <= MOOR_SEAL_RING; i++) /* more than a ring that nobody drains holds */
        assert_status(moor_seal(&h.process, RANK, "a", 1, 1, 0), MOOR_OK);
    assert_status(moor_gate_leave(&h.process, &ticket, MOOR_OUTCOME_FINISHED, NULL), MOOR_OK);
    assert_status(moor_gate_seal(&h.process), MOOR_OK);
    assert_status(moor_gate_drain(&h.process, 0), MOOR_OK);
    /* a store, in a worker that was started again, undoes it */
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    moor_store *store = NULL;
    args.layers = args.top_k = 1;
    args.num_experts = 8;
    args.layer_ids = layer_ids;
    args.max_step_tokens = 8;
    assert_status(moor_recorder_create(&h.process, &args, &store), MOOR_OK);
    assert_int_equal(moor_recording_on(&h.process), 1);
    moor_recorder_destroy(store);
    h.process.config.record_enabled = 0;
    assert_int_equal(moor_recording_on(&h.process), 0);
    host_close(&h);
}

static void a_forked_child_is_refused_and_seal_knows_its_stores(void **state)
{
    (void)state;
    host h;
    host_open(&h);
    pid_t child = fork();
    if (child == 0) {
        moor_ids none = {0};
        int ok = begin(&h, "a", 0, 1) == MOOR_E_FORKED && moor_capture(h.store, 0, &none, NULL) == MOOR_E_FORKED &&
                 moor_seal(&h.process, 0, "a", 1, 1, 0) == MOOR_E_FORKED && moor_lease(h.store, 1) == MOOR_E_FORKED;
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_status(moor_seal(&h.process, MOOR_MAX_STORES, "a", 1, 1, 0), MOOR_E_INVALID);
    assert_text("store 64");
    assert_status(moor_seal(&h.process, 0, "", 0, 1, 0), MOOR_E_INVALID);
    assert_status(moor_step_commit(NULL, NULL, 0), MOOR_E_INVALID);
    moor_store_args args = MOOR_STORE_ARGS_INIT;
    moor_store *store = NULL;
    args.dp_rank = 1;
    assert_status(moor_recorder_create(&h.process, &args, &store), MOOR_E_INVALID);
    assert_text("rank 1 of 1");
    args.dp_rank = 0;
    args.store_index = 99;
    assert_status(moor_recorder_create(&h.process, &args, &store), MOOR_E_INVALID);
    args.store_index = 0;
    args.stages = MOOR_MAX_STORES + 1;
    assert_status(moor_recorder_create(&h.process, &args, &store), MOOR_E_INVALID);
    assert_text("65 pipeline stages");
    assert_null(store);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S1_12_the_same_rows_from_every_layout),
        cmocka_unit_test(S1_12_one_count_of_two_layouts_is_read_as_it_was_given),
        cmocka_unit_test(S1_12_any_other_count_is_an_error_naming_the_numbers),
        cmocka_unit_test(S1_6_rows_carry_the_epoch_of_their_step_and_mark_it_used),
        cmocka_unit_test(S4_2_a_stored_record_settles_the_ticket_of_its_alias),
        cmocka_unit_test(S1_12_of_pipeline_stages_the_last_tells_the_gate),
        cmocka_unit_test(S1_21_without_recording_nothing_is_waited_for),
        cmocka_unit_test(a_forked_child_is_refused_and_seal_knows_its_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
