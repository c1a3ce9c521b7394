#!/bin/sh
# Fine-tuning takes the tokenizer of the model that it starts from; bytes for another vocabulary are refused unless the
# job asks for them; files that are not text are refused. What a run has trained can be used afterwards.
. tests/cli/run.inc
base="model.layers=1 model.hidden=16 model.heads=2 model.context=8 train.steps=2 train.batch=2 data.validation=0"
step=step-000000000002

# --- a model of bytes ---
# shellcheck disable=SC2086
expect 0 'done: 2 steps' train $base data.path=text.txt checkpoint.dir=bytes
expect 0 'done: 2 steps' train model.from=bytes data.path=text.txt train.steps=2 train.batch=2 checkpoint.dir=bytes2
expect 0 '"tokens": 3' generate bytes2 --prompt ab --tokens 3 --json
# A vocabulary that is not one of bytes.
# shellcheck disable=SC2086
expect 1 'data.tokenizer|300|bytes' train $base data.path=text.txt model.vocab=300
# shellcheck disable=SC2086
expect 0 'done: 2 steps' train $base data.path=text.txt model.vocab=300 data.tokenizer=bytes checkpoint.dir=wide
expect 1 'tokenizer.json|300|--tokenizer' generate wide --prompt ab --tokens 3
expect 0 '"tokens": 3' generate wide --prompt ab --tokens 3 --json --tokenizer bytes
expect 1 'data.tokenizer|300|wide' train model.from=wide data.path=text.txt train.steps=1
expect 0 'done: 1 step' train model.from=wide data.path=text.txt train.steps=1 train.batch=2 data.tokenizer=bytes
# shellcheck disable=SC2086
expect 0 'tokenizer: auto' train $base data.path=text.txt --job

# --- a model of words ---
words=$OLDPWD/tests/data/tokenizer_gpt2.json
# shellcheck disable=SC2086
expect 0 'done: 2 steps' train $base data.path=text.txt data.tokenizer="$words" checkpoint.dir=words
expect 0 'done: 2 steps' train model.from=words data.path=text.txt train.steps=2 train.batch=2 checkpoint.dir=tuned
cmp -s "$words" tuned/$step/tokenizer.json || fail 'the checkpoint does not hold the tokenizer of model.from'
expect 0 '"tokens": 3' generate tuned --prompt ab --tokens 3 --json

# Files beside the model go along: through training, slices, and formats.
mkdir hf
cp words/$step/* hf
rm hf/manifest.json hf/optimizer*
sides='generation_config.json tokenizer_config.json special_tokens_map.json chat_template.jinja chat_template.json'
for side in $sides; do echo "{\"of\": \"$side\"}" >"hf/$side"; done
echo '{"eos_token_id": 7}' >hf/generation_config.json
has_sides() {
    for side in $sides tokenizer.json; do
        cmp -s "hf/$side" "$1/$side" || fail "$1 does not have the $side of the model it comes from"
    done
}
from_hf="train model.from=hf data.path=text.txt train.steps=2 train.batch=2"
# shellcheck disable=SC2086
expect 0 'done: 2 steps' $from_hf checkpoint.dir=kept
has_sides kept/$step
expect 0 'hf' checkpoint reshard kept plain --format hf
has_sides plain
expect 0 'hf' checkpoint reshard plain again --format hf
has_sides again
cmp -s plain/config.json again/config.json || fail 'reshard from and to Hugging Face loses config.json'
expect 0 '"tokens": 3' generate again --prompt ab --tokens 3 --json
"$weft" plan model.from=hf data.path=text.txt train.steps=2 train.batch=2 --devices 2 --out plan2.json \
    >log 2>&1 || fail 'no plan' log
expect 0 'slices' checkpoint reshard plain cut --to plan2.json
expect 0 'hf' checkpoint reshard cut joined --from plan2.json --format hf
has_sides joined
# A file that names the end of texts and cannot be read ends the run.
cp -r hf broken
echo '{"eos_token": ' >broken/tokenizer_config.json
expect 1 'tokenizer_config.json|broken' train model.from=broken data.path=text.txt train.steps=2 train.batch=2
# Another tokenizer comes with its own files; settings of generation are the model's.
mkdir other
cp "$words" other/tokenizer.json
echo '{"of": "other"}' >other/tokenizer_config.json
# shellcheck disable=SC2086
expect 0 'done: 2 steps' $from_hf data.tokenizer=other checkpoint.dir=mixed
cmp -s other/tokenizer_config.json mixed/$step/tokenizer_config.json || fail 'not the files of data.tokenizer'
cmp -s hf/generation_config.json mixed/$step/generation_config.json || fail 'not the generation_config.json of the model'
[ ! -e mixed/$step/chat_template.jinja ] || fail 'a template of another tokenizer'
# A run goes on with them.
# shellcheck disable=SC2086
expect 0 'continued|done: 1 step' $from_hf train.steps=3 checkpoint.dir=kept checkpoint.resume=true
has_sides kept/step-000000000003
expect 0 'predicted' model model.from=words data.path=text.txt
mkdir bare
cp words/$step/config.json words/$step/model.safetensors bare
expect 1 'data.tokenizer|bare|bytes' train model.from=bare data.path=text.txt train.steps=1
echo '{}' >bare/tokenizer.json
expect 1 'bare|tokenizer' train model.from=bare data.path=text.txt train.steps=1
if command -v mpirun >/dev/null 2>&1 || "$weft" launch --help >/dev/null 2>&1; then
    expect 0 'done: 2 steps' launch -n 2 -- "$weft" train model.from=words data.path=text.txt train.steps=2 train.batch=2 \
        parallel.mode=data parallel.devices=2 checkpoint.dir=tuned2
    cmp -s "$words" tuned2/$step/tokenizer.json || fail 'two ranks: the checkpoint does not hold the tokenizer'
    # shellcheck disable=SC2086
    expect 0 'done: 2 steps' launch -n 2 -- "$weft" $from_hf parallel.mode=data parallel.devices=2 \
        parallel.optimizer.level=3 checkpoint.sliced=true checkpoint.dir=tuned3
    has_sides tuned3/rank_0/$step
    has_sides tuned3/rank_1/$step
fi

# --- files that are not text ---
awk '{ printf "{\"text\": \"%s\"}\n", $0 }' text.txt >lines.jsonl
# shellcheck disable=SC2086
expect 0 'done: 2 steps' train $base data.path=lines.jsonl
(sed -n 1,6p lines.jsonl && echo '{"text": 3}') >broken.jsonl
# shellcheck disable=SC2086
expect 1 'broken.jsonl, line 7' train $base data.path=broken.jsonl
cp lines.jsonl lines.json
# shellcheck disable=SC2086
expect 1 'lines.json|data.format: jsonl' train $base data.path=lines.json
# shellcheck disable=SC2086
expect 0 'done: 2 steps' train $base data.path=lines.json data.format=jsonl
echo 'a,b' >table.csv
# shellcheck disable=SC2086
expect 1 'table.csv|raw' train $base data.path=table.csv
[ $failed = 0 ] && echo "fine-tuning: tokenizers, JSON lines, refusals"
exit $failed
