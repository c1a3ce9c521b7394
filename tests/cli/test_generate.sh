#!/bin/sh
# weft generate: from a run that has just been trained, its prompt as an option and on standard input; JSON that is
# valid whatever bytes the model makes; wrong words and missing checkpoints.
set -eu
bin=${WEFT_BIN:-build/weft}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$bin" train data.path="$PWD/include/weft/*.h" model.layers=1 model.hidden=16 model.heads=2 model.context=32 \
    train.steps=3 train.batch=4 checkpoint.dir="$work/run" >"$work/out"

fail() { echo "$1"; cat "$work/out" "$work/err" 2>/dev/null || true; exit 1; }

"$bin" generate "$work/run" --prompt 'int main' --tokens 20 --seed 3 >"$work/out"
[ "$(head -c 8 "$work/out")" = 'int main' ] || fail 'the text does not begin with the prompt'
[ "$(wc -c <"$work/out")" -eq 29 ] || fail 'not 8 bytes, 20 tokens and a newline'
printf 'int main' | "$bin" generate "$work/run/step-000000000003" --prompt - --tokens 20 --seed 3 --threads 1 >"$work/same"
cmp -s "$work/out" "$work/same" || fail 'the same seed makes another text'
"$bin" generate "$work/run" --prompt 'int main' --tokens 20 --seed 4 >"$work/other"
cmp -s "$work/out" "$work/other" && fail 'another seed makes the same text'

"$bin" generate "$work/run" --prompt 'a	"b' --tokens 200 --temperature 3 --top-k 0 --json >"$work/out"
if command -v python3 >/dev/null; then
    python3 -c '
import json, sys
o = json.load(open(sys.argv[1], encoding="utf-8"))
assert o["tokens"] == 200 and o["prompt"] == "a\t\"b" and o["prompt_tokens"] == 4 and len(o["text"]) > 20, o' "$work/out" ||
        fail 'not the JSON expected'
fi
"$bin" generate "$work/run" --prompt "$(head -c 100 /dev/zero | tr '\0' x)" --tokens 1 >"$work/out" 2>"$work/err"
grep -q '68 tokens' "$work/err" || fail 'nothing is said of a prompt that is too long'

if script -qec true /dev/null </dev/null >/dev/null 2>&1; then # a terminal, whether or not it wants colours
    for no in '' 1; do
        NO_COLOR=$no script -qec "'$bin' generate '$work/run' --tokens 1 --prompt '$(printf '<\033\302\233\302\251>')'" /dev/null \
            </dev/null >"$work/out"
        LC_ALL=C grep -qa "<?$(printf '\302')?$(printf '\302\251')>" "$work/out" || fail 'controls on a terminal'
    done
fi
"$bin" generate "$work/run" --tokens 1 --prompt "$(printf '<\033\302\233\177\302\251>')" --json >"$work/out"
LC_ALL=C grep -q "\"<.u001b.u009b.u007f$(printf '\302\251')>\"" "$work/out" || fail 'controls in JSON'

cp -r "$work/run" "$work/damaged"
cp -r "$work/run/step-000000000003" "$work/damaged/step-000000000004"
"$bin" generate "$work/damaged" --prompt 'int main' --tokens 20 --seed 3 >"$work/out" 2>"$work/err"
cmp -s "$work/out" "$work/same" && grep -q 'skipped step 4' "$work/err" || fail 'nothing is said of a damaged step'
"$bin" train model.from="$work/damaged" data.path="$PWD/include/weft/*.h" train.steps=1 >"$work/out"
grep -q 'model.from: skipped step 4' "$work/out" || fail 'nothing is said of a damaged step to start from'

code=0
"$bin" generate "$work/none" >"$work/out" 2>"$work/err" || code=$?
[ $code -eq 1 ] && grep -q directory "$work/err" || fail 'a missing checkpoint'
for words in '' "$work/run text" "$work/run --tokens 0" "$work/run --temperature -1" "$work/run --top-k x"; do
    code=0
    # shellcheck disable=SC2086
    "$bin" generate $words >"$work/out" 2>"$work/err" || code=$?
    [ $code -eq 2 ] || fail "accepted: generate $words"
done
# Which tokens end a text goes from the tokenizer, or from the directory that a run starts from, into its checkpoints.
set -- data.path="$PWD/include/weft/*.h" data.tokenizer="$PWD/tests/data/tokenizer_gpt2.json" train.steps=1 \
    train.batch=1 model.context=8
"$bin" train "$@" model.layers=1 model.hidden=16 model.heads=2 checkpoint.dir="$work/words" >"$work/out"
step=step-000000000001
grep -q '"eos_token_id": 0,$' "$work/words/$step/config.json" || fail 'the end of texts is not that of the tokenizer'
mkdir "$work/from"
cp "$work/words/$step/config.json" "$work/words/$step/model.safetensors" "$work/from"
echo '{"eos_token_id": [7, 5]}' >"$work/from/generation_config.json"
"$bin" train "$@" model.from="$work/from" checkpoint.dir="$work/tuned" >"$work/out"
"$bin" train "$@" model.from="$work/tuned" checkpoint.dir="$work/again" >"$work/out"
for run in tuned again; do
    grep -q '"eos_token_id": \[7, 5\],$' "$work/$run/$step/config.json" || fail "$run does not keep what ends a text"
done
echo '{"eos_token_id": "x"}' >"$work/from/generation_config.json"
code=0
"$bin" train "$@" model.from="$work/from" >"$work/out" 2>"$work/err" || code=$?
[ $code -eq 1 ] && grep -q 'from: generation_config.json: eos_token_id must be' "$work/err" || fail 'a wrong generation_config.json'
echo "weft generate: texts, JSON, complaints"
