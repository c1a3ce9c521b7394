#!/bin/sh
# A standby scheduler on several hosts, which are network namespaces: two hosts of two ranks each, and a third one for the
# scheduler. If the scheduler is killed, or its network is cut, the standby on another host takes over, and the losses are
# those of an undisturbed run. If the two hosts lose each other, no scheduler goes on with the half that it has, and all ends
# with 75. Needs root and iproute2.
# shellcheck source=../cli/run.inc
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/run.inc"
# shellcheck source=hosts.inc
. "$here/hosts.inc"
c=weft-lc-$$
trap 'ip netns del $a; ip netns del $b; ip netns del $c 2>/dev/null; rm -rf "$work"' EXIT
three_hosts $c || exit 1
steps='train.steps=2000 train.eval_every=0'
mkdir .weft && head -c 32 /dev/urandom | base64 >.weft/secret && chmod 600 .weft/secret || exit 1

# alone HOST ROLE OPTIONS...: a scheduler that runs alone there
alone() {
    host=$1 role=$2
    shift 2
    ip netns exec $host timeout -k 10 900 "$weft" launch --$role-only --hosts 2 -n 2 "$@" >"$name.$role" 2>&1 &
}
scheduler_in() { # HOST: its process; `ip` and `timeout` have the same words
    for place in $(ip netns pids "$1"); do
        [ "$(cat "/proc/$place/comm")" = weft ] && grep -qzx -- --scheduler-only "/proc/$place/cmdline" && echo "$place" && return
    done
    fail "$name: no scheduler in $1"
}
# three NAME OPTIONS...: the scheduler on the third host, the standby on the second one
three() {
    name=$1 scheduler=10.97.0.3:9000
    shift
    addresses="--scheduler $scheduler --standby 10.97.0.2:9001 --heartbeat 3 $*"
    # shellcheck disable=SC2086
    {
        alone $b standby $addresses
        standby=$!
        alone $c scheduler $addresses
        only=$!
        begin "$name" --standby 10.97.0.2:9001 --no-scheduler --heartbeat 3 "$@" -- "$weft" train job.yaml --json $steps
    }
}
three_end() {
    wait $standby || fail "$name: the standby ends badly" "$name.standby"
    wait $only
    only=$?
    end
    [ "$code0 $code1" = '0 0' ] || fail "$name: exit $code0 and $code1" "$name.0"
    losses "$name.0" | cmp -s - alone || fail "$name: other losses than in one process:" "$name.0"
    grep -q 'job now' "$name.standby" || fail "$name: the standby has not taken over" "$name.standby"
}

# shellcheck disable=SC2086
"$weft" train job.yaml --devices 4 --json $steps >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone
[ -s alone ] || fail 'no losses of four devices'

three killed
wait_for '"step": 100,' killed.0
kill -9 "$(scheduler_in $c)"
three_end

# Its network is cut. It misses all ranks, and ends its part of the job.
steps='train.steps=6000 train.eval_every=0'
# shellcheck disable=SC2086
"$weft" train job.yaml --devices 4 --json $steps >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone
three cut --tls
wait_for '"step": 100,' cut.0
ip -n $a link set p3 down
wait_for 'has the job now' cut.standby
three_end
[ $only = 75 ] || fail "$name: the scheduler that was cut off ends with $only" cut.scheduler
grep -q 'other scheduler' cut.scheduler || fail "$name: the scheduler that was cut off names another reason" cut.scheduler
ip -n $a link set p3 up

# The scheduler is in the launcher of the first host, the standby in that of the second one, which are cut from each other:
# neither goes on alone, since the half without rank 0 is too small, and the other one has lost ranks that are not started again.
scheduler=10.97.0.1:9000
# shellcheck disable=SC2086
begin halves --standby 10.97.0.2:9001 --heartbeat 3 --timeout 8 -- "$weft" train job.yaml --json $long
wait_for '"step": 100,' halves.0
ip netns pids $b | while read -r place; do cat "/proc/$place/net/tcp" 2>/dev/null; break; done | grep -q ' 0200610A:2329 00000000:0000 0A' ||
    fail 'the second launcher runs no standby' halves.1
ip -n $a link set p2 down
end
[ "$code0 $code1" = '75 75' ] || fail "$name: exit $code0 and $code1" "$name.0"
exit $failed
