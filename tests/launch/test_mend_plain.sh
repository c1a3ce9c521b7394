#!/bin/sh
# Processes that nobody but this script starts, with WEFT_RANK, WEFT_SIZE and WEFT_RESTART: one that dies and is started again with
# the same rank takes its seat, also on another host if its host has no rank left, and all end with the digest of an undisturbed run.
# A newcomer of another host than its neighbor is refused, and the others wait. Rank 0, which has the scheduler, is not replaced: 75.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=ports.inc
. "$(dirname "$0")/ports.inc"
mend=$WEFT_BUILD_DIR/weft-mend
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME WEFT_SIZE=3 WEFT_RESTART=3 MEND_TEST=$$
mkdir "$TMPDIR"

# one RANK HOST: a process of that rank; in the background. HOST: "", or what it takes itself to be on.
one() {
    WEFT_RANK=$1 WEFT_HOST_ID=$2 timeout 60 "$mend" 40 deaths "$deaths" >>out.$1 2>>err.$1
}
# supervised RANK HOST HOST-AFTERWARDS: started again if it dies by a signal or is refused, as a service is. code.RANK is its last
# exit code.
supervised() {
    one "$1" "$2"
    code=$?
    while [ $code -gt 128 ] || [ $code = 1 ]; do
        sleep 0.1
        one "$1" "$3"
        code=$?
    done
    echo $code >code.$1
}
# process_of RANK: its newest
process_of() {
    for place in $(grep -lzsx "MEND_TEST=$$" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|' | sort -rn); do
        [ "$(cat "/proc/$place/comm" 2>/dev/null)" = weft-mend ] && tr '\0' '\n' <"/proc/$place/environ" | grep -qx "WEFT_RANK=$1" &&
            echo "$place" && return
    done
}
# all DEATHS HOSTS HOSTS-AFTERWARDS [VICTIM]: three of them; VICTIM is killed once the first of DEATHS has happened.
all() {
    deaths=$1 what="'$1' on $2, then $3"
    rm -rf deaths out.* err.* code.*
    mkdir deaths
    WEFT_SCHEDULER=127.0.0.1:$(free_port)
    export WEFT_SCHEDULER
    for rank in 0 1 2; do
        supervised $rank "$(echo "$2" | cut -d, -f$((rank + 1)))" "$(echo "$3" | cut -d, -f$((rank + 1)))" &
    done
    if [ $# -gt 3 ]; then
        for _ in $(seq 600); do
            [ -e deaths/death-0 ] && break
            sleep 0.1
        done
        kill -9 "$(process_of "$4")" || fail "$what: no process to kill"
    fi
    wait
}
whole() {
    for rank in 0 1 2; do
        [ "$(cat code.$rank)" = 0 ] || fail "$what: rank $rank ends with $(cat code.$rank)" err.$rank
        [ "$(sed -n 's/.* digest \([0-9a-f]*\) .*/\1/p' out.$rank)" = "$right" ] || fail "$what: rank $rank ends with another state" out.$rank
    done
}

all '' ,, ,,
right=$(sed -n 's/.* digest \([0-9a-f]*\) .*/\1/p' out.0)
[ -n "$right" ] || fail 'no digest' err.0
whole
all 1@step:5:9 ,, ,,
whole
all 1@step:5:9,2@reduced:9:9 a,b,c a,d,e
whole
# Both ranks of a host: wherever they go, they go together.
all 1@step:5:9 a,b,b a,c,c 2
whole
all 1@step:5:9 a,b,b a,a,a 2
whole

# One of them stays where it was: its neighbor is refused elsewhere, and taken at home.
deaths=1@step:5:9 what='a neighbor that goes elsewhere'
rm -rf deaths out.* err.* code.*
mkdir deaths
WEFT_SCHEDULER=127.0.0.1:$(free_port)
for rank in 0 2; do supervised $rank "$([ $rank = 0 ] && echo a || echo b)" b & done
one 1 b
one 1 c
[ $? = 1 ] || fail "$what: not refused" err.1
has_facts err.1 "rank 1|rank 2|'b'|'c'" || fail "$what: another reason" err.1
one 1 b
echo $? >code.1
wait
whole

# The rank that has the scheduler; and the one death too many.
all 0@step:5:9 ,, ,,
for rank in 1 2; do
    [ "$(cat code.$rank)" = 75 ] || fail "$what: rank $rank ends with $(cat code.$rank)" err.$rank
    has_facts err.$rank 'rank 0|scheduler|died' || fail "$what: rank $rank names another reason" err.$rank
done
WEFT_RESTART=1
all 1@step:5:9,1@step:1:9 ,, ,,
for rank in 0 2; do
    [ "$(cat code.$rank)" = 75 ] || fail "$what: rank $rank ends with $(cat code.$rank)" err.$rank
done
has_facts err.0 'rank 1' || fail "$what: another reason" err.0

# mpirun ends its job with the first process that dies.
unset WEFT_SIZE WEFT_SCHEDULER
if command -v mpirun.openmpi >/dev/null 2>&1; then
    timeout 60 mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 "$mend" 5 >mpi.out 2>mpi.err && fail 'WEFT_RESTART under mpirun' mpi.err
    has_facts mpi.err 'WEFT_RESTART|mpirun|--restart 1' || fail 'WEFT_RESTART under mpirun: another reason' mpi.err
fi
for mpi in OMPI_COMM_WORLD PMI; do # with the variables of either mpirun
    env ${mpi}_RANK=0 ${mpi}_SIZE=2 WEFT_STANDBY=127.0.0.1:9 "$mend" 5 >mpi.out 2>mpi.err && fail "WEFT_STANDBY with ${mpi}_RANK" mpi.err
    has_facts mpi.err 'WEFT_STANDBY|mpirun|--standby 127.0.0.1:9' || fail "WEFT_STANDBY with ${mpi}_RANK: another reason" mpi.err
done
exit $failed
