#!/bin/sh
# `weft launch` on two hosts whose network is not ready when it starts: an interface that has just come up, one that comes
# late, late addresses, IPv6 addresses that are still being checked. Each job waits and ends well. Needs root and iproute2.
# shellcheck source=../cli/run.inc
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/run.inc"
# shellcheck source=hosts.inc
. "$here/hosts.inc"
make_link() {
    ip link add veth0 netns $a type veth peer name veth0 netns $b || exit 1
}
add_addresses() { # the first numbers of the network, its width
    ip -n $a addr add "${1}1/$2" dev veth0 && ip -n $b addr add "${1}2/$2" dev veth0 || exit 1
}
set_up() {
    for host in $a $b; do ip -n $host link set veth0 up || exit 1; done
}
both_run() { # waits until both launchers run
    for host in $a $b; do
        for _ in $(seq 600); do
            ip netns pids $host | grep -q . && break
            sleep 0.05
        done
    done
}
check() { # NAME
    end
    [ $code0$code1 = 00 ] || { fail "$1: exit $code0 and $code1:" "$1.0"; cat "$1.1"; }
    ip -n $a link del veth0
}
options='--no-logs --timeout 60'
# shellcheck disable=SC2086
start() { # NAME more options
    name=$1
    shift
    begin "$name" $options "$@" -- "$weft" train job.yaml
    both_run
}

make_link && add_addresses 10.97.0. 24 && set_up
start young
check young

start late
make_link && add_addresses 10.97.0. 24 && set_up
check late

make_link && set_up
start address
add_addresses 10.97.0. 24
check address

make_link && add_addresses 10.97.0. 24
start down
set_up
check down

start name --interface veth0
make_link && add_addresses 10.97.0. 24 && set_up
check name

scheduler='[fd97::1]:9000'
make_link && add_addresses fd97:: 64 && set_up
start checked
check checked

# A mistake in an interface's name does not take all the time for joining.
launch $a 0 --no-logs --timeout 600 --interface eht0 -- "$weft" train job.yaml >mistake 2>&1 && fail 'an interface that is not there:' mistake
grep -q eht0 mistake || fail 'the interface is not named:' mistake
exit $failed
