#!/bin/sh
# docs/guide/how-to-plan.md keeps its word: each of its commands runs, and plans are what the page says. Costs with unknown keys
# or values are refused.
. tests/cli/run.inc
# shellcheck source=tests/cli/pages.inc
. "$OLDPWD/tests/cli/pages.inc"
page=$docs/guide/how-to-plan.md
awk '/^```yaml/ { on = 1; next } /^```/ { if (on) exit } on' "$page" >job.yaml
awk '/^```sh/ { on = 1; next } /^```/ { on = 0 } on' "$page" >commands
ran=0
while IFS= read -r command; do
    ran=$((ran + 1))
    timeout 120 sh -c "$command" </dev/null >"out$ran" 2>&1 || fail "how-to-plan.md: exit $?: $command" "out$ran"
done <commands
[ $ran -ge 13 ] || fail "how-to-plan.md: $ran commands" commands
grep -q '"mesh": {"a0": 3, "a1": 2}' recursive.json || fail '6 devices are not cut by 3 and 2' recursive.json

# The output that the page shows is what its second command prints, without --out.
awk '/^`weft plan` shows/ { near = 1 } near && /^```/ { if (on) exit; on = 1; next } on' "$page" >shown
weft plan job.yaml --machine "2 hosts of 2 a100-80g" >printed 2>&1 || fail 'how-to-plan.md: the plan of its output:' printed
[ "$(wc -l <shown)" -ge 10 ] || fail 'how-to-plan.md shows no output' shown
while IFS= read -r line; do
    grep -qxF -- "$line" printed || fail "how-to-plan.md shows '$line', but weft plan prints:" printed
done <shown

# accept 18(d): a plan says why: each cause of the step, memory beside what a device has, how far from the bound it is, and
# what another strategy would cost.
machine='2 hosts of 2 a100-80g'
expect 0 'predicted step|cause|forward|backward|peak memory|lower bound|gap|constraints' plan job.yaml --machine "$machine" --evaluations 4
expect 0 'alternative|step|peak memory|longer' plan job.yaml --machine "$machine" --evaluations 4 --why-not 'tp=4'
expect 1 'no plan fits|bytes|rank' plan job.yaml --machine "$machine" --evaluations 4 --memory 1MiB

# Constraints of a training: the plan that weft plan finds under them, in one process and in four.
fixed='--evaluations 4 --fix'
weft plan job.yaml --devices 4 $fixed 'tp=2 pp=2' --out fixed.json >out 2>&1 || fail 'a plan under constraints:' out
weft train job.yaml --devices 4 --plan fixed.json --json >of-plan 2>out || fail 'by that plan:' out
weft train job.yaml --devices 4 $fixed 'tp=2 pp=2' --json >of-fix 2>out || fail 'train --fix:' out
weft launch -n 4 --no-logs -- weft train job.yaml $fixed 'tp=2 pp=2' --json >of-four 2>out || fail 'train --fix in processes:' out
for run in of-plan of-fix of-four; do
    sed -n 's/.*\("step": [0-9]*\),.*\("loss": [^,]*\),.*/\1 \2/p' $run >$run.losses
    [ "$(wc -l <$run.losses)" -ge 2 ] || fail "no losses of $run:" $run
    cmp -s of-plan.losses $run.losses || fail "losses of $run:" $run.losses
done
expect 1 'pp=4 and microbatches=2|microbatches=4' train job.yaml --devices 4 --fix 'pp=4 microbatches=2'

# Goodput by Daly's formula: 4 devices, a failure each hour, 10 s for a checkpoint and 60 s to start again: 91.198 % for every
# step that is far shorter than the 262 s between checkpoints. Rarer failures, quicker checkpoints: more of it.
goodput() { # TEXT LEAST MOST
    weft plan job.yaml --machine "$machine" --evaluations 2 ${1:+--failures "$1"} --json >out 2>&1 || fail "goodput of $1:" out
    share=$(sed -n 's/.*"goodput": {"share": \([0-9.e+-]*\),.*/\1/p' out)
    awk "BEGIN { exit !($share >= $2 && $share <= $3) }" || fail "goodput of $1 is $share, not $2 to $3" out
}
goodput 'mtbf=4h checkpoint=10s restart=1min' 0.91197 0.91199
grep -q '"failure_seconds": 3600,' out || fail 'failures of 4 devices:' out
goodput 'mtbf=400h checkpoint=10s restart=60' 0.992 0.9925
goodput 'mtbf=4h checkpoint=0,restart=1min' 0.983 0.9835
goodput 'mtbf=9d' 0.9965 0.997
goodput 'mtbf=9d restart=0' 0.999 1
# Two hosts fail as often as four devices with twice the time between failures; the rates of both add up.
goodput 'host_mtbf=2h checkpoint=10s restart=1min' 0.91197 0.91199
goodput 'mtbf=8h host_mtbf=4h checkpoint=10s restart=1min' 0.91197 0.91199
# What is not given: published failures (54 days x 16,384 GPUs / 419), the disk of the machine, a restart of 600 s.
goodput '' 0.9999 1
awk -F'"failure_seconds": ' '{ split($2, v, ","); exit !(v[1] > 45.5e6 && v[1] < 45.7e6) }' out || fail 'assumed failures:' out
awk -F'"checkpoint_seconds": ' '{ split($2, v, ","); exit !(v[1] > 0 && v[1] < 0.01) }' out || fail 'an assumed checkpoint:' out
grep -q '"restart_seconds": 600}' out || fail 'an assumed restart:' out
# Memory as the driver sees it, on machines with such figures.
grep -q '"driver_memory": {"bytes": [1-9]' out || fail 'memory of the driver:' out
weft plan job.yaml --machine "2 hosts of 2 cpu-epyc-9654" --evaluations 2 --json >out 2>&1 || fail 'a plan for CPUs:' out
grep -q 'driver_memory' out && fail 'a machine without such figures:' out
goodput 'mtbf=1s checkpoint=1h' 0 0.0001
# Of several words the message names the wrong one.
for wrong in mtbf=4x mtbf=0 host_mtbf=0 mtbf mtbf=-1h mtbf=nan rest=1s mtbf=2h,mtbf=3h; do
    expect 2 "--failures|'${wrong#*,}'|mtbf=" plan job.yaml --machine "$machine" --failures "checkpoint=30s,$wrong restart=1s"
    grep "'checkpoint=30s'\|'restart=1s'" out && fail "a good word is named beside $wrong:" out
done

# Section 12's parameters, and what is none.
for value in alpha=2 beta=50 gamma=1 threshold=0 constant=1 bias=0 capacity=1GiB phase=inference model=machine model=mindspore; do
    expect 0 '"mode": "semi"' plan job.yaml --devices 4 --search dynamic "parallel.cost.$value"
done
expect 1 'delta|parallel.cost' plan job.yaml --devices 4 --search dynamic parallel.cost.delta=3
expect 1 'parallel.cost.model|mindspore|machine|other' plan job.yaml --devices 4 --search dynamic parallel.cost.model=other
expect 1 'parallel.cost.beta|-1' plan job.yaml --devices 4 --search dynamic parallel.cost.beta=-1
expect 1 'parallel.cost.alpha|nan' plan job.yaml --devices 4 --search dynamic parallel.cost.alpha=nan
expect 1 'parallel.cost.capacity' plan job.yaml --devices 4 --search dynamic parallel.cost.capacity=0
expect 1 '1000|bytes|parallel.cost.capacity' plan job.yaml --devices 4 --search dynamic parallel.cost.capacity=1000
expect 1 'nothing|fully_use_devices' plan job.yaml --devices 4 --search dynamic parallel.algorithm.nothing=1
cat >wrong.yaml <<'END'
model: {family: gpt2, layers: 1, hidden: 32, heads: 4, context: 16}
parallel: {mode: auto, search: dynamic, devices: 2, cost: {model: mindspore, alhpa: 1}}
END
expect 1 'wrong.yaml:2|alhpa|alpha' plan wrong.yaml
exit $failed
