#!/bin/sh
# MindSpore's switches of recovery (MS_ENABLE_RECOVERY, MS_RECOVERY_PATH, MS_NODE_ID): a scheduler and four workers, started by hand.
# accept 34(a) to 34(f):
# (a) a worker that is killed and started again takes its rank, and the run ends with the bits of an undisturbed one;
# (b) so for the scheduler; (c) for the worker that writes checkpoints, killed while it writes them; (d) with the checkpoints of
# before deleted, the state comes from a replica; with no process left, all go on from the last checkpoint; (f) a silent worker.
# (e), restarts by the launcher, is train.restart. A run lasts until SIGTERM, so that no run ends before it is
# disturbed, however fast the machine is. The seed is printed.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/ports.inc
. "$(dirname "$0")/../launch/ports.inc"
# shellcheck source=../launch/chance.inc
. "$(dirname "$0")/../launch/chance.inc"
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
export MS_ENABLE_RECOVERY=1 MS_WORKER_NUM=4 MS_SCHED_HOST=127.0.0.1 MS_NODE_TIMEOUT=10
started=
# shellcheck disable=SC2154
trap 'for p in $started; do kill -9 $p 2>/dev/null; done; rm -rf "$work"' EXIT

scheduler() {
    MS_ROLE=MS_SCHED MS_NODE_ID=sched "$weft" train job.yaml >>sched.log 2>&1 &
    sched=$!
    started="$started $sched"
}
words='train.batch=8 train.eval_every=1000000 train.schedule.name=constant train.schedule.warmup=0'
# worker NUMBER: its process is in worker_NUMBER. Names, not numbers, so that ranks follow from them.
worker() {
    # shellcheck disable=SC2086 # several words
    MS_ROLE=MS_WORKER MS_NODE_ID=worker_$1 "$weft" train job.yaml train.steps=10000000 $words parallel.mesh='{dp: 4}' \
        checkpoint.every=$every --json >>worker-$1.log 2>&1 &
    eval "worker_$1=$!"
    started="$started $!"
}
process_of() {
    eval "echo \$worker_$1"
}
# begin NAME EVERY: all of them, with a folder of their own.
begin() {
    what=$1 every=$2
    rm -rf recovery-$what ./*.log
    MS_SCHED_PORT=$(free_port) MS_RECOVERY_PATH=$work/recovery-$what
    export MS_SCHED_PORT MS_RECOVERY_PATH
    scheduler
    for number in 0 1 2 3; do worker $number; done
}
lines() { # of steps, of rank 0, whichever worker that is
    cat worker-*.log 2>/dev/null | grep -c '"step": '
}
at() { # LINES: until there are so many
    for _ in $(seq 12000); do
        [ "$(lines)" -lt "$1" ] || return
        sleep 0.05
    done
    fail "$what: there are no $1 steps" worker-0.log
    exit 1
}
lose() { # SIGNAL NUMBER: a worker
    kill "-$1" "$(process_of "$2")"
    [ "$1" = STOP ] || wait "$(process_of "$2")" 2>/dev/null
}
# Goes on, ends with 143 when one worker is asked to, and has the bits of as many undisturbed steps of one process.
ends_well() {
    at $(($(lines) + 5))
    kill -TERM "$(process_of 2)"
    for number in 0 1 2 3; do
        wait "$(process_of $number)"
        code=$?
        [ $code = 143 ] || fail "$what: worker $number ends with $code" worker-$number.log
    done
    wait $sched || fail "$what: the scheduler ends with $?" sched.log
    started=
    last=$(ls recovery-$what | sed -n 's/^step-0*\([1-9][0-9]*\)$/\1/p' | sort -n | tail -1) # on a slow machine, not the last step
    # shellcheck disable=SC2086 # several words
    env -u MS_ENABLE_RECOVERY -u MS_WORKER_NUM -u MS_SCHED_HOST -u MS_SCHED_PORT -u MS_RECOVERY_PATH -u MS_NODE_TIMEOUT \
        "$weft" train job.yaml train.steps="$last" $words parallel.mesh='{dp: 4}' checkpoint.dir=calm-$what checkpoint.every=0 \
        >calm 2>&1 || fail "$what: one process does not train" calm
    "$weft" checkpoint digest calm-$what >right 2>&1 || fail "$what: no digest" right
    "$weft" checkpoint digest recovery-$what >digest 2>&1 || fail "$what: no checkpoint in MS_RECOVERY_PATH" digest
    cmp -s right digest || fail "$what: ends with other bits after $last steps" worker-1.log
}

begin undisturbed 5
ends_well
grep -q 'MS_ENABLE_RECOVERY\|MS_RECOVERY_PATH' worker-*.log && fail 'the switches are called unknown' worker-0.log

# (a)
begin a 5
at 7
lose KILL 1
worker 1
ends_well
# (b)
begin b 5
at 7
kill -9 $sched
wait $sched 2>/dev/null
: >sched.log
scheduler
for _ in $(seq 12000); do
    grep -q 'scheduler of this job' sched.log && break
    sleep 0.05
done
ends_well
# (c): workers that write, at random instants.
begin c 1
at 2
for number in 0 1; do
    draw 300
    sleep "$(printf '0.%03d' "$number")"
    draw 4
    lose KILL $number
    worker $number
    at $(($(lines) + 5))
done
ends_well
# (d)
begin d 5
at 12
rm -rf recovery-d/step-*
lose KILL 2
worker 2
ends_well
begin disk 5
at 12
for number in 0 1 2 3; do kill -9 "$(process_of $number)"; done
for number in 0 1 2 3; do wait "$(process_of $number)" 2>/dev/null; done
for number in 0 1 2 3; do worker $number; done
ends_well
# (f)
MS_NODE_TIMEOUT=5
begin f 5
at 7
lose STOP 3
silent=$(process_of 3)
for _ in $(seq 100); do
    : >worker-3.log
    worker 3 # refused, as long as the old one counts as alive
    for _ in $(seq 20); do kill -0 "$(process_of 3)" 2>/dev/null && sleep 0.1; done
    grep -q 'too many' worker-3.log || break
done
kill -9 $silent
ends_well

# Without a folder nothing starts.
MS_RECOVERY_PATH='' MS_ROLE=MS_WORKER MS_NODE_ID=0 "$weft" train job.yaml >out 2>&1 && fail 'no MS_RECOVERY_PATH' out
has_facts out 'MS_ENABLE_RECOVERY|MS_RECOVERY_PATH' || fail 'no MS_RECOVERY_PATH: another reason' out
exit $failed
