#!/bin/sh
# `weft program` from outside: whose program, every transfer with its group and bytes, layouts, memory as predicted.
. tests/cli/run.inc

split='parallel.mesh={dp: 2, tp: 2}'
ops='parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: n0=tp}, {match: "h.*.mlp.c_proj:linear", split: k=tp}]'

# --- the words ---
expect 0 'weft program job.yaml --plan plan.json --rank 3' program --help
expect 2 'job file' program
expect 2 '--rank|from 0' program job.yaml --rank=-1
expect 1 'rank 1|1 device|ranks 0 to 0' program job.yaml --rank 1
expect 1 'rank 4|4 devices|ranks 0 to 3' program job.yaml --devices 4 --rank 4

# --- one device: no transfers ---
expect 0 'rank 0 of 1' program job.yaml
grep -q 'all_reduce' out && fail 'one device communicates' out
grep -q '^ *[0-9]* *forward *h\.1 ' out || fail 'no forward step of h.1' out

# --- data and tensor parallel ---
"$weft" program job.yaml --devices 4 "$split" "$ops" --rank 3 >text 2>&1 || fail 'program failed' text
for line in '^rank 3 of 4: dp 1 of 2, tp 1 of 2$' \
    'all_reduce sum of h\.0\.mlp\.c_proj:linear, ranks 2 3, f32: gives 4\.0 KiB, gets 4\.0 KiB' \
    'all_reduce sum of gradients up to h\.0\.mlp\.c_proj\.weight, ranks 1 3, f32: gives 32\.5 KiB' \
    'reads h\.1\.mlp\.c_fc\.weight *f32\[32, 64\] of f32\[32, 128\]  \[-, tp\]' \
    'makes gradient of h\.1\.mlp\.c_fc\.weight .*\[-, tp\] sum(dp)' \
    '^  input      tokens  i32\[2, 16\] of i32\[4, 16\]  \[dp, -\]  from (2, 0)  128 B$' \
    '^  parameter  h\.0\.mlp\.c_proj\.weight  f32\[64, 32\] of f32\[128, 32\]  \[tp, -\]  from (64, 0)  8\.0 KiB$'; do
    grep -q "$line" text || fail "no line with $line" text
done

# --- one rank of many, of which none is started ---
set -- train.batch=64 model.hidden=64 model.heads=16 'parallel.mesh={dp: 64, tp: 16}' \
    'parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: n0=tp}, {match: "h.*.mlp.c_proj:linear", split: k=tp}]'
expect 0 'rank            5 of 1024' launch --rehearse --ranks 1024 --rank 5 -- weft train job.yaml "$@"
"$weft" program job.yaml "$@" 'parallel.mesh={dp: 4, tp: 16}' --rank 21 >text 2>&1 || fail 'program of 64 ranks failed' text
for line in '^rank 21 of 64: dp 1 of 4, tp 5 of 16$' \
    'all_reduce sum of h\.0\.mlp\.c_proj:linear, ranks 16 to 31, f32' \
    'reads h\.1\.mlp\.c_fc\.weight *f32\[64, 16\] of f32\[64, 256\]  \[-, tp\]'; do
    grep -q "$line" text || fail "64 ranks: no line with $line" text
done

# --- a plan file: stages ---
expect 0 'plan.json' plan job.yaml --devices 4 parallel.pipeline.stages=2 parallel.pipeline.microbatches=2 --out plan.json
"$weft" program job.yaml --plan plan.json --rank 3 train.accumulate=2 >text 2>&1 || fail 'program --plan failed' text
for line in '^rank 3 of 4: dp 1 of 2; stage 1 of 2, ranks 2 to 3$' '^all microbatches:$' \
    'send of h\.0, ranks 1 3, f32: gives 0 B, gets 2\.0 KiB, receives 2\.0 KiB' \
    'send of gradient of h\.0, ranks 1 3, f32: gives 2\.0 KiB, gets 0 B' 'microbatch 1$'; do
    grep -q "$line" text || fail "no line with $line" text
done

# --- for machines, and the memory of the run ---
"$weft" program job.yaml --devices 4 "$split" "$ops" --rank 3 --json >program.json || fail 'program --json failed'
json program.json
for word in '"coordinates": {"dp": 1, "tp": 1}' '"mesh": {"dp": 2, "tp": 2}' '"kind": "all_reduce", "name": "h.0.mlp.c_proj:linear"' \
    '"layout": "[-, tp] sum(dp)"' '"role": "optimizer"'; do
    grep -qF "$word" program.json || fail "no $word in the JSON" program.json
done
for rank in 0 1 2 3; do
    "$weft" program job.yaml --devices 4 "$split" --rank $rank --json >rank$rank.json
done
"$weft" model job.yaml --devices 4 "$split" --json >predicted.json
most() {
    for rank in 0 1 2 3; do
        value $1 <rank$rank.json
    done | sort -n | tail -1
}
[ "$(most peak_bytes)" -eq "$(value predicted_peak_bytes <predicted.json)" ] ||
    fail "the most that a rank needs is $(most peak_bytes)" predicted.json
# A device has the program of validation too.
[ "$(most program_bytes)" -gt 0 ] && [ "$(most program_bytes)" -le "$(value program_bytes <predicted.json)" ] ||
    fail "the largest program has $(most program_bytes) bytes" predicted.json

# --- the model's table on several devices ---
"$weft" model job.yaml --devices 4 "$split" "$ops" >text 2>&1 || fail 'model failed' text
for line in 'frame  per device  layout$' '^h\.1 .*  \[dp, -, -\]$' '^  rank.* 3: .* bytes)$'; do
    grep -q "$line" text || fail "no line with $line" text
done
"$weft" model job.yaml | grep -q 'per device' && fail 'one device has columns of several'
"$weft" model job.yaml --devices 4 "$split" --json >model.json || fail 'model --json failed'
json model.json
grep -q '"peak_bytes": \[[0-9]*, [0-9]*, [0-9]*, [0-9]*\]' model.json || fail 'no peak of each device' model.json
grep -qF '"layout": "[dp, -, -]"' model.json || fail 'no layout of a result' model.json
exit $failed
