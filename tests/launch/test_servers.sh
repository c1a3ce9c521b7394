#!/bin/sh
# Servers of parameters as processes: `weft launch --servers`, and `weft server` with WEFT_SERVERS. Losses are those of
# devices without servers, to the bit, with and without TLS; steps on files are too. A server or a rank that is killed is
# told, and servers that were started by hand go on for the next run.
# shellcheck source=../cli/run.inc
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/run.inc"
if ! "$weft" info --quick 2>/dev/null | grep -q '^ *OpenSSL *built in'; then
    echo 'SKIP: no OpenSSL, without which processes do not talk'
    exit 77
fi
HOME=$work
export HOME
servers=
trap 'for p in $servers; do kill -9 $p 2>/dev/null; done; rm -rf "$work"' EXIT
losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$@"
}
wait_for() { # TEXT FILE
    for _ in $(seq 600); do
        grep -qs -- "$1" "$2" && return
        sleep 0.1
    done
    fail "'$1' does not come:" "$2"
}
all='parallel.server=[{match: "*"}]' some='parallel.server=[{match: "h.*"}, {match: wte.weight}]'
mesh='parallel.mesh={dp: 2, tp: 2}' split='parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: {n0: tp}}]'
constant='train.schedule={name: constant, warmup: 0}'
long='train.steps=1000000 train.eval_every=0'

"$weft" train job.yaml --devices 4 "$mesh" "$split" train.clip=0.5 --json >clipped 2>&1
losses clipped >expected
[ -s expected ] || fail 'no losses of four devices:' clipped
for way in 1 3 '2 --tls'; do
    [ "$way" = 3 ] && rules=$some || rules=$all
    # shellcheck disable=SC2086
    "$weft" launch -n 4 --servers $way --no-logs -- "$weft" train job.yaml "$mesh" "$split" "$rules" train.clip=0.5 \
        --json >way 2>&1 || fail "servers $way:" way
    losses way | cmp -s - expected || fail "servers $way: other losses than without:" way
done

# MindSpore's 17 (a): two servers and three workers with a third of the batch each, against one device with all of it; and
# the documented number of servers and workers.
"$weft" train job.yaml train.batch=24 train.steps=20 --json >serial 2>&1
for way in '3 2' '8 8'; do
    # shellcheck disable=SC2086
    set -- $way
    "$weft" launch -n "$1" --servers "$2" --no-logs -- "$weft" train job.yaml "$all" train.batch=24 train.steps=20 --json >way 2>&1 ||
        fail "$1 workers and $2 servers:" way
    losses serial >a && losses way >b && paste -d' ' a b >both
    awk '{d = $2 - $4; if ($1 != $3 || d > 1e-4 || d < -1e-4) bad = 1} END {exit bad || NR != 20}' both ||
        fail "$1 workers and $2 servers: other losses than one device with the whole batch:" both
done

# Steps on files: what servers had, devices load.
"$weft" launch -n 2 --servers 2 --no-logs -- "$weft" train job.yaml "$all" checkpoint.dir=run "$constant" \
    train.steps=6 >save 2>&1 || fail 'saving with servers:' save
"$weft" train job.yaml --devices 2 "$constant" --json >whole 2>&1
"$weft" train job.yaml --devices 2 checkpoint.dir=run "$constant" --json >later 2>&1 || fail 'resuming without servers:' later
losses whole | sed -n '7,$p' >expected
losses later | cmp -s - expected || fail 'other losses after a resume without servers:' later

# Without servers, and with words that make no sense.
"$weft" launch -n 2 --no-logs -- "$weft" train job.yaml "$all" >none 2>&1 && fail 'no servers:' none
has_facts none 'parallel.server|WEFT_SERVERS' || fail 'missing servers are not told:' none
expect 2 '64' launch -n 2 --servers 65 -- true
expect 1 'WEFT_SERVERS|--listen' launch -n 2 --servers 2 --hosts 2 --host-rank 0 --scheduler 127.0.0.1:9000 -- true
expect 2 '64' server --number 64
expect 1 '--listen' server --listen 127.0.0.1:port
expect 1 '192.0.2.1' server --listen 192.0.2.1:9100
expect 1 '8GiB' server --memory much
expect 1 "'0'|8GiB" server --memory 0

# What servers keep is told before: three times an f32 for AdamW, the sum, and a gradient of each device.
"$weft" model job.yaml --devices 2 "$all" train.clip=0 --json >model || fail 'a model with servers:' model
parameters=$(value parameter_bytes <model)
[ "$(value server_bytes <model)" = $((parameters * 6)) ] || fail 'other bytes on servers than six times the parameters:' model
[ "$(value server_moved_bytes <model)" = $((parameters * 2)) ] || fail 'other bytes to and from servers:' model
"$weft" simulate job.yaml --devices 2 "$all" --machine h100-80g --json >simulated || fail 'a simulation with servers:' simulated
[ "$(value server_bytes <simulated)" = $((parameters * 6)) ] || fail 'a simulation has other bytes on servers:' simulated

# By hand.
serve() { # NUMBER [OPTIONS]: its address in $address
    number=$1
    shift
    "$weft" server --json --number "$number" "$@" >"server.$number" 2>"server.$number.err" &
    server=$!
    servers="$servers $server"
    wait_for address "server.$number"
    address=$(sed -n 's/.*"address": "\([^"]*\)".*/\1/p' "server.$number")
}
serve 0
first=$address first_process=$server
serve 1
second=$address second_process=$server
export WEFT_SERVERS="$first,$second"
run() { # NAME WORDS...: a run of two ranks, by the servers
    name=$1
    shift
    "$weft" launch -n 2 --secret "$HOME/.weft/secret" --no-logs --timeout "${patience:-120}" -- "$weft" train job.yaml "$all" "$@" >"$name" 2>&1
}
"$weft" train job.yaml --devices 2 --json >two 2>&1
for n in 1 2; do
    run by_hand --json || fail "run $n by hand:" by_hand
    losses two >expected
    losses by_hand | cmp -s - expected || fail "run $n: other losses than without servers:" by_hand
done

# A rank is killed: the other one ends, and the servers go on.
# shellcheck disable=SC2086
run killed $long --json &
runs=$!
wait_for '"step": 3,' killed
for p in $(pgrep -f "$weft train job.yaml"); do
    tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx 'WEFT_RANK=1' && grep -qs "$work" "/proc/$p/environ" && kill -9 "$p"
done
wait $runs
[ $? = 75 ] || fail 'a rank that was killed:' killed
run again --json || fail 'a run after that:' again
losses again | cmp -s - expected || fail 'other losses after a rank was killed:' again

# A server is killed: the ranks name it.
# shellcheck disable=SC2086
run lost $long --json &
runs=$!
wait_for '"step": 3,' lost
kill -9 $second_process
wait $runs && fail 'a server that was killed:' lost
has_facts lost "server 1|$second" || fail 'the server that was killed is not named:' lost

# Too small: told before the first step, and room for others.
serve 1 --memory 40KiB
export WEFT_SERVERS="$first,$address"
run small --json && fail 'a server without the memory:' small
has_facts small 'needs|on server 1|left of 40.0 KiB' || fail 'the server without the memory is not told:' small
[ -z "$(losses small)" ] || fail 'steps before a server without the memory refuses:' small
kill $server
wait $server || fail 'a server without the memory does not end well:' server.1.err
export WEFT_SERVERS="$first,$second"

# Another secret, or nobody there.
patience=20
run dead && fail 'a server that is not there:' dead
has_facts dead "server 1|$second" || fail 'the server that is not there is not named:' dead
head -c 40 /dev/urandom | od -An -tx1 | tr -d ' \n' >other && chmod 600 other
serve 1 --secret other
export WEFT_SERVERS="$first,$address"
run strange && fail 'a server with another secret:' strange
has_facts strange "server 1|$address" || fail 'the server with another secret is not named:' strange

# It ends when it is asked to.
kill -TERM $first_process
wait $first_process || fail 'a server that was asked to end:' server.0.err
exit $failed
