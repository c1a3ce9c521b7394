#!/bin/sh
# Plans of the joint search against plans by hand, measured: a GPT-2 on two and on four devices of one process, and on two
# hosts of two ranks with a link of 1 Gbit/s between them (network namespaces; needs root). For each of these: measures a
# machine file, calibrates it with a run, trains with `--mode auto` on that machine, and with 20 plans by hand: data,
# tensor and sequence parallelism, pipelines under all schedules, mixtures, and all optimizer levels. In turns: each turn
# runs every plan once.
#
#   bench/plans.sh [BUILD FOLDER] [only=two,four,hosts] [turns=2]
#
# STEPS (measured steps of a run) in the environment changes the run. Prints for each plan the median milliseconds of its
# turns and auto's ratio to it; then the ratio to the best plan by hand and to plain data parallelism (above 1: auto is
# faster), and auto's plan. Run it on an idle machine; it takes 10 minutes on two cores.
set -eu
here=$(dirname "$(realpath "$0")")
build=build only=two,four,hosts turns=2
for word in "$@"; do
    case $word in
    only=*) only=${word#only=} ;;
    turns=*) turns=${word#turns=} ;;
    *) build=$word ;;
    esac
done
build=$(realpath "$build")
weft=$build/weft
steps=$((${STEPS:-5} + 2))
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
WEFT_THIS_MACHINE=$folder/absent.json
export HOME WEFT_THIS_MACHINE
. "$here/hosts.inc"
trap 'hosts_close; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
put_data

tensor='{match: "h.*.attn.c_attn:linear", split: {n1: tp}}, {match: "h.*.mlp.c_fc:linear", split: {n0: tp}}'
norms='{match: "h.*.ln_?:layer_norm", split: {in0.1: tp}}, {match: "h.*:add", split: {in0.1: tp}}'
sequence='tensors: [{match: tokens, layout: [dp, sp]}, {match: targets, layout: [dp, sp]}]'
# plans DEVICES: a name and the section `parallel` of a job for each plan by hand; the first is plain data parallelism. With
# a machine and no other key, a job's mode would be auto.
plans() {
    n=$1 half=$(($1 / 2))
    cat <<END
dp {devices: $n, mode: semi}
dp-level-1 {devices: $n, optimizer: {level: 1}}
dp-level-2 {devices: $n, optimizer: {level: 2}}
dp-level-3 {devices: $n, optimizer: {level: 3}}
dp-accumulate {devices: $n, accumulate: 2}
dp-recompute {devices: $n, recompute: full}
dp-no-overlap {devices: $n, overlap: false}
tp {mesh: {dp: 1, tp: $n}, strategies: [$tensor]}
tp-sequence {mesh: {dp: 1, tp: $n}, strategies: [$tensor, $norms]}
tp-copies {mesh: {dp: 1, tp: $n}, strategies: [$tensor], copies: 2}
context {mesh: {dp: 1, sp: $n}, $sequence}
pp-gpipe {devices: $n, pipeline: {stages: $n, microbatches: 4, schedule: gpipe}}
pp-1f1b {devices: $n, pipeline: {stages: $n, microbatches: 4, schedule: 1f1b}}
pp-1f1b-8 {devices: $n, pipeline: {stages: $n, microbatches: 8, schedule: 1f1b}}
pp-zero-bubble {devices: $n, pipeline: {stages: $n, microbatches: 8, schedule: zero_bubble}}
END
    if [ "$n" = 2 ]; then
        cat <<END
pp-2 {devices: 2, pipeline: {stages: 2, microbatches: 2, schedule: 1f1b}}
pp-interleaved {devices: 2, pipeline: {stages: 2, microbatches: 4, schedule: interleaved}}
tp-attention {mesh: {dp: 1, tp: 2}, strategies: [{match: "h.*.attn.c_attn:linear", split: {n1: tp}}]}
tp-mlp {mesh: {dp: 1, tp: 2}, strategies: [{match: "h.*.mlp.c_fc:linear", split: {n0: tp}}]}
dp-level-2-accumulate {devices: 2, accumulate: 2, optimizer: {level: 2}}
END
    else
        cat <<END
dp-tp {mesh: {dp: $half, tp: 2}, strategies: [$tensor]}
dp-tp-sequence {mesh: {dp: $half, tp: 2}, strategies: [$tensor, $norms], optimizer: {level: 1}}
dp-pp {devices: $n, pipeline: {stages: 2, microbatches: 4, schedule: 1f1b}}
dp-pp-level-1 {devices: $n, pipeline: {stages: 2, microbatches: 4, schedule: zero_bubble}, optimizer: {level: 1}}
tp-pp {mesh: {dp: 1, tp: 2}, strategies: [$tensor], pipeline: {stages: 2, microbatches: 4, schedule: 1f1b}}
END
    fi
}

# job NAME PARALLEL
job() {
    cat >"$1.yaml" <<END
model: {family: gpt2, layers: 4, hidden: ${WIDTH:-$width}, heads: 4, context: 64}
data: {path: text.txt, validation: 0}
train: {steps: $steps, batch: $batch, seed: 1, eval_every: 0, schedule: {name: constant, warmup: 0}}
checkpoint: {every: 0}
machine: $folder/machine.json
parallel: $2
END
}


# step KIND NAME: the median milliseconds of the steps after the second
step() {
    start "$1" "$2.yaml" --json >out 2>err </dev/null || { echo "$2 does not run:" >&2; cat out err >&2; exit 1; }
    sed -n 's/.*"step": \([0-9]*\),.*"tokens_per_second": \([0-9.]*\).*/\1 \2/p' out |
        awk -v tokens=$((batch * 64)) '$1 > 2 { print tokens / $2 * 1000 }' | middle
}

compare() {
    kind=$1 devices=4 width=192 batch=16
    [ "$kind" = two ] && devices=2
    [ "$kind" = hosts ] && width=256 batch=8 # gradients take about as long as computing
    measure "$kind" "$folder/machine.json" 0.02
    job first "{devices: $devices, mode: semi}"
    start "$kind" first.yaml checkpoint.dir="first-$kind" train.steps=12 >out 2>&1 </dev/null || { cat out >&2; exit 1; }
    "$weft" audit "first-$kind" --calibrate "$folder/machine.json" >/dev/null
    plans $devices >list
    job auto "{devices: $devices, mode: auto}"
    echo auto >names
    while read -r name parallel; do
        job "$name" "$parallel"
        echo "$name" >>names
    done <list
    : >measured
    turn=0
    while [ "$turn" -lt "$turns" ]; do
        while read -r name; do
            echo "$name $(step "$kind" "$name")" >>measured
        done <names
        turn=$((turn + 1))
    done
    while read -r name; do
        echo "$name $(awk -v name="$name" '$1 == name { print $2 }' measured | middle)"
    done <names | awk -v kind="$kind" '
        $1 == "auto" { auto = $2; printf "%-6s %-22s %9.1f ms\n", kind, $1, $2; next }
        { printf "%-6s %-22s %9.1f ms  %.2f\n", kind, $1, $2, $2 / auto
          if ($1 == "dp") plain = $2
          if (!best || $2 < best) { best = $2; name = $1 } }
        END { printf "%-6s best by hand %s: %.2f x auto; plain data parallelism: %.2f x auto\n", kind, name, best / auto,
                     plain / auto }'
    "$weft" plan auto.yaml 2>&1 | sed -n "s/^\(mesh\|stages\|batch\|memory of\|constraints\)/$kind auto: &/p"
}

for kind in two four hosts; do
    case ,$only, in *",$kind,"*) ;; *) continue ;; esac
    if [ "$kind" = hosts ] && ! hosts_open 1000 0.1; then
        echo "without two hosts: needs root and network namespaces" >&2
        continue
    fi
    compare $kind
done
