#!/bin/sh
# `weft launch` on two hosts that are two network namespaces of this machine with a cable between them: losses are
# those of as many devices in one process, to the bit, with and without TLS; a rank that dies, and a cable that is
# pulled, are told on both hosts. Needs root and iproute2.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
a=weft-la-$$ b=weft-lb-$$
if [ "$(id -u)" != 0 ] || ! ip netns add $a 2>netns.err; then
    echo "SKIP: no network namespaces can be made here (root and iproute2): $(cat netns.err 2>/dev/null)"
    exit 77
fi
trap 'ip netns del $a; ip netns del $b 2>/dev/null; rm -rf "$work"' EXIT
ip netns add $b && ip link add veth0 netns $a type veth peer name veth0 netns $b &&
    ip -n $a addr add 10.97.0.1/24 dev veth0 && ip -n $b addr add 10.97.0.2/24 dev veth0 || exit 1
for host in $a $b; do
    ip -n $host link set lo up && ip -n $host link set veth0 up || exit 1
done
for host in $a $b; do
    for _ in $(seq 100); do
        ip -n $host link show veth0 | grep -q 'state UP' && break
        sleep 0.1
    done
done
if ! "$weft" info --quick 2>/dev/null | grep -qi ucx; then
    echo 'SKIP: no UCX, by which hosts talk'
    exit 77
fi
HOME=$work # the secret of both hosts
export HOME

losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$@"
}
# launch HOST NUMBER OPTIONS... -- JOB'S WORDS...: two ranks there
launch() {
    host=$1 number=$2
    shift 2
    ip netns exec $host timeout -k 10 150 "$weft" launch --hosts 2 --host-rank "$number" --scheduler 10.97.0.1:9000 -n 2 "$@"
}
# both NAME OPTIONS... -- COMMAND...: on both hosts; *.0 and *.1 are what they say.
both() {
    name=$1
    shift
    launch $b 1 --logs "$name.logs1" "$@" >"$name.1" 2>"$name.err1" &
    second=$!
    launch $a 0 --logs "$name.logs0" "$@" >"$name.0" 2>"$name.err0"
    code0=$?
    wait $second
    code1=$?
}

"$weft" train job.yaml --devices 4 --json >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone
[ -s alone ] || fail 'no losses of four devices'
for way in plain tls; do
    options=
    [ $way = tls ] && options=--tls
    # shellcheck disable=SC2086
    both $way $options -- "$weft" train job.yaml --json
    [ $code0$code1 = 00 ] || fail "$way: exit $code0 and $code1:" $way.err0
    losses $way.0 | cmp -s - alone || fail "$way: other losses than in one process:" $way.0
done
grep -q 'scheduler at 10.97.0.1:9000' plain.err0 || fail 'another scheduler:' plain.err0

# One host wants TLS, the other does not: both are told, nothing is trained.
launch $b 1 --no-logs -- "$weft" train job.yaml >unlike.1 2>&1 &
second=$!
launch $a 0 --no-logs --tls --timeout 8 -- "$weft" train job.yaml >unlike.0 2>&1 && fail 'TLS on one host alone:' unlike.0
wait $second && fail 'TLS on the other host alone:' unlike.1
grep -q 'the scheduler wants TLS, and here WEFT_TLS is not 1' unlike.1 || fail 'unlike settings are not told:' unlike.1

long='train.steps=1000000 train.eval_every=0'
# wait_for TEXT FILE: until the file has it.
wait_for() {
    for _ in $(seq 300); do
        grep -qs -- "$1" "$2" && return
        sleep 0.1
    done
    fail "'$1' did not come in $2" "$2"
}
# The cable is pulled: each side says that it hears nothing of the other.
# shellcheck disable=SC2086
launch $b 1 --no-logs --tail all --heartbeat 3 --timeout 5 -- "$weft" train job.yaml $long >pulled.1 2>&1 &
second=$!
# shellcheck disable=SC2086
launch $a 0 --no-logs --tail all --heartbeat 3 --timeout 5 -- "$weft" train job.yaml $long >pulled.0 2>&1 &
first=$!
wait_for 'step 1/' pulled.0
ip -n $a link set veth0 down
wait $first && fail 'a cable that was pulled ends the job:' pulled.0
wait $second && fail 'a cable that was pulled ends the job on the other host:' pulled.1
grep -Eq 'rank [23] .*(has not been heard of|died)' pulled.0 || fail 'host 0 does not say whom it has lost:' pulled.0
grep -Eq 'rank [23]: .*(lost the scheduler|has not been heard of|died)' pulled.1 || fail 'host 1 does not say what it has lost:' pulled.1
exit $failed
