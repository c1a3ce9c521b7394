#!/bin/sh
# One request to stop ends a rank wherever it waits. It may wait for a rank that never answers, in shared memory, in messages
# between processes and between hosts, however long it has waited before. It may wait for ranks that have not come, for a
# scheduler that is not there, for others while it leaves, or for the reader of its output. The request ends a scheduler, and a launcher too. The other
# rank is stopped (SIGSTOP). The limits of heartbeats and waits are far away, so nothing else could end the wait.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
export WEFT_HEARTBEAT_SECONDS=600 WEFT_WAIT_SECONDS=600 WEFT_JOIN_SECONDS=600
# shellcheck source=rank.inc
. "$(dirname "$0")/rank.inc"
# until 'COMMAND' PROCESSES...: two minutes at most; then these are killed
until_true() {
    condition=$1
    shift
    for _ in $(seq 1200); do
        eval "$condition" && return
        sleep 0.1
    done
    fail "$place: never: $condition" launch.err
    for process in "$@" $launch; do kill -KILL "$process" 2>/dev/null; done
    exit 1
}
in_training() { # PLACE, variables
    place=$1
    shift
    rm -rf logs train.0 train.1 code.0 code.1
    env "$@" "$weft" launch -n 2 --logs logs --grace 1 -- sh rank.sh \
        "$weft" train job.yaml train.steps=100000000 --json >launch.out 2>launch.err &
    launch=$!
    until_true 'grep -qs "\"step\": 20," logs/rank-0.log'
    ranks="$(cat train.0) $(cat train.1)"
    if [ "$place" = 'after a long wait' ]; then
        kill -STOP "$(cat train.1)"
        sleep 30
        kill -CONT "$(cat train.1)"
        # shellcheck disable=SC2034 # the condition below has it
        steps=$(wc -l <logs/rank-0.log)
        # shellcheck disable=SC2016,SC2086
        until_true '[ "$(wc -l <logs/rank-0.log)" -gt $((steps + 20)) ]' $ranks
    fi
    kill -STOP "$(cat train.1)"
    # shellcheck disable=SC2016,SC2086
    until_true '[ "$(tail -n 1 logs/rank-0.log)" = "$(sleep 1; tail -n 1 logs/rank-0.log)" ]' $ranks
    kill -TERM "$(cat train.0)"
    asked=$(date +%s)
    # shellcheck disable=SC2086
    until_true '[ -s code.0 ]' $ranks
    # 5 s, and what a busy machine takes for it; twice the long wait would be 60 s.
    [ $(($(date +%s) - asked)) -lt 45 ] || fail "$place: ended $(($(date +%s) - asked)) s after the request"
    [ "$(cat code.0)" = 143 ] || fail "$place: rank 0 ended with $(cat code.0), not 143" launch.err
    wait $launch
    [ $? = 143 ] || fail "$place: the launcher's exit code is not 143" launch.err
}
has() { "$weft" info --quick 2>/dev/null | grep -q "^ *$1 *built in"; }
in_training 'shared memory' TWO_HOSTS=
in_training 'after a long wait' TWO_HOSTS=
if has UCX; then
    in_training 'messages by UCX' WEFT_COMM=ucx
else
    echo 'SKIP messages by UCX: no UCX'
fi
if has OpenSSL; then
    in_training 'authenticated messages' WEFT_COMM=mac
    in_training 'encrypted messages' WEFT_COMM=tls
    in_training 'messages between hosts' TWO_HOSTS=1
else
    echo 'SKIP authenticated messages: no OpenSSL'
fi
unset TWO_HOSTS

# ends PLACE 'CONDITION' WORDS...: the process is asked to stop once the condition holds.
ends() {
    place=$1 condition=$2
    shift 2
    "$@" >launch.out 2>launch.err &
    launch=$!
    until_true "$condition"
    kill -TERM $launch
    wait $launch
    code=$?
    [ $code = 143 ] || fail "$place: exit $code, not 143" launch.err
}
port=$((10000 + $$ % 20000))
# late.sh VARIABLE=VALUE COMMAND...: rank 1 stops itself there (late_connect.c).
cat >late.sh <<'END'
[ "${WEFT_RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" != 1 ] || export LD_PRELOAD="$WEFT_BUILD_DIR/weft-late-connect.so" "$1"
shift
. ./rank.sh
END
# while_late PLACE STARTER VARIABLE=VALUE WORDS...: rank 0 waits for rank 1, and is asked to stop. STARTER: starts late.sh.
while_late() {
    place=$1 starter=$2 late=$3
    shift 3
    rm -rf logs train.0 train.1 code.0 code.1
    $starter sh late.sh "$late" "$weft" train job.yaml --json "$@" >launch.out 2>launch.err &
    launch=$!
    # shellcheck disable=SC2016
    until_true 'grep -qs "^State:.*T" "/proc/$(cat train.1 2>/dev/null)/status"'
    kill -TERM "$(cat train.0)"
    asked=$(date +%s)
    # shellcheck disable=SC2016
    until_true '[ -s code.0 ]' "$(cat train.0)" "$(cat train.1)"
    [ $(($(date +%s) - asked)) -lt 45 ] || fail "$place: ended $(($(date +%s) - asked)) s after the request"
    [ "$(cat code.0)" = 143 ] || fail "$place: rank 0 ended with $(cat code.0), not 143" launch.err
    [ -z "$LEAVES" ] || kill -TERM $launch # all ranks seem to have agreed to stop: it waits for rank 1
    wait $launch
    code=$?
    kill -KILL "$(cat train.1)" 2>/dev/null
}
LEAVES=
launched="$weft launch -n 2 --logs logs --grace 1 --scheduler 127.0.0.1:$port --"
if has OpenSSL; then
    for carrier in mac tls; do
        export WEFT_COMM=$carrier
        while_late "connecting by $carrier" "$launched" LATE_CONNECT_BUT=$port train.steps=100000000
        [ $code = 143 ] || fail "$place: the launcher's exit code is $code, not 143" launch.err
    done
    # After the welcome, before the first bytes of TLS.
    while_late 'the handshake of TLS' "$launched" 'LATE_SEND=0 1603' train.steps=100000000
    [ $code = 143 ] || fail "$place: the launcher's exit code is $code, not 143" launch.err
fi
# Rank 0 has said LEAVE. Under mpirun it waits for rank 1 for up to WEFT_WAIT_SECONDS.
for communicator in host mac; do
    has OpenSSL || [ $communicator = host ] || continue
    export WEFT_COMM=$communicator
    LEAVES=1
    while_late "leaving, $communicator" "$launched" 'LATE_SEND=4 05000000'
done
unset WEFT_COMM
for flavour in openmpi mpich; do
    [ -e "$(dirname "$weft")/weft-$flavour.so" ] && command -v mpirun.$flavour >/dev/null || continue
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    while_late "leaving, $flavour" "mpirun.$flavour -n 2" 'LATE_SEND=4 05000000'
done
listens() { grep -qi ":$(printf %04X $port) 00000000:0000 0A" /proc/net/tcp; }
calls() { [ "$(ls "/proc/$launch/task" | wc -l)" -gt 1 ]; }
(umask 077 && od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >secret)
ends 'missing ranks' listens \
    env WEFT_RANK=0 WEFT_SIZE=2 WEFT_SCHEDULER=127.0.0.1:$port WEFT_SECRET_FILE="$work/secret" "$weft" train job.yaml
ends 'no scheduler' calls \
    env WEFT_RANK=1 WEFT_SIZE=2 WEFT_SCHEDULER=127.0.0.1:$port WEFT_SECRET_FILE="$work/secret" "$weft" train job.yaml
ends 'a scheduler' listens \
    env MS_ROLE=MS_SCHED MS_WORKER_NUM=2 MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=$port "$weft" train job.yaml
ends 'a launcher whose other host has not come' listens \
    "$weft" launch --hosts 2 --host-rank 0 -n 1 --no-logs --scheduler 127.0.0.1:$port -- "$weft" train job.yaml
# It says where it looks for the scheduler, long before it gives up.
says_where() { grep -q "127.0.0.1:$port.*600 s" launch.err; }
ends 'a launcher without a scheduler' says_where \
    "$weft" launch --hosts 2 --host-rank 1 -n 1 --no-logs --scheduler 127.0.0.1:$port -- "$weft" train job.yaml

# The reader of the output is there, and reads nothing.
mkfifo unread
unread() { # WORDS...
    place="output that is not read: $1"
    shift
    # shellcheck disable=SC2217 # opens the pipe, and reads nothing
    sleep 600 <unread &
    reader=$!
    "$@" >unread 2>launch.err &
    launch=$!
    # shellcheck disable=SC2016
    until_true 'cat /proc/$launch/task/*/wchan 2>/dev/null | grep -q pipe_write' $reader
    kill -TERM $launch
    asked=$(date +%s)
    # shellcheck disable=SC2016
    until_true '! kill -0 $launch 2>/dev/null' $reader
    wait $launch
    code=$?
    kill $reader
    [ $code = 143 ] || fail "$place: exit $code, not 143" launch.err
    [ $(($(date +%s) - asked)) -lt 45 ] || fail "$place: ended $(($(date +%s) - asked)) s after the request"
}
unread 'a run' "$weft" train job.yaml train.steps=100000000 --json
unread 'a launcher' "$weft" launch -n 2 --no-logs -- "$weft" train job.yaml train.steps=100000000 --json
exit $failed
