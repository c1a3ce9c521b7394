#!/bin/sh
# Jobs with tiers below device memory. The directory of tier disk is tried before the data are read
# and a plan is searched, by the verbs that use it only.
. tests/cli/npy.inc
. tests/cli/run.inc
disk="memory.offload=disk memory.disk.path=$work"
missing=$work/missing
: >file

# refused 'facts' words...: exit code 1, before the data are read, which do not exist
refused() {
    facts=$1
    shift
    expect 1 "memory.disk.path|$facts" train job.yaml data.path=none "$@"
    grep -qs 'none' out && fail "the data are read before the directory of the disk" out
}
for search in '' parallel.mode=auto; do
    for devices in '' '--devices 2'; do
        # shellcheck disable=SC2086
        refused "$missing|No such file" $disk/missing $search $devices
        # shellcheck disable=SC2086
        refused "$work/file" $disk/file $search $devices
    done
done
refused "$missing" 'memory.offload=[{match: wte.*, what: optimizer, to: disk}]' "memory.disk.path=$missing"
refused "$missing" 'memory.offload=[{match: "h.*", what: parameters, to: disk}]' "memory.disk.path=$missing"
refused "$missing" 'memory.offload=[{match: "*", what: optimizer, to: host}, {match: "*.bias", what: optimizer, to: disk}]' \
    "memory.disk.path=$missing"

# Read only, and without the right to write: root has this right everywhere.
mkdir locked && chmod 555 locked
if [ "$(id -u)" != 0 ]; then
    # shellcheck disable=SC2086
    refused "$work/locked" $disk/locked
fi
# shellcheck disable=SC2086
[ -d /sys/kernel ] && refused /sys/kernel memory.offload=disk memory.disk.path=/sys/kernel

# No disk has room for 90 TB.
expect 1 "memory.disk.path|$work" train job.yaml data.path=none model.vocab=256 model.layers=96 \
    model.hidden=100096 $disk
grep -qs 'none' out && fail "the data are read before the room of the disk is known" out
expect 1 'memory.disk.size' train job.yaml data.path=none model.vocab=256 model.hidden=1024 $disk memory.disk.size=1MiB
expect 1 'memory.disk.size' train job.yaml data.path=none model.vocab=256 model.hidden=1024 memory.disk.path="$work" \
    'memory.offload=[{match: "*", what: parameters, to: disk}]' memory.disk.size=1MiB

# Verbs that do not run, and entries that put nothing there, need no directory.
for verb in model program plan 'simulate --machine v100'; do
    # shellcheck disable=SC2086
    expect 0 '' $verb job.yaml memory.offload=disk "memory.disk.path=$missing"
done
expect 0 'done' train job.yaml train.steps=1 memory.offload=none "memory.disk.path=$missing" checkpoint.dir=run
expect 0 'done' train job.yaml train.steps=1 \
    'memory.offload=[{match: wte.*, what: optimizer, to: disk}, {match: "*", what: optimizer, to: host}]' \
    "memory.disk.path=$missing"
expect 0 'perplexity' eval job.yaml run memory.offload=disk "memory.disk.path=$missing"

# Trained models in use: parameters below device memory change no output. A bad directory is refused
# before the weights are read.
disk_parameters='memory.offload=[{match: "*", what: parameters, to: disk}]'
host_parameters='memory.offload=[{match: "h.*", what: parameters, to: host}]'
bytes="\"disk_bytes\":"
generate="generate run --prompt ab --tokens 8 --temperature 0"
head -c 600 text.txt >held.txt
i=0
while [ $i -lt 55 ]; do printf a; i=$((i + 1)); done | npy x.npy '|u1' '(5, 11)'
"$weft" eval job.yaml run --data held.txt --json >plain.eval 2>&1 || fail 'no evaluation' plain.eval
expect 0 'plain.npy' infer job.yaml run --input x.npy --out plain.npy
# shellcheck disable=SC2086
"$weft" $generate >plain.text 2>&1 || fail 'no text' plain.text
# What the checkpoint's files lend to the disk is a note, which is not part of the text.
lent='on the disk|checkpoint'
same_text() {
    grep -v "scheduler\|on the disk:" "$1" | cmp plain.text -
}
for rules in "$disk_parameters" "$host_parameters"; do
    expect 0 "loss|$(sed 's/.*\("loss": [^,]*\).*/\1/' plain.eval)|_bytes\": " eval job.yaml run --data held.txt --json \
        "$rules" "memory.disk.path=$work"
    expect 0 'other.npy| each' infer job.yaml run --input x.npy --out other.npy "$rules" "memory.disk.path=$work" --devices 2
    cmp plain.npy other.npy || fail 'tiers change the logits'
    # shellcheck disable=SC2086
    expect 0 "$lent" $generate "$rules" "memory.disk.path=$work"
    same_text out || fail 'tiers change the text' out
    lent=
done
grep -q 'host_bytes\|disk_bytes' plain.eval && fail 'tiers without a tier' plain.eval
# A plan file has the rules, and the words the directory.
expect 0 'plan.json' plan job.yaml "$disk_parameters" "memory.disk.path=$missing" --devices 2 parallel.mode=semi --out plan.json
# shellcheck disable=SC2086
expect 0 '' $generate --plan plan.json "memory.disk.path=$work" memory.disk.size=50% device.memory=50%
same_text out || fail 'a plan with tiers changes the text' out
# shellcheck disable=SC2086
expect 1 'memory.disk.path' $generate --plan plan.json
# shellcheck disable=SC2086
expect 0 '' launch -n 2 --no-logs "$weft" $generate "$disk_parameters" "memory.disk.path=$work"
same_text out || fail 'two processes with tiers change the text' out
expect 0 "$bytes" plan --infer job.yaml "$disk_parameters" "memory.disk.path=$missing" --json
for verb in 'eval job.yaml run --data held.txt' 'infer job.yaml run --input x.npy --out y.npy' 'generate run'; do
    # shellcheck disable=SC2086
    expect 1 "memory.disk.path|$missing" $verb "$disk_parameters" "memory.disk.path=$missing"
    # shellcheck disable=SC2086
    expect 1 'memory.disk.path' $verb "$disk_parameters"
    # shellcheck disable=SC2086
    expect 0 "offload[0]|'hh.*'" $verb 'memory.offload=[{match: "hh.*", what: parameters, to: host}]'
    # shellcheck disable=SC2086
    expect 1 'device.memory' $verb "$disk_parameters" "memory.disk.path=$work" device.memory=0.00001%
done
expect 2 'train.steps|memory.offload' generate run train.steps=1
expect 2 'in quotes' generate run 'memory.offload=[{match:' '*,' 'what:' 'parameters}]'
expect 2 "checkpoint|again" generate run again "memory.disk.path=$work"
# Exported: the folder has the rules.
expect 0 'served' infer job.yaml run --rows 4 "$disk_parameters" "memory.disk.path=$work" --export served
expect 0 'other.npy|disk' infer served --input x.npy --out other.npy "memory.disk.path=$work"
cmp plain.npy other.npy || fail 'tiers change the logits of an exported model'
expect 1 'memory.disk.path' infer served --input x.npy --out y.npy
expect 1 "$missing" infer served --input x.npy --out y.npy "memory.disk.path=$missing"
expect 1 'device.memory' infer served --input x.npy --out y.npy "memory.disk.path=$work" device.memory=0.00001%
expect 2 'memory.offload' infer served --input x.npy --out y.npy "$disk_parameters"

# Bytes of each tier, and those that a step copies, are the same everywhere. Without tiers no line and no member has them.
for tier in host disk; do
    job="job.yaml model.vocab=256 memory.offload=$tier"
    [ $tier = host ] || job="$job memory.disk.path=$work"
    # shellcheck disable=SC2086
    expect 0 "\"${tier}_bytes\"|\"${tier}_moved_bytes\"" model $job --json
    kept=$(value ${tier}_bytes <out) moved=$(value ${tier}_moved_bytes <out) states=$(value optimizer_bytes <out)
    # states are read once and written once, and nothing else is kept there
    [ "$kept" -ge "$states" ] && [ "$moved" = $((2 * states)) ] || fail "$tier keeps $kept and copies $moved of $states" out
    facts="\"${tier}_bytes\": $kept|\"${tier}_moved_bytes\": $moved"
    # shellcheck disable=SC2086
    expect 0 "$facts|\"tier_seconds\"|\"$tier copy\"" simulate $job --machine v100 --json
    json out
    # shellcheck disable=SC2086
    expect 0 "$tier copy|critical path|tiers" simulate $job --machine v100 --report page.html
    has_facts page.html "$tier copy|copied in a step" || fail 'the page has no tier' page.html
    # shellcheck disable=SC2086
    expect 0 'plan.json' plan $job --out plan.json
    # shellcheck disable=SC2086
    expect 0 "audited-$tier" train $job machine=v100 checkpoint.dir=audited-$tier
    expect 0 "\"${tier}_bytes\": $kept" audit audited-$tier --json
    json out
    expect 0 "fetch from $tier" audit audited-$tier
    expect 0 "$facts" plan job.yaml model.vocab=256 --check plan.json --json
    # shellcheck disable=SC2086
    expect 0 "\"${tier}_bytes\"|\"${tier}_moved_bytes\"" plan $job parallel.mode=auto --devices 2 --json
done
for verb in model 'simulate --machine v100' 'plan parallel.mode=auto --devices 2'; do
    for json in '' --json; do
        # shellcheck disable=SC2086
        expect 0 '' $verb job.yaml $json
        grep -qE 'tier|host_bytes|disk|moved' out && fail "$verb: tiers without a tier" out
    done
done

# What cells save is stored once and read once, but not what the last block before the loss saves. The peak of device
# memory falls, and the result stays.
deep="job.yaml model.vocab=256 model.layers=4 train.steps=2"
# shellcheck disable=SC2086
expect 0 predicted_peak_bytes model $deep --json
peak=$(value predicted_peak_bytes <out)
block=$(tr ',' '\n' <out | sed -n 's/.*"saved_bytes": //p' | sed -n 2p) # of h.0
# shellcheck disable=SC2086
expect 0 'done' train $deep checkpoint.dir=run-device
for tier in host disk; do
    job="$deep memory.disk.path=$work"
    [ $tier = disk ] || job=$deep
    saved="memory.offload=[{match: 'h.*', what: saved, to: $tier}]"
    # shellcheck disable=SC2086
    expect 0 "\"${tier}_moved_bytes\": $((6 * block))" model $job "$saved" --json
    kept=$(value ${tier}_bytes <out)
    [ "$kept" -ge $((3 * block)) ] && [ "$kept" -lt $((4 * block)) ] && [ "$(value predicted_peak_bytes <out)" -lt "$peak" ] ||
        fail "$tier keeps $kept of 3 blocks of $block; the peak was $peak" out
    # shellcheck disable=SC2086
    expect 0 "\"${tier}_bytes\": $kept|\"${tier}_moved_bytes\": $((6 * block))" simulate $job "$saved" --machine v100 --json
    # shellcheck disable=SC2086
    expect 0 'done' train $job "$saved" checkpoint.dir=run-$tier
    cmp run-device/step-*2/model.safetensors run-$tier/step-*2/model.safetensors || fail "saved blocks in tier $tier change the result"
done

# Gradients: with two microbatches each is written twice and read once by a pass, once by the norm and once by the update.
# Those that are small, or that lie elsewhere, stay. The peak falls, and the result stays, also on two devices.
deep="$deep model.hidden=128 model.heads=2 train.accumulate=2 train.batch=4 train.clip=1"
for devices in '' '--devices 2 parallel.optimizer.level=2'; do
    # shellcheck disable=SC2086
    expect 0 predicted_peak_bytes model $deep $devices --json
    peak=$(value predicted_peak_bytes <out)
    # shellcheck disable=SC2086
    expect 0 'done' train $deep $devices checkpoint.dir=plain-gradients
    for tier in host disk; do
        job="$deep $devices memory.disk.path=$work"
        [ $tier = disk ] || job="$deep $devices"
        rule="memory.offload=[{match: 'h.*.mlp.c_fc.weight', what: gradients, to: $tier}]"
        # shellcheck disable=SC2086
        expect 0 "\"${tier}_moved_bytes\"" model $job "$rule" --json
        kept=$(value ${tier}_bytes <out) moved=$(value ${tier}_moved_bytes <out)
        # 4 x 128 x 512 floats, or half of them on each of two devices
        all=1048576
        [ -z "$devices" ] || all=524288
        { [ "$kept" = $all ] && [ "$moved" = $((5 * all)) ] && [ "$(value predicted_peak_bytes <out)" -lt "$peak" ]; } ||
            fail "$tier keeps $kept and copies $moved of gradients; the peak was $peak" out
        # shellcheck disable=SC2086
        expect 0 'done' train $job "$rule" checkpoint.dir=gradients-$tier
        cmp plain-gradients/step-*2/model.safetensors gradients-$tier/step-*2/model.safetensors ||
            fail "gradients in tier $tier change the result"
        rm -rf gradients-$tier
    done
    rm -rf plain-gradients
done
expect 0 gap plan job.yaml parallel.mode=auto --devices 2 'memory.offload=[{match: "*", what: gradients, to: host}]'

# Limits in per cent: of what a device has without a limit, and of the free space.
for limit in 0.00000001% 100%; do
    code=0
    [ $limit = 100% ] || code=1
    # shellcheck disable=SC2086
    expect $code '' train job.yaml train.steps=1 $disk memory.disk.size=$limit checkpoint.dir=run-disk-$code
    [ $code = 1 ] || expect 0 "$limit" train job.yaml --job memory.offload=disk memory.disk.path=x memory.disk.size=$limit
done
for limit in 0% 101% -1% % 5%% nan% 5%x; do
    expect 1 "device.memory|60%|$limit" model job.yaml device.memory=$limit
done
# A key of checkpoints encrypts the disk's file and changes nothing else.
if "$weft" info | grep -q 'OpenSSL *built in'; then
    "$weft" checkpoint make-key run.key >/dev/null
    for key in '' checkpoint.key=run.key; do
        # shellcheck disable=SC2086
        expect 0 'done' train job.yaml train.steps=2 $disk $key "checkpoint.dir=keyed-${key:+key}"
    done
    expect 0 '0 differ' checkpoint diff keyed- keyed-key --key run.key
fi
exit $failed
