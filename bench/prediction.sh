#!/bin/sh
# How well steps are predicted here. Kinds of runs: one device, two and four devices in one process, two processes, and two
# hosts of two ranks with a link of 1 Gbit/s between them (network namespaces; needs root). For each kind: measures a machine
# file and calibrates it with a run of each of five models. Then trains 20 other configurations of models, kinds and plans,
# each twice, and compares the median of 20 steps with the prediction that was made before the first step.
#
#   bench/prediction.sh [BUILD FOLDER] [only=1-5,8] [keep=FOLDER]
#
# only: numbers of the configurations that run; only their kinds are calibrated. keep: machine files that are there are used
# again, others are written there. STEPS (measured steps of a run) and SECONDS_EACH (of weft machine measure) in the
# environment change the run. Prints a line for each configuration: number, kind, predicted and measured milliseconds, error,
# difference of both repeats, predicted and observed peak bytes of the rank where they differ most, and the job. Last the
# median and the worst error of the configurations whose repeats differ by at most 4 %; the others are listed apart. Progress
# goes to stderr. Run it on an idle machine; it takes 10 minutes on two cores.
set -eu
here=$(dirname "$(realpath "$0")")
build=build only="" keep=""
for word in "$@"; do
    case $word in
    only=*) only=${word#only=} ;;
    keep=*) mkdir -p "${word#keep=}" && keep=$(realpath "${word#keep=}") ;;
    *) build=$word ;;
    esac
done
build=$(realpath "$build")
weft=$build/weft
steps=$((${STEPS:-20} + 2))
each=${SECONDS_EACH:-0.05}
folder=$(mktemp -d)
HOME=$folder # the secret of both hosts
WEFT_THIS_MACHINE=$folder/absent.json # only the machines below predict
export HOME WEFT_THIS_MACHINE
. "$here/hosts.inc"
trap 'hosts_close; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM
cd "$folder"
put_data
keep=${keep:-$folder}
text="data.path=text.txt data.validation=0"
images="data.path=images-idx3-ubyte data.labels=labels-idx1-ubyte data.validation=0"
gpt2="$text model.family=gpt2" llama="$text model.family=llama" vit="$images model.family=vit model.heads=4 model.patch=4"
resnet="$images model.family=resnet18 model.hidden=16"
pipeline="parallel.pipeline.stages" fill="parallel.pipeline.microbatches"

cat >configurations <<END
one $gpt2 model.layers=4 model.hidden=128 model.heads=4 model.context=128 train.batch=8
one $gpt2 model.layers=6 model.hidden=192 model.heads=6 model.context=128 train.batch=8 train.accumulate=2
one $llama model.layers=4 model.hidden=128 model.heads=4 model.kv_heads=2 model.context=128 train.batch=8
one $gpt2 model.layers=4 model.hidden=256 model.heads=4 model.context=128 train.batch=4 parallel.recompute.mode=full
one $resnet train.batch=32
two $gpt2 model.layers=3 model.hidden=256 model.heads=8 model.context=64 train.batch=16 parallel.optimizer.level=1
two $gpt2 model.layers=4 model.hidden=192 model.heads=6 model.context=128 train.batch=8 parallel.optimizer.level=3
two $gpt2 model.layers=4 model.hidden=256 model.heads=4 model.context=128 train.batch=8 $pipeline=2 $fill=4
two $llama model.layers=3 model.hidden=256 model.heads=8 model.kv_heads=4 model.context=64 train.batch=16 parallel.mode=auto parallel.search=recursive
two $vit model.layers=4 model.hidden=128 train.batch=32
four $gpt2 model.layers=4 model.hidden=128 model.heads=4 model.context=128 train.batch=8
four $gpt2 model.layers=4 model.hidden=192 model.heads=4 model.context=64 train.batch=16 $pipeline=2 $fill=4
four $llama model.layers=4 model.hidden=192 model.heads=4 model.kv_heads=4 model.context=128 train.batch=8 parallel.optimizer.level=2
four $vit model.layers=3 model.hidden=96 train.batch=32
processes $gpt2 model.layers=3 model.hidden=256 model.heads=4 model.context=128 train.batch=8 parallel.optimizer.level=2
processes $llama model.layers=4 model.hidden=192 model.heads=4 model.kv_heads=2 model.context=64 train.batch=16
processes $resnet train.batch=32
hosts $gpt2 model.layers=4 model.hidden=128 model.heads=4 model.context=128 train.batch=16
hosts $gpt2 model.layers=4 model.hidden=256 model.heads=4 model.context=128 train.batch=16 $pipeline=2 $fill=4 parallel.devices=4
hosts $llama model.layers=3 model.hidden=192 model.heads=4 model.kv_heads=2 model.context=128 train.batch=16 parallel.optimizer.level=1
END
awk -v only="$only" 'BEGIN { count = split(only, part, ",") }
    { yes = count == 0
      for (i = 1; i <= count; i++) { n = split(part[i], end, "-"); if (NR >= end[1] && NR <= end[n]) yes = 1 }
      if (yes) print NR, $0 }' configurations >chosen
cut -d ' ' -f 2 chosen | sort -u >kinds
if grep -q hosts kinds && ! hosts_open 1000 0.1; then
    echo "without two hosts: needs root and network namespaces" >&2
    grep -v ' hosts ' chosen >left || true
    mv left chosen
    sed -i /hosts/d kinds
fi

# train KIND DIRECTORY MACHINE words...: without words of a plan it is data parallelism; with a machine, the mode of such a job
# would be auto.
train() {
    kind=$1 directory=$2 machine=$3
    shift 3
    case $* in *parallel.*) ;; *) set -- "$@" parallel.mode=semi ;; esac
    start "$kind" "$@" "machine=$machine" "checkpoint.dir=$directory" "train.steps=$steps" train.eval_every=0 \
        checkpoint.every=0 train.schedule.name=constant train.schedule.warmup=0 >"$directory.log" 2>&1 </dev/null ||
        { cat "$directory.log" >&2; exit 1; }
}

# ---- one calibration of each kind ----
while read -r kind; do
    file=$keep/$kind.json
    [ -e "$file" ] && continue
    measure "$kind" "$folder/new.json" "$each" </dev/null
    number=0
    while read -r words; do
        number=$((number + 1))
        # shellcheck disable=SC2086
        train "$kind" "calibrate-$kind-$number" ./new.json $words
        "$weft" audit "calibrate-$kind-$number" --calibrate new.json >/dev/null
    done <<END
$gpt2 model.layers=2 model.hidden=256 model.heads=4 model.context=128 train.batch=8
$gpt2 model.layers=2 model.hidden=64 model.heads=4 model.context=64 train.batch=8
$llama model.layers=2 model.hidden=192 model.heads=4 model.kv_heads=2 model.context=128 train.batch=8
$vit model.layers=2 model.hidden=128 train.batch=16
$resnet train.batch=16
END
    mv new.json "$file"
done <kinds

# ---- the configurations ----
# predicted and measured seconds of an audit, and the peaks of the rank where they differ most
facts() {
    tr ',{' '\n\n' <"$1" | sed 's/[" }\]]*//g' | awk -F: '
        { gsub(/]/, "") }
        $1 == "predicted_seconds" && !p { p = $2 }
        $1 == "measured_seconds" && !m { m = $2 }
        $1 == "predicted_peak_bytes" { peak = $2 }
        $1 == "observed_peak_bytes" {
            apart = $2 > peak ? $2 - peak : peak - $2
            if (!ranks++ || apart > most) { most = apart; bytes = peak " " $2 }
        }
        END { print p, m, bytes }'
}
for turn in 1 2; do
    while read -r number kind words; do
        # shellcheck disable=SC2086
        train "$kind" "run-$number-$turn" "$keep/$kind.json" $words
        "$weft" audit "run-$number-$turn" --json >audit.json
        echo "$number $kind $(facts audit.json) $words"
        echo "turn $turn: $number $kind $(facts audit.json)" >&2
    done <chosen >"turn-$turn"
done
paste -d '|' turn-1 turn-2 | awk -F '|' '{
    split($1, a, " ")
    split($2, b, " ")
    job = $1
    for (i = 0; i < 6; i++) sub(/^[^ ]* /, "", job)
    gsub(/data\.(path|labels|validation)=[^ ]* /, "", job)
    gsub(/(model|parallel|train)\./, "", job)
    measured = (a[4] + b[4]) / 2
    less = a[4] < b[4] ? a[4] : b[4]
    error = a[3] / measured - 1
    differ = (a[4] > b[4] ? a[4] - b[4] : b[4] - a[4]) / less
    if (a[5] != a[6] || b[5] != b[6]) wrong++
    line = sprintf("%2d %-9s %9.3f ms %9.3f ms %+6.1f %% repeats %4.1f %% peak %s / %s: %s", a[1], a[2], a[3] * 1e3,
                   measured * 1e3, 100 * error, 100 * differ, a[5], a[6], job)
    if (differ > 0.04) { apart[++left] = line; next }
    print line
    errors[++n] = error < 0 ? -error : error
}
END {
    if (left) print "repeats that differ by over 4 %:"
    for (i = 1; i <= left; i++) print apart[i]
    for (i = 2; i <= n; i++)
        for (k = i; k > 1 && errors[k] < errors[k - 1]; k--) { t = errors[k]; errors[k] = errors[k - 1]; errors[k - 1] = t }
    printf "%d configurations, %d left out, %d with another peak\n", n + left, left, wrong
    if (n) printf "median error %.1f %%, worst %.1f %%\n", 100 * (errors[int((n + 1) / 2)] + errors[int((n + 2) / 2)]) / 2,
                  100 * errors[n]
    else print "no configuration is steady: the machine is busy"
}'
