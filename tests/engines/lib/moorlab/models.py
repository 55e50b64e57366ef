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
              dict(intermediate_size=64, num_experts=32, num_experts_per_tok=8), ("head_dim",)),
    "glm4": ("Glm4MoeConfig", "Glm4MoeForCausalLM",
             dict(intermediate_size=256, moe_intermediate_size=64, n_routed_experts=16, num_experts_per_tok=4,
                  n_group=1, topk_group=1, first_k_dense_replace=1, n_shared_experts=1), ()),
    "gptoss": ("GptOssConfig", "GptOssForCausalLM",
               dict(intermediate_size=128, num_local_experts=16, num_experts_per_tok=4, sliding_window=128), ()),
    # no router at all: recording must switch itself off (SEMANTICS 1.21)
    "dense": ("Qwen3Config", "Qwen3ForCausalLM", dict(intermediate_size=256), ()),
}


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
    for name, param in model.named_parameters():
        if "norm" in name:
            param.data.fill_(1.0)
        elif "gate.weight" in name or "router.weight" in name:
            # wide enough that the top K are well apart, narrow enough that all experts are used
            param.data.normal_(0, 0.3)
    model.float().save_pretrained(out)


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
        try:
            os.rename(work, final)
        except OSError:
            if not os.path.exists(os.path.join(final, "config.json")):
                raise  # not merely another run that was faster
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
    experts = c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts")
    if not experts:
        return layers, [], 0, 0
    dense = set(c.get("mlp_only_layers") or []) | set(range(c.get("first_k_dense_replace") or 0))
    step = c.get("decoder_sparse_step") or 1
    moe = [i for i in range(layers) if i not in dense and (i + 1) % step == 0]
    return layers, moe, c["num_experts_per_tok"], experts


if __name__ == "__main__":
    build(sys.argv[1], int(sys.argv[2]), sys.argv[3])
