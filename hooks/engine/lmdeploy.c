/* SPDX-License-Identifier: Apache-2.0 */
/* lmdeploy.c — where Moor is attached in LMDeploy's PyTorch engine: one table. Measured on lmdeploy 0.18.0. */
#include "lmdeploy.h"

#include <stdlib.h>
#include <string.h>

#include "admission.h"
#include "window.h"

#define FRONT "lmdeploy.serve.core.async_engine:AsyncEngine."
#define PROXY "lmdeploy.pytorch.engine.mp_engine.base:MPEngine."
#define ENGINE "lmdeploy.pytorch.engine.engine:Engine."
#define INSTANCE "lmdeploy.pytorch.engine.engine_instance:EngineInstance."
#define LOOP "lmdeploy.pytorch.engine.engine_loop:EngineLoop."
#define SCHEDULER "lmdeploy.pytorch.paging.scheduler:Scheduler."
#define AGENT "lmdeploy.pytorch.engine.model_agent.agent:BaseModelAgent."

static const moor_jp joinpoints[] = {
    /* front end: the HTTP process, or the caller's own */
    {.name = "frontend.init",
     .role = "frontend",
     .targets = {FRONT "__init__"},
     .flags = MOOR_JP_REQUIRED,
     .before = moor_lmdeploy_front_init},
    {.name = "frontend.generate",
     .role = "frontend",
     .targets = {FRONT "generate"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"request"},
     .before = moor_lmdeploy_generate_before,
     .after = moor_admission_after,
     .error = moor_admission_error,
     .finish = moor_admission_finish},
    {.name = "frontend.sleep",
     .role = "frontend",
     .targets = {FRONT "sleep"},
     .flags = MOOR_JP_REQUIRED,
     .before = moor_lmdeploy_sleep_before},
    {.name = "frontend.wakeup",
     .role = "frontend",
     .targets = {FRONT "wakeup"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"tags"},
     .after = moor_lmdeploy_wakeup_after},
    {.name = "frontend.update_params",
     .role = "frontend",
     .targets = {PROXY "update_params"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"request"},
     .before = moor_lmdeploy_update_params_before,
     .after = moor_lmdeploy_update_params_after,
     .error = moor_lmdeploy_update_error},
    {.name = "frontend.update_weights_from_ipc",
     .role = "frontend",
     .targets = {PROXY "update_weights_from_ipc"},
     .before = moor_lmdeploy_update_weights_before,
     .after = moor_lmdeploy_update_weights_after,
     .error = moor_lmdeploy_update_error},
    {.name = "frontend.update_weights_from_distributed",
     .role = "frontend",
     .targets = {PROXY "update_weights_from_distributed"},
     .before = moor_lmdeploy_update_weights_before,
     .after = moor_lmdeploy_update_weights_after,
     .error = moor_lmdeploy_update_error},

    /* engine: scheduler and loop, which also record */
    {.name = "engine.init",
     .role = "core",
     .targets = {ENGINE "__init__"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"engine_config"},
     .before = moor_lmdeploy_engine_init_before,
     .after = moor_lmdeploy_engine_init_after},
    {.name = "engine.sampling_param",
     .role = "core",
     .targets = {"lmdeploy.pytorch.messages:SamplingParam.from_gen_config"},
     .flags = MOOR_JP_REQUIRED,
     .after = moor_lmdeploy_sampling_param_after},
    {.name = "engine.need_routes",
     .role = "core",
     .targets = {"lmdeploy.pytorch.engine.inputs_maker:_ForwardInputsTask._need_routed_experts",
                 "lmdeploy.pytorch.engine.inputs_maker:InputsMakerAsync._need_routed_experts"},
     .after = moor_lmdeploy_need_routes_after},
    {.name = "engine.new_blocks",
     .role = "core",
     .targets = {"lmdeploy.pytorch.paging.block_manager.base_block_manager:LogicalAllocator.allocate"},
     .flags = MOOR_JP_REQUIRED,
     .after = moor_lmdeploy_allocate_after},
    {.name = "engine.outputs",
     .role = "core",
     .targets = {LOOP "_make_infer_outputs"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"batched_outputs", "running", "model_inputs", "delta"},
     .before = moor_lmdeploy_outputs_before,
     .after = moor_lmdeploy_outputs_after},
    {.name = "engine.capture", .role = "core", .fires_with = "engine.outputs", .fires_after = 1},
    {.name = "engine.stop_session",
     .role = "core",
     .targets = {SCHEDULER "stop_session"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"session_id"},
     .before = moor_lmdeploy_stop_session_before},
    {.name = "engine.end_session",
     .role = "core",
     .targets = {SCHEDULER "end_session"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"session_id"},
     .before = moor_lmdeploy_end_session_before},
    {.name = "engine.extra_outputs",
     .role = "core",
     .targets = {INSTANCE "_get_extra_outputs"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"resp", "num_all_ids"},
     .before = moor_lmdeploy_extra_outputs_before},
    {.name = "engine.sleep", .role = "core", .targets = {ENGINE "sleep"}, .after = moor_lmdeploy_engine_sleep_after},
    {.name = "engine.ray_env",
     .role = "core",
     .targets = {"lmdeploy.pytorch.engine.executor.ray_executor:_update_runtime_envs"},
     .after = moor_lmdeploy_ray_env_after},

    /* model agent: weights, memory, cleanup */
    {.name = "worker.init",
     .role = "worker",
     .targets = {AGENT "__init__"},
     .flags = MOOR_JP_REQUIRED,
     .params = {"dist_ctx", "model_config", "misc_config"},
     .before = moor_lmdeploy_agent_init},
    {.name = "worker.dense_mlp",
     .role = "worker",
     .targets = {"lmdeploy.pytorch.models.qwen3_moe:Qwen3MoeMLP.forward"},
     .before = moor_lmdeploy_dense_mlp_before},
    {.name = "worker.update_params",
     .role = "worker",
     .targets = {AGENT "update_params"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"request"},
     .before = moor_lmdeploy_agent_update_params_before,
     .after = moor_lmdeploy_agent_update_params_after,
     .error = moor_lmdeploy_agent_update_error},
    {.name = "worker.update_weights_from_ipc",
     .role = "worker",
     .targets = {AGENT "update_weights_from_ipc"},
     .flags = MOOR_JP_OVERRIDES,
     .before = moor_lmdeploy_agent_update_weights_before,
     .after = moor_lmdeploy_agent_update_weights_after,
     .error = moor_lmdeploy_agent_update_error},
    {.name = "worker.update_weights_from_distributed",
     .role = "worker",
     .targets = {AGENT "update_weights_from_distributed"},
     .flags = MOOR_JP_OVERRIDES,
     .before = moor_lmdeploy_agent_update_weights_before,
     .after = moor_lmdeploy_agent_update_weights_after,
     .error = moor_lmdeploy_agent_update_error},
    {.name = "worker.wakeup",
     .role = "worker",
     .targets = {AGENT "wakeup"},
     .flags = MOOR_JP_REQUIRED | MOOR_JP_OVERRIDES,
     .params = {"tags"},
     .before = moor_lmdeploy_agent_wakeup_before},
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

static const char *const packages[] = {"lmdeploy", NULL};

const moor_engine moor_engine_lmdeploy = {
    .name = "lmdeploy",
    .packages = packages,
    .joinpoints = joinpoints,
    .njoinpoints = sizeof(joinpoints) / sizeof(joinpoints[0]),
};

const moor_jp *moor_lmdeploy_jp(const char *name)
{
    for (size_t i = 0; i < moor_engine_lmdeploy.njoinpoints; i++)
        if (strcmp(joinpoints[i].name, name) == 0)
            return &joinpoints[i];
    return NULL;
}

int moor_lmdeploy_join(uint32_t roles, uint32_t rank, uint32_t world, uint32_t dp_rank)
{
    int on = moor_runtime_join("lmdeploy", roles, rank, world, dp_rank, NULL);
    if (on > 0)
        moor_jp_rescan(&moor_engine_lmdeploy);
    return on;
}
