#!/bin/sh
# Audits of real runs: in one process, and of two processes of which rank 0 searches for the plan.
. tests/cli/run.inc
WEFT_THIS_MACHINE=$work/this.json
export WEFT_THIS_MACHINE
"$weft" machine measure --devices 2 --seconds 0.0002 2>err || fail 'not measured' err

# --- one process, two devices; this-machine predicts, and decides nothing ---
expect 0 'run/step-' train job.yaml --devices 2 checkpoint.dir=run
expect 0 'predicted|measured|linear|all_reduce|this-machine|verdict' audit run
expect 0 '"error"|"ops"|"transfers"|"ranks"|"spread"' audit run --json
json out
predicted=$(tr ',' '\n' <out | value predicted_peak_bytes | sort -u)
observed=$(tr ',' '\n' <out | value observed_peak_bytes | sort -u)
[ -n "$observed" ] && [ "$predicted" = "$observed" ] || fail "peaks: predicted $predicted, observed $observed" out
grep -q '"audit": {"predicted_seconds"' run/record/plan.json || fail 'no audit in the plan' run/record/plan.json
expect 0 'linear' audit run --calibrate calibrated.json
expect 0 'op_factors|step_seconds|calibrate' machine show ./calibrated.json
expect 0 '"rates"' plan job.yaml --devices 2 --machine ./calibrated.json --mode semi
expect 0 '' plan --check run/record/plan.json job.yaml

# --- a launch of two: rank 0 searches; the rest has its plan again ---
auto='--mode auto --search dynamic --machine ./calibrated.json checkpoint.dir=two'
# shellcheck disable=SC2086
expect 0 'two/step-' launch -n 2 --no-logs -- "$weft" train job.yaml $auto train.steps=6 train.schedule.name=constant
cp two/record/plan.json plan.json
grep -q '"mode": "semi"' plan.json || fail 'the plan of a search is not semi' plan.json
# shellcheck disable=SC2086
expect 0 'two/record/plan.json' launch -n 2 --no-logs -- "$weft" train job.yaml $auto train.schedule.name=constant
cmp -s plan.json two/record/plan.json || fail 'a resume has another plan' two/record/plan.json
# shellcheck disable=SC2086
expect 0 'one/step-' train job.yaml --devices 2 $auto checkpoint.dir=one train.schedule.name=constant
cmp -s one/step-000000000012/model.safetensors two/step-000000000012/model.safetensors ||
    fail 'a launch that was resumed has other bits than one process'
expect 0 '"devices": 2|"rank": 1' audit two --json

# --- bad input ---
expect 2 'audit' audit
expect 2 'audit' audit run two
expect 1 'absent' audit absent
expect 1 'checkpoint.dir' audit .
expect 1 'absent' audit run --calibrate absent/m.json
rm "$WEFT_THIS_MACHINE"
expect 0 'none/step-' train job.yaml checkpoint.dir=none
expect 0 'verdict|=' audit none
expect 0 '"machine": null|"verdict"|"dominant"|"shares"|"advice"' audit none --json
json out
expect 1 'prediction.json|weft machine measure' audit none --calibrate none.json
printf '{' >run/record/measured.json
expect 1 'measured.json' audit run
[ $failed = 0 ] && echo "audits of runs, calibrated machines, plans of launches"
exit $failed
