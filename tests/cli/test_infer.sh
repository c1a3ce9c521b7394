#!/bin/sh
# weft infer: the same logits on every plan, alone and as processes of a launcher; bad input. Numbers: tests/infer.
. tests/cli/npy.inc
. tests/cli/run.inc

"$weft" train job.yaml checkpoint.dir=run --json >trained 2>&1 || fail 'the training fails' trained
# put_tokens FILE SHAPE COUNT: COUNT bytes 0, 1, 2... as an npy file of u1
put_tokens() {
    awk -v n="$3" 'BEGIN { for (i = 0; i < n; i++) printf "%c", 32 + i % 90 }' | npy "$1" '|u1' "($2)"
}
put_tokens x.npy '5, 11' 55
put_tokens long.npy '2, 17' 34
put_tokens short.npy '5, 11' 40

expect 0 'one.npy|5, 11, 256|run/step-000000000012|1 device' infer job.yaml run --input x.npy --out one.npy
[ "$(wc -c <one.npy)" = $((128 + 5 * 11 * 256 * 4)) ] || fail 'the file has another size'
"$weft" infer job.yaml run --input x.npy --out two.npy --devices 2 --json >out 2>&1 || fail 'two devices fail' out
json out
has_facts out '"shape": [5, 11, 256]|"devices": 2|"out": "two.npy"|predicted_peak_bytes|seconds' || fail 'facts are missing' out
cmp one.npy two.npy || fail 'two devices have other logits'
expect 0 'three.npy' launch -n 2 --no-logs "$weft" infer job.yaml run parallel.pipeline.stages=2 --input x.npy --out three.npy --rows 3
cmp one.npy three.npy || fail 'two stages have other logits'
"$weft" plan job.yaml parallel.devices=2 --out plan.json >out 2>&1 || fail 'no plan' out
expect 0 'four.npy' launch -n 2 --no-logs "$weft" infer job.yaml run --plan plan.json --input x.npy --out four.npy
cmp one.npy four.npy || fail 'two processes have other logits'

# What it takes is known before anything loads.
"$weft" infer job.yaml run --input x.npy --out five.npy --rows 3 --json >out 2>&1 || fail 'three rows fail' out
peak=$(value predicted_peak_bytes <out)
"$weft" plan --infer job.yaml --length 11 --rows 3 --json >out 2>&1 || fail 'no report' out
json out
has_facts out "\"peak_bytes\": $peak,|\"devices\": 1|\"name\": \"wte.weight\"|\"layout\": " || fail "the peak is not $peak" out
expect 0 'h.1.mlp.c_fc.weight|32x128|ranks 0 to 1|weights' plan --infer job.yaml --devices 2
expect 0 'rank 0:|rank 1:' plan --infer job.yaml parallel.devices=2 parallel.pipeline.stages=2
expect 2 'infer' plan --infer job.yaml --out x.json
expect 0 'h.1.mlp.c_fc.weight|ranks 0 to 1' plan --infer job.yaml --plan plan.json
expect 2 'plan|infer' plan job.yaml --plan plan.json
expect 1 'device.memory|--rows' infer job.yaml run --input x.npy --out y.npy --rows 2000000000
grep -q train.accumulate out && fail 'a model in use has no train.accumulate' out
expect 2 'infer' plan job.yaml --rows 3
expect 1 "nothere" plan --infer model.from=nothere data.path=text.txt
expect 1 '1|2' plan --infer job.yaml --devices 2 --rows 1

# Exported: without job and checkpoint.
expect 0 'served|2 devices' infer job.yaml run --devices 2 --rows 4 --export served
mkdir alone && mv served alone && cp x.npy alone && cd alone || exit 1
expect 0 'six.npy|5, 11, 256|2 devices' infer served --input x.npy --out six.npy
expect 0 'seven.npy|2 devices' launch -n 2 --no-logs "$weft" infer served --input x.npy --out seven.npy
cd .. || exit 1
cmp one.npy alone/six.npy || fail 'the exported model has other logits'
cmp one.npy alone/seven.npy || fail 'two processes of the exported model have other logits'
expect 1 '2|3' launch -n 3 --no-logs "$weft" infer alone/served --input x.npy --out y.npy
expect 1 'exists' infer job.yaml run --export alone/served
expect 1 '17|16' infer alone/served --input long.npy --out y.npy
expect 2 'exported|devices' infer alone/served --input x.npy --out y.npy --devices 2
expect 2 'job and a checkpoint' infer alone/served --export again
expect 2 'export' infer job.yaml run --export again --input x.npy
printf x | dd of=alone/served/rank-1.safetensors bs=1 seek=4000 conv=notrunc 2>/dev/null
expect 1 'rank-1.safetensors|damaged' infer alone/served --input x.npy --out y.npy
rm alone/served/rank-1.safetensors
expect 1 'rank-1.safetensors' infer alone/served --input x.npy --out y.npy

expect 2 'input|out' infer job.yaml run --input x.npy
expect 2 'input|out' infer job.yaml run --out x.npy
expect 1 'job.yaml' infer job.yaml --input x.npy --out y.npy
expect 1 'nothere' infer job.yaml nothere --input x.npy --out y.npy
expect 1 'nothere.npy' infer job.yaml run --input nothere.npy --out y.npy
expect 1 '17|16' infer job.yaml run --input long.npy --out y.npy
expect 1 'short.npy' infer job.yaml run --input short.npy --out y.npy
expect 1 'text.txt' infer job.yaml run --input text.txt --out y.npy
expect 1 'nodir' infer job.yaml run --input x.npy --out nodir/y.npy
expect 1 'model.hidden|64|32' infer job.yaml run model.hidden=64 --input x.npy --out y.npy
expect 1 '1|2' infer job.yaml run --input x.npy --out y.npy --devices 2 --rows 1
[ ! -e y.npy ] || fail 'a failure leaves a file'

# The input is never replaced, by whatever name.
cp x.npy same.npy && ln -s same.npy link.npy && ln same.npy hard.npy
for name in same.npy ./same.npy link.npy hard.npy; do
    expect 1 'same.npy|input' infer job.yaml run --input same.npy --out "$name"
done
cmp x.npy same.npy || fail 'the input is overwritten'

# A token outside the vocabulary is named by its place in the file.
put_wide() { # FILE TYPE: 40 samples of 2 elements of 8 bytes, all 0 but the last one
    { head -c 632 /dev/zero && printf '\377\377\377\377\377\377\377\177'; } | npy "$1" "$2" '(40, 2)'
}
put_wide wide.npy '<i8'
expect 1 'wide.npy|token 1 of sample 39 is 9223372036854775807|0 to 255' infer job.yaml run --input wide.npy --out y.npy
put_wide real.npy '<f8'
expect 1 'real.npy|f8|40, 2|whole numbers' infer job.yaml run --input real.npy --out y.npy

# A signal: the exit code says so, and neither a file nor a part of one stays.
head -c 1600000 /dev/zero | npy endless.npy '|u1' '(100000, 16)'
for signal in INT TERM; do
    "$weft" infer job.yaml run --input endless.npy --out stopped.npy >out 2>&1 &
    process=$!
    until [ -n "$(find . -name 'stopped.npy*' -size +64k)" ] || ! kill -0 $process 2>/dev/null; do sleep 0.05; done
    kill -$signal $process
    wait $process
    code=$?
    case $signal in INT) right=130 ;; *) right=143 ;; esac
    [ $code = $right ] || fail "SIG$signal: exit $code" out
    has_facts out 'stopped|stopped.npy' || fail "SIG$signal: nothing is said" out
    [ -z "$(find . -name 'stopped.npy*')" ] || fail "SIG$signal leaves $(echo stopped.npy*)"
    rm -f stopped.npy*
done

[ $failed = 0 ] && echo 'infer: one file on every plan, bad input refused'
exit $failed
