#!/bin/sh
# What it costs between hosts to be ready for the death of a rank: two network namespaces as two hosts, with nothing between
# them but a veth pair. A GPT of 4 layers and width 768 trains on one rank of each. In turns: a step with clipping only, and one
# with recovery and buddies, whose copies the other host keeps. Needs root and iproute2.
#
#   bench/ready_hosts.sh [BUILD FOLDER [TURNS [LEVELS]]]
#
# Prints the milliseconds of a step of each turn, median of the steps after the fourth, and the median of the turns' ratios.
set -eu
here=$(dirname "$(realpath "$0")")
build=$(realpath "${1:-build}")
turns=${2:-3}
levels=${3:-2 3}
weft=$build/weft
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
export HOME
. "$here/hosts.inc"
trap 'hosts_close; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
pair() {
    ip netns add "$space_a" && ip netns add "$space_b" && ip link add wa$$ type veth peer name wb$$ || return 1
    ip link set wa$$ netns "$space_a" mtu 9000 && ip link set wb$$ netns "$space_b" mtu 9000
    ip -n "$space_a" addr add 10.98.0.1/24 dev wa$$ && ip -n "$space_b" addr add 10.98.0.2/24 dev wb$$
    for space in "$space_a" "$space_b"; do ip -n "$space" link set lo up; done
    ip -n "$space_a" link set wa$$ up && ip -n "$space_b" link set wb$$ up
}
pair || { echo "SKIP: two network namespaces with a veth pair cannot be made" >&2; exit 77; }
seq 1 400000 >text
cat >job.yaml <<END
model: {family: gpt2, layers: 4, hidden: 768, heads: 12, context: 256, vocab: 16384}
data: {path: $folder/text, tokenizer: bytes}
train: {steps: 12, batch: 4, seed: 1, eval_every: 0}
device: {threads: 1}
parallel: {devices: 2}
END
step() {
    on_hosts 1 "$weft" train job.yaml "$@" "train.log=$folder/log.jsonl" >/dev/null 2>error || { cat error >&2; exit 1; }
    python3 - log.jsonl <<END
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
print("%.1f" % (1e3 * statistics.median(x["seconds"] for x in lines if "loss" in x and x["step"] > 4)))
END
    rm -f log.jsonl
}
for level in $levels; do
    for _ in $(seq "$turns"); do
        clipping=$(step "parallel.optimizer.level=$level")
        ready=$(step "parallel.optimizer.level=$level" recovery.enabled=true recovery.buddy=1)
        echo "level $level: clipping $clipping ms, ready $ready ms"
        echo "$clipping $ready" >>"ratios-$level"
    done
    echo "level $level: $(awk '{ print 100 * ($2 / $1 - 1) }' "ratios-$level" | middle) %"
done
