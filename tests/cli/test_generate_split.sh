#!/bin/sh
# weft generate on several devices and processes: the text of one device on any plan, also on plans of a training.
. tests/cli/run.inc

"$weft" train job.yaml train.steps=150 train.optimizer.lr=0.01 checkpoint.dir=run --json >trained 2>&1 || fail 'the training fails' trained
text() {
    "$weft" "$@" --prompt 'weft 12' --tokens 40 --temperature 0 >out 2>err || fail "weft $* fails" err
    cat out
}
text generate run >one
grep -q 'runs over' one || fail 'the model has learned nothing' one
same() {
    text "$@" >many
    cmp one many || fail "weft $* writes another text" many
}
strategies='parallel.strategies=[{match: h.*.attn.c_attn, split: n1=tp}, {match: h.*.attn, split: heads=tp}, {match: h.*.attn.c_proj, split: k=tp}]'
"$weft" plan job.yaml 'parallel.mesh={dp: 2, tp: 2}' parallel.mode=semi "$strategies" --out tensor.json >out 2>&1 || fail 'no plan' out
"$weft" plan job.yaml parallel.devices=2 parallel.pipeline.stages=2 --out stages.json >out 2>&1 || fail 'no plan' out
same generate run --devices 2
same generate run --devices 3
same generate run --plan tensor.json
same generate run --plan stages.json
same launch -n 2 --no-logs "$weft" generate run
same launch -n 2 --no-logs "$weft" generate run --plan stages.json
same launch -n 4 --no-logs "$weft" generate run --plan tensor.json

"$weft" launch -n 2 --no-logs "$weft" generate run --prompt a --tokens 5 --json >out 2>err || fail 'no JSON' err
json out
has_facts out '"text": "|"tokens": 5' || fail 'facts are missing' out
expect 1 'nothere' generate run --prompt a --plan nothere
expect 1 '2|3' generate run --prompt a --plan stages.json --devices 3
expect 1 '2|3' launch -n 3 --no-logs "$weft" generate run --prompt a --plan stages.json
"$weft" plan job.yaml model.layers=1 'parallel.mesh={dp: 2, tp: 2}' parallel.mode=semi "$strategies" --out other.json >out 2>&1 || fail 'no plan' out
expect 1 'another model' generate run --prompt a --plan other.json
expect 1 'devices is 129|128' generate run --prompt a --devices 129
expect 1 'nothere' launch -n 2 --no-logs "$weft" generate nothere --prompt a
expect 2 'prompt' launch -n 2 --no-logs "$weft" generate run --prompt -

[ $failed = 0 ] && echo 'generate: one text on every plan, bad input refused'
exit $failed
