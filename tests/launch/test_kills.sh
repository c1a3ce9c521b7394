#!/bin/sh
# Ranks of a training are killed (kill -9), or stopped for good (SIGSTOP), one each round, at random instants from the first
# connection to the last step: each time the job ends, with exit code 75 and the rank's name, all others say who it was, and
# nothing is left. WEFT_TEST_ROUNDS rounds (8); the seed is printed. Before them a rank is killed over mac and tls: once the
# other rank has given up before the scheduler looks at either of them, once the scheduler knows of the death first
# (launch.blame has the third order: it knows of it last). The other rank's exit code is 75 each time.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
mark=$$ rounds=${WEFT_TEST_ROUNDS:-8}
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=chance.inc
. "$(dirname "$0")/chance.inc"
ls /dev/shm >shm_before 2>/dev/null
# The process of rank $1: what has the mark, is `weft train`, and that rank.
process_of() {
    for folder in $(grep -lzs "^KILL_TEST=$mark-$round\$" /proc/[0-9]*/environ | sed 's|/environ||'); do
        tr '\0' ' ' <"$folder/cmdline" 2>/dev/null | grep -q 'weft train ' || continue
        tr '\0' '\n' <"$folder/environ" 2>/dev/null | grep -qx "WEFT_LOCAL_RANK=$1" && echo "${folder#/proc/}" && return
    done
}

# A condition, a minute at most.
until_true() {
    for _ in $(seq 600); do
        eval "$1" && return
        sleep 0.1
    done
    fail "$what: never: $1" err
}
# shellcheck source=rank.inc
. "$(dirname "$0")/rank.inc"
# in_order CARRIER first|last: rank 0 sees the end of rank 1 before the scheduler looks, or after it.
in_order() {
    what="$1, rank 0 sees the death $2"
    rm -rf logs train.0 train.1 code.0
    WEFT_COMM=$1 timeout 90 "$weft" launch -n 2 --heartbeat 30 --grace 60 --logs logs -- sh rank.sh \
        "$weft" train job.yaml train.steps=1000000 train.eval_every=0 --json >out 2>err &
    launch=$!
    until_true 'grep -qs "\"step\": 20," logs/rank-0.log'
    zero=$(cat train.0) launcher=$(cat "/proc/$launch/task/$launch/children")
    if [ "$2" = first ]; then
        # shellcheck disable=SC2086
        kill -STOP $launcher
        kill -KILL "$(cat train.1)"
        # What rank 0 says of it lies unread at the scheduler.
        port=$(sed -n 's/.*scheduler at [0-9.]*:\([0-9]*\),.*/\1/p' err)
        until_true "grep -q ':$(printf %04X "$port") [0-9A-F:]* 01 [0-9A-F]*:0*[1-9A-F]' /proc/net/tcp"
        # shellcheck disable=SC2086
        kill -CONT $launcher
    else
        kill -STOP "$zero"
        kill -KILL "$(cat train.1)"
        until_true '[ -e code.1 ]'
        kill -CONT "$zero"
    fi
    wait $launch
    code=$?
    rm -f code.1
    [ $code = 75 ] || [ $code = 137 ] || fail "$what: exit code $code" err
    [ "$(cat code.0)" = 75 ] || fail "$what: rank 0 ended with $(cat code.0)" logs/rank-0.log
    grep -q "rank 1" logs/rank-0.log || fail "$what: rank 0 does not name rank 1:" logs/rank-0.log
}
if "$weft" info --quick 2>/dev/null | grep -q '^ *OpenSSL *built in'; then
    for carrier in mac tls; do
        in_order $carrier first
        in_order $carrier last
    done
fi

round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    draw 3
    rank=$number
    draw 1000
    wait=$number
    signal=KILL
    draw 5
    [ "$number" = 0 ] && signal=STOP
    rm -rf logs
    timeout 90 "$weft" launch -n 3 --heartbeat 1 --logs logs --env KILL_TEST=$mark-$round -- \
        "$weft" train job.yaml train.steps=1000000 train.eval_every=0 parallel.mesh='{dp: 3}' train.batch=6 >out 2>err &
    launch=$!
    process='' tries=0
    while [ -z "$process" ] && [ $tries -lt 100 ]; do
        process=$(process_of "$rank")
        tries=$((tries + 1))
        sleep 0.02
    done
    [ -n "$process" ] || fail "round $round: rank $rank did not start" err
    sleep "0.$(printf %03d "$wait")"
    kill -$signal "$process" 2>/dev/null
    wait $launch
    code=$?
    what="round $round: SIG$signal to rank $rank after 0.$(printf %03d "$wait") s"
    [ $code = 75 ] || fail "$what: exit code $code" err
    grep -q "rank $rank" err || fail "$what: the launcher does not name it:" err
    for other in 0 1 2; do
        [ $other = "$rank" ] && continue
        grep -q "rank $rank" logs/rank-$other.log || fail "$what: rank $other does not name it:" logs/rank-$other.log
    done
    for _ in $(seq 600); do
        left=$(grep -lzs "^KILL_TEST=$mark-$round\$" /proc/[0-9]*/environ)
        folders=$(ls "$TMPDIR")
        [ -z "$left$folders" ] && break
        sleep 0.2
    done
    [ -z "$left$folders" ] || fail "$what: there are left: $left $folders"
done
# Other programs come and go there too.
for _ in $(seq 600); do
    ls /dev/shm >shm_after 2>/dev/null
    new=$(comm -13 shm_before shm_after)
    [ -z "$new" ] && break
    sleep 0.2
done
[ -z "$new" ] || fail "shared memory is left: $new"
exit $failed
