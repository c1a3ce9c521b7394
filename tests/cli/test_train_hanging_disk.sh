#!/bin/sh
# One request to stop ends a process whose disk does not answer: while it reads data, while it writes a checkpoint, before the request
# and after it, in a rank of several, and in a launcher that writes logs (hang_disk.c makes the calls hang). A slow disk is no such
# disk: the checkpoint is committed. What the disk has not taken is lost, so the exit code is 1.
# shellcheck source=run.inc
. "$(dirname "$0")/run.inc"
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
long='train.steps=1000000000 train.eval_every=0'
# begin CALL NUMBER PATH WORDS...: a command that hangs in that call; it is $process
begin() {
    call=$1 number=$2 path=$3
    shift 3
    rm -rf run mark out errors # what is waited for is of this process
    env LD_PRELOAD="$WEFT_BUILD_DIR/weft-hang-disk.so" HANG_CALL="$call" HANG_AT="$number" HANG_PATH="$path" HANG_MARK="$work/mark" \
        "$@" >out 2>errors &
    process=$!
}
# until_true 'CONDITION': two minutes at most
until_true() {
    for _ in $(seq 1200); do
        eval "$1" && return
        kill -0 $process 2>/dev/null || break
        sleep 0.1
    done
    fail "$place: never: $1" errors
    kill -KILL $process
    exit 1
}
# ends CODE WORDS: it was asked to stop
ends() {
    asked=$(date +%s)
    for _ in $(seq 900); do
        kill -0 $process 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL $process 2>/dev/null && fail "$place: one request does not end it"
    wait $process
    code=$?
    [ $code = "$1" ] || fail "$place: exit $code, not $1" errors
    # 5 s, and what a busy machine takes for it
    [ $(($(date +%s) - asked)) -lt 60 ] || fail "$place: ended $(($(date +%s) - asked)) s after the request"
    grep -q "$2" errors || fail "$place: no word of it" errors
}
hangs() { # PLACE CALL NUMBER PATH WORDS...
    place=$1
    shift
    begin "$@"
    until_true '[ -e mark ]'
    kill -TERM $process
    ends 1 'does not answer'
}
# shellcheck disable=SC2086
{
    hangs 'opening the data' open 1 text.txt "$weft" train job.yaml $long
    hangs 'syncing a checkpoint' fsync 3 run/ "$weft" train job.yaml $long checkpoint.dir=run checkpoint.every=5
    hangs 'writing a checkpoint' pwrite 2 run/ "$weft" train job.yaml $long checkpoint.dir=run checkpoint.every=5
    hangs 'a rank of two' pwrite 2 run/ "$weft" launch -n 2 --no-logs -- \
        "$weft" train job.yaml $long checkpoint.dir=run checkpoint.every=5
    hangs 'writing a log' write 3 rank-0.log "$weft" launch -n 2 --logs logs -- "$weft" train job.yaml $long --json

    place='the last checkpoint'
    begin fsync 1 safetensors "$weft" train job.yaml $long checkpoint.dir=run --json
    until_true 'grep -qs "\"step\": 3," out'
    kill -TERM $process
    until_true '[ -e mark ]'
    ends 1 'does not answer'

    place='a slow disk'
    export HANG_MS=1200
    begin fsync 0 run/ "$weft" train job.yaml $long checkpoint.dir=run --json
    until_true 'grep -qs "\"step\": 3," out'
    kill -TERM $process
    ends 143 'continues from run/step'
    unset HANG_MS
    expect 0 good checkpoint verify run
}
exit $failed
