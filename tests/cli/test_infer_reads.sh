#!/bin/sh
# Each rank of weft infer, eval and generate reads its own parts of the weights, and no more: the bytes that the kernel
# counts for each process.
. tests/cli/npy.inc
. tests/cli/run.inc
[ -r /proc/self/io ] || { echo 'SKIP: the kernel counts no bytes of processes (/proc/self/io)'; exit 77; }

"$weft" train job.yaml model.hidden=192 model.heads=4 model.layers=4 train.steps=1 checkpoint.dir=run >trained 2>&1 ||
    fail 'the training fails' trained
mkdir weights
cp run/step-000000000001/config.json run/step-000000000001/model.safetensors weights
bytes=$(wc -c <weights/model.safetensors)
head -c 64 text.txt | npy x.npy '|u1' '(4, 16)'
sizes='model.hidden=192 model.heads=4 model.layers=4'
strategies='parallel.strategies=[{match: h.*.attn.c_attn, split: n1=tp}, {match: h.*.attn, split: heads=tp}, {match: h.*.attn.c_proj, split: k=tp}, {match: h.*.mlp.c_fc, split: n0=tp}, {match: h.*.mlp.c_proj, split: k=tp}]'
# shellcheck disable=SC2086
{
    "$weft" plan job.yaml $sizes 'parallel.mesh={tp: 2}' parallel.mode=semi "$strategies" --out tensor.json >out 2>&1 ||
        fail 'no plan' out
    "$weft" plan job.yaml $sizes parallel.devices=2 parallel.pipeline.stages=2 --out stages.json >out 2>&1 || fail 'no plan' out
}
cat >count.sh <<'E2'
io=/proc/$$/io
before=$(sed -n 's/^rchar: //p' $io)
"$@" || exit
echo $(($(sed -n 's/^rchar: //p' $io) - before)) >read.${WEFT_RANK:-alone}
E2
# at_most PERCENT WHAT words...: of the file, on each of two ranks; and together they read at least all of it.
at_most() {
    most=$1 what=$2
    shift 2
    "$weft" launch -n 2 --no-logs sh count.sh "$weft" "$@" >out 2>&1 || fail "$what fails" out
    together=0
    for rank in 0 1; do
        got=$(cat read.$rank)
        [ $((got * 100)) -le $((bytes * most)) ] || fail "$what: rank $rank reads $got bytes of a file of $bytes"
        together=$((together + got))
    done
    [ $together -ge $((bytes * 9 / 10)) ] || fail "$what: $together bytes are not counted: the file has $bytes"
    rm -f read.*
}
# shellcheck disable=SC2086
sh count.sh "$weft" infer job.yaml weights $sizes --input x.npy --out y.npy >out 2>&1 || fail 'one process' out
alone=$(cat read.alone)
[ "$alone" -ge "$bytes" ] || fail "one process reads $alone bytes of $bytes"
for plan in tensor stages; do
    # shellcheck disable=SC2086
    {
        at_most 80 "infer, $plan" infer job.yaml weights $sizes --plan $plan.json --input x.npy --out y.npy
        at_most 80 "eval, $plan" eval job.yaml weights $sizes --plan $plan.json --data text.txt
    }
    at_most 80 "generate, $plan" generate weights --plan $plan.json --prompt a --tokens 3
done

[ $failed = 0 ] && echo 'infer, eval, generate: each rank reads its own parts'
exit $failed
