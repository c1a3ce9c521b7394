#!/bin/sh
# `weft checkpoint digest`, `diff`, `reshard` and `merge-strategies` from outside: a run for the ranks of plans and of
# strategy files and back; what is refused, and how.
. tests/cli/run.inc

# --- the words ---
expect 2 'one path' checkpoint digest
expect 2 '2 paths' checkpoint diff run
expect 2 '2 paths' checkpoint reshard run
expect 2 '1 paths' checkpoint reshard run x --list 0 --to y
expect 2 '--to' checkpoint reshard run x --only 3
expect 2 '--to' checkpoint reshard run --list 3
expect 2 '--to' checkpoint reshard run x --format dcp
expect 2 '--to' checkpoint reshard run x --format hf --to y
expect 2 '--format' checkpoint reshard run x --format npz
expect 2 '--only|3,x' checkpoint reshard run x --to y --only 3,x
expect 2 '--list|x' checkpoint reshard run --to y --list x
expect 2 '--only|99999999999' checkpoint reshard run x --to y --only 99999999999
expect 2 '--only|3,99999999999' checkpoint reshard run x --to y --only 3,99999999999
expect 2 '--from' checkpoint verify run --from y
expect 2 '--to' checkpoint digest run --to y
expect 2 '--format|--list' checkpoint diff a b --format hf
expect 2 '--out' checkpoint merge-strategies a b
expect 2 'merge-strategies' checkpoint merge-strategies --out x

digest() {
    "$weft" checkpoint digest "$@" --json >digest.json || fail "no digest of $1" digest.json
    json digest.json
    sed -n 's/.*"digest": "\([^"]*\)".*/\1/p' digest.json
}

same() {
    got=$(digest "$@")
    [ "$got" = "$whole" ] || fail "$1 has the digest $got, not $whole"
}

# --- a run ---
"$weft" train job.yaml checkpoint.dir=run >log 2>&1 || fail 'train failed' log
whole=$(digest run)
grep -q "\"digest\": \"$whole\"" run/step-*12/manifest.json || fail "$whole is not the manifest's digest"
"$weft" plan job.yaml --devices 4 'parallel.mesh={dp: 2, tp: 2}' parallel.optimizer.level=2 \
    'parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: n0=tp}]' --out plan4.json >log 2>&1 || fail 'no plan' log
"$weft" plan job.yaml --devices 2 --out plan2.json >log 2>&1 || fail 'no plan' log
expect 0 'slices|4' checkpoint reshard run four --to plan4.json
same four
same four --from plan4.json
expect 0 'slices|2' checkpoint reshard four two --from plan4.json --to plan2.json
same two --from plan2.json
expect 0 'weft' checkpoint reshard two back
same back
cmp run/step-000000000012/manifest.json back/step-000000000012/manifest.json || fail 'another manifest'
expect 0 'good' checkpoint verify back
"$weft" train job.yaml checkpoint.dir=back checkpoint.resume=true train.steps=13 >log 2>&1 || fail 'no resume' log

# --- a strategy file ---
cat >strategy.json <<'END'
{"current_stage": 0, "parallel_strategy_item": {}, "parallel_layout_item": {
 "transformer.wte.weight": {"dev_matrix": [3, 1], "tensor_map": [-1, 0], "tensor_shape": [256, 32], "field": 0,
  "opt_weight_shard_step": 0, "opt_weight_shard_size": 0},
 "transformer.h.0.mlp.c_fc.weight": {"dev_matrix": [1, 1, 3], "tensor_map": [2, 1], "field": 0,
  "opt_weight_shard_step": 0, "opt_weight_shard_size": 0}}}
END
expect 0 'slices|3' checkpoint reshard run three --to strategy.json
same three --from strategy.json
"$weft" checkpoint merge-strategies strategy.json --out strategy.ckpt || fail 'no strategy.ckpt'
same three --from strategy.ckpt
expect 1 'exists' checkpoint merge-strategies strategy.json --out strategy.ckpt
"$weft" checkpoint reshard three --from strategy.json --to plan2.json --list 1 --json >list.json || fail 'no list'
json list.json
grep -q 'three/rank_' list.json || fail 'no files' list.json

# --- strategy files and groups of a job (accept 30(b)) ---
mesh='parallel.mesh={dp: 2, tp: 2}' split='parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: n0=tp}]'
"$weft" plan job.yaml --devices 4 "$mesh" "$split" parallel.optimizer.level=1 --export-strategy level1.json || fail 'no export'
"$weft" plan job.yaml --devices 4 parallel.pipeline.stages=2 --export-strategy stages.ckpt || fail 'no export'
for strategy in level1.json stages.ckpt; do
    rm -rf exported
    expect 0 'slices|4' checkpoint reshard run exported --to $strategy
    same exported --from $strategy
done
expect 0 '{0,2},{1,3}' plan job.yaml --devices 4 "$mesh" "$split" --redundancy
expect 0 '{0},{1},{2},{3}' plan job.yaml --devices 4 "$mesh" "$split" parallel.optimizer.level=1 --redundancy
expect 0 '"groups": [[0, 1], [2, 3]]' plan job.yaml --devices 4 parallel.pipeline.stages=2 --redundancy --json
expect 2 '--export-strategy|--redundancy' plan job.yaml --redundancy --export-strategy x.json

# --- other formats ---
expect 0 'hf' checkpoint reshard run model --format hf
expect 0 'files|28' checkpoint inspect model
expect 0 'dcp' checkpoint reshard run torch --to plan4.json --format dcp
[ -f torch/shard-00001-model-00001-of-00001.safetensors ] || fail 'no shards'
expect 0 'tensors' checkpoint diff run torch
expect 0 'hf' checkpoint reshard torch gathered
expect 0 'tensors' checkpoint diff torch gathered

# Shards in a folder, and an index that lists a tied output, which no file has.
mkdir -p parts/sub
cp model/config.json parts
cp model/model.safetensors parts/sub/a.safetensors
{
    printf '{"weight_map": {"lm_head.weight": "sub/a.safetensors"'
    "$weft" checkpoint inspect model --json | grep -o '"name": "[^"]*"' | sort -u | while read -r _ name; do
        printf ', %s: "sub/a.safetensors"' "$name"
    done
    echo '}}'
} >parts/model.safetensors.index.json
expect 0 'hf' checkpoint reshard parts whole --format hf
expect 0 'tensors' checkpoint diff model whole
expect 0 '"tokens": 3' generate parts --prompt ab --tokens 3 --json
mkdir bin
: >bin/pytorch_model.bin
expect 1 'bin|pytorch_model.bin|save_pretrained' checkpoint reshard bin x --format hf
expect 1 'pytorch_model.bin|save_pretrained' checkpoint inspect bin

# --- differences ---
"$weft" checkpoint diff run back/step-000000000012 --json >diff.json || fail 'they differ' diff.json
json diff.json
grep -q '"equal": true' diff.json || fail 'they differ' diff.json
"$weft" train job.yaml checkpoint.dir=other train.seed=5 >log 2>&1 || fail 'train failed' log
expect 1 'transformer.wte.weight|elements' checkpoint diff run other
expect 1 'only_second' checkpoint diff model run --json

# --- what is refused ---
expect 1 'exists' checkpoint reshard run four --to plan2.json
expect 1 'job.yaml/x|file' checkpoint reshard run job.yaml/x --to plan2.json
mkdir -p ckpt/rank_0 distcp
: >ckpt/rank_0/x-1_2.ckpt
: >distcp/__0_0.distcp
expect 1 'ckpt/rank_0|x-1_2.ckpt|mindspore.ckpt_to_safetensors' checkpoint reshard ckpt x --from strategy.json
expect 1 'distcp|__0_0.distcp|HuggingFaceStorageWriter' checkpoint digest distcp
expect 1 'four|model.safetensors|checkpoint reshard' checkpoint verify four
expect 1 'torch|model.safetensors|checkpoint reshard' checkpoint inspect torch
sed 's/transformer.wte.weight/wpe.bias/' strategy.json >wrong.json
expect 1 'job.yaml|plan|MindSpore' checkpoint reshard run x --to job.yaml
expect 1 'config.json|plan|MindSpore' checkpoint reshard run x --to model/config.json
: >empty.json
expect 1 'empty.json' checkpoint reshard run x --to empty.json
sed 's/"tensor_map": \[2, 1\]/"tensor_map": [7, 1]/' strategy.json >axis.json
expect 1 'axis.json|dimension|7' checkpoint reshard run x --to axis.json
[ "$(grep -o 'axis.json' out | wc -l)" = 1 ] || fail 'the file is named twice' out
expect 1 'level1.json|transformer.wte.weight|stage 0' checkpoint merge-strategies level1.json level1.json --out x.json
[ ! -e x.json ] || fail 'a refused merge has left a file'
expect 1 'wrong.json|wpe.bias|run' checkpoint reshard run x --to wrong.json
expect 1 'wrong.json|wpe.bias' checkpoint digest three --from wrong.json
mv three/rank_1 rank_1
expect 1 'three/rank_1|missing|--replicas' checkpoint reshard three x --from strategy.json --only 1 --to strategy.json
expect 0 'slices' checkpoint reshard three y --from strategy.json --only 1 --to strategy.json --replicas
[ ! -e x ] || fail 'something was left'
mv rank_1 three/rank_1
[ -z "$(find . -name '*weft-tmp*')" ] || fail 'a temporary directory was left'

# --- killed: the destination is absent or whole, and the next attempt leaves nothing of the one before ---
for _ in 1 2 3 4 5 6 7 8; do
    "$weft" checkpoint reshard run killed --to plan4.json >/dev/null 2>&1 &
    kill -9 $! 2>/dev/null # at any time
    wait $! 2>/dev/null
    [ -e killed ] && same killed
    rm -rf killed
done
expect 0 'slices|4' checkpoint reshard run killed --to plan4.json
same killed
[ "$(find . -maxdepth 1 -name '.*killed*' | wc -l)" = 0 ] || fail 'something is left of a killed attempt'

exit $failed
