"""Prints transformers.h: what models of Hugging Face's transformers (in float64) compute with small configurations: config.json
as it is written there, logits, loss, and the norm of each parameter's gradient; -1: it is frozen. Some have adapters
of PEFT, which weft tells in the member "lora".

    python3 tests/models/make_transformers.py | clang-format > tests/models/transformers.h
"""
import json
import math

import peft
import torch
import transformers
from torch.nn import functional as F

SEQ, VOCAB = 7, 13


def llama(**more):
    sizes = dict(
        vocab_size=VOCAB, hidden_size=12, intermediate_size=10, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=16, rms_norm_eps=1e-5, attention_dropout=0.0,
        bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return {**sizes, **more}


def adapted(model, targets, columns=False, **more):
    lora = dict(r=3, lora_alpha=5, lora_dropout=0.0, target_modules=targets)
    there = peft.get_peft_model(model, peft.LoraConfig(task_type='CAUSAL_LM', fan_in_fan_out=columns, **lora, **more))
    if more.get('use_rslora'):
        lora['lora_alpha'] = 5 * math.sqrt(3)
    there.config.lora = lora
    return there


def plain(name):
    """A parameter's name in weft's files."""
    return name.replace('base_model.model.', '', 1).replace('.base_layer', '').replace('.default', '')


def parameters(model):
    return sorted((plain(name), weight) for name, weight in model.named_parameters())


MODELS = {
    'llama, wide heads and biases': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama(
        num_attention_heads=2, num_key_value_heads=1, head_dim=10, attention_bias=True, mlp_bias=True))),
    'llama, narrow heads': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama(
        head_dim=2, tie_word_embeddings=True))),
    'llama, biases of feed-forward layers': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **llama(mlp_bias=True))),
    'mistral': lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**llama(
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, sliding_window=16, bos_token_id=1, eos_token_id=2))),
    'qwen2, yarn': lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**llama(
        num_attention_heads=1, num_key_value_heads=1, rope_parameters={
            'rope_type': 'yarn', 'rope_theta': 100.0, 'factor': 4.0, 'beta_fast': 2, 'beta_slow': 0.5,
            'original_max_position_embeddings': 16}))),
    'llama, yarn': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama(
        num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=64, rope_parameters={
            'rope_type': 'yarn', 'rope_theta': 50.0, 'factor': 8.0, 'beta_fast': 3, 'beta_slow': 0.25,
            'original_max_position_embeddings': 16, 'truncate': False, 'mscale': 0.7, 'mscale_all_dim': 0.4}))),
    'mistral, a window': lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**llama(
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, sliding_window=3))),
    'qwen2, a window in the last layer': lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**llama(
        use_sliding_window=True, sliding_window=2, max_window_layers=1))),
    'qwen3': lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**llama(
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, rope_parameters={
            'rope_type': 'default', 'rope_theta': 1000.0}))),
    'qwen3, biases and a window': lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**llama(
        head_dim=4, attention_bias=True, tie_word_embeddings=True, use_sliding_window=True, sliding_window=3,
        max_window_layers=1))),
    'olmo2': lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**llama(
        num_attention_heads=6, num_key_value_heads=2))),
    'olmo2, biases': lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**llama(
        attention_bias=True, tie_word_embeddings=True))),
    'qwen2': lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**llama(
        num_attention_heads=6, num_key_value_heads=2, bos_token_id=3, pad_token_id=0))),
    'llama, adapters': lambda: adapted(transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama(
        num_key_value_heads=1, num_hidden_layers=1))),
        ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']),
    'gpt2, adapters': lambda: adapted(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=12, n_layer=2, n_head=3, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=None, eos_token_id=None)), ['c_attn', 'c_proj'], True, use_rslora=True),
}


def fill(model):
    """Element e of parameter i in the order of names; test_transformers.c draws the same."""
    with torch.no_grad():
        for i, (name, weight) in enumerate(parameters(model)):
            wave = torch.tensor([math.sin(0.7 * (e + 1) + 1.3 * i + 0.37 * e * e) for e in range(weight.numel())],
                                dtype=torch.float64)
            middle = 1.0 if weight.dim() == 1 and not name.endswith('bias') else 0.0
            weight.copy_((middle + 0.4 * wave).float().reshape(weight.shape))


def numbers(values):
    return '{' + ', '.join('%.9g' % v for v in values) + '}'


def main():
    print('/* Made by make_transformers.py with transformers %s and PEFT %s in float64: do not edit. */' % (
        transformers.__version__, peft.__version__))
    print('static const reference references[] = {')
    for title, make in MODELS.items():
        model = make().double().eval()
        fill(model)
        ids = torch.tensor([[(5 * k * k + 3 * k + 1) % VOCAB for k in range(SEQ + 1)]])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits[0], ids[0, 1:])
        loss.backward()
        gradients = [-1 if weight.grad is None else weight.grad.norm().item() for _, weight in parameters(model)]
        config = json.dumps(json.loads(model.config.to_json_string()))
        print('{%s, %s,' % (json.dumps(title), json.dumps(config)))
        print('%s, %.9g, %d,' % (numbers(logits.flatten().tolist()), loss.item(), len(gradients)))
        print('%s},' % numbers(gradients))
    print('};')


if __name__ == '__main__':
    main()
