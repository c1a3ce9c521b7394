#!/bin/sh
# How well steps are predicted here: measures machines of one device, of two devices in one process, and of two
# processes; calibrates each with a run of each kind of model; then trains 20 other configurations of models, devices,
# processes and plans, and compares the median of 20 steps with the prediction that was made before the first step.
#
#   bench/prediction.sh [BUILD FOLDER]
#
# STEPS (measured steps of a run) and SECONDS_EACH (of weft machine measure) in the environment change the run. Prints a
# line for each configuration: error of the step, spread of its middle half, error of the peak in bytes. Configurations
# whose steps spread over more than 4 % are listed and left out. Last the median and the worst error, in percent.
# Run it on an idle machine.
set -eu
build=$(realpath "${1:-build}")
weft=$build/weft
steps=$((${STEPS:-20} + 2))
each=${SECONDS_EACH:-0.05}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
WEFT_THIS_MACHINE=$folder/absent.json # only the machines below predict
export WEFT_THIS_MACHINE

# ---- data: a text, and 256 images of 32 x 32 in 4 classes ----
awk 'BEGIN { for (i = 0; i < 20000; i++) print "weft " i " runs over and under warp " (i * 7) % 13 }' >text.txt
{ printf '\0\0\010\003\0\0\001\0\0\0\0\040\0\0\0\040'; head -c 262144 /dev/urandom; } >images-idx3-ubyte
{ printf '\0\0\010\001\0\0\001\0'; awk 'BEGIN { for (i = 0; i < 64; i++) printf "abcd" }' | tr abcd '\000\001\002\003'; } \
    >labels-idx1-ubyte
text="data.path=text.txt data.validation=0"
images="data.path=images-idx3-ubyte data.labels=labels-idx1-ubyte data.validation=0"

# train KIND DIRECTORY MACHINE words...
train() {
    kind=$1 directory=$2 machine=$3
    shift 3
    set -- "$weft" train "$@" "machine=$machine" "checkpoint.dir=$directory" "train.steps=$steps" train.eval_every=0 \
        train.schedule.name=constant train.schedule.warmup=0
    case $kind in
    one) "$@" ;;
    two) "$@" --devices 2 ;;
    processes) "$weft" launch -n 2 --no-logs -- "$@" ;;
    esac >"$directory.log" 2>&1 || { cat "$directory.log" >&2; exit 1; }
}

# member FILE KEY: the first number behind "KEY": in JSON.
member() {
    tr ',{' '\n\n' <"$1" | sed -n "s/.*\"$2\": \([-0-9.e+]*\).*/\1/p" | head -n 1
}

# ---- one calibration of each machine ----
for kind in one two processes; do
    case $kind in
    one) "$weft" machine measure --seconds "$each" --out $kind.json ;;
    two) "$weft" machine measure --devices 2 --seconds "$each" --out $kind.json ;;
    processes) "$weft" launch -n 2 --no-logs -- "$weft" machine measure --seconds "$each" --out $kind.json ;;
    esac >measure.log 2>&1 || { cat measure.log >&2; exit 1; }
    number=0
    while read -r words; do
        number=$((number + 1))
        eval "set -- $words"
        train $kind calibrate-$kind-$number ./$kind.json "$@"
        "$weft" audit calibrate-$kind-$number --calibrate $kind.json >/dev/null
    done <<END
$text model.family=gpt2 model.layers=2 model.hidden=256 model.heads=4 model.context=128 train.batch=8
$text model.family=gpt2 model.layers=2 model.hidden=64 model.heads=4 model.context=64 train.batch=8
$text model.family=llama model.layers=2 model.hidden=192 model.heads=4 model.kv_heads=2 model.context=128 train.batch=8
$images model.family=vit model.layers=2 model.hidden=128 model.heads=4 model.patch=4 train.batch=16
$images model.family=resnet18 model.hidden=16 train.batch=16
END
done

# ---- 20 configurations ----
number=0
while read -r kind words; do
    number=$((number + 1))
    eval "set -- $words"
    train "$kind" run-$number ./"$kind".json "$@"
    "$weft" audit run-$number --json >audit.json
    echo "$kind $(member audit.json error) $(member audit.json spread) \
$(($(member audit.json predicted_peak_bytes) - $(member audit.json observed_peak_bytes))) $words"
done >results <<END
one $text model.family=gpt2 model.layers=4 model.hidden=128 model.heads=4 model.context=128 train.batch=8
one $text model.family=gpt2 model.layers=3 model.hidden=256 model.heads=8 model.context=64 train.batch=16
one $text model.family=gpt2 model.layers=6 model.hidden=192 model.heads=6 model.context=128 train.batch=8 train.accumulate=2
one $text model.family=llama model.layers=4 model.hidden=128 model.heads=4 model.kv_heads=2 model.context=128 train.batch=8
one $text model.family=gpt2 model.layers=4 model.hidden=256 model.heads=4 model.context=128 train.batch=4 parallel.recompute.mode=full
one $images model.family=vit model.layers=4 model.hidden=96 model.heads=4 model.patch=4 train.batch=16
one $images model.family=resnet18 model.hidden=16 train.batch=32
two $text model.family=gpt2 model.layers=4 model.hidden=128 model.heads=4 model.context=128 train.batch=8
two $text model.family=gpt2 model.layers=3 model.hidden=256 model.heads=8 model.context=64 train.batch=16 parallel.optimizer.level=1
two $text model.family=gpt2 model.layers=4 model.hidden=192 model.heads=6 model.context=128 train.batch=8 parallel.optimizer.level=3
two $text model.family=gpt2 model.layers=4 model.hidden=256 model.heads=4 model.context=128 train.batch=8 parallel.pipeline.stages=2 parallel.pipeline.microbatches=4
two $text model.family=llama model.layers=4 model.hidden=128 model.heads=4 model.kv_heads=2 model.context=128 train.batch=8
two $text model.family=llama model.layers=3 model.hidden=256 model.heads=8 model.kv_heads=4 model.context=64 train.batch=16 parallel.mode=auto parallel.search=recursive
two $text model.family=gpt2 model.layers=4 model.hidden=128 model.heads=4 model.context=64 train.batch=16 parallel.mode=auto parallel.search=dynamic
two $images model.family=vit model.layers=4 model.hidden=128 model.heads=4 model.patch=4 train.batch=32
two $images model.family=resnet18 model.hidden=16 train.batch=32
processes $text model.family=gpt2 model.layers=4 model.hidden=128 model.heads=4 model.context=128 train.batch=8
processes $text model.family=gpt2 model.layers=3 model.hidden=256 model.heads=4 model.context=128 train.batch=8 parallel.optimizer.level=2
processes $text model.family=llama model.layers=4 model.hidden=192 model.heads=4 model.kv_heads=2 model.context=64 train.batch=16
processes $images model.family=vit model.layers=3 model.hidden=128 model.heads=4 model.patch=4 train.batch=32
END
cat results

# ---- errors ----
awk '$3 > 0.04 { left++; next }
    { e = $2 < 0 ? -$2 : $2; errors[++n] = e; if ($4 != 0) wrong++ }
    END {
        for (i = 2; i <= n; i++)
            for (k = i; k > 1 && errors[k] < errors[k - 1]; k--) { t = errors[k]; errors[k] = errors[k - 1]; errors[k - 1] = t }
        printf "%d configurations, %d left out (spread over 4 %%), %d with another peak\n", n + left, left, wrong
        if (n) printf "median error %.1f %%, worst %.1f %%\n", 100 * errors[int((n + 1) / 2)], 100 * errors[n]
        else print "no configuration is steady: the machine is busy"
    }' results
