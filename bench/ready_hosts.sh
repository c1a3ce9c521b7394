#!/bin/sh
# What it costs between hosts to be ready for the death of a rank: two network namespaces as two hosts, with nothing between
# them but a veth pair. A GPT of 4 layers and width 768 trains on one rank of each. In turns: a step with clipping only, and one
# with recovery and buddies, whose copies the other host keeps. Needs root and iproute2.
#
#   bench/ready_hosts.sh [BUILD FOLDER [TURNS [LEVELS [SEQUENCES OF A STEP]]]]
#
# Prints the milliseconds of a step of each turn, median of the steps after the fourth, and the median of the turns' ratios.
set -eu
here=$(dirname "$(realpath "$0")")
build=$(realpath "${1:-build}")
turns=${2:-3}
levels=${3:-2 3}
batch=${4:-4}
weft=$build/weft
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
export HOME
. "$here/hosts.inc"
trap 'hosts_close; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
hosts_open_bare || { echo "SKIP: two network namespaces with a veth pair cannot be made" >&2; exit 77; }
seq 1 400000 >text
cat >job.yaml <<END
model: {family: gpt2, layers: 4, hidden: 768, heads: 12, context: 256, vocab: 16384}
data: {path: $folder/text, tokenizer: bytes}
train: {steps: 12, batch: $batch, seed: 1, eval_every: 0}
device: {threads: 1}
parallel: {devices: 2}
END
for level in $levels; do
    for _ in $(seq "$turns"); do
        clipping=$(step_ms 4 "parallel.optimizer.level=$level")
        ready=$(step_ms 4 "parallel.optimizer.level=$level" recovery.enabled=true recovery.buddy=1)
        echo "level $level: clipping $clipping ms, ready $ready ms"
        echo "$clipping $ready" >>"ratios-$level"
    done
    echo "level $level: $(awk '{ print 100 * ($2 / $1 - 1) }' "ratios-$level" | middle) %"
done
