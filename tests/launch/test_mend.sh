#!/bin/sh
# Ranks die, and are started again: at named points of a small program (weft-mend), once, twice, at once, during the recovery, before
# joining; and at random instants from outside. Connections between ranks are reset, while all ranks live. The others keep their processes, begin at most one step again for each death, and
# all end with the digest of an undisturbed run. Before they can be mended, all are started again. The seed is printed.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
mend=$WEFT_BUILD_DIR/weft-mend kills=${WEFT_TEST_ROUNDS:-6}
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=chance.inc
. "$(dirname "$0")/chance.inc"

# launch CODE STEPS DEATHS options of weft launch...
launch() {
    expected=$1 steps=$2 deaths=$3
    shift 3
    rm -rf logs deaths
    mkdir deaths
    timeout 1200 "$weft" launch -n 3 --logs logs "$@" -- "$mend" "$steps" deaths "$deaths" >out 2>err
    code=$?
    what="$* with '$deaths'"
    [ $code = "$expected" ] || fail "$what: exit code $code, not $expected" err
}

digest_of() {
    sed -n 's/^process .* digest \([0-9a-f]*\) begun .*/\1/p' "$1"
}

# whole DEATHS RANKS: all ended with the digest, ranks that were not killed in one process and with at most DEATHS steps more.
whole() {
    for rank in 0 1 2; do
        log=logs/rank-$rank.log
        [ "$(digest_of $log)" = "$right" ] || fail "$what: rank $rank ends with another state" $log
        begun=$(sed -n 's/^process .* begun //p' $log)
        case " $2 " in
        *" $rank "*) ;;
        *) [ "${begun:-0}" -ge "$steps" ] && [ "$begun" -le $((steps + $1)) ] || fail "$what: rank $rank began $begun steps" $log ;;
        esac
    done
}

launch 0 40 ''
right=$(digest_of logs/rank-0.log)
[ -n "$right" ] || fail "no digest" err
whole 0 ''

# One death at every point; of the newcomer too; of two ranks; of the giver.
for deaths in 1@step:2:9 0@step:7:9 2@reduced:7:9 1@committed:7:9 2@reduced:40:9; do
    launch 0 40 $deaths --restart 1
    whole 1 "${deaths%%@*}"
    grep -q "rank ${deaths%%@*} .*started again (1 of 1)" err || fail "$what: the launcher does not say so" err
done
for deaths in 1@step:5:9,1@start:1:9 1@step:5:9,1@mended:1:9 1@step:5:9,1@given:1:9 1@step:5:9,0@mended:1:9 1@step:5:9,2@given:1:9 \
    1@step:5:9,2@reduced:9:9 1@step:5:9,1@joined:1:9; do
    launch 0 40 $deaths --restart 2
    whole 2 "$(echo $deaths | sed 's/@[^,]*,*/ /g')"
done
# A rank that is silent.
launch 0 40 1@step:5:19 --restart 1 --heartbeat 3
whole 1 1
# A rank and the only one that has its state: all begin at the start.
export MEND_ALONE=1
launch 0 40 1@step:5:9 --restart 1
whole 5 1
unset MEND_ALONE

# The job ends: no restarts are left.
for case in '1@step:5:9,1@step:1:9' '1@step:5:9,2@step:6:9'; do
    launch 75 40 "$case" --restart 1
    grep -q 'rank [12].*(--restart 1 within 3600 s)' err || fail "$what: the reason is not said" err
done
# A restart no longer counts after some time. The rank that has failed several times is named.
launch 0 40 '1@step:5:9,2@step:9:9,1@reduced:9:9' --restart 1 --restart-window 0.001
whole 3 '1 2'
launch 75 40 '1@step:5:9,1@step:1:9' --restart 1 --restart-window 5000
grep -q 'rank 1 on host 0 .*2 times within [0-9.]* s; .*(--restart 1 within 5000 s)' err || fail "$what: not named" err
grep -q 'note: rank 1 on host 0 .*2 times within' err || fail "$what: the launcher does not name it" err

# A command for each restart. It may fail, and the job goes on. What still runs at the end is ended.
hook='echo "$WEFT_RESTART_JOB rank $WEFT_RESTART_RANK host $WEFT_RESTART_HOST count $WEFT_RESTART_COUNT: $WEFT_RESTART_REASON" >>hooks; exit 3'
launch 0 40 '1@step:5:9,2@step:9:9' --restart 2 --on-restart "$hook"
whole 2 '1 2'
grep -Eq '^[0-9a-f]{8} rank 1 host 0 count 1: rank 1 .*signal 9$' hooks || fail "$what: first call" hooks
grep -Eq '^[0-9a-f]{8} rank 2 host 0 count 2: rank 2 ' hooks || fail "$what: second call" hooks
[ "$(grep -c -e '--on-restart: .*code 3' err)" = 2 ] || fail "$what: its failure is not told" err
launch 0 40 1@step:5:9 --restart 1 --grace 1 --env MEND_UNLIKE=1 --on-restart 'echo $WEFT_RESTART_RANK >all; exec sleep 3000'
[ "$(cat all)" = all ] || fail "$what: not called for all" err
grep -q -e '--on-restart: .*ended' err || fail "$what: nothing is said of the command that runs" err
launch 75 40 1@step:5:9

# Before all have come, one is started again. Before all can be mended, or if one never can, all are.
# (Several deaths are of one rank: two ranks may die in one world, which counts once.)
# again RANKS 'COUNT of N' DEATHS options...: RANKS ended with the digest, and the launcher says that so many restarts were made.
again() {
    ranks=$1 count=$2
    shift 2
    launch 0 40 "$@"
    for rank in $ranks; do
        [ "$(digest_of logs/rank-"$rank".log)" = "$right" ] || fail "$what: rank $rank ends with another state" logs/rank-"$rank".log
    done
    grep -q "started again ($count)" err || fail "$what: the launcher does not say so" err
    [ "$(grep -c 'note: .*started again' err)" = "${count%% *}" ] || fail "$what: it says so several times" err
}
again '0 1 2' '1 of 3' 1@start:1:9 --restart 3
again '0 1 2' '1 of 1' 1@joined:1:9 --restart 1
again '0 1 2' '1 of 1' 0@joined:1:19 --restart 1 --heartbeat 3
again '0 1 2' '3 of 3' 1@start:1:9,2@joined:1:9,2@joined:1:9 --restart 3
again '0 1 2' '2 of 2' 2@joined:1:9,1@step:7:9 --restart 2
again '0 1 2' '1 of 3' 1@step:5:9 --restart 3 --env MEND_UNLIKE=1
again '0 1 2' '3 of 3' 1@step:5:9,1@step:5:9,1@step:5:9 --restart 3 --env MEND_UNLIKE=1
grep -q ' all .*(1 of 3)$' err || fail "$what: a pause before the first time" err
grep -q ' all .*(2 of 3) in 1 s' err || fail "$what: no pause before the second time" err
grep -q ' all .*(3 of 3) in 2 s' err || fail "$what: no longer pause before the third time" err
launch 75 40 1@joined:1:9,1@joined:1:9 --restart 1
grep -q 'rank 1.*as often as it may be' err || fail "$what: the reason is not said" err
launch 75 40 1@start:1:9,1@start:1:9 --restart 1

# An elastic world goes on with those that are left, down to two: nobody takes the seat, or the restarts are used up.
# shrunk RANK...: these ranks ended with the digest.
shrunk() {
    for rank in "$@"; do
        [ "$(digest_of logs/rank-$rank.log)" = "$right" ] || fail "$what: rank $rank ends with another state" logs/rank-$rank.log
    done
}
for case in '1@step:5:9 0 2' '0@reduced:7:9 1 2' '2@committed:9:9 0 1'; do
    # shellcheck disable=SC2086 # several words
    set -- $case
    launch 0 40 "$1" --env MEND_LEAST=2
    grep -q "rank ${1%%@*} .*without it" err || fail "$what: the launcher does not say so" err
    shrunk "$2" "$3"
done
launch 0 40 '1@step:5:9,1@start:1:9' --restart 1 --env MEND_LEAST=2
shrunk 0 2
# One that keeps failing is left out, although there are restarts.
launch 0 40 '1@step:5:9,1@start:1:9,1@start:1:9,1@start:1:9,1@start:1:9' --restart 100 --env MEND_LEAST=2
shrunk 0 2
grep -q 'note: rank 1 on host 0 .*5 times within' err || fail "$what: it is not named" err
launch 0 40 '1@step:5:19' --heartbeat 1 --env MEND_LEAST=2
shrunk 0 2
launch 75 40 '1@step:5:9,2@mended:1:9' --env MEND_LEAST=2
grep -q 'recovery.min' err || fail "$what: the reason is not said" err

# A process resets its connections to the others, and nobody is dead. New ones are made, as often as restarts are allowed.
for point in step reduced committed mended given; do
    case $point in
    mended | given) launch 0 40 "2@step:5:9,1@$point:1:99" --restart 2 --env WEFT_COMM=mac && whole 2 2 ;;
    *) launch 0 40 "1@$point:5:99" --restart 1 --env WEFT_COMM=mac && whole 1 '' ;;
    esac
done
launch 0 40 1@step:5:99,2@reduced:9:99,0@committed:20:99 --restart 3 --env WEFT_COMM=mac
whole 3 ''
again '0 1 2' '1 of 3' 1@step:5:99 --restart 3 --env MEND_UNLIKE=1 --env WEFT_COMM=mac
# Once no restart is left, an elastic job goes on without one of the two. Another job ends, and may be tried again.
launch 0 40 1@step:5:99 --env MEND_LEAST=2 --env WEFT_COMM=mac
[ "$(cat logs/*.log | grep -c " digest $right ")" = 2 ] || fail "$what: two ranks do not end with that state" err
# names_both FILE: the two ranks
names_both() {
    { has_facts "$1" 'lost|rank 1|rank 0' || has_facts "$1" 'lost|rank 1|rank 2'; } || fail "$what: the two ranks are not named" "$1"
}
launch 75 40 1@step:5:99 --env WEFT_COMM=mac
names_both err
launch 75 40 1@step:5:99,2@step:9:99 --restart 1 --env WEFT_COMM=mac
has_facts err 'lost|--restart' || fail "$what: the reason is not said" err

# Random instants.
launch 0 3000 ''
right=$(digest_of logs/rank-0.log)
round=0
while [ $round -lt "$kills" ]; do
    round=$((round + 1))
    draw 3
    rank=$number
    draw 800
    wait=$(printf '0.%03d' "$number")
    rm -rf logs
    timeout 1200 "$weft" launch -n 3 --restart 1 --logs logs --env MEND_TEST=$$-$round -- "$mend" 3000 >out 2>err &
    launch=$!
    sleep "$wait"
    process=''
    for folder in $(grep -lzs "^MEND_TEST=$$-$round\$" /proc/[0-9]*/environ | sed 's|/environ||'); do
        tr '\0' '\n' <"$folder/environ" 2>/dev/null | grep -qx "WEFT_RANK=$rank" && process=${folder#/proc/}
    done
    [ -n "$process" ] && kill -9 "$process" 2>/dev/null
    wait $launch
    code=$?
    what="SIGKILL to rank $rank after $wait s" steps=3000
    tells_the_end err $code && continue
    [ $code = 75 ] && [ "$(cat logs/*.log | grep -c " digest $right ")" = 3 ] && continue
    [ $code = 0 ] || fail "$what: exit code $code" err
    [ "$(cat logs/*.log | grep -c " digest $right ")" = 3 ] || fail "$what: ends with another state" err
    grep -q 'all ranks are started again' err || whole 1 "$rank"
done
exit $failed
