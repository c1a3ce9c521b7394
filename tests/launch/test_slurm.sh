#!/bin/sh
# A real Slurm: munged, slurmctld and slurmd with a configuration of their own in a temporary folder, and steps of
# `weft train` in it. Needs root, as slurmd does; SKIPs where that or a package is missing.
# shellcheck source=../cli/npy.inc
. "$(dirname "$0")/../cli/npy.inc"
set -u
skip() {
    echo "SKIP: $1"
    exit 77
}
for program in munged mungekey slurmctld slurmd srun scontrol; do
    command -v $program >/dev/null 2>&1 || [ -x /usr/sbin/$program ] || skip "no $program (packages slurm-wlm and munge)"
done
[ "$(id -u)" = 0 ] || skip "not root: slurmd would not run"
PATH=$PATH:/usr/sbin
weft=$WEFT_BIN
work=$(mktemp -d)
failed=0
# munged wants folders that only root can write to, from the root on.
chmod 755 "$work"
SLURM_CONF=$work/slurm.conf
HOME=$work # for the secret
export SLURM_CONF HOME
# shellcheck source=ports.inc
. "$(dirname "$0")/ports.inc"
host=$(hostname)

# Steps first, while there is someone who ends them.
stop() {
    scancel --user=root >/dev/null 2>&1
    for _ in $(seq 50); do
        [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] && break
        sleep 0.1
    done
    for name in slurmd slurmctld munged; do
        [ -s "$work/$name.pid" ] && kill "$(cat "$work/$name.pid")" 2>/dev/null
    done
    # They write their state for a moment.
    for _ in $(seq 50); do
        alive=0
        for name in slurmd slurmctld munged; do
            [ -s "$work/$name.pid" ] && kill -0 "$(cat "$work/$name.pid")" 2>/dev/null && alive=1
        done
        [ $alive = 0 ] && break
        sleep 0.1
    done
    # What serves a step may have missed all of that; it works in this folder.
    for process in $(pgrep -x slurmstepd 2>/dev/null); do
        case $(readlink "/proc/$process/cwd") in "$work"*) kill -9 "$process" ;; esac
    done
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 1' INT TERM

fail() {
    echo "$1"
    shift
    [ $# -gt 0 ] && cat "$@"
    failed=1
}

mkdir "$work/state" "$work/spool" "$work/munge"
cat >"$SLURM_CONF" <<END
ClusterName=weft
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE OverSubscribe=YES State=UP
END
# From version 24 on slurmd wants control groups, unless it is told that there are none.
slurmd -V 2>/dev/null | grep -Eq '(19|2[0-3])\.' || echo 'CgroupPlugin=disabled' >"$work/cgroup.conf"
mungekey --create --keyfile="$work/munge/key" >/dev/null 2>&1 || skip "mungekey makes no key here"
munged --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munged.pid" \
    --log-file="$work/munge/log" --seed-file="$work/munge/seed" --force >"$work/munged.out" 2>&1 ||
    skip "munged does not start here: $(tail -n 3 "$work/munged.out")"
slurmctld -f "$SLURM_CONF" -i >"$work/slurmctld.out" 2>&1 || skip "slurmctld does not start here: $(cat "$work/slurmctld.out")"
slurmd -f "$SLURM_CONF" -N "$host" >"$work/slurmd.out" 2>&1 || skip "slurmd does not start here: $(cat "$work/slurmd.out")"
for try in $(seq 100); do
    ready=$(timeout 5 srun -n 1 echo ready 2>"$work/srun.out")
    [ "$ready" = ready ] && break
    [ "$try" -lt 4 ] || kill -0 "$(cat "$work/slurmd.pid" 2>/dev/null)" 2>/dev/null || break
    sleep 0.2
done
[ "$ready" = ready ] || skip "no step runs in this Slurm: $(cat "$work/srun.out"; tail -n 5 "$work"/*.log)"

cd "$work" || exit 1
awk 'BEGIN { for (i = 0; i < 400; i++) print "weft " i " runs over and under warp " (i * 7) % 13 }' >text.txt
cat >job.yaml <<END
model: {family: gpt2, layers: 2, hidden: 32, heads: 2, context: 16}
data: {path: text.txt}
train: {steps: 8, batch: 4, eval_every: 4}
device: {threads: 1}
END
"$weft" train job.yaml --job 2>&1 | grep -q 'no libyaml' && skip "this build has no libyaml, which reads job files"

# Every rank finds its place.
srun -n 4 sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS in step $SLURM_STEP_ID' >places 2>&1
[ "$(grep -c 'of 4 in step' places)" = 4 ] || fail 'no step of four tasks:' places

# The same loss as four devices of one process, to the bit. `losses` takes what does not tell of time.
losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$1"
}
"$weft" train job.yaml --devices 4 --json >alone.json 2>alone.err || fail 'four devices:' alone.err
timeout 120 srun -n 4 "$weft" train job.yaml --json >srun.json 2>srun.err || fail 'srun failed:' srun.err srun.json
losses alone.json >alone
losses srun.json >steps
[ -s alone ] && cmp -s alone steps || fail 'other losses under srun than with four devices:' alone steps srun.err

# A trained model in use: what one process computes.
head -c 96 text.txt | npy x.npy '|u1' '(6, 16)'
"$weft" train job.yaml checkpoint.dir=run >run.out 2>&1 || fail 'a run:' run.out
text() { "$@" generate run --prompt 'weft 12' --tokens 20 --temperature 0; }
"$weft" infer job.yaml run --devices 2 --input x.npy --out one.npy >one.out 2>&1 || fail 'infer:' one.out
"$weft" eval job.yaml run --data text.txt --devices 2 --json >one.json 2>one.out || fail 'eval:' one.out
text "$weft" >one.txt 2>one.out || fail 'generate:' one.out
srun -n 2 "$weft" infer job.yaml run --input x.npy --out many.npy >many.out 2>&1 || fail 'infer under srun:' many.out
cmp one.npy many.npy || fail 'infer under srun: other logits'
srun -n 2 "$weft" eval job.yaml run --data text.txt --json >many.json 2>many.out || fail 'eval under srun:' many.out
[ "$(sed 's/.*"loss": \([^,]*\),.*/\1/' one.json)" = "$(sed 's/.*"loss": \([^,]*\),.*/\1/' many.json)" ] ||
    fail 'eval under srun: another loss' one.json many.json
text srun -n 2 "$weft" >many.txt 2>many.out || fail 'generate under srun:' many.out
cmp one.txt many.txt || fail 'generate under srun: another text' many.txt

# Two steps at the same time do not meet each other.
timeout 120 srun -n 2 "$weft" train job.yaml --json >first.json 2>first.err &
first=$!
timeout 120 srun -n 2 "$weft" train job.yaml --json >second.json 2>second.err || fail 'the second step:' second.err
wait $first || fail 'the first of two steps:' first.err
losses first.json >first
losses second.json >second
[ -s first ] && cmp -s first second || fail 'two steps at the same time differ:' first second

# A task that dies ends the step, and the others name it.
WEFT_JOIN_SECONDS=5 timeout 120 srun -n 3 --kill-on-bad-exit=0 sh -c '[ $SLURM_PROCID = 1 ] && exec sh -c "sleep 1; exit 7"
    exec '"$weft"' train job.yaml' >dead 2>&1 &
step=$!
wait $step
[ $? != 0 ] || fail 'a step with a dead task ends well:' dead
grep -q 'rank 1' dead || [ ! -s dead ] || fail 'the missing rank is not named:' dead

# Inside an allocation, but in no step: a training by itself. Launchers in a step with one task per node: theirs counts.
salloc -n 2 -Q "$weft" train job.yaml train.steps=2 >alone.out 2>&1 || fail 'in an allocation:' alone.out
srun -n 1 "$weft" launch -n 2 --no-logs -- "$weft" train job.yaml --json >launch.json 2>launch.err ||
    fail 'weft launch in a step:' launch.err
losses launch.json >launched
cmp -s first launched || fail 'weft launch in a step has other losses:' first launched launch.err
srun -n 2 "$weft" train job.yaml --json train.steps=2 >/dev/null 2>again.err || fail 'again:' again.err
OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 srun -n 2 "$weft" train job.yaml >wrong 2>&1 &&
    fail 'an MPI of one in a step of two tasks is not refused:' wrong
grep -q 'OMPI_COMM_WORLD_' wrong && grep -q SLURM wrong || fail 'the refusal does not name both:' wrong

# A rank that dies is started again by the launcher of its node, or replaced by another step of the allocation.
mend=$WEFT_BUILD_DIR/weft-mend
digests() { # COUNT FILE...: so many processes ended with the digest of an undisturbed run
    count=$1
    shift
    [ "$(cat "$@" | grep -c " digest $right ")" = "$count" ]
}
"$weft" launch -n 2 --no-logs -- "$mend" 40 >mend.out 2>&1 || fail 'weft-mend:' mend.out
right=$(sed -n 's/^process .* digest \([0-9a-f]*\) .*/\1/p' mend.out)
mkdir deaths again
timeout 120 srun -n 1 "$weft" launch -n 2 --restart 1 --tail all --no-logs -- "$mend" 40 deaths 1@step:30:9 >launched.out 2>&1 ||
    fail 'weft launch --restart in a step:' launched.out
[ "$(grep -c " digest $right " launched.out)" = 2 ] || fail 'weft launch --restart in a step: another state' launched.out
WEFT_RESTART=1 WEFT_JOB=mended WEFT_SCHEDULER=127.0.0.1:$(free_port)
export WEFT_RESTART WEFT_JOB WEFT_SCHEDULER mend
timeout 120 salloc -n 2 -Q sh -c 'srun -n 2 --no-kill --kill-on-bad-exit=0 "$mend" 40 again 1@step:30:9 >step.out 2>&1 &
    step=$!
    for _ in $(seq 600); do
        [ -e again/death-0 ] && break
        sleep 0.1
    done
    srun -n 1 --overlap env WEFT_RANK=1 WEFT_SIZE=2 "$mend" 40 again 1@step:30:9 >another.out 2>&1
    echo $? >another.code
    wait $step'
[ "$(cat another.code)" = 0 ] || fail 'a step that replaces a task:' another.out step.out
digests 2 step.out another.out || fail 'a step that replaces a task: another state' step.out another.out
exit $failed
