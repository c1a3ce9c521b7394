#!/bin/sh
# `weft launch` on two hosts with a long and bad cable between them (weft-slow-link: two network namespaces, delay, loss,
# frames that overtake). Trainings take their time and give the losses of one process, to the bit, with and without TLS;
# nobody is given up for slowness; ranks agree to stop. While the cable is cut for less than the heartbeat time they wait; when
# it stays cut, each rank ends within that time and two seconds, and names who is out of reach. Nothing is left behind.
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../cli/run.inc
. "$here/../cli/run.inc"
# shellcheck source=hosts.inc
. "$here/hosts.inc"
seed=${WEFT_TEST_SEED:-$(($(date +%s) % 100000))}
echo "seed $seed (WEFT_TEST_SEED=$seed repeats it)"
# lay OPTIONS...: the cable
lay() {
    "$WEFT_BUILD_DIR/weft-slow-link" $a 10.97.0.1 $b 10.97.0.2 "seed=$seed" "$@" >carried 2>&1 &
    cable=$!
    for _ in $(seq 600); do
        grep -qs '^cable\|SKIP' carried && break
        kill -0 $cable 2>/dev/null || break
        sleep 0.1
    done
    if ! grep -q '^cable' carried; then
        cat carried
        cable=
        grep -q SKIP carried && exit 77
        exit 1
    fi
}
# take_up: the cable, which must have lost something; else all was in vain.
take_up() {
    kill $cable && wait $cable
    cable=
    cat carried
    grep -q 'carried [1-9][0-9]*, lost [1-9]' carried || fail 'the cable was a good one'
}
train='train.steps=4 train.eval_every=0'
# shellcheck disable=SC2086
"$weft" train job.yaml $train --devices 4 --json >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone
[ "$(wc -l <alone)" = 4 ] || fail 'losses of four devices:' alone.json
# as_alone NAME
as_alone() {
    [ $code0$code1 = 00 ] || fail "$1: exit $code0 and $code1:" "$1.0"
    losses "$1.0" | cmp -s - alone && return
    fail "$1: other losses than in one process:" "$1.0"
    cat "$1.1"
}

lay delay=15 jitter=5 loss=1.5 reorder=1
# shellcheck disable=SC2086
begin slow --no-logs -- "$weft" train job.yaml $train --json
end
as_alone slow

# A short cut in the middle of a step.
# shellcheck disable=SC2086
begin mended --no-logs --tls --heartbeat 16 -- "$weft" train job.yaml $train --json
wait_for '"step": 1' mended.0
kill -USR1 $cable
sleep 3
kill -USR2 $cable
end
as_alone mended
grep -q '^mended' carried || fail 'it was not cut:' carried

# One rank is asked to stop: those of both hosts agree to it.
# shellcheck disable=SC2086
begin asked --no-logs -- "$weft" train job.yaml $long --json
wait_for '"step": 1' asked.0
for process in $(ip netns pids $b); do
    tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx WEFT_RANK=3 && kill -TERM "$process"
done
end
[ $code0$code1 = 143143 ] || fail "asked to stop: exit $code0 and $code1:" asked.0
grep -q '"stopped": true' asked.0 || fail 'rank 0 did not agree to stop:' asked.0

# The cable is cut and stays so. No time is given but that of heartbeats.
# shellcheck disable=SC2086
begin cut --no-logs --tail all --heartbeat 8 -- "$weft" train job.yaml $long
wait_for 'step 1/' cut.0
# Three connections of the second host to the scheduler: those of its ranks, and that of its launcher.
for _ in $(seq 600); do
    [ "$(ip netns exec $b cat /proc/net/tcp | awk '$3 ~ /:2328$/ && $4 == "01"' | wc -l)" -ge 3 ] && break
    sleep 0.1
done
sleep 5 # both launchers have found the scheduler by then; one that has not would look for it as long as it may take to join
kill -USR1 $cable
end
[ $code0$code1 = 7575 ] || fail "after a cut: exit $code0 and $code1:" cut.0
for rank in 0 1; do
    grep -Eq "^\[rank $rank\] .*rank [23] \(process [0-9]+ on host 1\) (.* heard of|died)" cut.0 ||
        fail "rank $rank does not say whom it has lost:" cut.0
done
for rank in 2 3; do
    grep -Eq "^\[rank $rank\] .*scheduler at 10.97.0.1:9000, .*heard of" cut.1 ||
        fail "rank $rank does not say what it has lost:" cut.1
    grep -Eq "^\[rank $rank\] .*; ranks 0-1 \(host 0\)" cut.1 ||
        fail "rank $rank does not say whom it has lost:" cut.1
done
take_up
exit $failed
