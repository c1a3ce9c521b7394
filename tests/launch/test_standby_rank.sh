#!/bin/sh
# A standby scheduler in a job without a launcher: rank 0 runs the scheduler. It is killed with rank 0, and the standby takes
# over. Rank 0 is started again with the same variables, finds that the standby has the job, and takes its old seat: the digests
# are those of an undisturbed run. Where nothing is started again, the standby ends the job.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
mend=$WEFT_BUILD_DIR/weft-mend

rank() { # RANK RESTARTS: in the background; `process` is its number
    WEFT_RANK=$1 WEFT_SIZE=3 WEFT_SCHEDULER=$one WEFT_STANDBY=$two WEFT_RESTART=$2 WEFT_HEARTBEAT_SECONDS=3 WEFT_JOIN_SECONDS=60 timeout -k 10 900 "$mend" 3000 deaths "$deaths" >>"$name.rank-$1" 2>&1 &
    process=$!
}
# begin NAME RESTARTS 'DEATHS': `rank0` and `others` are the processes of ranks
begin() {
    name=$1 deaths=$3 one=127.0.0.1:$(free_port) two=127.0.0.1:$(free_port)
    rm -rf deaths
    mkdir deaths
    # shellcheck disable=SC2086
    timeout -k 10 900 "$weft" launch --standby-only -n 3 --scheduler $one --standby $two --heartbeat 3 --timeout 60 $([ -z "$2" ] || echo --restart $2) >"$name.standby" 2>&1 &
    standby=$!
    rank 0 "$2"
    rank0=$process others=
    for number in 1 2; do
        rank $number "$2"
        others="$others $process"
    done
}
digests() {
    sed -n 's/.* digest \([0-9a-f]*\) .*/\1/p' "$name".rank-* | sort | uniq -c
}
ends_with() { # CODE PROCESSES...
    code=$1
    shift
    for process in "$@"; do
        wait "$process"
        got=$?
        [ $got = "$code" ] || {
            fail "$name: a process ends with $got, not $code" "$name.standby"
            cat "$name".rank-*
        }
    done
}

begin calm '' ''
# shellcheck disable=SC2086
ends_with 0 $rank0 $others $standby
right=$(digests)
[ "${right#* 3 }" != "$right" ] || fail "no digest of three ranks: $right"

begin again 1 0@step:100:9
wait $rank0
[ $? = 137 ] || fail 'rank 0 has not died' again.rank-0
for _ in $(seq 600); do # the others have come to the standby
    "$weft" health --scheduler $two --json --timeout 2 >health.json 2>health.err
    [ -s health.json ] && break
    sleep 0.1
done
rank 0 1
# shellcheck disable=SC2086
ends_with 0 $process $others $standby
[ "$(digests)" = "$right" ] || fail 'rank 0 is started again, and the digests are others'
has_facts again.standby 'the job now' || fail 'the standby has not taken over' again.standby

begin never '' 0@step:100:9
# shellcheck disable=SC2086
ends_with 75 $others
ends_with 75 $standby
has_facts never.rank-1 'rank 0|not come back' || fail 'another reason' never.rank-1

# A scheduler of its own is killed while a rank is missing. The others go to the standby, and the world forms there.
export WEFT_LAUNCH=1
name=early deaths='' one=127.0.0.1:$(free_port) two=127.0.0.1:$(free_port)
"$weft" launch --scheduler-only -n 3 --scheduler $one --standby $two >early.scheduler 2>&1 &
scheduler=$!
timeout -k 10 900 "$weft" launch --standby-only -n 3 --scheduler $one --standby $two --heartbeat 3 >early.standby 2>&1 &
standby=$!
others=
for number in 0 1; do
    rank $number ''
    others="$others $process"
done
for _ in $(seq 600); do
    "$weft" health --scheduler $one --json --timeout 2 2>health.err | grep -q '"here": 2' && break
    sleep 0.1
done
kill -9 $scheduler
rank 2 ''
# shellcheck disable=SC2086
ends_with 0 $others $process $standby
[ "$(digests)" = "$right" ] || fail 'a world that forms at the standby has other digests'
has_facts early.standby 'the job now' || fail 'the standby has not taken over' early.standby
exit $failed
