#!/bin/sh
# `weft train` from outside: what it prints, its exit codes, its memory, and how signals end it.
. tests/cli/run.inc

# --- JSON lines ---
"$weft" train job.yaml checkpoint.dir=run checkpoint.every=5 --json >lines 2>errors || fail "train --json failed" errors
[ -s errors ] && fail "train --json wrote to stderr" errors
json lines
[ "$(wc -l <lines)" = 13 ] || fail "12 steps and an end make 13 lines" lines
for key in step loss learning_rate tokens_per_second seconds; do
    [ "$(head -12 lines | grep -c "\"$key\": [0-9]")" = 12 ] || fail "a step without $key" lines
done
[ "$(grep -c '"validation_loss": [0-9]' lines)" = 4 ] || fail "steps 5, 10, 12 and the end have a validation loss" lines
for key in final_loss first_step_seconds predicted_peak_bytes observed_peak_bytes steps tokens_per_second; do
    tail -1 lines | grep -q "\"$key\": [0-9]" || fail "the last object has no $key" lines
done
tail -1 lines | grep -q '"done": true' || fail "the last object is not done" lines
tail -1 lines | grep -qF '"checkpoint": "run/step-000000000012"' || fail "no checkpoint in the last object" lines
[ "$(tail -1 lines | value predicted_peak_bytes)" = "$(tail -1 lines | value observed_peak_bytes)" ] ||
    fail "predicted and observed peak differ" lines
[ "$(tail -1 lines | value final_loss)" = "$(sed -n 12p lines | value loss)" ] || fail "final_loss is not the last loss" lines
[ "$(ls -d run/step-* | wc -l)" = 3 ] || fail "steps 5, 10 and 12 are there"

# --- the same in words, going on, and what is left to do ---
for key in memory_bytes resident_bytes steps; do
    [ "$(head -12 lines | grep -c "\"$key\": [0-9]")" = 12 ] || fail "a step without $key" lines
done
for key in process_seconds start building steps validation; do
    tail -1 lines | grep -q "\"$key\": [0-9]" || fail "the last object has no $key" lines
done
expect 0 'step 12/12' train job.yaml checkpoint.dir=words
grep -q ' since the start of the process: .* s, other [0-9]' out || fail 'no word of where the time goes' out
expect 0 'checkpoint words/step-000000000012' train job.yaml checkpoint.dir=words train.steps=12
grep -q 'step 12, train.steps is 12' out || fail "a finished run does not say so" out
expect 0 'step 12' train job.yaml checkpoint.dir=words train.steps=14
grep -q 'done: 2 steps in' out || fail "two steps were left" out
expect 0 'checkpoint.dir|saved' train job.yaml
expect 1 'checkpoints' train job.yaml checkpoint.dir=words checkpoint.resume=false

expect 1 'nothere/trace.json' train job.yaml --trace nothere/trace.json
grep -q '^step ' out && fail 'a trace that cannot be written is refused before the run' out

# --- precision, traces, other verbs ---
expect 0 'bf16 with ' train job.yaml train.precision=bf16

# Values that name no kernels are refused before anything is built
export WEFT_ISA=avx21
expect 1 "WEFT_ISA is 'avx21'|avx512" train job.yaml
expect 1 "WEFT_ISA is 'avx21'|avx512" plan job.yaml --devices 2
unset WEFT_ISA
export WEFT_BACKEND=refrence
expect 1 "WEFT_BACKEND is 'refrence'|reference" model job.yaml
unset WEFT_BACKEND

# WEFT_ISA goes for convolutions that another library computes, too
if "$weft" info | grep -q 'oneDNN *built in  fast' && "$weft" info | grep -q 'features.* avx2'; then
    printf '\000\000\010\003\000\000\000\010\000\000\000\034\000\000\000\034' >digits-images-idx3-ubyte # 8 of 28 x 28
    head -c 6272 /dev/zero >>digits-images-idx3-ubyte
    printf '\000\000\010\001\000\000\000\010\000\001\002\003\004\005\006\007' >digits-labels-idx1-ubyte
    DNNL_VERBOSE=1 WEFT_ISA=avx2 "$weft" train model.family=lenet data.path=digits-images-idx3-ubyte data.validation=0 \
        train.steps=1 train.batch=4 checkpoint.dir=digits >out 2>&1 || fail 'convolutions with WEFT_ISA:' out
    grep -q 'exec,cpu,convolution' out || fail 'oneDNN said nothing of convolutions:' out
    grep 'exec,cpu,convolution' out | grep -q avx512 && fail 'convolutions heed no WEFT_ISA:' out
else
    echo 'SKIP: no oneDNN, or no AVX2'
fi

expect 0 'done: 12 steps' train job.yaml --trace trace.json
tr -d '\n' <trace.json >trace.line
echo >>trace.line
json trace.line
grep -q '"traceEvents"' trace.json || fail "no events in the trace"

# The ranks of a host have one trace, in which each rank tells what it does.
expect 0 'done: 12 steps' launch -n 2 --no-logs -- "$weft" train job.yaml --trace ranks.json
[ -e ranks.json.rank1 ] && fail 'a rank of the host has a trace of its own'
for rank in 0 1; do
    [ "$(grep -c '"cat":"steps","pid":'$rank',' ranks.json)" = 12 ] || fail "rank $rank has not 12 steps in the trace"
done
"$weft" trace merge all.json ranks.json trace.json 2>errors || fail 'traces are not merged' errors
tr -d '\n' <all.json >trace.line
echo >>trace.line
json trace.line
[ "$(grep -c '"ph":"X"' all.json)" = "$(cat ranks.json trace.json | grep -c '"ph":"X"')" ] || fail 'a merged trace has other events'
expect 2 'merge' trace
expect 2 'merge' trace merge all.json
expect 1 'job.yaml' trace merge all.json ranks.json job.yaml
expect 0 'peak memory' model job.yaml
"$weft" model job.yaml --json >model.json || fail "model --json failed"
json model.json
[ "$(value predicted_peak_bytes <model.json)" -le "$(tail -1 lines | value predicted_peak_bytes)" ] ||
    fail "model and train predict differently" model.json
expect 0 'optimizer    adamw' checkpoint inspect run
expect 0 'transformer.wte.weight' checkpoint inspect run/step-000000000005
"$weft" checkpoint inspect run --json >inspect.json || fail "inspect --json failed"
json inspect.json
grep -q '"crc32c": "'"$(grep -o '"name": "transformer.wte.weight".*' "run/$(cat run/latest)/manifest.json" |
    sed 's/.*"crc32c": "\([0-9a-f]*\)".*/\1/')"'"' inspect.json || fail "inspect --json has other checksums than the manifest"
expect 0 'step-000000000010     good' checkpoint verify run
"$weft" checkpoint verify run --json >verify.json || fail "verify --json failed"
json verify.json

# --- signals: a checkpoint is committed, and the code tells which ---
# signal NAME CODE words...
signal() {
    name=$1 code=$2
    shift 2
    rm -rf signal lines
    "$weft" train job.yaml train.steps=1000000000 checkpoint.dir=signal "$@" >lines 2>errors &
    pid=$!
    while ! grep -q '^step 1/\|"step": 1,' lines 2>/dev/null && kill -0 $pid 2>/dev/null; do sleep 0.1; done
    kill "-$name" $pid
    sleep 0.02
    kill "-$name" $pid 2>/dev/null || true # the same request once more, passed on by a launcher
    wait $pid
    got=$?
    [ $got = "$code" ] || fail "SIG$name: exit $got, expected $code" errors
    grep -q 'from signal/step-' errors || fail "SIG$name: no word of the checkpoint" errors
    [ "$(ls -d signal/step-* | wc -l)" = 1 ] || fail "SIG$name: no checkpoint"
    expect 0 good checkpoint verify signal
}
signal TERM 143
signal TERM 143 --json
json lines
tail -1 lines | grep -q '"done": false, "stopped": true' || fail "no stopped object" lines
signal INT 130
signal HUP 129
# what job systems send before they end a job
signal USR1 138
signal USR2 140
signal XCPU 152

# --- an announcement hastens nothing: neither one that is repeated, nor SIGTERM after it ---
# One step takes seconds, so that the signals come while the run ends its step.
rm -rf announced
: >lines # not those of the run before
WEFT_BACKEND=reference "$weft" train job.yaml train.steps=1000000000 model.hidden=64 train.batch=96 checkpoint.dir=announced >lines 2>errors &
pid=$!
while ! grep -q 'parameters' lines 2>/dev/null && kill -0 $pid 2>/dev/null; do sleep 0.1; done
for name in USR1 USR1 XCPU TERM; do
    kill -$name $pid 2>/dev/null || break
    sleep 1.2 # the subject: signals that are farther apart than those of one request
done
wait $pid
got=$?
[ $got = 143 ] || [ $got = 138 ] || fail "announcements and SIGTERM: exit $got" errors
grep -q 'from announced/step-' errors || fail "announcements and SIGTERM: no checkpoint" errors
grep -q 'once more' errors && fail "an announcement offers to stop sooner" errors
expect 0 good checkpoint verify announced

# --- a reader that has gone ends the run with a checkpoint, too ---
"$weft" train job.yaml checkpoint.dir=piped train.steps=1000000000 --json 2>errors | head -1 >lines
[ "$(ls -d piped/step-* | wc -l)" = 1 ] || fail "a gone reader: no checkpoint" errors
grep -q 'from piped/step-' errors || fail "a gone reader: no word of the checkpoint" errors
"$weft" launch -n 2 --no-logs -- "$weft" train job.yaml checkpoint.dir=across train.steps=1000000000 --json 2>errors | head -1 >lines
[ "$(ls -d across/step-* | wc -l)" = 1 ] || fail "a gone reader of a launch: no checkpoint" errors

# --- memory: the process needs what was predicted, and little more ---
: >memory # it is there before it is counted
"$weft" train job.yaml model.hidden=128 model.context=128 train.batch=16 train.steps=1000000000 --json >memory 2>errors &
pid=$!
while [ "$(grep -c . memory 2>/dev/null)" -lt 3 ] && kill -0 $pid 2>/dev/null; do sleep 0.1; done
peak=$(sed -n 's/^VmHWM: *\([0-9]*\) kB/\1/p' /proc/$pid/status 2>/dev/null)
kill -TERM $pid
wait $pid
predicted=$(tail -1 memory | value predicted_peak_bytes)
if [ -n "$peak" ] && [ $((peak * 1024 - predicted)) -gt $((100 * 1024 * 1024)) ]; then
    fail "the process used $peak KiB, predicted were $predicted bytes"
fi

# --- output that cannot be written ---
if [ -e /dev/full ]; then
    "$weft" train job.yaml checkpoint.dir=full --json >/dev/full 2>errors && fail "unwritten lines were no error"
    [ -d full/step-000000000012 ] || fail "the run was lost with its output" errors
    expect 1 '/dev/full: No space' train job.yaml train.log=/dev/full
    grep -qF /dev/full out || fail "no word of the missing metrics" out
fi
exit $failed
