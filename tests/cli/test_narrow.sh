#!/bin/sh
# Terminals of 60 columns: the line of progress keeps time and memory, tables and help fit, nothing wraps. `weft help VERB`
# shows a verb on any output.
. tests/cli/run.inc

expect 0 'weft generate|--top-p|example:' help generate
"$weft" generate --help >long 2>&1
"$weft" help generate >short 2>&1
cmp -s long short || fail 'weft help generate is not weft generate --help'
expect 2 "train|trian" help trian
expect 2 'words' help train words
expect 0 'VERB' help

script -qec true /dev/null </dev/null >/dev/null 2>&1 || {
    [ $failed = 0 ] && echo "SKIP: no script(1) that makes a terminal" && exit 77
    exit 1
}

# narrow COLUMNS words...: what a terminal of that width shows, one line for each line and each rewriting of a line.
narrow() {
    columns=$1
    shift
    script -qec "stty cols $columns; TERM=xterm '$weft' $*" /dev/null </dev/null |
        tr -d '\r' | sed "s/$(printf '\033')\[[0-9;]*m//g; s/$(printf '\033')\[K/\\
/g" >out
}

# fits COLUMNS: no line of a table or help is wider.
fits() {
    awk -v most="$1" 'length($0) > most { print length($0) ": " $0; bad = 1 } END { exit bad }' out >wide ||
        fail "lines wider than $1 columns" wide
}

for verb in train generate model plan program info checkpoint launch bench; do
    narrow 60 help $verb
    fits 60
    has_facts out "weft $verb" || fail "weft help $verb on a terminal" out
done
narrow 60 --help
fits 60
for columns in 60 50 45; do
    narrow $columns train job.yaml data.validation=0 train.steps=30
    grep '  ETA ' out >live || fail 'no line of progress' out
    awk -v most=$columns 'length($0) >= most || !/ETA [0-9:]+  (memory )?[0-9.]+ [KM]iB/ { print; bad = 1 } END { exit bad }' \
        live >wrong || fail "progress on $columns columns" wrong
done
narrow 200 train job.yaml data.validation=0 train.steps=5
has_facts out 'step 5/5|  lr |tokens/s|  ETA | of ' || fail 'progress on a wide terminal' out
narrow 60 model job.yaml parallel.devices=2
sed '/^$/q' out >table
mv table out
fits 60
has_facts out 'cell|parameters|per device|h.1|left out' || fail 'weft model' out
narrow 150 model job.yaml parallel.devices=2
has_facts out 'kind|backward|layout' || fail 'weft model on a wide terminal' out
narrow 60 bench comm --max 1KiB --threads 2
fits 60
# The text of a checkpoint, and of a program: whole tables, nothing cut, and as it is on wide terminals.
"$weft" train job.yaml train.steps=2 checkpoint.every=2 checkpoint.dir=narrow data.validation=0 >/dev/null 2>&1 ||
    fail 'a run with a checkpoint'
for columns in 60 80; do
    for words in 'checkpoint inspect narrow' 'program job.yaml parallel.devices=2'; do
        # shellcheck disable=SC2086
        narrow $columns $words
        fits $columns
        tr -s ' \n' '\n\n' <out >words
        # shellcheck disable=SC2086
        "$weft" $words 2>&1 | tr -s ' \n' '\n\n' | cmp -s - words || fail "$words: other words on $columns columns" out
    done
done
narrow 200 checkpoint inspect narrow
"$weft" checkpoint inspect narrow >piped 2>&1
cmp -s out piped || fail 'a wide terminal changes the text' out
"$weft" model job.yaml >piped 2>&1
head -1 piped | grep -q '^cell   *kind  parameters     forward    backward       saved       frame$' ||
    fail 'weft model into a pipe' piped
[ $failed = 0 ] && echo "narrow terminals: progress, tables, texts, help"
exit $failed
