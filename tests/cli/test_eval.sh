#!/bin/sh
# weft eval: the numbers of a run's own validation, on any plan, alone and as processes of a launcher; bad input.
. tests/cli/npy.inc
. tests/cli/run.inc

run='checkpoint.dir=run data.validation=0.2 train.eval_batches=0'
# shellcheck disable=SC2086
"$weft" train job.yaml $run --json >trained 2>&1 || fail 'the training fails' trained
loss=$(tail -1 trained | value validation_loss)

# near A B: equal to 1e-5
near() {
    awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a > 0 && (d < 0 ? -d : d) <= 1e-5 * a) }' || fail "$3: $1 is not $2" out
}
evaluates() {
    "$weft" "$@" >out 2>err || fail "weft $* fails" err
    json out
    near "$(value loss <out)" "$loss" "$*"
    has_facts out 'run/step-000000000012|perplexity|bits_per_byte|"accuracy": null' || fail 'facts are missing' out
}
# shellcheck disable=SC2086
{
    evaluates eval job.yaml run $run --json
    evaluates eval job.yaml run $run --json --devices 2
    "$weft" plan job.yaml $run parallel.devices=2 parallel.pipeline.stages=2 --out plan.json >out 2>&1 || fail 'no plan' out
    evaluates eval job.yaml run/step-000000000012 $run --json --plan plan.json
    evaluates launch -n 2 --no-logs "$weft" eval job.yaml run $run --json
    evaluates launch -n 2 --no-logs "$weft" eval job.yaml run $run --json --plan plan.json
}

expect 0 'loss|perplexity|bits per byte' eval job.yaml run --data text.txt
expect 2 'a job and a checkpoint' eval job.yaml
expect 2 'one word too many' eval job.yaml run more
expect 2 'labels|data' eval job.yaml run --labels x
expect 1 'data.validation|--data' eval job.yaml run data.validation=0
expect 1 'nothere' eval job.yaml nothere
expect 1 'nothere' eval job.yaml run --data nothere
expect 1 '4103 bytes|less than 4096' eval job.yaml "$(printf './%.0s' $(seq 2050))run"

# checkpoint.stop_file ends training only: one that is left of a run ends no other verb.
echo '{"GracefulExit": 1}' >stop
expect 0 'perplexity' eval job.yaml run --data text.txt checkpoint.dir=run checkpoint.stop_file=stop
head -c 40 text.txt | npy tokens.npy '|u1' '(5, 8)'
expect 0 'logits.npy|5, 8, 256' infer job.yaml run --input tokens.npy --out logits.npy checkpoint.dir=run checkpoint.stop_file=stop
expect 1 'model.layers|3|2' eval job.yaml run model.layers=3
expect 1 'nothere' eval job.yaml run --plan nothere

[ $failed = 0 ] && echo 'eval: numbers of the run on every plan, bad input refused'
exit $failed
