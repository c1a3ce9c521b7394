#!/bin/sh
# Jobs with tiers below device memory. The directory of tier disk is tried before the data are read
# and a plan is searched, by the verbs that use it only.
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

exit $failed
