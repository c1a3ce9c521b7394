#!/bin/sh
# Two network namespaces, joined by a veth pair, as two hosts: what iperf3 moves between them, and what bench/rounds
# does, in turns. iperf3 sends one small buffer again and again, which stays in a cache, and, as
# "file", 1 GiB from a file in memory, which it copies into that buffer first. Needs root, iproute2 and iperf3.
#
#   bench/peers/between_hosts.sh [PATH OF bench/rounds [TURNS]]
set -eu
rounds=${1:-build/bench/rounds}
turns=${2:-3}
a=weft-a-$$ b=weft-b-$$
server=
data=$(mktemp -p /dev/shm 2>/dev/null || mktemp)
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -f "$data"
}
trap clean EXIT INT TERM
ip netns add "$a"
ip netns add "$b"
ip link add veth0 netns "$a" type veth peer name veth0 netns "$b"
ip -n "$a" addr add 10.99.0.1/24 dev veth0
ip -n "$b" addr add 10.99.0.2/24 dev veth0
for n in "$a" "$b"; do
    ip -n "$n" link set lo up
    ip -n "$n" link set veth0 up
done
ip netns exec "$b" iperf3 -s >/dev/null 2>&1 &
server=$!
head -c 1073741824 /dev/zero >"$data"
until [ "$(ip netns exec "$a" cat /sys/class/net/veth0/operstate)" = up ]; do sleep 0.1; done
sleep 1
iperf() {
    name=$1
    shift
    ip netns exec "$a" iperf3 -c 10.99.0.2 -t 3 -f g "$@" | awk -v name="$name" '/receiver/ {print name, $7, $8}'
}
turn=0
while [ $turn -lt "$turns" ]; do
    iperf "iperf3"
    iperf "iperf3 file" -F "$data"
    "$rounds" --hosts "$a:veth0,$b:veth0" --bytes 1048576 67108864 --seconds 1
    turn=$((turn + 1))
done
"$rounds" --hosts "$a:veth0,$b:veth0" --bytes 8 67108864 --seconds 0.5
