#!/bin/sh
# A model that a config.json describes: its plan, memory and program need no job file, data or weights; a run trains it
# with new weights.
. tests/cli/run.inc
cat >llama.json <<'J'
{"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "hidden_act": "silu", "tie_word_embeddings": false}
J
mkdir folder
cp llama.json folder/config.json

# --- questions ---
expect 0 '"devices": 4' plan --model llama.json --batch 8 --context 16 --devices 4
expect 0 '"predicted_peak_bytes"' model --model folder --batch 8 --context 16 --precision bf16 --json
expect 0 'forward' program --model llama.json --batch 8 --devices 2 --rank 1
expect 0 'p.json' plan --model llama.json --batch 8 --devices 2 --out p.json
expect 0 '"good": true' plan --model llama.json --batch 8 --check p.json --json

# The same model by keys has the same parameters and peak.
"$weft" model --model llama.json --batch 8 --context 16 --json | sed 's/.*"kinds"/"kinds"/' >a
"$weft" model model.family=llama model.layers=2 model.hidden=32 model.ffn=64 model.heads=4 model.kv_heads=2 \
    model.vocab=256 model.context=16 train.batch=8 data.path=text.txt --json | sed 's/.*"kinds"/"kinds"/' >b
cmp -s a b || fail 'config.json and keys make different models'
grep -q '"predicted_peak_bytes": [1-9]' a || fail 'no peak'

# --- a run starts with new weights ---
run="data.path=text.txt data.validation=0 train.steps=2 train.batch=2 model.context=8"
# shellcheck disable=SC2086
expect 0 'done: 2 steps' train model.config=llama.json $run checkpoint.dir=new
# shellcheck disable=SC2086
expect 0 'step 2|step 3/3' train model.config=folder $run train.steps=3 checkpoint.dir=new
expect 0 '"tokens": 3' generate new --prompt ab --tokens 3 --json
# shellcheck disable=SC2086
expect 0 'config: "llama.json"' train model.config=llama.json $run --job

# --- bad input ---
expect 1 'model.config|nope.json' plan --model nope.json
expect 1 'model.layers|model.config|llama.json' plan --model llama.json model.layers=3
expect 1 'model.config|model.from' plan --model llama.json model.from=folder
expect 1 'train.precision|bf17' model --model llama.json --precision bf17
expect 1 'model.family|llama' model --model llama.json model.family=gpt2
expect 2 'batch' model --model llama.json --batch 0
expect 2 'job file' model --batch 4
sed 's/"llama"/"mamba"/' llama.json >other.json
expect 1 'other.json|model_type|mamba' model --model other.json
expect 1 'other.json|model_type|mamba' plan --model other.json --machine v100 --devices 4
expect 1 'other.json|model_type|mamba' simulate --model other.json --machine v100 --devices 4
sed 's/"model_type": "llama", //' llama.json >other.json
expect 1 'other.json|model_type' plan --model other.json --machine v100 --devices 4
sed 's/"hidden_size": 32/"hidden_size": -1/' llama.json >other.json
expect 1 'other.json|hidden' model --model other.json
head -c 100 llama.json >other.json
expect 1 'other.json' model --model other.json
mkdir empty
expect 1 'empty|config.json' model --model empty
[ $failed = 0 ] && echo 'models of a config.json: plan, memory, program, training, refusals'
exit $failed
