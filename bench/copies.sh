#!/bin/sh
# What copies gain on a slow link: two network namespaces as two hosts with a cable between them that brings everything
# late (weft-slow-link), which train a GPT whose cells are split over both. In turns: two copies that wait for their
# transfers (parallel.overlap=false), and two copies of which one computes meanwhile. Needs root, iproute2 and UCX.
#
#   bench/copies.sh [BUILD FOLDER [MILLISECONDS OF DELAY, ONE WAY [TURNS]]]
#
# Prints the milliseconds of a step, median of each turn's steps, and their ratio; last the median of the ratios.
set -eu
here=$(dirname "$(realpath "$0")")
build=$(realpath "${1:-build}")
delay=${2:-2}
turns=${3:-5}
weft=$build/weft
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
export HOME
. "$here/hosts.inc"
trap 'hosts_close; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
hosts_open 0 "$delay" || { echo "SKIP: two network namespaces with a cable between them cannot be made" >&2; exit 77; }
cat /usr/include/*.h | head -c 2000000 >text
cat >job.yaml <<EOF
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
# The median milliseconds of the steps after the third.
step() {
    on_hosts 1 "$weft" train job.yaml "$@" --json >out 2>err-a || cat err-a >&2
    sed -n 's/.*"step": \([0-9]*\),.*"tokens_per_second": \([0-9.]*\).*/\1 \2/p' out |
        awk '$1 > 3 {print 4 * 64 / $2 * 1000}' | middle
}
turn=0
while [ "$turn" -lt "$turns" ]; do
    waits=$(step "checkpoint.dir=$folder/waits-$turn" parallel.overlap=false)
    takes=$(step "checkpoint.dir=$folder/takes-$turn" parallel.overlap=true)
    echo "$waits $takes" | awk '{printf "waits %.1f ms, takes turns %.1f ms: %.2f\n", $1, $2, $2 / $1}'
    turn=$((turn + 1))
done | tee all
awk '{print $NF}' all | middle | awk '{print "median", $1}'
