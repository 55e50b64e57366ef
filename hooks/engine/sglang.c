/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sglang.c — where Moor is attached in SGLang: one table. Measured on 0.5.23; everything is found by attribute. SGLang has
 * no place of its own for a plugin's configuration: $MOOR_CONFIG turns Moor on.
 */
#include "sglang.h"

#include "admission.h"
#include "window.h"

#define ENGINE "sglang.srt.entrypoints.engine:"
#define FRONT "sglang.srt.managers.tokenizer_manager:TokenizerManager."
#define SCHEDULER "sglang.srt.managers.scheduler:Scheduler."
#define UPDATER "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager."
#define OLD_UPDATER "sglang.srt.managers.scheduler_update_weights_mixin:SchedulerUpdateWeightsMixin."
#define ALLOCATOR "sglang.srt.mem_cache.allocator"

/* One call that changes weights, in the front end and in the scheduler. */
#define FRONT_UPDATE(method)                                                                                           \
    {                                                                                                                  \
        .name = "frontend." method, .role = "frontend", .targets = {FRONT method}, .params = {"obj"},                  \
        .before = moor_sglang_update_before, .after = moor_sglang_update_after, .error = moor_gate_update_error        \
    }
#define UPDATE(method)                                                                                                 \
    {                                                                                                                  \
        .name = "scheduler." method, .role = "scheduler", .targets = {UPDATER method, OLD_UPDATER method},             \
        .params = {"recv_req"}, .before = moor_sglang_load_before, .after = moor_sglang_load_after,                    \
        .error = moor_sglang_load_error                                                                                \
    }

static const moor_jp joinpoints[] = {
    /* front end: the launcher joins before it starts the others, so that they find its instance */
    {.name = "frontend.launch",
     .role = "frontend",
     .targets = {ENGINE "Engine._launch_subprocesses", ENGINE "_launch_subprocesses"},
     .flags = MOOR_JP_REQUIRED,
     .before = moor_sglang_launch_before},
    {.name = "frontend.init",
     .role = "frontend",
     .targets = {FRONT "__init__"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_FIRST,
     .fires_with = "frontend.generate",
     .before = moor_sglang_launch_before},
    {.name = "frontend.generate",
     .role = "frontend",
     .targets = {FRONT "generate_request"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"obj"},
     .before = moor_sglang_generate_before,
     .item = moor_sglang_generate_item,
     .after = moor_admission_after,
     .error = moor_admission_error,
     .finish = moor_admission_finish},
    {.name = "frontend.tokenized",
     .role = "frontend",
     .targets = {FRONT "_create_tokenized_object"},
     .params = {"obj", "mm_inputs"},
     .before = moor_sglang_tokenized_before},
    {.name = "frontend.pause",
     .role = "frontend",
     .targets = {FRONT "pause_generation"},
     .flags = MOOR_JP_OVERRIDES, /* a tokenizer worker's */
     .params = {"obj"},
     .before = moor_sglang_pause_before,
     .after = moor_sglang_pause_after},
    {.name = "frontend.continue",
     .role = "frontend",
     .targets = {FRONT "continue_generation"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_sglang_continue_after},
    {.name = "frontend.begin_weight_update",
     .role = "frontend",
     .targets = {FRONT "begin_weight_update"},
     .before = moor_sglang_begin_update_before,
     .after = moor_sglang_begin_update_after,
     .error = moor_sglang_session_error},
    {.name = "frontend.end_weight_update",
     .role = "frontend",
     .targets = {FRONT "end_weight_update"},
     .after = moor_sglang_end_update_after,
     .error = moor_sglang_session_error},
    FRONT_UPDATE("update_weights_from_disk"),
    FRONT_UPDATE("update_weights_from_tensor"),
    FRONT_UPDATE("update_weights_from_distributed"),
    FRONT_UPDATE("update_weights_from_ipc"),
    {.name = "frontend.release_memory_occupation",
     .role = "frontend",
     .targets = {FRONT "release_memory_occupation"},
     .before = moor_sglang_release_before},
    {.name = "frontend.resume_memory_occupation",
     .role = "frontend",
     .targets = {FRONT "resume_memory_occupation"},
     .params = {"obj"},
     .after = moor_sglang_resume_after},

    {.name = "frontend.metrics",
     .role = "frontend",
     .targets = {"prometheus_client.multiprocess:MultiProcessCollector.__init__"},
     .params = {"registry"},
     .before = moor_sglang_metrics_before},

    {.name = "detokenizer.init",
     .role = "detokenizer",
     .targets = {"sglang.srt.managers.detokenizer_manager:DetokenizerManager.__init__"},
     .before = moor_sglang_detokenizer_init},

    /* scheduler: recording */
    {.name = "scheduler.init",
     .role = "scheduler",
     .targets = {SCHEDULER "__init__"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_FIRST,
     .fires_with = "scheduler.run_batch",
     .after = moor_sglang_scheduler_after},
    {.name = "scheduler.run_batch",
     .role = "scheduler",
     .targets = {SCHEDULER "run_batch"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"batch"},
     .before = moor_sglang_run_batch_before,
     .after = moor_sglang_run_batch_after,
     .error = moor_sglang_run_batch_error},
    {.name = "scheduler.topk",
     .role = "scheduler",
     .targets = {"sglang.srt.layers.moe.topk:capture_routed_experts_if_allowed",
                 "sglang.srt.layers.moe.topk:_post_process_topk_ids"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"topk_config", "layer_id", "topk_ids"},
     .before = moor_sglang_capture_before},
    {.name = "scheduler.capture", .role = "scheduler", .fires_with = "scheduler.run_batch", .fires_after = 1},
    {.name = "scheduler.capture_end",
     .role = "scheduler",
     .targets = {"sglang.srt.state_capturer.base:BaseTopkCapturer.on_forward_end"},
     .before = moor_sglang_forward_end_before},
    {.name = "scheduler.finish",
     .role = "scheduler",
     .targets = {"sglang.srt.managers.scheduler_components.batch_result_processor:SchedulerBatchResultProcessor."
                 "_maybe_collect_routed_experts",
                 "sglang.srt.managers.scheduler_output_processor_mixin:SchedulerOutputProcessorMixin."
                 "maybe_collect_routed_experts"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"req"},
     .before = moor_sglang_finish_before},
    {.name = "scheduler.abort_waiting",
     .role = "scheduler",
     .targets = {SCHEDULER "_release_aborted_request"},
     .params = {"req"},
     .before = moor_sglang_abort_waiting_before},

    /* scheduler: KV slots change hands */
    {.name = "scheduler.alloc",
     .role = "scheduler",
     .targets = {ALLOCATOR ".base:BaseTokenToKVPoolAllocator.alloc", ALLOCATOR ":BaseTokenToKVPoolAllocator.alloc"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .after = moor_sglang_alloc_after},
    {.name = "scheduler.alloc_extend",
     .role = "scheduler",
     .targets = {ALLOCATOR ".paged:PagedTokenToKVPoolAllocator.alloc_extend",
                 ALLOCATOR ":PagedTokenToKVPoolAllocator.alloc_extend"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_sglang_alloc_after},
    {.name = "scheduler.alloc_decode",
     .role = "scheduler",
     .targets = {ALLOCATOR ".paged:PagedTokenToKVPoolAllocator.alloc_decode",
                 ALLOCATOR ":PagedTokenToKVPoolAllocator.alloc_decode"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_sglang_alloc_after},
    {.name = "scheduler.flush_cache",
     .role = "scheduler",
     .targets = {SCHEDULER "flush_cache"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .after = moor_sglang_flush_after},

    /* scheduler: weights, memory */
    {.name = "scheduler.begin_weight_update",
     .role = "scheduler",
     .targets = {UPDATER "begin_weight_update"},
     .before = moor_sglang_session_before,
     .after = moor_sglang_session_after,
     .error = moor_sglang_load_error},
    {.name = "scheduler.end_weight_update",
     .role = "scheduler",
     .targets = {UPDATER "end_weight_update"},
     .before = moor_sglang_session_before,
     .after = moor_sglang_session_after,
     .error = moor_sglang_load_error},
    UPDATE("update_weights_from_disk"),
    UPDATE("update_weights_from_tensor"),
    UPDATE("update_weights_from_distributed"),
    UPDATE("update_weights_from_ipc"),
    {.name = "scheduler.load_weights", .role = "scheduler", .after = moor_sglang_load_weights_after},
    {.name = "scheduler.weight_version",
     .role = "scheduler",
     .targets = {SCHEDULER "record_weight_version_change"},
     .params = {"new_version"},
     .after = moor_sglang_version_after},
    {.name = "scheduler.resume_memory_occupation",
     .role = "scheduler",
     .targets = {UPDATER "resume_memory_occupation", OLD_UPDATER "resume_memory_occupation"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"recv_req"},
     .before = moor_sglang_kv_resume_before},
    {.name = "scheduler.gc",
     .role = "scheduler",
     .targets = {"gc:collect"},
     .flags = MOOR_JP_PINNED,
     .before = moor_window_gc_before},
    {.name = "scheduler.empty_cache",
     .role = "scheduler",
     .targets = {"torch.accelerator:empty_cache", "torch.cuda:empty_cache"},
     .flags = MOOR_JP_PINNED,
     .before = moor_window_empty_cache_before},
};

static const char *const packages[] = {"sglang", NULL};

const moor_engine moor_engine_sglang = {
    .name = "sglang",
    .packages = packages,
    .joinpoints = joinpoints,
    .njoinpoints = sizeof(joinpoints) / sizeof(joinpoints[0]),
};

/* Newer releases keep ranks in a context of the process, older ones on the scheduler. */
moor_sglang_place moor_sglang_read_place(PyObject *scheduler)
{
    PyObject *module = PyImport_ImportModule("sglang.srt.runtime_context");
    PyObject *parallel = module ? PyObject_CallMethod(module, "get_parallel", NULL) : NULL;
    PyErr_Clear();
    PyObject *from = parallel ? parallel : scheduler;
    moor_sglang_place place = {
        .tp_rank = (uint32_t)moor_py_int(from, "tp_rank", 0),
        .tp_size = (uint32_t)moor_py_int(from, "tp_size", 1),
        .pp_rank = (uint32_t)moor_py_int(from, "pp_rank", 0),
        .pp_size = (uint32_t)moor_py_int(from, "pp_size", 1),
        .dp_rank = (uint32_t)moor_py_int(from, "dp_rank", 0),
        .dp_size = (uint32_t)moor_py_int(from, "dp_size", 1),
    };
    /* Data-parallel attention splits one tensor-parallel group, whose ranks then differ in this number: they are one replica. */
    if (moor_py_int(from, "attn_dp_size", 1) > 1 || moor_py_true(scheduler, "server_args.enable_dp_attention", 0)) {
        place.dp_rank = 0;
        place.dp_size = 1;
    }
    Py_XDECREF(parallel);
    Py_XDECREF(module);
    return place;
}

int moor_sglang_join(uint32_t roles, const moor_sglang_place *place)
{
    int on = moor_runtime_join("sglang", roles, place ? place->pp_rank * place->tp_size + place->tp_rank : 0,
                               place ? place->tp_size * place->pp_size : 1, place ? place->dp_rank : 0, NULL);
    if (on > 0)
        moor_jp_rescan(&moor_engine_sglang);
    return on;
}
