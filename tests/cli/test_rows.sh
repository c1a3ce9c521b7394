#!/bin/sh
# train.rows: auto. The checkpoints of sgd and adagrad are those of dense gradients: on one device, on two, and in two
# processes. weft model says how tables are updated, and why. memory.offload: auto moves no table that is updated by rows.
# Tables in host memory or on a disk have the checkpoints of tables in device memory, also when a run resumes.
. tests/cli/run.inc

cat >job.yaml <<EOF
model: {family: llama, layers: 1, hidden: 32, heads: 2, ffn: 64, context: 8, vocab: 600, tied: false}
data: {format: text, path: text.txt, tokenizer: bytes}
train: {steps: 4, batch: 4, clip: 0, log: log.jsonl}
EOF
for i in 1 2 3 4 5 6 7 8 9 10; do seq $((i * 50)) $((i * 90)); done >text.txt
for rule in sgd adagrad; do
    for rows in none auto; do
        word="train.optimizer=$rule train.rows=$rows"
        # shellcheck disable=SC2086
        expect 0 '' train job.yaml $word checkpoint.dir=$rule-$rows-1
        # shellcheck disable=SC2086
        expect 0 '' train job.yaml $word checkpoint.dir=$rule-$rows-2 --devices 2
        # shellcheck disable=SC2086
        expect 0 '' launch -n 2 --no-logs -- "$weft" train job.yaml $word checkpoint.dir=$rule-$rows-3
    done
    for run in 1 2 3; do
        cmp $rule-none-$run/step-000000000004/model.safetensors $rule-auto-$run/step-000000000004/model.safetensors ||
            fail "$rule, run $run: train.rows changes the bits"
    done
done
for tier in host disk cache; do
    to=$tier
    [ $tier != cache ] || to='disk, cache: 4KiB'
    for part in parameters optimizer; do
        moves="${moves:-}${moves:+, }{match: \"*embed_tokens*\", what: $part, to: $to}"
    done
    sed "\$a memory: {disk: {path: $work}, offload: [$moves]}" job.yaml >$tier.yaml
    what="train.rows=auto train.optimizer=adam train.eval_every=2"
    # shellcheck disable=SC2086
    expect 0 '' train job.yaml $what checkpoint.dir=adam
    # shellcheck disable=SC2086
    expect 0 '' train $tier.yaml $what checkpoint.dir=adam-$tier
    # shellcheck disable=SC2086
    expect 0 '' train $tier.yaml $what checkpoint.dir=adam-$tier-2 checkpoint.every=2
    rm -r adam-$tier-2/step-000000000004
    # shellcheck disable=SC2086
    expect 0 '' train $tier.yaml $what checkpoint.dir=adam-$tier-2 checkpoint.resume=true
    for run in '' -2; do
        cmp adam/step-000000000004/model.safetensors adam-$tier$run/step-000000000004/model.safetensors ||
            fail "a table on the $tier, run '$run': the tier changes the bits"
    done
    rm -r adam
    moves=''
done
# 4 steps look up 32 rows each, and 4 validations 20 times 32
expect 0 '"cache_hits": |"cache_misses": |"cache_written": |"cache_look_ups": 2688,|"cache_look_ups_hit": |"cache_ahead": ' train cache.yaml train.rows=auto train.optimizer=adam --json
expect 0 'caches|2688|written' train cache.yaml train.rows=auto train.optimizer=adam
expect 0 '"host_bytes": 7872,' model cache.yaml train.rows=auto train.optimizer=adam --json
expect 1 'memory.offload|cache|train.rows' train cache.yaml
sed 's/4KiB/1MiB/g' cache.yaml >large.yaml
expect 1 'memory.host|lacks|caches' train large.yaml train.rows=auto train.optimizer=adam model.hidden=64 memory.host=1MiB
for size in much 0% 101% -5%; do
    sed "s/4KiB/$size/" cache.yaml >bad.yaml
    expect 1 "bad.yaml|cache|$size|2GiB|100%" train bad.yaml train.rows=auto
done
# 10 per cent of 600 rows, by each of two entries: 120 slots of 3 rows with 32 numbers, 30 bytes beside, and a block
sed 's/4KiB/10%/g' cache.yaml >part.yaml
expect 0 '"host_bytes": 53824,' model part.yaml train.rows=auto train.optimizer=adam --json
sed 's/to: disk/to: host/g' cache.yaml >bad.yaml
expect 1 'bad.yaml|cache|disk' train bad.yaml train.rows=auto
expect 0 'embed_tokens.weight|rows|touches' model job.yaml train.rows=auto
expect 0 '"rows": |embed_tokens.weight|touches' model job.yaml train.rows=auto --json
expect 0 'embed_tokens.weight|rows|touches' model job.yaml train.rows=auto train.accumulate=2
expect 0 '' model job.yaml --json
grep -q '"rows"' out && fail 'rows that nobody asked for' out

# With adam a table that is updated whole has another result, so it stays in device memory, whatever else moves.
adam="job.yaml model.layers=6 model.hidden=128 model.heads=4 model.ffn=256 train.optimizer=adam train.rows=auto"
# shellcheck disable=SC2086
expect 0 'done' train $adam checkpoint.dir=adam
# shellcheck disable=SC2086
expect 0 predicted_peak_bytes model $adam --json
need=$(($(value predicted_peak_bytes <out) + $(value program_bytes <out)))
# shellcheck disable=SC2086
expect 0 'memory.offload|done' train $adam memory.offload=auto memory.disk.path="$work" device.memory=$((need * 3 / 4)) checkpoint.dir=moved
expect 0 '0 differ' checkpoint diff adam moved
grep -q '"what": "optimizer"\|"what": "parameters"' moved/record/plan.json || fail 'nothing has moved' moved/record/plan.json
expect 1 'train.rows|semi|manual' train job.yaml train.rows=auto parallel.mode=auto
exit $failed
