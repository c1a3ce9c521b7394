#!/bin/sh
# What a lower tier costs: a GPT-2 trains with all in device memory, and with a part of it in host memory or on a disk, in
# turns.
#
#   bench/tiers.sh [BUILD FOLDER [host|disk|swap [FOLDER ON THE DISK [TURNS]]]]
#
# host: 124M, 4 x 256; what blocks save and the optimizer's states lie in host memory. On the CPU the device's memory is
# the host's, and the cores copy, so the bound is the plain step + bytes copied / rate of a copy.
# disk: 774M, 1 x 1024, within device.memory=4GiB; weft chooses what moves by the key machine, which MACHINE in the
# environment sets (default: the rates found below). The bound is the sum over passes and update of
# max(kernels, bytes copied in it / rate of the disk); a step that hides nothing takes kernels + all bytes / rate.
# swap: as disk, and the plain run with the system's swap under the same limit, by a memory cgroup (as root). The limit of
# both is LIMIT and what weft predicts for host memory. `of_swap` is the time that weft adds to the plain step, over the
# time that swap adds.
# Rates are those that `weft machine measure` finds just before, reading and writing at once. LAYERS, WIDTH, HEADS, BATCH,
# CONTEXT, LIMIT and STEPS in the environment change the run. Prints the median seconds of the steps after the first, the
# bytes that a step copies, and what the copies alone take.
set -eu
build=$(realpath "${1:-build}")
tier=${2:-host}
disk=${3:-.}
turns=${4:-3}
swap=
if [ "$tier" = swap ]; then
    tier=disk
    swap=yes
fi
folder=$(mktemp -d)
swap_file=
group=
clean() {
    [ -z "$swap_file" ] || { swapoff "$swap_file" 2>/dev/null || true; rm -f "$swap_file"; }
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 1' INT TERM
disk=$(realpath "$disk")
weft=$build/weft
if [ -f "${MACHINE:-}" ]; then MACHINE=$(realpath "$MACHINE"); fi
cd "$folder"
cat /usr/include/*.h | head -c 2000000 >text
if [ "$tier" = host ]; then
    set -- "${LAYERS:-12}" "${WIDTH:-768}" "${HEADS:-12}" "${BATCH:-4}" "${CONTEXT:-256}"
    offload='[{match: "h.*", what: saved, to: host}, {match: "*", what: optimizer, to: host}]'
    limit=auto
    machine=
else
    set -- "${LAYERS:-36}" "${WIDTH:-1280}" "${HEADS:-20}" "${BATCH:-1}" "${CONTEXT:-1024}"
    offload=auto
    limit=${LIMIT:-4GiB}
    machine="machine: ${MACHINE:-$folder/machine.json}
parallel: {mode: semi, devices: 1}"
fi
cat >plain.yaml <<EOF
model: {family: gpt2, layers: $1, hidden: $2, heads: $3, context: $5, vocab: 50257}
data: {path: $folder/text, tokenizer: bytes}
train: {steps: ${STEPS:-4}, batch: $4, seed: 1, eval_every: 0, clip: 0}
checkpoint: {every: 0}
EOF
"$weft" machine measure --disk "$disk" --out machine.json >/dev/null 2>&1
cp plain.yaml moved.yaml
cat >>moved.yaml <<EOF
memory: {offload: $offload, disk: {path: $disk}}
device: {memory: $limit}
$machine
EOF
middle() { sort -g | awk '{x[NR] = $1} END {if (NR) print x[int((NR + 1) / 2)]}'; }
# A number of one JSON object.
number() { sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$2" | head -n 1; }
# The median seconds of the steps after the first.
step() {
    weft_train "$1" --json >out 2>err || { cat err >&2; return 1; }
    sed -n 's/.*"step": \([0-9]*\),.*"tokens_per_second": \([0-9.]*\).*/\1 \2/p' out |
        awk -v tokens=$(($2 * $3)) '$1 > 1 {print tokens / $2}' | middle
}
rate=$(awk -v key="\"${tier}_bytes_per_second\"" 'index($0, key) {in_tier = 1} in_tier && /"both"/ {print; exit}' machine.json |
    tr -d '[]},' | awk '{print $NF}')
"$weft" model moved.yaml --json >model.json
"$weft" model plain.yaml --json >plain.json
bytes=$(number "${tier}_moved_bytes" model.json)
# A cgroup with so many bytes of memory, as much swap as is wanted, and this script's next children.
limited() { # bytes, then the command
    bytes_of_group=$1
    shift
    parent=/sys/fs/cgroup/memory
    if [ -d "$parent" ]; then
        parent=$parent$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
        file=memory.limit_in_bytes
    else
        parent=/sys/fs/cgroup
        file=memory.max
        echo +memory >"$parent/cgroup.subtree_control"
    fi
    group=$parent/weft-tiers-$$
    mkdir -p "$group"
    echo "$bytes_of_group" >"$group/$file"
    # shellcheck disable=SC2016 # the inner shell expands
    sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$group" "$@"
}
weft_train() { # job, more words
    job=$1
    shift
    if [ "$job" = swap.yaml ]; then
        limited "$swap_limit" "$weft" train plain.yaml device.memory=1TiB memory.host=1TiB "$@"
    else
        "$weft" train "$job" "$@"
    fi
}
if [ "$swap" ]; then
    host_bytes=$(number host_bytes model.json)
    swap_limit=$(($(number predicted_peak_bytes model.json) + ${host_bytes:-0}))
    swap_file=$disk/weft-tiers-$$.swap
    fallocate -l $(($(number predicted_peak_bytes plain.json) + 2147483648)) "$swap_file"
    chmod 600 "$swap_file"
    mkswap "$swap_file" >/dev/null
    swapon "$swap_file"
fi
: >plain.steps
: >moved.steps
: >swap.steps
for turn in $(seq "$turns"); do
    step plain.yaml "$4" "$5" >>plain.steps
    step moved.yaml "$4" "$5" >>moved.steps
    echo "turn $turn: plain $(tail -n 1 plain.steps) s, $tier $(tail -n 1 moved.steps) s" >&2
    [ -z "$swap" ] || step swap.yaml "$4" "$5" >>swap.steps
    [ -z "$swap" ] || echo "turn $turn: swap $(tail -n 1 swap.steps) s" >&2
done
awk -v tier="$tier" -v plain="$(middle <plain.steps)" -v moved="$(middle <moved.steps)" -v bytes="$bytes" -v rate="$rate" \
    -v swapped="$(middle <swap.steps)" \
    -v peak="$(number predicted_peak_bytes model.json)" -v whole="$(number predicted_peak_bytes plain.json)" 'BEGIN {
    copies = bytes / rate
    printf "{\"tier\": \"%s\", \"plain_seconds\": %.3f, \"seconds\": %.3f, \"copied_bytes\": %.0f, \"rate\": %.4g, ", tier, plain, moved, bytes, rate
    printf "\"copy_seconds\": %.3f, \"of_plain\": %.3f, \"of_plain_and_copies\": %.3f, ", copies, moved / plain, moved / (plain + copies)
    if (swapped) printf "\"swap_seconds\": %.3f, \"of_swap\": %.3f, ", swapped, (moved - plain) / (swapped - plain)
    printf "\"peak_bytes\": %.0f, \"plain_peak_bytes\": %.0f}\n", peak, whole
}'
