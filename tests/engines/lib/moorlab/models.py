# SPDX-License-Identifier: Apache-2.0
"""Tiny Mixture-of-Experts models with random but real weights.

`ensure(family, seed)` returns a folder in Hugging Face form, made once and
cached.  Same family and seed: same bytes.  A second seed is the "second weight
set" that an update installs.  Weights are float32, so that an engine's router
and transformers' own agree exactly (in bfloat16 near-ties flip).
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

from . import paths

FORM = 3  # part of the cache key: raise it when the recipe below changes

BASE = dict(vocab_size=512, hidden_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            num_hidden_layers=4, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, tie_word_embeddings=False, initializer_range=0.2)

# Multi-head latent attention and the first layer dense, as all of DeepSeek's have. 512 + 64: vLLM's kernel has no other size.
# YaRN, as all of them have too: vLLM's plain rotary kernel (CPU) turns the wrong part of a [tokens, heads, dim] query.
MLA = dict(intermediate_size=256, moe_intermediate_size=64, first_k_dense_replace=1, q_lora_rank=64, kv_lora_rank=512,
           qk_nope_head_dim=32, qk_rope_head_dim=64, v_head_dim=32, num_key_value_heads=4, moe_layer_freq=1,
           rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=512,
                                beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0))

# family -> (config class, model class, arguments, keys of BASE it does not take)
FAMILIES = {
    "qwen3": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM",
              dict(intermediate_size=256, moe_intermediate_size=64, num_experts=16, num_experts_per_tok=4,
                   norm_topk_prob=True), ()),
    # 300 experts need two bytes an id; the first layer is dense and has no column
    "qwen3_300": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM",
                  dict(intermediate_size=256, moe_intermediate_size=64, num_experts=300, num_experts_per_tok=6,
                       mlp_only_layers=[0], norm_topk_prob=True), ()),
    "qwen3_300_sparse": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM",
                         dict(intermediate_size=256, moe_intermediate_size=64, num_experts=300, num_experts_per_tok=6,
                              norm_topk_prob=True), ()),
    "qwen2": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM",
              dict(intermediate_size=256, moe_intermediate_size=64, shared_expert_intermediate_size=128,
                   num_experts=16, num_experts_per_tok=4), ("head_dim",)),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM",
                dict(intermediate_size=128, num_local_experts=8, num_experts_per_tok=2), ()),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM",
              dict(intermediate_size=64, num_experts=32, num_experts_per_tok=8, num_key_value_heads=4),
              ("head_dim", "num_key_value_heads")),
    # shared experts, which are no column; softmax, groups by their best expert
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM",
                    dict(MLA, n_routed_experts=16, num_experts_per_tok=4, n_shared_experts=2, n_group=4, topk_group=2,
                         topk_method="group_limited_greedy", scoring_func="softmax", routed_scaling_factor=2.0),
                    ("head_dim", "num_key_value_heads")),
    # sigmoid, a bias that only chooses, groups by the sum of their best two
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM",
                    dict(MLA, n_routed_experts=32, num_experts_per_tok=4, n_shared_experts=1, n_group=4, topk_group=2,
                         topk_method="noaux_tc", scoring_func="sigmoid", num_nextn_predict_layers=0),
                    ("head_dim", "num_key_value_heads")),
    # routes as DeepSeek-V3 does, groups included
    "glm4": ("Glm4MoeConfig", "Glm4MoeForCausalLM",
             dict(intermediate_size=256, moe_intermediate_size=64, n_routed_experts=32, num_experts_per_tok=4,
                  n_group=4, topk_group=2, first_k_dense_replace=1, n_shared_experts=1, num_nextn_predict_layers=0), ()),
    "dots1": ("Dots1Config", "Dots1ForCausalLM",
              dict(intermediate_size=256, moe_intermediate_size=64, n_routed_experts=16, num_experts_per_tok=4,
                   first_k_dense_replace=2, n_shared_experts=1, topk_method="noaux_tc", scoring_func="sigmoid",
                   norm_topk_prob=True), ()),
    # half of its layers attend to a window: two groups of KV blocks
    "gptoss": ("GptOssConfig", "GptOssForCausalLM",
               dict(intermediate_size=128, num_local_experts=16, num_experts_per_tok=4, sliding_window=128), ()),
    # biases as the published models have them: engines make room for them unasked, and leave it as memory was
    "phimoe": ("PhimoeConfig", "PhimoeForCausalLM",
               dict(intermediate_size=128, num_local_experts=16, num_experts_per_tok=2, attention_bias=True,
                    lm_head_bias=True),
               ("head_dim",)),
    "granite": ("GraniteMoeConfig", "GraniteMoeForCausalLM",
                dict(intermediate_size=64, num_local_experts=16, num_experts_per_tok=4, attention_multiplier=0.18), ("head_dim",)),
    # MoE layers at 1 and 3 only
    "ernie45": ("Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM",
                dict(intermediate_size=256, moe_intermediate_size=64, moe_num_experts=16, moe_k=4, moe_num_shared_experts=1,
                     moe_layer_start_index=1, moe_layer_end_index=3, moe_layer_interval=2), ("head_dim",)),
    "minimax_m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM",
                   dict(intermediate_size=64, num_local_experts=32, num_experts_per_tok=4, rotary_dim=32,
                        scoring_func="sigmoid", use_routing_bias=True, use_qk_norm=True), ()),
    # no router at all: recording must switch itself off (SEMANTICS 1.21)
    "dense": ("Qwen3Config", "Qwen3ForCausalLM", dict(intermediate_size=256), ()),
}

# For a scenario's Group. SGLang takes every layer of a Qwen3-MoE for sparse, whatever the model's mlp_only_layers say.
QWEN3_300 = {"family": "qwen3_300", "families": {"sglang": "qwen3_300_sparse"}}


def _key(family, seed):
    recipe = json.dumps([FORM, family, seed, BASE, FAMILIES[family]], sort_keys=True)
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def build(family, seed, out):
    """Make the model in `out` (runs where torch and transformers are)."""
    import torch
    import transformers

    config_name, model_name, args, without = FAMILIES[family]
    torch.manual_seed(seed)
    base = {k: v for k, v in BASE.items() if k not in without}
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**base, **args))
    biases = [b for n, b in [*model.named_parameters(), *model.named_buffers()] if n.endswith("e_score_correction_bias")]
    # wide enough that the top K are well apart, narrow enough that all experts are used; a sigmoid is flat outside
    spread = 0.1 if biases else 0.3
    for name, param in model.named_parameters():
        if "norm" in name:
            param.data.fill_(1.0)
        elif "gate.weight" in name or "router." in name and name.endswith(".weight"):
            param.data.normal_(0, spread)
    for bias in biases:
        # zeros would choose as the scores alone do; vLLM's router for CPUs (0.32) leaves Ernie's bias out
        bias.data.normal_(0, 0.0 if family == "ernie45" else 0.05)
    model.float().save_pretrained(out)
    if family == "phimoe":
        # the name that published models and engines have; transformers' own class has another
        edit_config(out, architectures=["PhiMoEForCausalLM"])


def edit_config(folder, **change):
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump({**config, **change}, f, indent=2)


def ensure(family="qwen3", seed=0, python=None):
    """The folder of that model; made by `python` (default: this interpreter) if it is not cached."""
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: one of {', '.join(FAMILIES)}")
    final = os.path.join(paths.cache_dir("models"), f"{family}-s{seed}-{_key(family, seed)}")
    if os.path.exists(os.path.join(final, "config.json")):
        return final
    # made beside the final place and renamed, so that two test runs cannot see half a model
    work = tempfile.mkdtemp(prefix=".making-", dir=os.path.dirname(final))
    try:
        subprocess.run([python or sys.executable, "-m", "moorlab.models", family, str(seed), work],
                       env=paths.lab_env(), check=True, stdout=subprocess.DEVNULL, timeout=300)
        _move(work, final, "config.json")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def _move(work, final, name):
    try:
        os.rename(work, final)
    except OSError:
        if not os.path.exists(os.path.join(final, name)):
            raise  # not merely another run that was faster


def with_tokenizer(model):
    """The same model beside a tokenizer: token n reads "tn", and a chat is its messages one after the other."""
    final = os.path.join(paths.cache_dir("tokenizer"), os.path.basename(model))
    if os.path.isdir(final):
        return final
    with open(os.path.join(model, "config.json")) as f:
        vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"t{i}": i for i in range(3, json.load(f)["vocab_size"])}}
    from tokenizers import Tokenizer, models as token_models, pre_tokenizers

    work = tempfile.mkdtemp(prefix=".making-", dir=os.path.dirname(final))
    try:
        for name in os.listdir(model):
            os.symlink(os.path.join(model, name), os.path.join(work, name))
        tokenizer = Tokenizer(token_models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(os.path.join(work, "tokenizer.json"))
        with open(os.path.join(work, "tokenizer_config.json"), "w") as f:
            json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
                           model_max_length=2048, chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}"), f)
        _move(work, final, "tokenizer.json")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def weights_file(folder):
    path = os.path.join(folder, "model.safetensors")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{folder}: weights are not in one model.safetensors")
    return path


def shape(folder):
    """(hidden layers, ids of the MoE layers, top k, experts) as config.json says."""
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    layers = c["num_hidden_layers"]
    experts = next((c[k] for k in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") if c.get(k)), 0)
    if not experts:
        return layers, [], 0, 0
    dense = set(c.get("mlp_only_layers") or []) | set(range(c.get("first_k_dense_replace") or 0))
    first = c.get("moe_layer_start_index") or 0
    last = c.get("moe_layer_end_index", -1)
    step = c.get("decoder_sparse_step") or c.get("moe_layer_interval") or 1
    moe = [i for i in range(first, layers if last < 0 else last + 1) if i not in dense and (i + 1) % step == 0]
    return layers, moe, c.get("num_experts_per_tok") or c["moe_k"], experts


if __name__ == "__main__":
    build(sys.argv[1], int(sys.argv[2]), sys.argv[3])
