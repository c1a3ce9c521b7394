#!/bin/sh
# The frame of the command: help, unknown words, exit codes, JSON, and nothing coloured in a pipe.
set -u
. tests/cli/facts.inc
weft=$WEFT_BIN
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect CODE 'text that the output holds' words...
expect() {
    code=$1 text=$2
    shift 2
    "$weft" "$@" >"$work/out" 2>&1
    got=$?
    if [ $got != "$code" ] || ! has_facts "$work/out" "$text"; then
        echo "weft $*: exit $got, expected $code and '$text'; output:"
        cat "$work/out"
        failed=1
    fi
}

expect 0 'usage: weft VERB' --help
expect 2 'usage: weft VERB'
expect 0 'weft ' --version
expect 2 "'train'" trian
expect 2 "xyzzy" xyzzy
for verb in $("$weft" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    expect 0 'example:' "$verb" --help
    expect 2 '--help' "$verb" --hlep
    expect 2 'unknown option -j' "$verb" -j
    expect 0 '--json' "$verb" --help
done
expect 2 '--threads|value' info --threads
expect 2 '--threads|whole' info --threads two
expect 2 '--threads|from 1 to 1024|0' info --threads=0
expect 2 '--quick|value' info --quick=1
expect 2 "'x'" info x
expect 0 '"version":' info --quick --json
expect 0 'kernels' info --quick
expect 2 'job file' train
expect 2 'two job' train a.yaml b.yaml
expect 1 'weft: ' train "$work/none.yaml"
expect 1 "'steps'" train train.step=5
expect 0 'steps: 7' train train.steps=7 --job
expect 2 '--json' train train.steps=7 --job --json
expect 2 '--json' train --keys --json
expect 2 'verify' checkpoint verfy x
expect 2 'one path' checkpoint verify
expect 1 "$work/none" checkpoint inspect "$work/none"
# What is empty is most often a variable that nobody has set: never a job of defaults, or no plan.
expect 2 'word 1|train' train '' train.steps=5 --job
expect 2 'word 2|model' model train.steps=5 ''
expect 2 'word 1|generate' generate ''
expect 2 '--plan FILE' train train.steps=5 --job --plan ''
expect 2 '--plan is empty' model train.steps=5 --plan=
expect 2 '--check is empty' plan train.steps=5 --check ''
expect 2 '--logs is empty' launch -n 1 --logs '' true
expect 2 'command' launch -n 1 --no-logs ''

# The trail appears only when asked for.
"$weft" train train.step=5 2>&1 | grep -q 'job.c:' && { echo "trail without WEFT_TRACE"; failed=1; }
WEFT_TRACE=1 "$weft" train train.step=5 2>&1 | grep -q 'job.c:' || { echo "no trail with WEFT_TRACE=1"; failed=1; }
# Piped output has no escape sequences; a full disk is an error.
"$weft" --help | grep -q "$(printf '\033')" && { echo "colours in a pipe"; failed=1; }
for words in 'train --keys' '--help' '--version'; do
    # shellcheck disable=SC2086 # words
    if [ -e /dev/full ] && "$weft" $words >/dev/full 2>/dev/null; then
        echo "unwritten output of weft $words was not an error"
        failed=1
    fi
done
# On a terminal there are some, unless it knows none or they are unwanted.
colours() { env "$@" script -qec "'$weft' --help" /dev/null </dev/null | grep -q "$(printf '\033')"; }
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    colours TERM=xterm NO_COLOR= || { echo "no colours on a terminal"; failed=1; }
    colours TERM=dumb NO_COLOR= && { echo "colours on a dumb terminal"; failed=1; }
    colours TERM=xterm NO_COLOR=1 && { echo "colours in spite of NO_COLOR"; failed=1; }
    # Names in files are shown without what a terminal would act by, wanted colours or not.
    json='{"a\u001b]\u009b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    # shellcheck disable=SC2059 # a byte by its octal number
    { printf "\\$(printf %03o ${#json})\\0\\0\\0\\0\\0\\0\\0" && printf '%s\0' "$json"; } >"$work/odd.safetensors"
    "$weft" checkpoint inspect "$work/odd.safetensors" | LC_ALL=C grep -qa "a$(printf '\033]\302\233')" || { echo "another name in a pipe"; failed=1; }
    for no in '' 1; do
        NO_COLOR=$no script -qec "'$weft' checkpoint inspect '$work/odd.safetensors'" /dev/null </dev/null >"$work/out"
        LC_ALL=C grep -qa "a?]? " "$work/out" || { echo "controls on a terminal:"; od -c "$work/out"; failed=1; }
        NO_COLOR=$no script -qec "'$weft' checkpoint inspect '$work/odd.safetensors' --json" /dev/null </dev/null >"$work/out"
        grep -qF 'a\u001b]\u009b"' "$work/out" || { echo "another JSON on a terminal:"; od -c "$work/out"; failed=1; }
    done
    # What is wrong, and what is noted, is told of words that hold such characters.
    odd=$(printf 'a\033]\302\233\177')
    on_terminal() {
        WEFT_TRACE=1 script -qec "$1" /dev/null </dev/null >"$work/out"
        LC_ALL=C grep -qaF "$2" "$work/out" || { echo "not said: $2"; od -c "$work/out"; failed=1; }
        LC_ALL=C grep -qa "$(printf '\033]\|\302\233\|\177')" "$work/out" && { echo "$1: controls on a terminal:"; od -c "$work/out"; failed=1; }
    }
    on_terminal "'$weft' checkpoint verify '$work/$odd'" 'a?]??'
    on_terminal "'$weft' train train.steps=1 '$odd=1'" 'a?]??'
    small="model.layers=1 model.hidden=16 model.heads=2 model.context=8 data.path=$0 train.batch=2 train.steps=1"
    on_terminal "'$weft' train $small checkpoint.dir='$work/$odd'" 'a?]??/step-000000000001'
    # Without colours, the line of progress is still one that is written over.
    line=$(printf '\r\033[K')
    for no in '' 1; do
        TERM=xterm NO_COLOR=$no script -qec "'$weft' train $small" /dev/null </dev/null >"$work/out"
        LC_ALL=C grep -qaF "${line}step 1/1" "$work/out" || { echo "NO_COLOR=$no: no line of progress"; od -c "$work/out"; failed=1; }
        LC_ALL=C grep -qaF "$(printf '\033[1m')" "$work/out" && bold=yes || bold=
        [ "$bold" = "$([ $no ] || echo yes)" ] || { echo "NO_COLOR=$no: bold '$bold'"; failed=1; }
    done
    plan="parallel.devices=2 'parallel.strategies=[{match: \"$odd\", split: n0=dp}]'"
    on_terminal "'$weft' train $small $plan" "note: 'parallel.strategies=[{match: \"a?]??\""
    for verb in model program; do # with what they show, and into a pipe as it is
        on_terminal "'$weft' $verb $small $plan" "note: 'parallel.strategies=[{match: \"a?]??\""
        eval "'$weft' $verb $small $plan" 2>&1 | LC_ALL=C grep -qaF "{match: \"$odd\"" || { echo "$verb: another name in a pipe"; failed=1; }
        on_terminal "'$weft' $verb '$work/$odd.yaml'" 'a?]??.yaml'
        on_terminal "'$weft' $verb $small --plan '$work/$odd.none'" 'a?]??.none'
    done
    on_terminal "'$weft' '$odd'" "unknown verb 'a?]??'"
    on_terminal "'$weft' info '$odd'" "'a?]??'"
    on_terminal "'$weft' train '--$odd'" 'unknown option --a?]??'
    on_terminal "'$weft' launch -n 1 --tail '$odd' true" "not 'a?]??'"
    on_terminal "'$weft' plan $small parallel.devices=2 --out '$work/$odd.json'" 'a?]??.json: the plan for 2 devices'
    on_terminal "'$weft' plan $small --check '$work/$odd.json'" 'a?]??.json is good for this job'
    on_terminal "'$weft' generate '$work/$odd.none' --prompt x" 'a?]??.none'
else
    echo "SKIP: terminals, for want of script(1)"
fi
exit $failed
