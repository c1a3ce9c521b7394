#!/bin/sh
# weft simulate: predicted steps as text and JSON, slow and failing ranks, timelines, wrong words.
. tests/cli/run.inc
cat >job.yaml <<'J'
model: {family: gpt2, layers: 4, hidden: 32, heads: 4, context: 16, vocab: 64}
data: {path: nothing.bin}
train: {batch: 16}
J
two="--devices 4 --mode semi --machine v100"

# less A B
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 < b + 0) }'; }

# shellcheck disable=SC2086
expect 0 'predicted step|peak memory|critical path|forward|all_reduce' simulate job.yaml $two
# shellcheck disable=SC2086
expect 0 '"step_seconds"|"tokens_per_second"|"mfu"|"predicted_peak_bytes"|"seconds_by_cause"|"classes"' \
    simulate job.yaml $two --json
json out
plain=$(sed 's/.*"step_seconds": \([0-9.e+-]*\),.*/\1/' out)
peak=$(sed 's/.*"mfu": [^,]*, "predicted_peak_bytes": \([0-9]*\),.*/\1/' out)

# The predicted peak is that of `weft model`, and so is the one of a plan file.
# shellcheck disable=SC2086
expect 0 "\"predicted_peak_bytes\": $peak" model job.yaml $two --json
expect 0 'plan.json' plan job.yaml --devices 4 --out plan.json
expect 0 "\"predicted_peak_bytes\": $peak" simulate job.yaml --plan plan.json --topology v100 --json

sed 's/"memory_bytes": {"value": [^,]*/"memory_bytes": {"value": 1000/' >tiny.json <<J
$("$weft" machine show v100)
J
expect 0 'does not fit' simulate job.yaml --devices 4 --mode semi --machine tiny.json
expect 0 '"device_memory_bytes": 1000, "fits": false' simulate job.yaml --devices 4 --mode semi --machine tiny.json --json

# --- products in 8 bits ---
# Predicted, with the rate of the machine: faster on one that has it, slower where casts come on top; not trained.
seconds_of() { # MACHINE PRODUCTS
    expect 0 '"step_seconds"' simulate model.family=gpt2 model.layers=1 model.hidden=4096 model.heads=32 model.context=1024 \
        model.vocab=512 train.batch=8 train.precision=bf16 "train.products=$2" --machine "$1" --devices 1 --json
    sed 's/.*"step_seconds": \([0-9.e+-]*\),.*/\1/' out
}
wide=$(seconds_of h100-80g auto)
less "$(seconds_of h100-80g f8)" "$(awk -v s="$wide" 'BEGIN { print 0.85 * s }')" || fail 'f8 on a machine that has it' out
wide=$(seconds_of a100-80g auto)
less "$wide" "$(seconds_of a100-80g f8)" || fail 'f8 on a machine that has it not' out
head -c 9000 "$weft" >some.raw
expect 1 'train.products|predictions|auto' train job.yaml model.vocab=256 data.path=some.raw data.format=raw train.products=f8

# --- disturbances ---
# shellcheck disable=SC2086
expect 0 '"step_seconds"' simulate job.yaml $two --slow rank=3,x=4 --json
less "$plain" "$(sed 's/.*"step_seconds": \([0-9.e+-]*\),.*/\1/' out)" || fail 'a slow rank makes a step longer' out
# shellcheck disable=SC2086
expect 0 '"step_seconds"' simulate job.yaml $two --link 0-1,x=0.01 --json
less "$plain" "$(sed 's/.*"step_seconds": \([0-9.e+-]*\),.*/\1/' out)" || fail 'a slow link makes a step longer' out
# shellcheck disable=SC2086
expect 0 '"stopped": true|"waiting_ranks": 3' simulate job.yaml $two --fail rank=1,at=0.0001s --json
# shellcheck disable=SC2086
expect 0 'stop after|3 of 4' simulate job.yaml $two --fail rank=1,at=0.0001

# --- a timeline has the names of a real run's trace, and memory ---
# shellcheck disable=SC2086
expect 0 'predicted step' simulate job.yaml $two --trace trace.json
tr -d '\n' <trace.json >trace.line
echo >>trace.line
json trace.line
for fact in '"name":"h.2","cat":"forward"' '"name":"h.2","cat":"backward"' '"ph":"C","name":"memory"' \
    '"name":"all_reduce"' '"name":"device 0'; do
    grep -qF "$fact" trace.json || fail "no $fact in the trace"
done
# The highest value of the counter is the predicted peak.
top=$(sed -n 's/.*"name":"memory".*"bytes":\([0-9]*\).*/\1/p' trace.json | sort -n | tail -1)
[ "$top" = "$peak" ] || fail "the counter reaches $top bytes, the peak is $peak"

# A run of the same job has the same cells, kernels and transfers, whatever the plan.
small="model.family=gpt2 model.layers=4 model.hidden=32 model.heads=4 model.context=16 train.batch=16 train.steps=1
    data.path=text.txt data.validation=0 checkpoint.dir="
# The names of cells and transfers with their categories, the names of kernels. What the run does is not predicted.
names() {
    sed -n 's/.*"ph":"X","name":"\([^"]*\)","cat":"\([^"]*\)","pid":[0-9]*,"tid":\([0-9]*\).*/\3 \1 \2/p' "$1" |
        awk '$1 == 18 { next } $1 == 1 { print 1, $2; next } { if ($1 > 2) $1 = 2; print }' | sort -u
}
# same_names 'keys of the plan' KIND...: of these kinds of transfers there are some.
same_names() {
    keys=$1
    shift
    # shellcheck disable=SC2086
    expect 0 'done: 1 step' train $small --devices 4 $keys --trace real.json
    # shellcheck disable=SC2086
    expect 0 'predicted step' simulate $small --devices 4 $keys --machine v100 --trace sim.json
    names real.json >real.names
    names sim.json >sim.names
    [ "$(wc -l <real.names)" -gt 50 ] || fail 'a run has few names' real.names
    diff real.names sim.names >names || fail "$keys: the run and the prediction differ in names" names
    for kind in "$@"; do
        grep -q "^2 $kind " sim.names || fail "$keys: no $kind" sim.names
    done
}
stages="parallel.pipeline.stages=2 parallel.pipeline.microbatches=4"
same_names "$stages parallel.optimizer.level=1" send reduce_scatter all_gather
same_names "parallel.optimizer.level=3 parallel.recompute.mode=full train.accumulate=2" reduce_scatter all_gather
same_names "$stages parallel.pipeline.schedule=zero_bubble --mode semi" send all_reduce
# shellcheck disable=SC2086
expect 0 'plan.json' plan $small --devices 4 --machine v100 --fix "dp=2 tp=2" --out plan.json
same_names "--plan plan.json" all_reduce
small="$small $stages parallel.optimizer.level=1" # for the reports below

# --- a report is one file that needs nothing else ---
# shellcheck disable=SC2086
expect 0 'predicted step' simulate $small --devices 4 --machine 'hosts=2 gpus=2 gpu=v100' --slow rank=1,x=2 --report report.html
for fact in '<!doctype html>' 'prefers-color-scheme:dark' 'width=device-width' '<svg' 'host 1' 'rank 3, stage 1' \
    'all_reduce' 'Largest tensors' 'wte.weight' 'microbatch 3'; do
    grep -qF "$fact" report.html || fail "no $fact in the report"
done
grep -qE '<script|src=|https?://' report.html && fail 'the report needs something else'
if command -v python3 >/dev/null 2>&1; then
    python3 - report.html <<'P' || fail 'tags of the report do not match'
import sys
from html.parser import HTMLParser
class Tags(HTMLParser):
    open, bad = [], False
    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "link"):
            self.open.append(tag)
    def handle_endtag(self, tag):
        self.bad = self.bad or not self.open or self.open.pop() != tag
tags = Tags()
tags.feed(open(sys.argv[1], encoding="utf-8").read())
sys.exit(tags.bad or bool(tags.open))
P
fi
# shellcheck disable=SC2086
expect 1 'no/report.html' simulate job.yaml $two --report no/report.html

# --- wrong words ---
# shellcheck disable=SC2086
{
    expect 2 'rank=R,x=F' simulate job.yaml $two --slow 3
    expect 2 'rank=R,x=F' simulate job.yaml $two --slow rank=3,x=0.5
    expect 2 'A-B,x=F' simulate job.yaml $two --link 0-1,x=2
    expect 2 'A-B,x=F' simulate job.yaml $two --link 01,x=0.5
    for word in '' rank=1 rank=1,x= rank=1,x=nan rank=1,x=inf rank=1,x=1e9 rank=-1,x=2 rank=1.5,x=2 rank=1,x=2,x=3 x=2,rank=1; do
        expect 2 '--slow|rank=R,x=F' simulate job.yaml $two --slow "$word"
    done
    for word in '' 0-1 0-1,x= 0-1,x=0 0-1,x=-1 0-1,x=nan 0,1,x=0.5 a-b,x=0.5 0-1,x=0.5s -1-2,x=0.5; do
        expect 2 '--link|A-B,x=F' simulate job.yaml $two --link "$word"
    done
    for word in rank=1 rank=1,at= rank=1,at=-1 rank=1,at=nan rank=1,at=1e99 rank=1,at=1m rank=x,at=1; do
        expect 2 '--fail|rank=R,at=T' simulate job.yaml $two --fail "$word"
    done
    expect 2 '--fail' simulate job.yaml $two --fail ''
    expect 1 'link 2-2' simulate job.yaml $two --link 2-2,x=0.5
    expect 2 'rank=R,at=T' simulate job.yaml $two --fail rank=1,at=0
    expect 1 'rank 7|0 to 3' simulate job.yaml $two --slow rank=7,x=2
    expect 1 'link 2-9' simulate job.yaml $two --link 2-9,x=0.5
    expect 1 'rank 8' simulate job.yaml $two --fail rank=8,at=1
    # Before any search: this one would take long.
    for words in '--slow rank=64,x=2' '--link 0-64,x=0.5' '--fail rank=64,at=1' '--trace no/t.json' '--report no/r.html'; do
        # shellcheck disable=SC2086
        "$weft" simulate model.layers=96 model.hidden=12288 model.heads=96 model.context=2048 model.vocab=51200 train.batch=1536 \
            --machine '8 hosts of 8 h100-80g' parallel.evaluations=100000 parallel.search_seconds=600 $words >out 2>&1 &
        wait $! && fail "simulate $words did not fail"
        has_facts out "$(echo "$words" | grep -o 'no/[a-z.]*\|64')" || fail "simulate $words" out
    done
    expect 1 'no/trace.json' simulate job.yaml $two --trace no/trace.json
}
expect 1 'machine' simulate job.yaml --devices 4
expect 1 'k9' simulate job.yaml --devices 4 --machine k9
expect 1 '4' simulate job.yaml --devices 4 --machine 'hosts=1 gpus=2 gpu=v100'
expect 2 'job file' simulate
[ $failed = 0 ] && echo 'predicted steps, disturbances, timelines, refusals'
exit $failed
