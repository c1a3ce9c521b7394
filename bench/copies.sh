#!/bin/sh
# What copies gain on a slow link: two network namespaces as two hosts with a cable between them that brings everything
# late (weft-slow-link), which train a GPT whose cells are split over both. In turns: two copies that wait for their
# transfers (parallel.overlap=false), and two copies of which one computes meanwhile. Needs root, iproute2 and UCX.
#
#   bench/copies.sh [BUILD FOLDER [MILLISECONDS OF DELAY, ONE WAY [TURNS]]]
#
# Prints the milliseconds of a step, median of each turn's steps, and their ratio; last the median of the ratios.
set -eu
build=$(realpath "${1:-build}")
delay=${2:-2}
turns=${3:-5}
weft=$build/weft
a=weft-a-$$ b=weft-b-$$
cable=
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
export HOME
clean() {
    [ -z "$cable" ] || kill "$cable" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 1' INT TERM
ip netns add "$a"
ip netns add "$b"
ip -n "$a" link set lo up
ip -n "$b" link set lo up
"$build/weft-slow-link" "$a" 10.98.0.1 "$b" 10.98.0.2 "delay=$delay" >"$folder/carried" 2>&1 &
cable=$!
until grep -qs "^cable" "$folder/carried"; do
    kill -0 "$cable" 2>/dev/null || { cat "$folder/carried" >&2; exit 1; }
    sleep 0.1
done
cat /usr/include/*.h | head -c 2000000 >"$folder/text"
cat >"$folder/job.yaml" <<EOF
model: {family: gpt2, layers: 6, hidden: 384, heads: 6, context: 64}
data: {path: $folder/text}
train: {steps: 20, batch: 4, seed: 1, eval_every: 0}
device: {threads: 1}
checkpoint: {every: 0}
parallel:
  devices: 2
  mesh: {tp: 2}
  copies: 2
  strategies:
    - {match: "h.*.attn.c_attn:linear", split: {n1: tp}}
    - {match: "h.*.mlp.c_fc:linear", split: {n0: tp}}
EOF
port=23100
# host NAMESPACE NUMBER KEY=VALUE..
host() {
    space=$1 number=$2
    shift 2
    ip netns exec "$space" "$weft" launch --hosts 2 --host-rank "$number" --scheduler 10.98.0.1:$port -n 1 --no-logs \
        -- "$weft" train "$folder/job.yaml" "$@" --json
}
# The median milliseconds of the steps after the third.
step() {
    port=$((port + 1))
    host "$b" 1 "$@" >/dev/null 2>"$folder/err-b" &
    other=$!
    host "$a" 0 "$@" >"$folder/out" 2>"$folder/err-a" || cat "$folder/err-a" >&2
    wait $other
    sed -n 's/.*"step": \([0-9]*\),.*"tokens_per_second": \([0-9.]*\).*/\1 \2/p' "$folder/out" |
        awk '$1 > 3 {print 4 * 64 / $2 * 1000}' | sort -n | awk '{x[NR] = $1} END {print x[int((NR + 1) / 2)]}'
}
turn=0
while [ "$turn" -lt "$turns" ]; do
    waits=$(step checkpoint.dir="$folder/waits-$turn" parallel.overlap=false)
    takes=$(step checkpoint.dir="$folder/takes-$turn" parallel.overlap=true)
    echo "$waits $takes" | awk '{printf "waits %.1f ms, takes turns %.1f ms: %.2f\n", $1, $2, $2 / $1}'
    turn=$((turn + 1))
done | tee "$folder/all"
awk '{print $NF}' "$folder/all" | sort -n | awk '{x[NR] = $1} END {print "median", x[int((NR + 1) / 2)]}'
