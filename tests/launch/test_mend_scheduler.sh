#!/bin/sh
# The scheduler, a process of its own, dies before, amid and after a repair, with and without ranks, and is started again at the same
# address. The others keep their processes, begin at most one step again for each death, and all end with the digest of an
# undisturbed run. It is killed by the ranks of a small program (weft-mend) at named points. MindSpore's variables start all.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
# shellcheck source=scheduler.inc
. "$(dirname "$0")/scheduler.inc"
mend=$WEFT_BUILD_DIR/weft-mend
export WEFT_RESTART=3 MS_WORKER_NUM=3 MS_SCHED_HOST=127.0.0.1 WEFT_HEARTBEAT_SECONDS=6 WEFT_JOIN_SECONDS=900

# supervised RANK: started again if a signal ends it.
supervised() {
    code=137
    while [ $code = 137 ]; do
        MS_ROLE=MS_WORKER MS_NODE_ID=$1 "$mend" 40 deaths "$deaths" >>out.$1 2>>err.$1
        code=$?
    done
    echo $code >code.$1
}
# all DEATHS COUNT RANKS: COUNT ranks die, and RANKS are those.
all() {
    deaths=$1 what="'$1'"
    rm -rf deaths out.* err.* code.*
    mkdir deaths
    MS_SCHED_PORT=$(free_port)
    export MS_SCHED_PORT
    scheduler &
    while [ ! -e deaths/scheduler ]; do sleep 0.01; done
    for rank in 0 1 2; do supervised $rank & done
    wait
    for rank in 0 1 2 scheduler; do
        [ "$(cat code.$rank)" = 0 ] || fail "$what: $rank ends with $(cat code.$rank)" err.$rank
    done
    for rank in 0 1 2; do
        digest=$(sed -n 's/^process .* digest \([0-9a-f]*\) begun .*/\1/p' out.$rank)
        [ "$digest" = "${right:-$digest}" ] || fail "$what: rank $rank ends with another state" out.$rank
        begun=$(sed -n 's/^process .* begun //p' out.$rank)
        case " $3 " in
        *" $rank "*) ;;
        *) [ "${begun:-0}" -ge 40 ] && [ "$begun" -le $((40 + $2)) ] || fail "$what: rank $rank began $begun steps" out.$rank ;;
        esac
    done
    entries=$(echo "$deaths" | tr ',' '\n' | grep -c @)
    [ "$entries" = 0 ] || [ -e deaths/death-$((entries - 1)) ] || fail "$what: it has not happened"
}

all '' 0 ''
right=$digest
[ -n "$right" ] || fail 'no digest' err.0

# Alone: nobody makes a step again.
for deaths in 0@step:5:109 2@reduced:7:109 1@committed:7:109 0@step:5:109,0@step:9:109; do all $deaths 0 ''; done
# With a rank, before one, after one has been replaced.
for deaths in 1@step:5:109,1@step:5:9 0@step:5:109,1@step:9:9 1@step:5:9,0@step:12:109; do all $deaths 1 1; done
# At each point of a repair.
for point in 0@halted 2@halted 1@start 1@joined 0@mended 1@mended 2@mended 0@given 1@given 2@given 0@taken 1@taken 2@taken; do
    all 1@step:5:9,$point:1:109 1 1
done
# Once a rank has heard that the world is whole: it begins a step, and again if another one has not heard it.
for point in 0@whole 1@whole 2@whole 1@step; do all 1@step:5:9,$point:1:109 2 1; done
# Twice; and with another rank.
all 1@step:5:9,0@halted:1:109,0@given:1:109 1 1
all 1@step:5:9,1@taken:1:109,1@taken:2:109,1@whole:3:109 2 1
all 1@step:5:9,1@given:1:109,2@step:9:9 2 '1 2'
all 1@step:5:9,1@given:1:109,1@given:2:9 2 1
exit $failed
