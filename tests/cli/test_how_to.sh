#!/bin/sh
# The pages on how to do things keep their word: each command in their shell blocks runs, in a folder that holds the files
# that they name. The model and the number of steps are smaller than there.
. tests/cli/run.inc
# shellcheck source=tests/cli/pages.inc
. "$OLDPWD/tests/cli/pages.inc"

# follow PAGE [PATTERN]: its commands; those that match the pattern need what is not here.
follow() {
    page=$1
    awk '/^```sh/ { on = 1; next } /^```/ { on = 0 } on' "$docs/guide/$page" | grep '^weft ' | sed 's/  *#.*//' | grep -vE -- "${2:-^$}" >commands
    ran=0
    while IFS= read -r command; do
        ran=$((ran + 1))
        command=$(printf '%s' "$command" | sed 's, /models/, models/,g; s/train.steps=2000/train.steps=110/')
        timeout 120 sh -c "$command" </dev/null >out 2>&1 || fail "$page: exit $?: $command" out
    done <commands
    [ $ran -gt 2 ] || fail "$page: $ran commands"
    echo "$page: $ran commands"
}

# ---- what the pages name ----
awk 'BEGIN { for (i = 0; i < 1500; i++) print "ROMEO: weft " i " runs over and under warp " (i * 7) % 13 }' >tinyshakespeare.txt
cp tinyshakespeare.txt held-out.txt
printf '{"prompt": "ROMEO:"}\n{"prompt": "The"}\n' >prompts.jsonl
# A file of npy: tokens [2, 16], each a byte.
printf '\223NUMPY\1\0\166\0%-117s\n' "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 16), }" >tokens.npy
printf 'ROMEO: weft runsROMEO: over warp' >>tokens.npy
# The job of how-to-train-text.md, with a smaller model. Other pages go on with its run.
awk '/^```yaml/ { on = 1; next } /^```/ { if (on) exit } on' "$docs/guide/how-to-train-text.md" |
    sed 's/layers: 4, hidden: 128/layers: 2, hidden: 32/; s/steps: 400/steps: 100/' >job.yaml
follow how-to-train-text.md
weft checkpoint reshard run models/gpt2 --format hf >out 2>&1 || fail 'no model in the form of Hugging Face' out
weft plan job.yaml --devices 2 parallel.pipeline.stages=2 --out stages.json >out 2>&1 || fail 'no plan of stages' out
weft plan job.yaml --devices 4 --out plan.json >out 2>&1 || fail 'no plan' out
follow how-to-generate.md images.npy
if "$weft" info --quick 2>/dev/null | grep -q '^ *OpenSSL *built in'; then
    rm -rf run
    cp tokens.npy X.npy
    follow how-to-encrypt.md 'run other'
fi
exit $failed
