#!/usr/bin/env python3
"""Write tiny random models as Hugging Face directories, for tests.

    make_tiny.py OUT [--only NAME ...] [--list]

For each of gpt2, llama (grouped heads, untied output), llama-tied (the same,
tied), bert, mixtral, mistral, qwen2, qwen3 and olmo2, and for each of f32, bf16 and f16, OUT/NAME-DTYPE holds one
model.safetensors and OUT/NAME-DTYPE-sharded the same weights in several
files with an index.  Every directory also has

    ids.npy     token ids, int64 [2, seq]
    logits.npy  their logits in f32, from the weights as stored
    tokens.npy  batches for gpt2_loss_curve.py, int64 [steps, 2, seq + 1]
"""

import argparse
import json
import os

import numpy as np

import hf
import torch
import transformers

SEQ, STEPS, VOCAB = 13, 4, 101


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=48, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0))


def llama(tied=False):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=32, rms_norm_eps=1e-5,
        tie_word_embeddings=tied, bos_token_id=0, eos_token_id=0))


def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        head_dim=12, max_position_embeddings=32, sliding_window=9,
        bos_token_id=1, eos_token_id=2))


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=32, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0))


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=32, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0))


def olmo2():
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=32, bos_token_id=0, eos_token_id=0,
        pad_token_id=1))


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=80,
        max_position_embeddings=32, type_vocab_size=2, pad_token_id=0))


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=40,
        num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        max_position_embeddings=32, num_local_experts=4,
        num_experts_per_tok=2, bos_token_id=0, eos_token_id=0))


MODELS = {"gpt2": gpt2, "llama": llama,
          "llama-tied": lambda: llama(tied=True), "bert": bert,
          "mixtral": mixtral, "mistral": mistral, "qwen2": qwen2,
          "qwen3": qwen3, "olmo2": olmo2}


def scatter(model, source):
    """Random values everywhere, so that no bias or gain goes untested."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=source)
            if weight.dim() >= 2:
                weight.copy_(0.15 * noise)
            else:
                middle = 0.0 if name.endswith("bias") else 1.0
                weight.copy_(middle + 0.1 * noise)


def variants():
    for name in MODELS:
        for dtype in ("f32", "bf16", "f16"):
            yield f"{name}-{dtype}", name, dtype, False
            yield f"{name}-{dtype}-sharded", name, dtype, True


def write(directory, name, dtype, sharded, seed):
    """One directory; the seed alone settles the weights and the tokens."""
    source = torch.Generator().manual_seed(seed)
    model = MODELS[name]()
    scatter(model, source)
    ids = torch.randint(VOCAB, (2, SEQ), generator=source)
    tokens = torch.randint(VOCAB, (STEPS, 2, SEQ + 1), generator=source)
    model = model.to(hf.DTYPES[dtype])
    model.save_pretrained(directory,
                          max_shard_size="40KB" if sharded else "1GB")
    stored, _ = hf.load(directory, "f32")
    with torch.no_grad():
        logits = hf.outputs(stored, ids)
    for what, array in (("ids", ids), ("logits", logits),
                        ("tokens", tokens)):
        np.save(os.path.join(directory, what + ".npy"), array.numpy())
    return sorted(entry for entry in os.listdir(directory)
                  if entry.endswith(".safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", nargs="?")
    parser.add_argument("--only", nargs="+", metavar="NAME",
                        help="directory names, or the start of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true",
                        help="print the names and write nothing")
    args = parser.parse_args()
    if not args.out and not args.list:
        parser.error("where to?")
    for title, name, dtype, sharded in variants():
        if args.only and not any(title.startswith(o) for o in args.only):
            continue
        if args.list:
            print(title)
            continue
        directory = os.path.join(args.out, title)
        files = write(directory, name, dtype, sharded, args.seed)
        print(json.dumps({"directory": directory, "files": len(files)}),
              flush=True)


if __name__ == "__main__":
    main()
