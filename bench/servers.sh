#!/bin/sh
# GPT-2 124M in f32, 4 x 256 tokens a step, by two processes with one thread each: with all-reduces, and with two servers
# on the same host that keep all parameters. In turns.
#
#   bench/servers.sh [BUILD FOLDER [TURNS [STEPS]]]
#
# Prints the tokens per second of both, median of each turn's steps after the second, and their ratio; last the median of
# the ratios.
set -eu
build=$(realpath "${1:-build}")
turns=${2:-5}
steps=${3:-7}
weft=$build/weft
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
cat /usr/include/*.h | head -c 2000000 >text
cat >job.yaml <<EOF
model: {family: gpt2, layers: 12, hidden: 768, heads: 12, context: 256, vocab: 50257}
data: {path: $folder/text, tokenizer: bytes}
train: {steps: $steps, batch: 4, seed: 1, eval_every: 0}
device: {threads: 1}
checkpoint: {every: 0}
EOF
middle() {
    sort -n | awk '{x[NR] = $1} END {print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2}'
}
# The median tokens per second of the steps after the second.
speed() { # [OPTIONS OF weft launch]
    words=
    [ $# -gt 0 ] && words='parallel.server=[{match: "*"}]'
    "$weft" launch -n 2 --no-logs "$@" -- "$weft" train job.yaml ${words:+"$words"} --json >out 2>err || cat err >&2
    sed -n 's/.*"step": \([0-9]*\),.*"tokens_per_second": \([0-9.]*\).*/\1 \2/p' out | awk '$1 > 2 {print $2}' | middle
}
turn=0
while [ "$turn" -lt "$turns" ]; do
    reduces=$(speed)
    serves=$(speed --servers 2)
    echo "$reduces $serves" | awk '{printf "all-reduces %.1f, servers %.1f tokens/s: %.3f\n", $1, $2, $2 / $1}'
    turn=$((turn + 1))
done | tee all
sed 's/.*: //' all | middle
