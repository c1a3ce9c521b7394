#!/bin/sh
# What it gains that small tensors share a message: two network namespaces as two hosts with a cable between them that
# brings everything late (weft-slow-link), which train a GPT of 6 layers and width 128. In turns: each fusion of a level
# as it is (auto), and without it (none). Needs root, iproute2, UCX and python3.
#
#   bench/packing.sh [BUILD FOLDER [MILLISECONDS OF DELAY, ONE WAY [TURNS [LEVELS]]]]
#
# Prints the milliseconds of a step, median of each turn's steps after the eighth.
set -eu
build=$(realpath "${1:-build}")
delay=${2:-0.2}
turns=${3:-4}
levels=${4:-0 1 2 3}
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
"$build/weft-slow-link" "$a" 10.98.0.1 "$b" 10.98.0.2 "delay=$delay" rate=10000 mtu=9000 >"$folder/carried" 2>&1 &
cable=$!
until grep -qs "^cable" "$folder/carried"; do
    kill -0 "$cable" 2>/dev/null || { cat "$folder/carried" >&2; exit 1; }
    sleep 0.1
done
seq 1 200000 >"$folder/text"
cat >"$folder/job.yaml" <<EOF
model: {family: gpt2, layers: 6, hidden: 128, heads: 4, context: 32, vocab: 256}
data: {path: $folder/text, tokenizer: bytes}
train: {steps: 30, batch: 2, seed: 1, eval_every: 0}
device: {threads: 1}
parallel: {devices: 2}
EOF
port=24100
# host NAMESPACE NUMBER ARGUMENT..
host() {
    space=$1 number=$2
    shift 2
    ip netns exec "$space" "$weft" launch --hosts 2 --host-rank "$number" --scheduler 10.98.0.1:$port -n 1 --no-logs \
        -- "$weft" train "$folder/job.yaml" "$@"
}
step() {
    port=$((port + 1))
    host "$b" 1 "$@" >/dev/null 2>&1 &
    other=$!
    host "$a" 0 "$@" "train.log=$folder/log.jsonl" >/dev/null 2>"$folder/error" || cat "$folder/error" >&2
    wait "$other" || true
    python3 - "$folder/log.jsonl" <<EOF
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
print("%.1f" % (1e3 * statistics.median(x["seconds"] for x in lines if "loss" in x and x["step"] > 8)))
EOF
    rm -f "$folder/log.jsonl"
}
echo "level fusion auto none"
for level in $levels; do
    case $level in
    0) fusions=allreduce ;;
    1) fusions="reducescatter allgather" ;;
    2) fusions="reducescatter allgather" ;;
    *) fusions=allgather ;;
    esac
    for fusion in $fusions; do
        for _ in $(seq "$turns"); do
            auto=$(step "parallel.optimizer.level=$level")
            none=$(step "parallel.optimizer.level=$level" "parallel.fusion.$fusion.mode=none")
            echo "$level $fusion $auto $none"
        done
    done
done
