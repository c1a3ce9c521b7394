#!/bin/sh
# The scheduler of an elastic job, a process of its own, dies before, amid and after a change of the world's size, with and without
# ranks, and is started again at the same address: a world of four becomes one of three, of two, and of four again. All that live end with
# the digest of an undisturbed run, and begin at most one step again for each change. MindSpore's variables start all.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
# shellcheck source=scheduler.inc
. "$(dirname "$0")/scheduler.inc"
mend=$WEFT_BUILD_DIR/weft-mend
export MS_WORKER_NUM=4 MS_SCHED_HOST=127.0.0.1 WEFT_HEARTBEAT_SECONDS=6 WEFT_JOIN_SECONDS=900

# process RANK: rank 1 is started again if a signal ends it, once the others wait for it.
process() {
    code=137
    while [ $code = 137 ]; do
        MS_ROLE=MS_WORKER MS_NODE_ID=$1 "$mend" 40 deaths "$deaths" >>out.$1 2>>err.$1
        code=$?
        [ $1$code = 1137 ] && [ -n "$MEND_AWAIT" ] || break
        while [ ! -e deaths/awaits ]; do sleep 0.01; done
    done
    echo $code >code.$1
}
# all DEATHS CHANGES RANKS [SURE]: the world changes CHANGES times, and RANKS end. So many of the deaths must happen; all, if
# it is left out.
all() {
    deaths=$1 what="'$1' $MEND_AWAIT"
    rm -rf deaths out.* err.* code.*
    mkdir deaths
    MS_SCHED_PORT=$(free_port)
    export MS_SCHED_PORT
    scheduler &
    while [ ! -e deaths/scheduler ]; do sleep 0.01; done
    for rank in 0 1 2 3; do process $rank & done
    wait
    for rank in $3 scheduler; do
        [ "$(cat code.$rank)" = 0 ] || fail "$what: $rank ends with $(cat code.$rank)" err.$rank
    done
    for rank in $3; do
        digest=$(sed -n 's/^process .* digest \([0-9a-f]*\) begun .*/\1/p' out.$rank)
        [ "$digest" = "${right:-$digest}" ] || fail "$what: rank $rank ends with another state" out.$rank
        begun=$(sed -n 's/^process .* begun //p' out.$rank)
        [ "${begun:-99}" -le $((40 + $2)) ] || fail "$what: rank $rank began $begun steps" out.$rank
    done
    entries=${4:-$(echo "$deaths" | tr ',' '\n' | grep -c @)}
    [ "$entries" = 0 ] || [ -e deaths/death-$((entries - 1)) ] || fail "$what: it has not happened"
}

export MEND_LEAST=2 MEND_AWAIT=
all '' 0 '0 1 2 3'
right=$digest
[ -n "$right" ] || fail 'no digest' err.0

# Rank 1 is lost for good. The scheduler dies at each point of the change, between steps after it, and twice.
for point in 0@halted 2@mended 0@given 2@taken 0@whole; do
    all "1@step:5:9,$point:1:109" 2 '0 2 3'
done
for deaths in 1@step:5:9,0@step:9:109 1@step:5:9,0@halted:1:109,2@step:12:109; do all $deaths 2 '0 2 3'; done
# With another rank, at once and later: two are left.
# (Rank 2 is halted twice unless the scheduler dies between its words to rank 0 and to rank 2.)
all 1@step:5:9,0@taken:1:109,2@halted:2:9 2 '0 3' 2
all 1@step:5:9,2@step:9:109,2@step:9:9 2 '0 3'
all 1@step:5:9,0@step:9:109,0@step:9:9 2 '2 3'
# Its process comes again, and the world grows.
export MEND_AWAIT=20:4
all 1@step:5:9 2 '0 1 2 3'
for point in 1@start 1@joined 0@halted 1@mended 2@given 1@taken 0@whole 1@whole; do
    count=1
    case $point in [02]*) count=2 ;; esac
    all "1@step:5:9,$point:$count:109" 3 '0 1 2 3'
done
# Once it has grown; then it loses its first rank.
all 1@step:5:9,1@step:9:109,1@step:12:109,0@step:38:9 3 '1 2 3'
exit $failed
