#!/bin/sh
# Two network namespaces, joined by a veth pair, as two hosts: what iperf3 moves between them, and what bench/rounds
# does, in turns. Needs root, iproute2 and iperf3.
#
#   bench/peers/between_hosts.sh [PATH OF bench/rounds [TURNS]]
set -eu
rounds=${1:-build/bench/rounds}
turns=${2:-3}
a=weft-a-$$ b=weft-b-$$
server=
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
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
sleep 1
turn=0
while [ $turn -lt "$turns" ]; do
    ip netns exec "$a" iperf3 -c 10.99.0.2 -t 3 -f g | awk '/receiver/ {print "iperf3", $7, $8}'
    "$rounds" --hosts "$a:veth0,$b:veth0" --bytes 1048576 67108864 --seconds 1
    turn=$((turn + 1))
done
"$rounds" --hosts "$a:veth0,$b:veth0" --bytes 8 67108864 --seconds 0.5
