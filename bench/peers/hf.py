"""Loading Hugging Face model directories for the reference scripts."""

import json
import os

# Model directories are local; nothing is ever looked up elsewhere.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.disable_progress_bar()

DTYPES = {"f32": torch.float32, "f64": torch.float64,
          "bf16": torch.bfloat16, "f16": torch.float16}

# What a config.json without "architectures" is taken for.
HEADS = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM",
         "bert": "BertForMaskedLM", "mixtral": "MixtralForCausalLM",
         "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
         "qwen3": "Qwen3ForCausalLM", "olmo2": "Olmo2ForCausalLM"}


def load(directory, dtype="f32", attention="eager"):
    """The model in `directory`, its weights widened to dtype, dropout off.

    Every weight has to be in the file: one that is missing would be made up
    at random, and the comparison would be of nothing.
    """
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    name = (config.get("architectures") or [None])[0]
    name = name or HEADS.get(config.get("model_type"))
    kind = getattr(transformers, name or "", None)
    if kind is None:
        raise SystemExit(f"{directory}: no class for architecture {name!r}")
    model, info = kind.from_pretrained(
        directory, dtype=DTYPES[dtype], attn_implementation=attention,
        local_files_only=True, output_loading_info=True)
    wrong = {what: sorted(str(key) for key in info.get(what) or ())
             for what in ("missing_keys", "mismatched_keys",
                          "unexpected_keys")}
    if wrong["missing_keys"] or wrong["mismatched_keys"]:
        raise SystemExit(f"{directory}: {json.dumps(wrong)}")
    # eval() switches dropout off; gradients flow all the same.
    return model.eval(), wrong["unexpected_keys"]


def outputs(model, ids):
    """Logits for ids [batch, seq], or hidden states of a headless model."""
    result = model(input_ids=ids, use_cache=False) \
        if hasattr(model.config, "use_cache") else model(input_ids=ids)
    if getattr(result, "logits", None) is not None:
        return result.logits
    return result.last_hidden_state
