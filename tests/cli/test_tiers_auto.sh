#!/bin/sh
# memory.offload: auto: nothing moves if the job fits; else what moves makes it fit, and the result is the same to the bit.
. tests/cli/run.inc
job="job.yaml model.layers=8 model.hidden=128 model.vocab=256"
auto="memory.offload=auto memory.disk.path=$work"

# needs words...: the bytes of device memory that the job needs, with its programs
needs() {
    "$weft" model "$@" --json >needs.json 2>&1 || fail "weft model $*" needs.json
    echo $(($(value predicted_peak_bytes <needs.json) + $(value program_bytes <needs.json)))
}
digest() {
    "$weft" checkpoint digest "$@" --json >digest.json || fail "no digest of $1" digest.json
    sed -n 's/.*"digest": "\([^"]*\)".*/\1/p' digest.json
}
moved() { sed -n '/"offload": \[/,/\]/p' "$1" | grep -c match; }

# What fits does not change, with and without a plan of its own.
for plan in '' '--devices 2 parallel.optimizer.level=1'; do
    for verb in program plan; do
        # shellcheck disable=SC2086
        expect 0 '' $verb $job $plan && cp out plain.txt
        # shellcheck disable=SC2086
        expect 0 '' $verb $job $plan $auto
        cmp -s plain.txt out || fail "$verb: auto changes what fits" out
        # shellcheck disable=SC2086
        expect 0 '' $verb $job $plan memory.offload=auto
        cmp -s plain.txt out || fail "$verb: auto without a tier changes what fits" out
    done
done

# Limits from what all needs down to what is left if all moves.
all='memory.offload=[{match: "*", what: optimizer, to: disk}, {match: "*", what: parameters, to: disk}, {match: "h.*", what: saved, to: disk}, {match: "*", what: gradients, to: disk}]'
for plan in '' '--devices 2 parallel.optimizer.level=1' '--devices 2 parallel.pipeline.stages=2 train.accumulate=2'; do
    # shellcheck disable=SC2086
    most=$(needs $job $plan) least=$(needs $job $plan "$all" "memory.disk.path=$work")
    before=0
    for part in 1 2 3 4; do
        limit=$((most - (most - least) * part / 4))
        # shellcheck disable=SC2086
        needs $job $plan $auto device.memory=$limit >sum
        # With unlike ranks the sum counts the programs of one and the tensors of another. weft itself counts by rank.
        [ "$(value predicted_peak_bytes <needs.json)" -le $limit ] || fail "more than $limit bytes" needs.json
        bytes=$(value disk_bytes <needs.json)
        [ "$bytes" -ge "$before" ] || fail "a smaller limit moves less: $bytes bytes, not $before"
        before=$bytes
        # shellcheck disable=SC2086
        expect 0 'plan.json' plan $job $plan $auto device.memory=$limit --out plan.json
        [ "$(moved plan.json)" -gt 0 ] || fail 'the plan has no entry' plan.json
        # The entries of the plan are what weft has chosen.
        # shellcheck disable=SC2086
        expect 0 "\"disk_bytes\": $bytes" plan $job --check plan.json "memory.disk.path=$work" device.memory=$limit --json
    done
    # shellcheck disable=SC2086
    expect 1 'memory.offload|auto|device.memory|optimizer|parameters|saved|gradients' model $job $plan $auto device.memory=$((least / 2))
done
# Naive: all states move, if that is enough (37c).
# shellcheck disable=SC2086
most=$(needs $job) states=$(value optimizer_bytes <needs.json)
# shellcheck disable=SC2086
expect 0 '' model $job $auto device.memory=$((most - states / 4)) --json
[ "$(value disk_moved_bytes <out)" -le $((2 * states)) ] || fail 'more bytes move than those of all states' out

# Large updates: more bytes are under way than one slice has, if that makes a step faster and fits. This is a prediction,
# for a device whose copies take about as long as its kernels.
"$weft" machine show v100 | sed 's/\("host_bytes_per_second": {"value": \)[^,]*/\16e10/' >fast.json
large="job.yaml model.layers=24 model.hidden=1280 model.heads=20 train.clip=0 model.context=64 train.batch=4 parallel.mode=semi memory.device=3GiB"
# shellcheck disable=SC2086
expect 0 plan.json plan $large memory.offload=auto --machine fast.json --out plan.json
grep -q '"offload_ahead": [1-9]' plan.json || fail 'no bytes are under way beyond a slice' plan.json
sed '/"offload_ahead"/d' plan.json >slice.json
for plan in plan slice; do
    # shellcheck disable=SC2086
    expect 0 step_seconds simulate $large parallel.plan=$plan.json --machine fast.json --json
    value step_seconds <out >$plan.seconds
    value host_moved_bytes <out >$plan.moved
done
# Copies run beside kernels: a step takes less than both one after the other (37d).
# shellcheck disable=SC2086
expect 0 step_seconds simulate $large memory.device=16GiB --machine fast.json --json
value step_seconds <out | cat - plan.moved plan.seconds | tr '\n' ' ' | awk '{ exit !($3 < $1 + 0.5 * $2 / 6e10) }' ||
    fail "copies of $(cat plan.moved) bytes do not overlap: $(cat plan.seconds) s, of which kernels have" out
cat plan.seconds slice.seconds | tr '\n' ' ' | awk '{ exit !($1 < 0.95 * $2) }' ||
    fail "more bytes under way gain too little: $(cat plan.seconds) in place of $(cat slice.seconds) s"

# Runs: without moves the memory does not suffice; with them, the result of an unlimited one, within the limit (37a). A run goes on with the same, and with other limits.
# shellcheck disable=SC2086
expect 0 'done' train $job checkpoint.dir=plain
whole=$(digest plain) limit=$((most - states / 2))
# shellcheck disable=SC2086
expect 1 'device.memory|bytes' train $job device.memory=$limit checkpoint.dir=run
# shellcheck disable=SC2086
expect 0 'memory.offload|auto|disk|done' train $job $auto device.memory=$limit checkpoint.dir=run
[ "$(digest run)" = "$whole" ] || fail 'auto gives other tensors'
[ "$(moved run/record/plan.json)" -gt 0 ] || fail 'the record has no entry' run/record/plan.json
# shellcheck disable=SC2086
expect 0 'disk|done' train $job $auto device.memory=$limit train.steps=14 checkpoint.dir=run
# shellcheck disable=SC2086
expect 0 'done' train $job memory.offload=auto train.steps=16 checkpoint.dir=run
for steps in 14 16; do
    # shellcheck disable=SC2086
    expect 0 'done' train $job train.steps=$steps checkpoint.dir=plain
done
[ "$(digest run)" = "$(digest plain)" ] || fail 'a run that goes on has other tensors'
# A device with memory of its own has the tier host.
WEFT_DEVICE=fenced
export WEFT_DEVICE
# shellcheck disable=SC2086
expect 0 'host|done' train $job memory.offload=auto device.memory=$limit checkpoint.dir=fenced
unset WEFT_DEVICE
[ "$(digest fenced)" = "$whole" ] || fail 'host memory gives other tensors'
# Rank 0 chooses for all. Devices that share states keep a piece of each gradient, which costs least to move.
level='parallel.devices=2 parallel.optimizer.level=1'
# shellcheck disable=SC2086
part=$(($(needs $job $level) * 4 / 5))
# shellcheck disable=SC2086
expect 0 'auto|gradients|done' launch -n 2 --no-logs -- "$weft" train $job $auto $level device.memory=$part checkpoint.dir=ranks
[ "$(moved ranks/record/plan.json)" -gt 0 ] || fail 'the record has no entry' ranks/record/plan.json
# shellcheck disable=SC2086
expect 0 'done' train $job $level checkpoint.dir=two
[ "$(digest ranks)" = "$(digest two)" ] || fail 'ranks give other tensors'

# Mode auto moves states only if no plan fits without.
search="$job --mode auto --devices 2 --evaluations 2 train.batch=8"
# shellcheck disable=SC2086
expect 0 '' plan $search $auto --out plan.json
[ "$(moved plan.json)" = 0 ] || fail 'a search moves what fits' plan.json
limit=64MiB
for try in 12MiB 11MiB 10MiB 9MiB 8MiB 7MiB; do
    # shellcheck disable=SC2086
    "$weft" plan $search device.memory=$try >out 2>&1 && continue
    limit=$try
    break
done
# shellcheck disable=SC2086
expect 1 'bytes' plan $search device.memory=$limit
# shellcheck disable=SC2086
expect 0 'disk|gap|memory.offload|optimizer' plan $search $auto device.memory=$limit --out plan.json
# shellcheck disable=SC2086
expect 0 'split|memory.offload|optimizer' plan --why h.0 $search $auto device.memory=$limit
[ "$(moved plan.json)" -gt 0 ] || fail 'the plan has no entry' plan.json

# If no plan fits with all states moved, the search moves all that can. No plan is faster than its lower bound, also
# if it moves less than the search did.
search="job.yaml model.family=llama model.hidden=64 model.heads=4 model.ffn=128 model.context=64 train.batch=2 train.clip=0 --machine v100"
search="$search parallel.mode=auto parallel.search=joint memory.offload=auto --json"
for model in 'layers=1 model.vocab=20000 device.memory=42MiB' 'layers=24 model.vocab=256 device.memory=5MiB'; do
    # shellcheck disable=SC2086
    expect 0 gap plan $search model.$model --out plan.json
    value gap <out | awk '{ exit !($1 >= 0) }' || fail "$model: a plan is faster than the lower bound" out
done
grep -q '"what": "parameters"' plan.json || fail 'no parameter moves' plan.json

# Bad input: no tier, a tier that is too small, a word that is none.
# shellcheck disable=SC2086
expect 1 'memory.offload|auto|device.memory|memory.disk.path' train $job memory.offload=auto device.memory=$((most / 2))
# shellcheck disable=SC2086
expect 1 'memory.offload|auto|disk|more' train $job $auto device.memory=$((most - states)) memory.disk.size=1MiB
expect 1 'memory.offload|auto' model job.yaml memory.offload=aut
expect 1 'memory.disk.path' train job.yaml memory.offload=auto "memory.disk.path=$work/missing"
expect 0 'offload: auto' train job.yaml --job memory.offload=auto
exit $failed
