#!/bin/sh
# One request to stop ends a rank that waits for a rank that never answers. The other rank is stopped (SIGSTOP), and the limits
# of heartbeats and waits are far away, so nothing else could end the wait.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck disable=SC2016 # the ranks expand these
WEFT_HEARTBEAT_SECONDS=600 WEFT_WAIT_SECONDS=600 "$weft" launch -n 2 --logs logs --grace 1 -- \
    sh -c 'echo $$ >pid.$WEFT_RANK; "$@" & train=$!
           trap "kill -TERM $train" TERM
           echo $train >train.$WEFT_RANK
           while :; do wait $train; code=$?; kill -0 $train 2>/dev/null || break; done
           echo $code >code.$WEFT_RANK; exit $code' sh \
    "$weft" train job.yaml train.steps=100000000 --json >launch.out 2>launch.err &
launch=$!
# until 'COMMAND': a minute at most
until_true() {
    for _ in $(seq 600); do
        eval "$1" && return
        sleep 0.1
    done
    fail "never: $1" launch.err
    kill -KILL "$(cat train.0)" "$(cat train.1)" 2>/dev/null
    kill $launch
    exit 1
}
until_true 'grep -qs "\"step\": 20," logs/rank-0.log'
kill -STOP "$(cat train.1)"
# shellcheck disable=SC2016
until_true '[ "$(tail -n 1 logs/rank-0.log)" = "$(sleep 1; tail -n 1 logs/rank-0.log)" ]'
kill -TERM "$(cat train.0)"
until_true '[ -s code.0 ]'
[ "$(cat code.0)" = 143 ] || fail "rank 0 ended with $(cat code.0), not 143" launch.err
wait $launch
[ $? = 143 ] || fail "the launcher's exit code is not 143" launch.err
exit $failed
