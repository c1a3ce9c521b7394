#!/bin/sh
# An mpirun that overlooks exit codes does not end with 0 after a failed job, and names ranks that ended early. Variables
# of an mpirun that has ended are refused with a hint, and processes that have them can meet at an address.
here=$PWD
. tests/mpi/run.inc
weft=$WEFT_BIN
cd "$work" || exit 1
put_text
cat >job.yaml <<'END_OF_JOB'
model: {family: gpt2, layers: 1, hidden: 16, heads: 2, context: 16}
data: {path: text.txt}
train: {steps: 2, batch: 6}
device: {threads: 1}
END_OF_JOB
if "$weft" train job.yaml --job 2>&1 | grep -q 'no libyaml'; then
    echo "SKIP: this build has no libyaml, which reads job files"
    exit 77
fi
# The second word: how rank 1 ends before its program begins.
cat >absent.sh <<'END_OF_SCRIPT'
how=$1
shift
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || $how
exec "$@"
END_OF_SCRIPT
# Rank 1 is killed once it trains.
cat >killed.sh <<'END_OF_SCRIPT'
if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then
    me=$$
    (until [ "$(grep -c loss long.log)" -ge 2 ] || ! kill -0 $me; do sleep 0.05; done; kill -9 $me) >/dev/null 2>&1 &
fi
exec "$@"
END_OF_SCRIPT
bad() { # what, exit code: neither 0 nor a time limit
    [ "$2" != 0 ] && [ "$2" != 124 ] || fail "$1: exit $2" out
}
overlooked() { # Open MPI 4: only there is the setting known
    mpirun.openmpi --version 2>/dev/null | grep -q ' 4\.' || { echo "SKIP: no mpirun of Open MPI 4"; return; }
    export OMPI_MCA_orte_abort_on_non_zero_status=0
    for how in 'exit 0' 'exit 7'; do
        WEFT_JOIN_SECONDS=3 ranks openmpi 3 sh absent.sh "$how" "$weft" train job.yaml >out 2>&1
        bad "rank 1 does $how, exit codes overlooked" $?
        grep -q 'rank 1 is not running' out || fail "rank 1 does $how: not named" out
    done
    rm -f long.log
    ranks openmpi 3 sh killed.sh "$weft" train job.yaml train.steps=1000000 train.log="$work/long.log" >out 2>&1
    bad 'rank 1 is killed, exit codes overlooked' $?
    grep -q 'rank 1 .*died' out || fail 'the killed rank is not named' out
    ranks openmpi 3 "$weft" train job.yaml >out 2>&1 || fail "a good end, exit codes overlooked: exit $?" out
    unset OMPI_MCA_orte_abort_on_non_zero_status
}
pair() { # variables of both ranks, with R for the rank: the exit codes are in code.R
    for rank in 0 1; do
        (
            # Without mpirun two processes of Open MPI that begin at once would fail at their common folder.
            mkdir -p "$work/session.$rank"
            export OMPI_MCA_orte_tmpdir_base="$work/session.$rank"
            # shellcheck disable=SC2046
            env $(echo "$@" | sed "s/=R\b/=$rank/g") WEFT_JOIN_SECONDS=20 timeout 100 "$weft" train job.yaml >out.$rank 2>&1
            echo $? >code.$rank
        ) &
    done
    wait
}
stale() { # FLAVOUR, its variables: of an mpirun that has ended
    pair "$2"
    for rank in 0 1; do
        [ "$(cat code.$rank)" = 1 ] || fail "$1: variables without mpirun: exit $(cat code.$rank)" out.$rank
        grep -q 'WEFT_SCHEDULER=HOST:PORT' out.$rank || fail "$1: variables without mpirun: no hint" out.$rank
    done
}
meet() { # FLAVOUR, variables
    port=$((20000 + $$ % 10000))
    pair "$2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port"
    for rank in 0 1; do
        [ "$(cat code.$rank)" = 0 ] || fail "$1: at an address: exit $(cat code.$rank)" out.$rank
    done
}
# Rank 1 is stopped while all train, and then rank 0 is asked to stop: it ends, however long waits may take.
# shellcheck source=../launch/rank.inc
. "$(dirname "$0")/../launch/rank.inc"
stop_waiting() { # FLAVOUR, WEFT_COMM
    rm -f long.log train.0 train.1 code.0
    WEFT_COMM=$2 WEFT_HEARTBEAT_SECONDS=600 WEFT_WAIT_SECONDS=600 ranks "$1" 2 sh rank.sh \
        "$weft" train job.yaml train.steps=1000000 train.log="$work/long.log" >out 2>&1 &
    job=$!
    until_true '[ "$(grep -c loss long.log 2>/dev/null)" -ge 3 ]' && kill -STOP "$(cat train.1)" &&
        until_true '[ "$(tail -n 1 long.log)" = "$(sleep 1; tail -n 1 long.log)" ]' && kill -TERM "$(cat train.0)" &&
        until_true '[ -s code.0 ]'
    [ "$(cat code.0)" = 143 ] || fail "$1, WEFT_COMM=$2: rank 0 ended with $(cat code.0), not 143" out
    for rank in 0 1; do kill -KILL "$(cat train.$rank)" 2>/dev/null; done
    wait $job
}
until_true() { # a condition: a minute at most
    for _ in $(seq 600); do
        eval "$1" && return
        sleep 0.1
    done
    fail "never: $1" out
    return 1
}
for flavour in $flavours; do
    if [ ! -e "$(dirname "$weft")/weft-$flavour.so" ]; then
        echo "SKIP $flavour: this build has no weft-$flavour.so"
        continue
    fi
    if [ "$flavour" = openmpi ]; then
        overlooked
        variables='OMPI_COMM_WORLD_RANK=R OMPI_COMM_WORLD_SIZE=2'
        ranks openmpi 1 env | grep '^PMIX_.*=[^ ]*$' >mpirun.env
        uri=$(grep '^PMIX_SERVER_URI2=' mpirun.env) || uri=
        stale openmpi "$variables $uri"
    else
        variables='PMI_RANK=R PMI_SIZE=2'
        stale mpich "$variables PMI_FD=9"
    fi
    stale "$flavour" "$variables"
    meet "$flavour" "$variables"
    stop_waiting "$flavour" ''
    stop_waiting "$flavour" mpi
    echo "$flavour: done"
done
cd "$here" || exit 1
exit $failed
