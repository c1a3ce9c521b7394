#!/bin/sh
# Trainings across processes, started in every way but those that need an MPI or Slurm: the losses are those of the
# same number of devices in one process, to the bit, and every end is told and leaves nothing behind.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
mark=$$
TMPDIR=$work/tmp HOME=$work # for the folders of runs, and the user's secret
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=ports.inc
. "$(dirname "$0")/ports.inc"
port=$(free_port)
for variable in WEFT_RANK WEFT_SIZE RANK WORLD_SIZE MASTER_ADDR MASTER_PORT MS_ROLE RANK_TABLE_FILE; do
    unset $variable
done

losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$@"
}
# same NAME: NAME.json has the losses of `alone`.
same() {
    losses "$1.json" >"$1.losses"
    [ -s alone ] && cmp -s alone "$1.losses" && return
    fail "$1: other losses than in one process:" alone
    cat "$1.losses" "$1.err"
}
# Nothing with this test's mark runs, no folder of a run is left, no shared memory of this test's processes.
nothing_left() {
    for _ in $(seq 600); do
        left=$(grep -lzs "^LAUNCH_TEST=$mark\$" /proc/[0-9]*/environ 2>/dev/null)
        folders=$(ls "$TMPDIR")
        [ -z "$left$folders" ] && return
        sleep 0.2
    done
    fail "after $1 there are left: $left $folders"
}
marked="--env LAUNCH_TEST=$mark"
# listening PROCESS...: the addresses of their sockets that listen, as the kernel writes them.
listening() {
    for process in "$@"; do
        ls -l "/proc/$process/fd" 2>/dev/null
    done | sed -n 's/.*socket:\[\([0-9]*\)\]$/\1/p' | sort -u >inodes
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
        awk 'NR == FNR { mine[$1] = 1; next } $4 == "0A" && ($10 in mine) { print $2 }' inodes -
}
# wait_for TEXT FILE: until the file has it.
wait_for() {
    for _ in $(seq 600); do
        grep -qs -- "$1" "$2" && return
        sleep 0.1
    done
    fail "'$1' did not come in $2" "$2"
}

"$weft" train job.yaml --devices 4 --json >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone

# --- weft launch ---
"$weft" launch -n 4 --logs logs -- "$weft" train job.yaml --json >launch.json 2>launch.err || fail 'launch:' launch.err
same launch
[ -s logs/rank-0.log ] || fail 'no log of rank 0'
for rank in 1 2 3; do # rank 0 reports
    [ -e logs/rank-$rank.log ] || fail "no log of rank $rank"
    grep -q '"step"' logs/rank-$rank.log && fail "rank $rank reports too:" logs/rank-$rank.log
done
# Found along no PATH, `weft` is the launcher itself.
(PATH=/usr/bin:/bin && "$weft" launch -n 4 --no-logs -- weft train job.yaml --json >self.json 2>self.err) || fail 'self:' self.err
same self
# Other splits than by the batch.
for split in 'parallel.mesh={tp: 2, dp: 2} parallel.strategies=[{match: "*.mlp.c_fc:linear", split: {n0: tp}}]' \
    'parallel.pipeline.stages=2 parallel.devices=4' 'parallel.optimizer.level=3 parallel.devices=4'; do
    printf '%s\n' "$split" | sed 's/ parallel/\nparallel/g' >words
    set --
    while IFS= read -r word; do set -- "$@" "$word"; done <words
    "$weft" train job.yaml "$@" --devices 4 --json >split.json 2>split.err || fail "$split:" split.err
    losses split.json >split.losses
    "$weft" launch -n 4 --no-logs -- "$weft" train job.yaml "$@" --json >across.json 2>across.err || fail "$split:" across.err
    losses across.json | cmp -s - split.losses || fail "$split: other losses across processes" across.json
done
"$weft" launch -n 3 --no-logs -- "$weft" train job.yaml parallel.devices=2 >out 2>&1 && fail 'three processes for two devices:' out
grep -q '2 devices' out || fail 'the numbers are not told:' out

# Over TLS, where it is built in; all or none must want it.
if "$weft" launch --tls -n 4 --no-logs -- "$weft" train job.yaml --json >tls.json 2>tls.err; then
    same tls
    "$weft" launch --tls -n 2 --no-logs --env WEFT_TLS=0 -- "$weft" train job.yaml >out 2>&1 && fail 'without TLS to a scheduler with it:' out
    has_facts out 'wants TLS|WEFT_TLS is not 1' || fail 'unlike settings are not told:' out
elif grep -q 'built without OpenSSL' tls.err; then
    echo 'SKIP: no OpenSSL, TLS is not tried'
else
    fail 'TLS:' tls.err
fi

# --- two launchers, as on two hosts; here they share this one's memory ---
here="--hosts 2 --scheduler 127.0.0.1:$port -n 2 --no-logs"
# shellcheck disable=SC2086
"$weft" launch $here --host-rank 1 -- "$weft" train job.yaml --json >host1.out 2>&1 &
second=$!
# shellcheck disable=SC2086
"$weft" launch $here --host-rank 0 -- "$weft" train job.yaml --json >hosts.json 2>hosts.err || fail 'host 0:' hosts.err
wait $second || fail 'host 1:' host1.out
same hosts

# The same, each in a memory of its own: messages between them.
if "$weft" info --quick 2>/dev/null | grep -qi ucx; then
    here="--hosts 2 --scheduler 127.0.0.1:$(free_port) -n 2 --no-logs"
    # shellcheck disable=SC2086
    "$weft" launch $here --host-rank 1 --env WEFT_HOST_ID=b -- "$weft" train job.yaml --json >host1.out 2>&1 &
    second=$!
    # shellcheck disable=SC2086
    "$weft" launch $here --host-rank 0 --env WEFT_HOST_ID=a -- "$weft" train job.yaml --json >apart.json 2>apart.err ||
        fail 'host 0, apart:' apart.err
    wait $second || fail 'host 1, apart:' host1.out
    same apart
else
    echo 'SKIP: no UCX, hosts apart are not tried'
fi

# --- a rank table, by weft launch and by hand ---
cat >table.json <<END
{"version": "1.0", "server_count": "1", "status": "completed", "server_list": [{"server_id": "10.0.0.5", "device": [
 {"device_id": "0", "device_ip": "192.1.1.$((mark % 250))", "rank_id": "0"}, {"device_id": "1", "rank_id": "1"},
 {"device_id": "2", "device_ip": "192.1.2.$((mark / 250 % 250))", "rank_id": "2"}, {"device_id": "3", "rank_id": "3"}]}]}
END
"$weft" launch --rank-table table.json --no-logs -- "$weft" train job.yaml --json >table.out 2>table.err || fail 'table:' table.err
cp table.out table1.json
cp table.err table1.err
same table1
# hand NAME COMMAND...: four processes at once, each with RANK in $1; rank 0's output is NAME.json.
hand() {
    name=$1
    shift
    pids=
    for rank in 3 1 0 2; do
        (export R=$rank && eval "$*" && exec "$weft" train job.yaml --json) >"$name$rank.out" 2>"$name$rank.err" &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || fail "$name: a process failed" "$name"[0-3].err; done
    cp "${name}0.out" "$name.json"
    cp "${name}0.err" "$name.err"
}
hand byhand 'export RANK_TABLE_FILE=$PWD/table.json RANK_ID=$R RANK_SIZE=4'
same byhand

# --- torchrun's variables, ours, MindSpore's with a scheduler of its own ---
hand torchrun "export RANK=\$R WORLD_SIZE=4 LOCAL_RANK=\$R LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port)"
same torchrun
hand ours "export WEFT_RANK=\$R WEFT_SIZE=4 WEFT_SCHEDULER=127.0.0.1:$(free_port)"
same ours
# What an MPI's launcher sets, and an address beside it: then its MPI is not needed.
address="MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port)"
hand openmpi "export OMPI_COMM_WORLD_RANK=\$R OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=\$R OMPI_COMM_WORLD_LOCAL_SIZE=4 $address"
same openmpi
hand mpich "export PMI_RANK=\$R PMI_SIZE=4 WEFT_SCHEDULER=127.0.0.1:$(free_port)"
same mpich
MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=$(free_port) MS_WORKER_NUM=4
export MS_SCHED_HOST MS_SCHED_PORT MS_WORKER_NUM
(sleep 0.5 && MS_ROLE=MS_SCHED exec "$weft" train job.yaml) >sched.out 2>&1 &
scheduler=$!
hand mindspore 'export MS_ROLE=MS_WORKER MS_NODE_ID=$R'
same mindspore
wait $scheduler || fail 'the scheduler failed:' sched.out
# Three of four workers: all end, and the missing number is told.
MS_SCHED_PORT=$(free_port) MS_TOPO_TIMEOUT=2
export MS_SCHED_PORT MS_TOPO_TIMEOUT
MS_ROLE=MS_SCHED timeout 60 "$weft" train job.yaml >sched.out 2>&1 &
scheduler=$!
pids=
for rank in 0 1 2; do
    MS_ROLE=MS_WORKER MS_NODE_ID=$rank timeout 60 "$weft" train job.yaml >few$rank.out 2>&1 &
    pids="$pids $!"
done
for pid in $scheduler $pids; do
    wait "$pid"
    [ $? = 75 ] || fail 'with a worker missing a process did not end with 75' sched.out
done
has_facts few0.out '1 of 4|missing|rank 3' || fail 'nobody says who is missing:' few0.out
unset MS_SCHED_HOST MS_SCHED_PORT MS_WORKER_NUM MS_TOPO_TIMEOUT
RANK=1 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 "$weft" train job.yaml >out 2>&1 && fail 'a contradiction:' out
grep -q 'OMPI_COMM_WORLD_RANK is 2' out && grep -q 'RANK is 1' out || fail 'the contradiction is not told:' out

# --- ends ---
long='train.steps=1000000 train.eval_every=0'
# One rank is killed: it is named, by the launcher and by the others, and nothing is left.
# shellcheck disable=SC2086
"$weft" launch $marked -n 4 --logs killed --tail all -- "$weft" train job.yaml $long >killed.out 2>&1 &
launcher=$!
wait_for 'step 1/' killed.out
# One socket listens, that of the scheduler, where nobody from outside comes in.
sockets=$(listening $launcher)
case $sockets in
0100007F:???? | 7F000001:????) ;;
*) fail "the launcher listens at: $sockets" ;;
esac
# shellcheck disable=SC2046
sockets=$(listening $(pgrep -P $launcher))
[ -z "$sockets" ] || fail "ranks listen at: $sockets"
for process in $(pgrep -P $launcher); do
    tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx WEFT_RANK=2 && kill -9 "$process"
done
wait $launcher
[ $? = 75 ] || fail 'a killed rank does not end the job with 75' killed.out
has_facts killed.out 'rank 2|signal 9' || fail 'the killed rank is not named:' killed.out
grep -q '^ *rank *host *process' killed.out || fail 'no table:' killed.out
grep -q 'rank 2' killed/rank-0.log || fail 'rank 0 does not name rank 2:' killed/rank-0.log
nothing_left 'a killed rank'
# A request to stop: a checkpoint, and the exit code that shells give it.
# shellcheck disable=SC2086
"$weft" launch $marked -n 2 --logs stopped -- "$weft" train job.yaml $long checkpoint.dir=saved >stopped.out 2>&1 &
launcher=$!
wait_for 'step 1/' stopped.out
kill -TERM $launcher
wait $launcher
got=$?
[ $got = 143 ] || fail "after SIGTERM: exit $got" stopped.out
"$weft" checkpoint verify saved >verified 2>&1 || fail 'no good checkpoint after SIGTERM:' stopped.out
nothing_left 'SIGTERM'
# The same request to one rank: all stop, and the launcher says so.
# shellcheck disable=SC2086
"$weft" launch $marked -n 3 --logs asked -- "$weft" train job.yaml $long train.batch=3 checkpoint.dir=asked.saved >asked.out 2>&1 &
launcher=$!
wait_for 'step 1/' asked.out
for process in $(pgrep -P $launcher); do
    tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx WEFT_RANK=1 && kill -TERM "$process"
done
wait $launcher
got=$?
[ $got = 143 ] || fail "after SIGTERM to one rank: exit $got" asked.out
has_facts asked.out 'signal 15' && grep -q '^ *rank *host *process' asked.out ||
    fail 'the launcher does not say why:' asked.out
"$weft" checkpoint verify asked.saved >verified 2>&1 || fail 'no good checkpoint after SIGTERM to one rank:' asked.out
nothing_left 'SIGTERM to one rank'
# The launcher is killed.
# shellcheck disable=SC2086
"$weft" launch $marked -n 3 --logs orphans -- "$weft" train job.yaml $long train.batch=3 >orphans.out 2>&1 &
launcher=$!
wait_for 'step 1/' orphans.out
kill -9 $launcher
wait $launcher 2>/dev/null
nothing_left 'kill -9 of the launcher'

# --- small stacks: of the first thread, and what other threads would get ---
if nm "$weft" 2>/dev/null | grep -q -m1 -e __asan_init -e __tsan_init; then
    echo 'SKIP: sanitizers need larger stacks'
else
    for communicator in host ucx; do
        [ $communicator = host ] || "$weft" info --quick 2>/dev/null | grep -qi ucx || continue
        (
            ulimit -s 64
            # shellcheck disable=SC2086
            WEFT_COMM=$communicator "$weft" launch $marked --no-logs -n 4 -- "$weft" train job.yaml --json >small.json 2>small.err
        ) || fail "$communicator: stacks of 64 KiB:" small.err
        same small
    done
    (ulimit -s 64 && "$weft" train job.yaml --devices 4 --json >small.json 2>small.err) || fail 'stacks of 64 KiB:' small.err
    same small
    nothing_left 'small stacks'
fi
exit $failed
