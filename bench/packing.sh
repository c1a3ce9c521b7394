#!/bin/sh
# What it gains that small tensors share a message: two network namespaces as two hosts with a cable between them that
# brings everything late (weft-slow-link), which train a GPT of 6 layers and width 128. In turns: each fusion of a level
# as it is (auto), and without it (none). Needs root, iproute2, UCX and python3.
#
#   bench/packing.sh [BUILD FOLDER [MILLISECONDS OF DELAY, ONE WAY [TURNS [LEVELS]]]]
#
# Prints the milliseconds of a step, median of each turn's steps after the eighth.
set -eu
here=$(dirname "$(realpath "$0")")
build=$(realpath "${1:-build}")
delay=${2:-0.2}
turns=${3:-4}
levels=${4:-0 1 2 3}
weft=$build/weft
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
export HOME
. "$here/hosts.inc"
trap 'hosts_close; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
hosts_open 10000 "$delay" || { echo "SKIP: two network namespaces with a cable between them cannot be made" >&2; exit 77; }
seq 1 200000 >text
cat >job.yaml <<EOF
model: {family: gpt2, layers: 6, hidden: 128, heads: 4, context: 32, vocab: 256}
data: {path: $folder/text, tokenizer: bytes}
train: {steps: 30, batch: 2, seed: 1, eval_every: 0}
device: {threads: 1}
parallel: {devices: 2}
EOF
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
            auto=$(step_ms 8 "parallel.optimizer.level=$level")
            none=$(step_ms 8 "parallel.optimizer.level=$level" "parallel.fusion.$fusion.mode=none")
            echo "$level $fusion $auto $none"
        done
    done
done
