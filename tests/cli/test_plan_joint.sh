#!/bin/sh
# The joint search from the command: its answer, constraints, why-not, and what does not fit.
. tests/cli/run.inc
job="model.layers=6 model.hidden=128 model.heads=4 model.vocab=256 model.context=64 train.batch=8"
few="--evaluations 2"
machine="2 hosts of 2 a100-80g"
# shellcheck disable=SC2086
expect 0 'lower bound|gap|constraints' plan $job $few --machine "$machine"
# shellcheck disable=SC2086
expect 0 'step_seconds|lower_bound_seconds|plan_bound_seconds|least_bound|seconds_by_cause' plan $job $few --machine "$machine" --json
json out
cut_seconds() { sed 's/"search_seconds": [^,]*,//' out; }
cut_seconds >first
# shellcheck disable=SC2086
expect 0 'step_seconds' plan $job $few --machine "$machine" --json
cut_seconds >second
cmp -s first second || fail 'two searches differ' out
# shellcheck disable=SC2086
expect 0 '"stages": 2|"size": 2' plan $job $few --machine "$machine" --fix "pp=2 dp=2" --json
# shellcheck disable=SC2086
expect 0 '"stages": 2' plan $job $few --machine "$machine" --mode auto parallel.pipeline.stages=2 --json
# shellcheck disable=SC2086
expect 1 'pp=3' plan $job $few --machine "$machine" --fix "pp=3"
# shellcheck disable=SC2086
expect 1 'pp=4' plan $job $few --machine "$machine" --mode auto --fix "pp=4" parallel.pipeline.stages=2
# shellcheck disable=SC2086
expect 1 'xx=3' plan $job $few --machine "$machine" --fix "xx=3"
# The limit of time ends a search without a plan too.
# shellcheck disable=SC2086
expect 1 '1e-09 s|weft' plan $job --machine "$machine" --search-seconds 1e-9
# shellcheck disable=SC2086
expect 1 '"error"|1e-09 s' plan $job --machine "$machine" --search-seconds 1e-9 --json
# shellcheck disable=SC2086
expect 1 'no plan fits|rank|bytes' plan $job $few --machine "$machine" --memory 1MiB
# shellcheck disable=SC2086
expect 0 'difference_seconds|alternative' plan $job $few --machine "$machine" --why-not "tp=2" --json
json out
# The alternative's step is that of forcing it.
alternative=$(sed 's/.*"alternative": {"step_seconds": \([^,]*\),.*/\1/' out)
# shellcheck disable=SC2086
expect 0 "$alternative" plan $job $few --machine "$machine" --fix "tp=2" --json
# A cell of the answer, with other choices for it.
# shellcheck disable=SC2086
expect 0 'recompute=full|split|forward' plan $job $few --machine "$machine" --why h.3
# shellcheck disable=SC2086
expect 0 '"cell": "h.*"|"choice": "plan"|"calls": 6' plan $job $few --machine "$machine" --why 'h.*' --json
json out
# shellcheck disable=SC2086
expect 1 'h.9x|h.*' plan $job $few --machine "$machine" --why h.9x
# shellcheck disable=SC2086
expect 2 'why' plan $job --machine "$machine" --why h.3 --why-not tp=2
# shellcheck disable=SC2086
expect 1 'tp=3|pp=5|8 devices' plan $job $few --machine "1 hosts of 8 a100-80g" --fix "tp=3,pp=5"
# A constraint that decides nothing is named; one that does is not.
# shellcheck disable=SC2086
expect 0 'schedule=gpipe' plan $job $few --machine "$machine" --fix "pp=1 schedule=gpipe chunks=1"
if grep 'chunks=1' out; then fail 'one chunk of a plan without stages is told' out; fi
# shellcheck disable=SC2086
expect 0 'plan.json' plan $job $few --machine "$machine" --out plan.json
# shellcheck disable=SC2086
expect 0 'good' plan $job --check plan.json
# shellcheck disable=SC2086
expect 0 'difference_seconds' plan $job $few --machine "$machine" --why-not plan.json --json
# shellcheck disable=SC2086
expect 1 'machine' plan $job --mode semi --devices 4 --why-not "tp=2"
# shellcheck disable=SC2086
expect 0 '"alternative"|"difference_seconds"' plan $job --mode semi --devices 4 --machine "$machine" --why-not "tp=2" --json
# Alternatives are in order, and never faster than the answer.
# shellcheck disable=SC2086
expect 0 '"alternatives": [{"constraints": "' plan $job --evaluations 6 --machine "$machine" --json
grep -o '"alternatives".*' out | grep -o '"seconds": [^,]*' | cut -d' ' -f2 >steps
[ "$(wc -l <steps)" -ge 3 ] || fail 'few alternatives' out
step=$(sed 's/.*"step_seconds": \([^,]*\),.*/\1/' out)
awk -v best="$step" '$1 < last || $1 < best { exit 1 } { last = $1 }' steps || fail "alternatives of $step" steps
# The usual plan of many systems is never faster than the answer: blocks of this model take so long that transfers hide.
large="model.family=llama model.layers=80 model.hidden=8192 model.heads=64 model.kv_heads=8 model.ffn=28672
    model.vocab=128256 model.context=8192 train.batch=64 train.precision=bf16"
for fix in "level=3 dp=64 recompute=full" "cp=1"; do
    # shellcheck disable=SC2086
    "$weft" plan $large --machine "8 hosts of 8 a100-80g" --fix "$fix" --json >out 2>&1 || fail "no plan for $fix" out
    sed 's/.*"step_seconds": \([^,]*\),.*/\1/' out
done >steps
awk 'NR == 1 { shared = $1 } NR == 2 && $1 > shared * 1.000001 { exit 1 }' steps || fail 'sharded replicas are faster' steps
[ $failed = 0 ] && echo "the joint search: answers, constraints, alternatives"
exit $failed
