#!/bin/sh
# weft generate --prompts: JSON lines in the order of the prompts, each text that of its prompt alone, in one process and
# in several; wrong lines and words are named.
. tests/cli/run.inc

"$weft" train job.yaml train.steps=60 train.optimizer.lr=0.01 checkpoint.dir=run --json >trained 2>&1 || fail 'the training fails' trained
for i in 1 2 3 4 5 6 7 8 9; do
    echo "{\"id\": $i, \"prompt\": \"weft $i runs\", \"tokens\": $((30 / i))}"
done >prompts.jsonl
printf '\n{"prompt": "under", "id": "last"}\n' >>prompts.jsonl

# The texts of each prompt alone.
alone() { "$weft" generate run --prompt "$1" --tokens "$2" --temperature 0 --json | sed 's/.*"text": \("[^"]*"\).*/\1/'; }
for i in 1 2 3 4 5 6 7 8 9; do alone "weft $i runs" $((30 / i)); done >one
alone under 12 >>one
many() {
    "$weft" "$@" --prompts prompts.jsonl --tokens 12 --temperature 0 >out 2>err || fail "weft $* fails" err
    json out
    sed 's/.*"text": \("[^"]*"\).*/\1/' out >texts
    cmp one texts || fail "weft $* writes other texts" out
}
many generate run
has_facts out '"id": 1,|"id": "last"|"prompt": "weft 9 runs"|"tokens": 30|"tokens": 12' || fail 'facts are missing' out
[ "$(sed 's/.*"id": "*\([^",]*\).*/\1/' out | tr '\n' ' ')" = '1 2 3 4 5 6 7 8 9 last ' ] || fail 'another order' out
many generate run --rows 3
many generate run --devices 2
many launch -n 2 --no-logs "$weft" generate run

echo '{"prompt": "a", "limit": 4}' >>prompts.jsonl
expect 1 'line 12|limit' generate run --prompts prompts.jsonl
expect 1 'nothere' generate run --prompts nothere
printf '{"prompt": "a"}\n{"prompt": "b"\n' >broken.jsonl
expect 1 'broken.jsonl, line 2|line 2, column 15' generate run --prompts broken.jsonl
echo '{"prompt": "a", "id": 99999999999999999999}' >broken.jsonl
expect 1 'line 1|"id"|-9223372036854775808|9223372036854775807' generate run --prompts broken.jsonl
expect 1 'line 12|limit' launch -n 2 --no-logs "$weft" generate run --prompts prompts.jsonl
expect 2 'prompts' generate run --prompts prompts.jsonl --prompt a
expect 2 'rows' generate run --rows 3

[ $failed = 0 ] && echo 'generate --prompts: the texts of single prompts, in order, bad lines named'
exit $failed
