#!/bin/sh
# The joint search from the command: its answer, constraints, why-not, and what does not fit.
. tests/cli/run.inc
job="model.layers=6 model.hidden=128 model.heads=4 model.vocab=256 model.context=64 train.batch=8"
few="--evaluations 2"
machine="2 hosts of 2 a100-80g"
# shellcheck disable=SC2086
expect 0 'lower bound|gap|constraints' plan $job $few --machine "$machine"
# shellcheck disable=SC2086
expect 0 'step_seconds|lower_bound_seconds|causes' plan $job $few --machine "$machine" --json
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
# shellcheck disable=SC2086
expect 1 'no plan fits|rank|bytes' plan $job $few --machine "$machine" --memory 1MiB
# shellcheck disable=SC2086
expect 0 'difference_seconds|alternative' plan $job $few --machine "$machine" --why-not "tp=2" --json
json out
# The alternative's step is that of forcing it.
alternative=$(sed 's/.*"alternative": {"step_seconds": \([^,]*\),.*/\1/' out)
# shellcheck disable=SC2086
expect 0 "$alternative" plan $job $few --machine "$machine" --fix "tp=2" --json
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
[ $failed = 0 ] && echo "the joint search: answers, constraints, alternatives"
exit $failed
