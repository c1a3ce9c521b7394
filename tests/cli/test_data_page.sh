#!/bin/sh
# docs/reference/format-data.md keeps its word: its examples are refused with the messages beside them; formats and end of text are as
# its tables say.
. tests/cli/run.inc
# shellcheck source=tests/cli/pages.inc
. "$OLDPWD/tests/cli/pages.inc"
page=$docs/reference/format-data.md

# --- what is refused ---
awk '/^## Refused/ { on = 1 } on && /^\| `/' "$page" >rows
[ "$(wc -l <rows)" -ge 10 ] || fail 'the rows of refusals were not found' rows
while IFS= read -r row; do
    command=$(printf '%s' "$row" | sed 's/^| `//; s/` | .*//') message=$(printf '%s' "$row" | sed 's/.*` | //; s/ |$//')
    sh -c "$command" </dev/null >out 2>&1 && fail "it is taken: $command" out
    grep -qF -- "$message" out || fail "$command does not say '$message':" out
done <rows

# --- the formats are those of data.format ---
"$weft" train --keys | sed -n 's/^| `data.format` | [^|]* | \([^|]*\) |.*/\1/p' | tr -d ' ' | tr , '\n' | sort >formats
awk '/^\| `data.format`/ { on = 1; next } !/^\|/ { on = 0 } on' "$page" | sed -n 's/^| `\([a-z]*\)` .*/\1/p' | sort >documented
cmp -s formats documented || fail 'the table of formats has others than data.format' documented

# --- what is added where documents meet: the tokens of each file, as the checkpoint counts them ---
cat >tokenizer.json <<'END'
{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<|endoftext|>": 2}, "merges": []},
 "added_tokens": [{"id": 2, "content": "<|endoftext|>", "special": true}]}
END
mkdir one two
printf 'abababab' >one/a.txt
printf 'abab' >two/a.txt
printf 'abab' >two/b.txt
printf '{"text": "abab"}\n{"text": "abab"}\n' >lines.jsonl
tokens() { # EXPECTED words...
    expected=$1
    shift
    "$weft" train model.family=gpt2 model.layers=1 model.hidden=8 model.heads=1 model.context=2 data.validation=0 train.steps=1 \
        train.batch=1 device.threads=1 checkpoint.dir=run "$@" >out 2>&1 || fail "$* fails" out
    got=$(cat run/step-*/*.json | grep -oE 'u[12] \[[0-9]+\]' | sed 's/.*\[//; s/\]//' | awk '{ n += $1 } END { print n }')
    [ "$got" = "$expected" ] || fail "$*: $got tokens, not $expected" out
    rm -rf run
}
for kind in '' data.tokenizer=tokenizer.json; do
    tokens 8 data.path=one $kind
    tokens 10 data.path=lines.jsonl $kind
done
tokens 8 data.path=two
tokens 10 data.path=two data.tokenizer=tokenizer.json
exit $failed
