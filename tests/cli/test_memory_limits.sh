#!/bin/sh
# memory.device and memory.host: each limit holds to the byte, in plans as in runs; offload: auto and the joint search obey both.
. tests/cli/run.inc
job="job.yaml model.layers=8 model.hidden=128"
auto="memory.offload=auto memory.disk.path=$work"

# needs words...: device, tier, programs: the bytes that the job needs
needs() {
    "$weft" model "$@" --json >needs.json 2>&1 || fail "weft model $*" needs.json
    device=$(value predicted_peak_bytes <needs.json) programs=$(value program_bytes <needs.json)
    tier=$(value host_bytes <needs.json) disk=$(value disk_bytes <needs.json)
    tier=${tier:-0} disk=${disk:-0}
}
digest() {
    "$weft" checkpoint digest "$@" --json >digest.json || fail "no digest of $1" digest.json
    sed -n 's/.*"digest": "\([^"]*\)".*/\1/p' digest.json
}
moved() { sed -n '/"offload": \[/,/\]/p' "$1" | grep -c match; }

# Of device memory alone. What fits is the same to the byte.
for plan in '' '--devices 2 parallel.optimizer.level=1'; do
    # shellcheck disable=SC2086
    needs $job $plan
    # shellcheck disable=SC2086
    "$weft" program $job $plan >plain.txt 2>&1
    # shellcheck disable=SC2086
    expect 0 '' program $job $plan memory.device=$device memory.host=1GiB
    cmp -s plain.txt out || fail 'limits change what fits' out
    # shellcheck disable=SC2086
    expect 0 'done' train $job $plan train.steps=1 memory.device=$device checkpoint.dir=fits
    rm -rf fits
    for verb in model train; do
        # shellcheck disable=SC2086
        expect 1 'memory.device|1 bytes|fit' $verb $job $plan memory.device=$((device - 1))
    done
done

# Of all else: tier host, programs and batches.
tiers='memory.offload=[{match: "*", what: optimizer, to: host}]'
# shellcheck disable=SC2086
needs $job "$tiers"
# shellcheck disable=SC2086
expect 1 'memory.host|lacks' model $job "$tiers" memory.host=1MiB
high=$(((1 << 20) + $(sed -n 's/.*lacks \([0-9]*\) bytes.*/\1/p' out))) low=$((high - 1))
[ $high -gt $((tier + programs)) ] || fail 'batches count for nothing'
# shellcheck disable=SC2086
expect 0 'done' train $job "$tiers" train.steps=1 memory.host=$high checkpoint.dir=fits
for verb in model train; do
    # shellcheck disable=SC2086
    expect 1 'memory.host|1 bytes' $verb $job "$tiers" memory.host=$low
done

# auto: the moves fit all limits, and the result is the same to the bit. Host memory that is too small
# leaves the rest for the disk (37b).
# shellcheck disable=SC2086
needs $job
limit=$((device - device / 4))
# shellcheck disable=SC2086
expect 0 'done' train $job checkpoint.dir=plain
WEFT_DEVICE=fenced
export WEFT_DEVICE
for host in 1GiB $((programs + device / 8)); do
    # shellcheck disable=SC2086
    needs $job $auto memory.device=$limit memory.host=$host
    [ "$device" -le $limit ] || fail "more than $limit bytes of device memory" needs.json
    [ "$tier" -gt 0 ] || fail 'nothing lies on the host' needs.json
    if [ $host = 1GiB ]; then
        [ "$disk" = 0 ] || fail 'the host has room' needs.json
    else
        [ "$disk" -gt 0 ] && [ $((tier + programs)) -le $host ] || fail "more than $host bytes of host memory" needs.json
    fi
    # shellcheck disable=SC2086
    expect 0 'done' train $job $auto memory.device=$limit memory.host=$host checkpoint.dir=run
    [ "$(digest run)" = "$(digest plain)" ] || fail 'limits give other tensors'
    rm -rf run
done
# shellcheck disable=SC2086
expect 1 'memory.offload|auto|memory.device|host|memory.host' model $job memory.offload=auto memory.device=$limit \
    memory.host=$((programs + device / 16))
unset WEFT_DEVICE

# The joint search: entries that memory.host has no room for.
search="$job --mode auto --devices 2 --evaluations 2 train.batch=8"
# shellcheck disable=SC2086
expect 1 'memory.host|bytes|memory.offload' plan $search memory.offload=host memory.host=1MiB

# Models in use.
for verb in 'generate plain --prompt ab --tokens 4' "eval $job plain"; do
    # shellcheck disable=SC2086
    expect 0 '' $verb memory.device=50% memory.host=50%
    # shellcheck disable=SC2086
    expect 1 'memory.device|bytes' $verb memory.device=1MiB
done
# shellcheck disable=SC2086
expect 1 'memory.host|bytes' generate plain --prompt ab --tokens 4 memory.host=1MiB \
    'memory.offload=[{match: "*", what: parameters, to: host}]'
# shellcheck disable=SC2086
expect 1 'memory.device|bytes' plan --infer $job memory.device=1MiB
# auto moves nothing of what fits. Else the result is the same within the limit, and a note says what moved.
for verb in 'generate plain --prompt ab --tokens 4 --temperature 0' "eval $job plain" "plan --infer $job"; do
    for limit in 1GiB 5MiB 4200KiB; do
        # shellcheck disable=SC2086
        "$weft" $verb $auto memory.device=$limit >out 2>notes || fail "$verb within $limit" notes
        grep -v 'on the disk\|[0-9] device\|^rank' out >same.$limit
        if [ $limit = 1GiB ]; then
            [ -s notes ] && fail "$verb: auto moves what fits" notes
        else
            has_facts notes "memory.offload|auto|parameters|disk" || fail "$verb: no note says what moved" notes
            cmp -s same.1GiB same.$limit || fail "$verb: moves change the result" out
        fi
    done
    # shellcheck disable=SC2086
    expect 1 'memory.offload|auto|memory.device|parameters|bytes' $verb $auto memory.device=1MiB
    # shellcheck disable=SC2086
    expect 1 'memory.offload|auto|memory.disk.path' $verb memory.offload=auto memory.device=4200KiB
done
# An exported folder has the moves of its job. In a world rank 0 chooses.
# shellcheck disable=SC2086
expect 0 'auto|parameters' infer $job plain --export folder --rows 1 $auto memory.device=4MiB
[ "$(moved folder/plan.json)" -gt 0 ] || fail 'an exported plan has no entry' folder/plan.json
expect 0 'auto|parameters' launch -n 2 --no-logs -- "$weft" generate plain --prompt ab --tokens 4 memory.offload=auto \
    "memory.disk.path=$work" memory.device=2600KiB

# Bad input: both limits of device memory.
expect 1 'memory.device|device.memory' model job.yaml memory.device=1GiB device.memory=1GiB
exit $failed
