#!/bin/sh
# Plans from outside: written for a job, completed, checked, compared, run; the same losses whatever the plan.
. tests/cli/run.inc

# The losses of a run, by step and digits that rounding leaves alone.
losses() {
    "$weft" train job.yaml train.steps=4 --json "$@" >out 2>&1 || fail "train $* failed" out
    grep '"step"' out | sed 's/.*"loss": \([0-9]*\.[0-9]\{4\}\).*/\1/'
}

# --- the words ---
expect 0 'weft plan job.yaml --devices 8 --out plan.json' plan --help
expect 2 'job file' plan
expect 2 '1' plan --diff a.json
expect 2 'job|--diff' plan --diff a.json b.json --machine v100
expect 2 '--out|--check|--export|--diff' plan job.yaml --out a --check b
expect 2 'JSON' plan job.yaml --json
expect 2 '--devices|from 1' plan job.yaml --devices 0
expect 0 '--devices N' train --help

# --- written, completed ---
expect 0 '"devices": 1' plan job.yaml
expect 0 'plan.json|4 devices' plan job.yaml --devices 4 'parallel.mesh={dp: 2, tp: 2}' \
    'parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: n0=tp}]' --out plan.json
for line in '"match": "h.*.mlp.c_fc:linear", "split": "m0=dp n0=tp"' \
    '"match": "h.*.mlp.c_proj:linear", "split": "m0=dp k=tp"' \
    '"match": "h.*.mlp.c_fc.weight", "layout": "[-, tp]"' '"match": "tokens", "layout": "[dp, -]"'; do
    grep -qF "$line" plan.json || fail "the completed plan has no $line" plan.json
done
expect 0 'again.json' plan job.yaml parallel.plan=plan.json --out again.json
expect 0 'equal' plan --diff plan.json again.json # complete already
expect 0 'stages.json' plan job.yaml --devices 4 parallel.pipeline.stages=2 --out stages.json
grep -qF '{"match": "head", "stage": 1}' stages.json || fail 'no stage of the head' stages.json

# --- checked ---
expect 0 'plan.json|good' plan --check plan.json job.yaml
expect 0 '"good": true' plan --check plan.json job.yaml --json
json out
expect 1 'plan.json|model' plan --check plan.json job.yaml model.hidden=64
expect 1 '"good": false' plan --check plan.json job.yaml model.layers=3 --json
json out
expect 1 'the plan plan.json is for 4 devices' plan --check plan.json job.yaml --devices 8
expect 1 'parallel.pipeline.microbatches = 2 must divide train.batch = 5' plan --check stages.json job.yaml train.batch=5
sed 's/"n0=tp"/"n0=sp"/; s/m0=dp n0=tp/m0=dp n0=sp/' plan.json >bad.json
expect 1 'bad.json: strategies[' plan --check bad.json job.yaml
has_facts out "'sp'|dp=2|tp=2|'dp'" || fail 'no word of the axis' out
sed 's/"m0=dp k=tp"/"m0=dp kk=tp"/' plan.json >bad.json
expect 1 'factor' plan --check bad.json job.yaml
grep -qF 'h.0.mlp.c_proj' out || fail 'no word of the op' out
sed 's/"m0=dp k=tp"/"m0=dp in0.0=tp"/' plan.json >bad.json
expect 1 'in0.0|m0' plan --check bad.json job.yaml
expect 1 'heads|2 elements|4 parts' plan job.yaml --devices 4 'parallel.mesh={tp: 4}' model.heads=2 \
    'parallel.strategies=[{match: "h.*.attn:attention", split: "heads=tp"}]'
grep -qF 'h.0.attn:attention' out && grep -qF 'operands are f32[4, 16, 2, 16]' out && grep -qF 'heads (2)' out ||
    fail 'no word of the op, its shapes, or what can be said' out
expect 1 'dimension 2 of input 0|tp=4|2 cuts' plan job.yaml --devices 4 'parallel.mesh={tp: 4}' \
    'parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: "((1,1,2),(4,1))"}]'
expect 1 '4 cuts|dimension 0|input 1' plan job.yaml --devices 4 'parallel.mesh={tp: 4}' \
    'parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: "((1,4,1),(4,1),(1))"}]'
grep -qF 'h.0.mlp.c_fc:linear' out || fail 'no word of the op' out
sed 's/"tensors"/"tensor"/' plan.json >bad.json
expect 1 "bad.json|tensor|tensors" plan --check bad.json job.yaml
sed 's/"weft_plan": 1/"weft_plan": 7/' plan.json >bad.json
expect 1 'bad.json|version 7' plan --check bad.json job.yaml
for bytes in 0 1 50 200; do
    head -c $bytes plan.json >bad.json
    expect 1 'bad.json: not valid JSON' train job.yaml --plan bad.json
done
expect 1 'cannot open nothere.json' train job.yaml --plan nothere.json
expect 1 'the 3 devices' plan job.yaml --devices 3 parallel.optimizer.shard_size=2
expect 1 'dp=2|2 devices|8' plan job.yaml --devices 8 'parallel.mesh={dp: 2}'
expect 1 '8 stages' plan job.yaml --devices 8 parallel.pipeline.stages=8 train.batch=8
expect 1 'nodir/plan.json' plan job.yaml --devices 2 --out nodir/plan.json

expect 1 "k0|h.0.mlp.c_proj:linear" \
    plan job.yaml --devices 2 'parallel.strategies=[{match: h.*.mlp.c_proj, split: k0=dp}]'
unmatched='parallel.strategies=[{match: h.*.mlp.c_fx, split: n0=dp}]'
for verb in plan program model 'launch --rehearse --ranks 2 -- weft train'; do
    # shellcheck disable=SC2086
    expect 0 "'$unmatched'" $verb job.yaml parallel.devices=2 "$unmatched"
done
expect 0 "'h.*.mlp.c_fc'" train job.yaml train.steps=1 --devices 2 "$unmatched"

# --- measured links ---
cat >links.json <<END
{"version": 1, "communicator": "host+ucx", "ranks": 4, "hosts": 2, "links": {
  "same_host": {"latency_seconds": 4e-07, "bytes_per_second": 1.25e+10},
  "between_hosts": {"latency_seconds": 2e-05, "bytes_per_second": 1e+9}}}
END
expect 0 'linked.json' plan job.yaml --devices 4 parallel.links=links.json --out linked.json
grep -qF '"between_hosts": {"latency_seconds": 2e-05, "bytes_per_second": 1000000000}' linked.json ||
    fail 'the plan does not tell its links' linked.json
grep -qF '"ranks_per_host": 2' linked.json || fail 'the plan does not tell how many ranks a host has' linked.json
expect 0 'linked.json|good' plan --check linked.json job.yaml
expect 0 'again.json' plan job.yaml parallel.plan=linked.json --out again.json
expect 0 'equal' plan --diff linked.json again.json
expect 0 'links: "links.json"' train job.yaml --devices 4 parallel.links=links.json --job
sed 's/1e+9/4e+9/' links.json >other.json
expect 0 'again.json' plan job.yaml parallel.plan=linked.json parallel.links=other.json --out again.json
expect 1 'links.between_hosts.bytes_per_second: 1000000000 -> 4000000000' plan --diff linked.json again.json
sed 's/1e+9/-1/' links.json >bad.json
expect 1 'parallel.links: bad.json: links: between_hosts: bytes_per_second is -1' train job.yaml --devices 4 parallel.links=bad.json
sed 's/"ranks": 4,/"ranks": 4,,/' links.json >bad.json
expect 1 'parallel.links: bad.json: not valid JSON' plan job.yaml parallel.links=bad.json
grep -q 'line 1' out || fail 'no line of the error' out
expect 1 'parallel.links: cannot open nothere.json' train job.yaml parallel.links=nothere.json

# --- machines ---
expect 0 'far.json' plan job.yaml --devices 4 --mode semi 'machine=2 hosts of 2 h100-80g' --out far.json
grep -qF '"ranks_per_host": 2' far.json || fail 'the plan does not tell how many ranks a host has' far.json
grep -qF '"product_bf16": ' far.json || fail 'the plan does not tell the rates of a device' far.json
expect 0 'again.json' plan job.yaml parallel.plan=far.json --out again.json
expect 0 'equal' plan --diff far.json again.json
expect 0 'again.json' plan job.yaml --devices 4 --mode semi machine=links.json --out again.json
expect 0 'equal' plan --diff linked.json again.json
expect 0 'again.json' plan job.yaml parallel.plan=far.json 'machine=hosts=2 gpus=2 gpu=h100-80g inter=5e9,1e-5' --out again.json
expect 1 'links.between_hosts.bytes_per_second: 50000000000 -> 5000000000' plan --diff far.json again.json
expect 1 'machine: unknown machine|h100-80g' plan job.yaml machine=h100-80
expect 1 'machine: the machine v100 has 2 devices|4' plan job.yaml --devices 4 'machine=2 v100'
expect 1 'h100-80g|16' train job.yaml --devices 4 'machine=2 hosts of 16 h100-80g'
sed 's/"product_bf16": [^,]*/"product_bf16": -1/' far.json >bad.json
expect 1 'rates.product_bf16 is -1' plan --check bad.json job.yaml

# --- compared ---
expect 1 "strategies[h.*.mlp.c_fc:linear]: 'm0=dp n0=tp' -> 'm0=dp'" plan --diff plan.json stages.json
expect 1 'pipeline.stages: 1 -> 2' plan --diff plan.json stages.json
expect 1 '"equal": false' plan --diff plan.json stages.json --json
json out
expect 0 '"equal": true' plan --diff plan.json plan.json --json
json out
expect 1 'cannot open nothere.json' plan --diff plan.json nothere.json

# With a job both steps are predicted: the numbers of weft simulate.
expect 1 '"equal": false|"predictions"' plan --diff plan.json stages.json job.yaml --machine v100 --json
json out
cp out differences
for plan in plan stages; do
    expect 0 '"step_seconds"' simulate job.yaml --plan $plan.json --machine v100 --json
    step=$(value step_seconds <out) peak=$(sed 's/, "predicted_peak_rank.*//; s/.* //' out)
    grep -qF "\"plan\": \"$plan.json\", \"step_seconds\": $step," differences || fail "the step of $plan.json is $step" differences
    grep -qF "\"predicted_peak_bytes\": $peak," differences || fail "the peak of $plan.json is $peak" differences
done
expect 1 'plan.json|stages.json|difference|peak memory' plan --diff plan.json stages.json job.yaml --topology "gpus=4 gpu=v100"
expect 0 '"difference_seconds": 0,' plan --diff plan.json plan.json job.yaml --machine v100 --json
expect 1 'machine' plan --diff plan.json stages.json job.yaml
expect 1 'nothere.yaml' plan --diff plan.json stages.json nothere.yaml --machine v100

# --- run ---
losses train.accumulate=2 >expected
for words in '--devices 2' '--devices 4 parallel.pipeline.stages=2' '--devices 2 parallel.optimizer.level=3'; do
    # shellcheck disable=SC2086 # several words
    losses train.accumulate=2 $words >got
    cmp -s expected got || fail "$words: other losses" got
done
losses --plan stages.json >got
cmp -s expected got || fail 'stages.json: other losses' got
losses >expected
losses --plan plan.json >got
cmp -s expected got || fail 'plan.json: other losses' got
losses --devices 4 parallel.links=links.json >got
cmp -s expected got || fail 'links.json: other losses' got
losses --devices 4 'machine=2 hosts of 2 h100-80g' >got
cmp -s expected got || fail 'a machine: other losses' got

exit $failed
