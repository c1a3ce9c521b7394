#!/bin/sh
# weft infer, eval and generate as ranks of mpirun: what one process computes, on a tensor split and on stages.
. tests/cli/npy.inc
. tests/mpi/run.inc
weft=$WEFT_BIN
cd "$work" || exit 1
put_text
cat >job.yaml <<'END_OF_JOB'
model: {family: gpt2, layers: 2, hidden: 16, heads: 2, context: 16}
data: {path: text.txt, validation: 0.1}
train: {steps: 20, batch: 4, eval_every: 0, optimizer: {lr: 0.01}}
device: {threads: 1}
END_OF_JOB
if "$weft" train job.yaml --job 2>&1 | grep -q 'no libyaml'; then
    echo "SKIP: this build has no libyaml, which reads job files"
    exit 77
fi
"$weft" train job.yaml checkpoint.dir=run >out 2>&1 || fail 'the training fails' out
strategies='parallel.strategies=[{match: h.*.attn.c_attn, split: n1=tp}, {match: h.*.attn, split: heads=tp}, {match: h.*.attn.c_proj, split: k=tp}]'
"$weft" plan job.yaml 'parallel.mesh={tp: 2}' parallel.mode=semi "$strategies" --out tensor.json >out 2>&1 || fail 'no plan' out
"$weft" plan job.yaml parallel.devices=2 parallel.pipeline.stages=2 --out stages.json >out 2>&1 || fail 'no plan' out
head -c 96 text.txt | npy x.npy '|u1' '(6, 16)'
number() { sed -n 's/.*"loss": \([-0-9.e+]*\).*/\1/p' "$1"; }
# Sums of f32 in another order.
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a > 0 && (d < 0 ? -d : d) <= 1e-5 * a) }'; }
for flavour in $flavours; do
    if [ ! -e "$(dirname "$weft")/weft-$flavour.so" ]; then
        echo "SKIP $flavour: this build has no weft-$flavour.so"
        continue
    fi
    for plan in tensor stages; do
        "$weft" infer job.yaml run --plan $plan.json --input x.npy --out one.npy >out 2>&1 || fail "$plan: infer" out
        "$weft" eval job.yaml run --json >one.json 2>out || fail 'eval' out
        "$weft" generate run --prompt 'weft 12' --tokens 20 --temperature 0 >one.txt 2>out || fail 'generate' out
        ranks "$flavour" 2 "$weft" infer job.yaml run --plan $plan.json --input x.npy --out many.npy >out 2>&1 ||
            fail "$flavour, $plan: infer" out
        cmp one.npy many.npy || fail "$flavour, $plan: other logits"
        ranks "$flavour" 2 "$weft" eval job.yaml run --plan $plan.json --json >many.json 2>out ||
            fail "$flavour, $plan: eval" out
        near "$(number one.json)" "$(number many.json)" || fail "$flavour, $plan: another loss" many.json
        ranks "$flavour" 2 "$weft" generate run --plan $plan.json --prompt 'weft 12' --tokens 20 --temperature 0 \
            >many.txt 2>out || fail "$flavour, $plan: generate" out
        cmp one.txt many.txt || fail "$flavour, $plan: another text" many.txt
        rm -f many.*
    done
done
[ $failed = 0 ] && echo "infer, eval, generate: the same under mpirun of$flavours"
exit $failed
