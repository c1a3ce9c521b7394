#!/bin/sh
# Updates and ops on the host (parallel.place): the same bits as on the device, with less device memory; rules that
# cannot be followed are refused by name.
. tests/cli/run.inc
host='parallel.place=[{match: "*:update", on: host}]'
blocks='parallel.place=[{match: "h.*:update", on: host}, {match: "h.0.*.bias:update", on: device}]'

# The peak of device memory falls by exactly the optimizer's bytes, which lie in host memory then (36a).
small='job.yaml model.vocab=256'
# shellcheck disable=SC2086
expect 0 predicted_peak_bytes model $small --json
peak=$(value predicted_peak_bytes <out) states=$(value optimizer_bytes <out)
# shellcheck disable=SC2086
expect 0 "\"predicted_peak_bytes\": $((peak - states))|\"host_bytes\"" model $small "$host" --json
kept=$(value host_bytes <out) moved=$(value host_moved_bytes <out) parameters=$(value parameter_bytes <out)
# gradients and values go there, and new values come back; states never move
[ "$kept" -gt "$states" ] && [ "$moved" = $((3 * parameters)) ] || fail "the host keeps $kept of $states and $moved move" out
# shellcheck disable=SC2086
expect 0 "\"host_bytes\": $kept|\"host_moved_bytes\": $moved|host copy" simulate $small "$host" --machine v100 --json
# A host whose memory moves 4 MB/s takes 7 x the parameters' bytes / rate for an update by adam, where nothing else is
# as slow; a host that moves as much as the device, or says nothing, takes the device's time.
"$weft" machine show v100 >v100.json
for rate in 4e+06 9e+11 none; do
    line="s/\(\"host_memory_bytes_per_second\": {\"value\": \)[^,]*/\\1$rate/"
    [ $rate = none ] && line=/host_memory_bytes_per_second/d
    sed "$line" v100.json >host.json
    # shellcheck disable=SC2086
    expect 0 step_seconds simulate $small "$host" --machine host.json --json
    echo "$(value step_seconds <out)" >>steps
done
tr '\n' ' ' <steps | awk -v bytes="$parameters" '{ slow = 7 * bytes / 4e6; exit !($2 == $3 && $1 > slow && $1 < slow * 1.1) }' ||
    fail "slow, fast and silent hosts take these seconds: $(tr '\n' ' ' <steps)" out
# shellcheck disable=SC2086
expect 0 '"on": "host"' program $small "$host" --json
# shellcheck disable=SC2086
expect 0 'plan.json' plan $small "$host" --out plan.json
grep -q '"match": "\*:update", "on": "host"' plan.json || fail 'the plan has no rule' plan.json

# same NAME words...: with and without the host, a run makes the same bits. A run keeps its rules when it goes on.
same() {
    name=$1
    shift
    expect 0 'done' train job.yaml train.schedule.name=constant train.steps=6 "$@" checkpoint.dir="$name-device"
    expect 0 'done' train job.yaml train.schedule.name=constant train.steps=6 "$@" "$host" checkpoint.dir="$name-host"
    expect 0 'done' train job.yaml train.schedule.name=constant train.steps=3 "$@" "$blocks" checkpoint.dir="$name-some"
    expect 0 'done' train "$name-some" train.steps=6
    for kind in host some; do
        expect 0 '0 differ' checkpoint diff "$name-device" "$name-$kind"
    done
}
same one
same clipped train.clip=0.5 train.accumulate=2
same bf16 train.precision=bf16 train.optimizer.name=adafactor
same zero --devices 2 parallel.optimizer.level=1
same stages --devices 2 parallel.pipeline.stages=2 train.accumulate=2
same lamb --devices 2 parallel.optimizer.level=3 train.optimizer.name=lamb
# Two processes, of which each has a host.
expect 0 'done' launch -n 2 --no-logs "$weft" train job.yaml train.schedule.name=constant train.steps=6 --devices 2 parallel.optimizer.level=3 \
    train.optimizer.name=lamb "$host" checkpoint.dir=two
expect 0 '0 differ' checkpoint diff lamb-device two
# Recovery keeps pieces in their places.
expect 0 'done' train job.yaml train.schedule.name=constant train.steps=6 --devices 2 parallel.optimizer.level=1 recovery.enabled=true "$host" \
    checkpoint.dir=recovering
expect 0 '0 differ' checkpoint diff zero-device recovering
# The peaks of a run are those that its report predicted, on the host too.
expect 0 "\"host_bytes\"" train job.yaml train.steps=1 "$host" --json checkpoint.dir=json
# A search keeps the rule, and its plan runs.
expect 0 '"host_bytes"' plan job.yaml parallel.mode=auto --devices 2 "$host" --json

# ---- ops on the host ----
# A table with its look-up, gradient and update there: the table and its states leave device memory, and of a step only
# ids, rows and their gradient move.
llama='model.family=llama model.layers=2 model.hidden=32 model.heads=2 model.context=16 model.vocab=1000 model.tied=false'
table=$((1000 * 32 * 4)) host='parallel.place=[{match: "embed*", on: host}]'
# shellcheck disable=SC2086
expect 0 "\"host_moved_bytes\": $((4 * 16 * (2 * 4 + 2 * 32 * 4)))|\"host_bytes\"" model job.yaml $llama train.clip=0 "$host" --json
kept=$(value host_bytes <out)
[ "$kept" -gt $((4 * table)) ] && [ "$kept" -lt $((4 * table + 65536)) ] || fail "the host keeps $kept" out
# shellcheck disable=SC2086
expect 0 'host|result|8.0 KiB' program job.yaml $llama "$host"
llama='model.family=llama model.layers=2 model.hidden=32 model.heads=2 model.context=16 model.tied=false'
# shellcheck disable=SC2086
same rows $llama train.clip=0.5 train.accumulate=2
# shellcheck disable=SC2086
same rows-zero $llama --devices 2 parallel.optimizer.level=3 train.clip=0
# A choice of what else moves leaves the table and its gradient there.
# shellcheck disable=SC2086
expect 0 'host_bytes' model job.yaml $llama model.vocab=1000 'parallel.place=[{match: "embed_tokens", on: host}]' memory.offload=auto \
    memory.device=1500KiB memory.disk.path="$work" --json
# A table that the head reads too: the head fetches it. Ops that share values, in the blocks of a model.
host='parallel.place=[{match: "wte", on: host}]'
same tied train.accumulate=2
host='parallel.place=[{match: "h.*.mlp.*", on: host}, {match: "h.1.mlp.c_fc", on: device}]'
same blocks model.dropout=0.1 train.precision=bf16

# What the host cannot run is named, with what would be right (36b).
expect 1 "place|embed.wte:embedding|'*:update'|parallel.pipeline" model job.yaml 'parallel.place=[{match: "wte", on: host}]' --devices 2 \
    parallel.pipeline.stages=2
expect 1 "place|embed.wte:embedding|parallel.copies" model job.yaml 'parallel.place=[{match: "wte", on: host}]' parallel.copies=2
expect 1 "place|embed.wte|memory.offload|tier disk" model job.yaml 'parallel.place=[{match: "wte", on: host}]' memory.disk.path="$work" \
    'memory.offload=[{match: "wte*", what: parameters, to: disk}]'
expect 1 "place|search|'*:update'" plan job.yaml parallel.mode=auto --devices 2 'parallel.place=[{match: "wte", on: host}]'
expect 0 "place|wta" model job.yaml 'parallel.place=[{match: "wta", on: host}]'
host='parallel.place=[{match: "*:update", on: host}]'
expect 1 'parallel.place|host' model job.yaml 'parallel.place=[{match: "*:update", on: disk}]'
# ---- masters on the host ----
# A table or weight of a product takes 2 bytes of device memory, in place of 4 and its states. Its gradient goes to the
# host, and 2 bytes come back; of other parameters the value goes too, and comes back.
master='train.precision=bf16 train.master=host'
# shellcheck disable=SC2086
expect 0 predicted_peak_bytes model $small train.precision=bf16 --json
peak=$(value predicted_peak_bytes <out) states=$(value optimizer_bytes <out) parameters=$(value parameter_bytes <out)
# shellcheck disable=SC2086
expect 0 host_moved_bytes model $small $master --json
moved=$(value host_moved_bytes <out) kept=$(value host_bytes <out)
narrow=$(((3 * parameters - moved) / 6))
[ "$narrow" -gt $((parameters / 5)) ] && [ "$kept" -gt $((states + 4 * narrow)) ] || fail "$narrow of $parameters are bf16" out
expect 0 "\"predicted_peak_bytes\": $((peak - states - 2 * narrow))" model $small $master --json
expect 0 "\"host_bytes\": $kept|\"host_moved_bytes\": $moved|host copy" simulate $small $master --machine v100 --json
expect 0 'copy of wte.weight' program $small $master --json
# final_loss words...: of a run in bf16.
final_loss() {
    expect 0 'final loss' train job.yaml train.schedule.name=constant train.precision=bf16 "$@"
    sed -n 's/.*final loss \([0-9.]*\).*/\1/p' out
}
# It learns as without the key (36c).
awk -v a="$(final_loss)" -v b="$(final_loss train.master=host)" \
    'BEGIN { exit !(a > 0 && b > 0 && (a - b) * (a - b) <= 1e-6 * a * a) }' || fail 'masters on the host learn otherwise' out
# masters NAME words...: a run goes on from its masters with the same bits.
masters() {
    name=$1
    shift
    expect 0 'done' train job.yaml train.schedule.name=constant train.steps=6 $master "$@" checkpoint.dir="$name-whole"
    expect 0 'done' train job.yaml train.schedule.name=constant train.steps=3 $master "$@" checkpoint.dir="$name-parts"
    expect 0 'done' train "$name-parts" train.steps=6
    expect 0 '0 differ' checkpoint diff "$name-whole" "$name-parts"
}
masters m-one
masters m-zero --devices 2 parallel.optimizer.level=1 train.clip=0.5 train.accumulate=2
masters m-full --devices 2 parallel.optimizer.level=3 train.optimizer.name=lamb
expect 0 'done' launch -n 2 --no-logs "$weft" train job.yaml train.schedule.name=constant train.steps=6 $master --devices 2 \
    parallel.optimizer.level=3 train.optimizer.name=lamb checkpoint.dir=m-two
expect 0 '0 differ' checkpoint diff m-full-whole m-two
expect 0 'done' train job.yaml train.schedule.name=constant train.steps=6 $master --devices 2 parallel.optimizer.level=1 train.clip=0.5 \
    train.accumulate=2 recovery.enabled=true checkpoint.dir=m-recovering
expect 0 '0 differ' checkpoint diff m-zero-whole m-recovering
# What contradicts the key.
expect 1 'train.master|train.precision|parallel.place' model job.yaml train.master=host
expect 1 "train.master|memory.offload|'h.*'|parameter" model job.yaml $master 'memory.offload=[{match: "h.*", what: parameters, to: host}]'
expect 1 'place|train.master' model job.yaml $master "$host"
expect 1 'train.master|device|host' model job.yaml train.precision=bf16 train.master=disk

# Rules that contradict.
for to in device disk; do
    expect 1 "place|memory.offload|h.0.ln_1.weight|tier $to" model job.yaml "$host" memory.disk.path="$work" \
        "memory.offload=[{match: 'h.*', what: optimizer, to: $to}]"
done
expect 1 'place|memory.offload|parameter|tier disk' model job.yaml "$host" memory.disk.path="$work" \
    'memory.offload=[{match: "h.*", what: parameters, to: disk}]'
# Those that agree: parameters that lie in host memory are updated in place, so no value is sent.
same parameters 'memory.offload=[{match: "h.*", what: parameters, to: host}]'
same gradients train.clip=1 'memory.offload=[{match: "*", what: gradients, to: host}]'
same rest memory.offload=disk memory.disk.path="$work"
exit $failed
