"""Random small language models as Hugging Face directories, for the
comparisons that look for disagreement (greedy.py, one_step.py)."""

import random

import hf
import torch
import transformers


def _rope(choose, family):
    rope = {"rope_type": "default", "rope_theta": choose([1e2, 1e4, 5e5])}
    kind = choose(["default", "default", "linear", "llama3", "yarn", "yarn"])
    if family == "mixtral" or kind == "default":
        return rope
    rope.update(rope_type=kind, factor=4.0)
    if kind == "llama3":
        rope.update(low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=16)
    if kind == "yarn":
        rope.update(original_max_position_embeddings=16,
                    beta_fast=choose([32, 4, 1.5]),
                    beta_slow=choose([1, 0.25]),
                    truncate=choose([True, False]))
        rope.update(choose([{}, {"attention_factor": 0.8},
                            {"mscale": 0.7, "mscale_all_dim": 0.3}]))
    return rope


def _gpt2(choose, sizes):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=sizes["vocab"], n_positions=sizes["context"],
        n_embd=sizes["hidden"], n_layer=sizes["layers"],
        n_head=sizes["heads"], n_inner=choose([None, 40]),
        layer_norm_epsilon=choose([1e-5, 1e-3]), resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
        eos_token_id=None))


def _llama(choose, sizes, family):
    heads = sizes["heads"]
    common = dict(
        vocab_size=sizes["vocab"], hidden_size=sizes["hidden"],
        intermediate_size=choose([24, 33, 80]),
        num_hidden_layers=sizes["layers"], num_attention_heads=heads,
        num_key_value_heads=choose(
            [n for n in range(1, heads + 1) if heads % n == 0]),
        max_position_embeddings=sizes["context"],
        rms_norm_eps=choose([1e-5, 1e-6]),
        tie_word_embeddings=choose([True, False]),
        head_dim=choose([None, None, 2, 10, 32]),
        rope_parameters=_rope(choose, family), bos_token_id=None,
        eos_token_id=None, pad_token_id=None)
    if family == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **common, attention_bias=choose([True, False]),
                mlp_bias=choose([True, False])))
    if family == "mistral":
        return transformers.MistralForCausalLM(transformers.MistralConfig(
            **common, sliding_window=choose([None, 1, 7, 33, 4096])))
    if family == "qwen2":
        if common["head_dim"] is None:
            del common["head_dim"]
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
            **common, use_sliding_window=choose([True, False]),
            sliding_window=choose([2, 20]), max_window_layers=choose([0, 1]),
            layer_types=None))
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **common, num_local_experts=choose([2, 4, 5]),
        num_experts_per_tok=choose([1, 2]),
        sliding_window=choose([None, 5, 30]),
        router_aux_loss_coef=choose([0.0, 0.5])))


def save(seed, directory, dtypes=("f32",), vocab=256):
    """Writes a model that the seed settles; says what it is."""
    choose = random.Random(seed).choice
    family = choose(["gpt2", "llama", "mixtral", "mistral", "qwen2"])
    heads = choose([1, 2, 4, 6])
    sizes = {"vocab": vocab, "context": choose([40, 64, 200]),
             "heads": heads, "hidden": heads * choose([4, 8, 16]),
             "layers": choose([1, 2, 3])}
    model = _gpt2(choose, sizes) if family == "gpt2" \
        else _llama(choose, sizes, family)
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=source)
            if weight.dim() >= 2:
                weight.copy_(0.25 * noise)
            else:
                middle = 0.0 if name.endswith("bias") else 1.0
                weight.copy_(middle + 0.2 * noise)
    dtype, limit = choose(dtypes), choose(["20KB", "1GB"])
    model.to(hf.DTYPES[dtype]).save_pretrained(directory,
                                               max_shard_size=limit)
    return {"seed": seed, "family": family, "dtype": dtype, **sizes}


def load(directory):
    """The model in f64, by plain arithmetic."""
    model, _ = hf.load(directory, "f64")
    if model.config.model_type == "mixtral":
        model.set_experts_implementation("eager")
    return model
