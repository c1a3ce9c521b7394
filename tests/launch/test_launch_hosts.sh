#!/bin/sh
# `weft launch` on two hosts that are two network namespaces of this machine with a cable between them: losses are
# those of as many devices in one process, to the bit, with and without TLS; a cable that is pulled is told on both
# hosts. Needs root and iproute2.
# shellcheck source=../cli/run.inc
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/run.inc"
# shellcheck source=hosts.inc
. "$here/hosts.inc"
ip link add veth0 netns $a type veth peer name veth0 netns $b &&
    ip -n $a addr add 10.97.0.1/24 dev veth0 && ip -n $b addr add 10.97.0.2/24 dev veth0 || exit 1
for host in $a $b; do ip -n $host link set veth0 up || exit 1; done
for host in $a $b; do
    for _ in $(seq 600); do
        ip -n $host link show veth0 | grep -q 'state UP' && break
        sleep 0.1
    done
done

"$weft" train job.yaml --devices 4 --json >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone
[ -s alone ] || fail 'no losses of four devices'
for way in plain tls mac tls_alone ucx; do # plain and tls: also shared memory, within a host
    options=
    unset WEFT_COMM WEFT_STREAMS
    case $way in
    tls) options=--tls ;;
    mac) export WEFT_COMM=mac WEFT_STREAMS=3 ;;
    tls_alone) export WEFT_COMM=tls WEFT_STREAMS=2 ;;
    ucx) has UCX || continue; export WEFT_COMM=ucx ;;
    esac
    # shellcheck disable=SC2086
    begin $way $options -- "$weft" train job.yaml --json
    end
    [ $code0$code1 = 00 ] || fail "$way: exit $code0 and $code1:" $way.0
    losses $way.0 | cmp -s - alone || fail "$way: other losses than in one process:" $way.0
    # A carrier that anybody may join is told.
    grep -q 'UCX.*trusted' $way.0 && told=ucx || told=
    [ "$told" = "$([ $way = ucx ] && echo ucx)" ] || fail "$way: UCX told: '$told'" $way.0
done
unset WEFT_COMM WEFT_STREAMS
grep -q 'scheduler at 10.97.0.1:9000' plain.0 || fail 'another scheduler:' plain.0

# One host wants TLS, the other does not: both are told, nothing is trained.
launch $b 1 --no-logs -- "$weft" train job.yaml >unlike.1 2>&1 &
second=$!
launch $a 0 --no-logs --tls --timeout 8 -- "$weft" train job.yaml >unlike.0 2>&1 && fail 'TLS on one host alone:' unlike.0
wait $second && fail 'TLS on the other host alone:' unlike.1
has_facts unlike.1 'wants TLS|WEFT_TLS is not 1' || fail 'unlike settings are not told:' unlike.1

# The cable is pulled: each side says that it hears nothing of the other.
# shellcheck disable=SC2086
begin pulled --no-logs --tail all --heartbeat 3 --timeout 5 -- "$weft" train job.yaml $long
wait_for 'step 1/' pulled.0
ip -n $a link set veth0 down
end
[ $code0$code1 = 7575 ] || fail "a cable that was pulled: exit $code0 and $code1:" pulled.0
grep -Eq 'rank [23] .*(heard of|died)' pulled.0 || fail 'host 0 does not say whom it has lost:' pulled.0
grep -Eq 'rank [23]: .*(lost the scheduler|heard of|died)' pulled.1 || fail 'host 1 does not say what it has lost:' pulled.1
exit $failed
