#!/bin/sh
# How well reductions of gradients hide behind the backward pass on a slow link: two network namespaces as two hosts with
# a cable between them (weft-slow-link) of 1 Gbit/s that brings everything late. A GPT-2 trains on both, with data
# parallelism. In turns: a run that waits for each bucket (parallel.overlap=false), with a trace that tells how long
# forward, backward and communication take, and a run that overlaps. With PEER (the interpreter that bench/peers/setup.sh
# prints) in the environment, also PyTorch's DistributedDataParallel over gloo. Needs root, iproute2, UCX and python3. Use
# more cores than the ranks need, since the cable itself computes: frames of the usual 1500 bytes (MTU=1500) take it half a
# second in a second of traffic.
#
#   bench/slow_link.sh [BUILD FOLDER [TURNS [MILLISECONDS OF DELAY, ONE WAY]]]
#
# LAYERS, WIDTH, CONTEXT, BATCH (of both hosts), BUCKET, STEPS, MBIT and MTU in the environment change the run. Prints the
# milliseconds of a step, the median of each turn's steps, and the bound 1.1 x (forward + max(backward, communication) +
# last bucket). Last the median of step / bound.
set -eu
build=$(realpath "${1:-build}")
turns=${2:-3}
delay=${3:-2}
layers=${LAYERS:-6} width=${WIDTH:-512} context=${CONTEXT:-128} batch=${BATCH:-8} steps=${STEPS:-8}
mbit=${MBIT:-1000} bucket=${BUCKET:-} mtu=${MTU:-9000} peer=${PEER:-}
here=$(dirname "$(realpath "$0")")
peers=$here/peers
weft=$build/weft
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
export HOME
. "$here/hosts.inc"
trap 'hosts_close; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
hosts_open "$mbit" "$delay" "$mtu" || { echo "SKIP: two network namespaces with a cable between them cannot be made" >&2; exit 77; }
cat /usr/include/*.h | head -c 2000000 >text
cat >job.yaml <<EOF
model: {family: gpt2, layers: $layers, hidden: $width, heads: 8, context: $context}
data: {path: $folder/text}
train: {steps: $steps, batch: $batch, seed: 1, eval_every: 0, clip: 0}
device: {threads: 1}
checkpoint: {every: 0}
parallel: {devices: 2}
EOF
# The median milliseconds of the steps after the second.
step() {
    name=$1
    shift
    [ -z "$bucket" ] ||
        set -- "$@" parallel.fusion.allreduce.mode=size "parallel.fusion.allreduce.config=$bucket"
    on_hosts 1 "$weft" train job.yaml "$@" --json --trace "$name.json" >out 2>err-a || cat err-a >&2
    sed -n 's/.*"step": \([0-9]*\),.*"tokens_per_second": \([0-9.]*\).*/\1 \2/p' out |
        awk -v tokens=$((batch * context)) '$1 > 2 {print tokens / $2 * 1000}' | middle
}
# PyTorch's process of one host.
torch_host() {
    ip netns exec "$1" "$peer" "$peers/gpt2_parallel.py" --split ddp --devices 2 --threads 2 --rank "$2" \
        --address 10.98.0.1:$((23800 + turn)) --interface weft0 --layers "$layers" --width "$width" --heads 8 --vocab 256 \
        --seq "$context" --positions "$context" --batch "$batch" --steps "$steps" --warmup 2 --json
}
# The median milliseconds of its steps after the second; 0 without PEER.
torch() {
    [ -n "$peer" ] || { echo 0; return; }
    torch_host "$space_b" 1 >/dev/null 2>err-b &
    other=$!
    torch_host "$space_a" 0 >torch 2>err-a || cat err-a >&2
    wait $other
    sed -n 's/.*"median_step_seconds": \([0-9.]*\).*/\1/p' torch | awk '{print $1 * 1000}'
}
# forward, backward, communication and last bucket in milliseconds, medians over steps, from the trace of a run without
# overlap.
parts() {
    python3 - "$1" "$steps" <<'EOF'
import json, statistics, sys

events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
steps = int(sys.argv[2])
cells = [e for e in events if e["cat"] in ("forward", "backward") and e["tid"] == 0]
# A step begins where a forward pass follows a backward pass.
begins = [c["ts"] for p, c in zip([None] + cells, cells)
          if c["cat"] == "forward" and (p is None or p["cat"] == "backward")]
begins.append(float("inf"))
rows = []
for begin, end in list(zip(begins, begins[1:]))[2:]:
    inside = [e for e in events if begin <= e["ts"] < end]
    time = lambda cat: sum(e["dur"] for e in inside if e["cat"] == cat and e["tid"] == 0)
    moves = [e for e in inside if 2 <= e["tid"] < 18 and e["args"]["bytes"] > 10000]
    if moves:
        rows.append((time("forward"), time("backward"), sum(e["dur"] for e in moves), moves[-1]["dur"]))
print(*("%.1f" % (statistics.median(x) / 1000) for x in zip(*rows)))
EOF
}
turn=0
while [ "$turn" -lt "$turns" ]; do
    waits=$(step waits parallel.overlap=false)
    takes=$(step takes parallel.overlap=true)
    line="$waits $takes $(parts waits.json) $(torch)"
    echo "$line"
    turn=$((turn + 1))
done | awk '{
    more = $4 > $5 ? $4 : $5
    bound = 1.1 * ($3 + more + $6)
    printf "forward %.0f, backward %.0f, communication %.0f, last bucket %.0f: bound %.0f; waits %.0f ms, overlaps %.0f ms",
        $3, $4, $5, $6, bound, $1, $2
    if ($7 > 0) printf "; PyTorch %.0f ms, overlaps / PyTorch %.2f", $7, $2 / $7
    printf "; overlaps / bound %.2f\n", $2 / bound
    fflush()
}' | tee all
awk '{print $NF}' all | middle | awk '{print "median of overlaps / bound", $1}'
