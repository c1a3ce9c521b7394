#!/bin/sh
# Sliced checkpoints from outside: what the tools on checkpoints read of them; lost and damaged folders.
. tests/cli/run.inc

mesh='parallel.mesh={dp: 2, tp: 2}'
split='parallel.strategies=[{match: "h.*.mlp.c_fc:linear", split: n0=tp}]'

expect 1 'checkpoint.sliced|checkpoint.dir' train job.yaml checkpoint.sliced=true

"$weft" train job.yaml --devices 4 "$mesh" "$split" checkpoint.dir=whole >log 2>&1 || fail 'train failed' log
"$weft" launch -n 4 --no-logs -- "$weft" train job.yaml "$mesh" "$split" checkpoint.sliced=true checkpoint.dir=run \
    checkpoint.every=6 >log 2>&1 || fail 'sliced training failed' log
step=run/rank_0/step-000000000012
for rank in 0 1 2 3; do
    [ -f run/rank_$rank/step-000000000012/manifest.json ] || fail "rank $rank has no step 12"
    [ -f run/rank_$rank/step-000000000012/config.json ] || fail "rank $rank has no config.json"
done
[ -e run/step-000000000012 ] && fail 'whole tensors were saved, too'

digest() {
    "$weft" checkpoint digest "$@" --json >digest.json || fail "no digest of $1" digest.json
    sed -n 's/.*"digest": "\([^"]*\)".*/\1/p' digest.json
}
whole=$(digest whole)
for path in run $step run/rank_3 run/rank_2/step-000000000012; do
    got=$(digest "$path")
    [ "$got" = "$whole" ] || fail "$path has the digest $got, not $whole"
done
expect 0 'step-000000000006|good|step-000000000012|good' checkpoint verify run
expect 0 'steps|6 12|step         12' checkpoint inspect run
expect 0 'of which 0 differ' checkpoint diff whole run
expect 0 'weft' checkpoint reshard run back
expect 0 'of which 0 differ' checkpoint diff whole back
"$weft" plan job.yaml --devices 3 'parallel.mesh={tp: 3}' 'parallel.tensors=[{match: "h.*.mlp.c_fc.weight", layout: [-, tp]}]' \
    --out plan3.json >log 2>&1 || fail 'no plan' log
expect 0 'slices|3' checkpoint reshard run three --to plan3.json
expect 0 'of which 0 differ' checkpoint diff whole three
expect 0 'dimension 1' checkpoint split run --ranks 3 --split '*.c_fc.weight=1' --out part
expect 0 'dimension 1' checkpoint merge part-rank-* --split '*.c_fc.weight=1' --out part.safetensors
expect 0 'of which 0 differ' checkpoint diff whole part.safetensors
expect 0 'loss' eval job.yaml run
expect 0 '' generate run --prompt weft --tokens 3
"$weft" generate whole --prompt weft --tokens 8 >a 2>/dev/null || fail 'no text'
"$weft" generate run --prompt weft --tokens 8 >b 2>/dev/null || fail 'no text of slices'
cmp a b || fail 'another text'
# a rank's folder is no run: nothing may be written beside its slices
for words in 'job.yaml checkpoint.dir=run/rank_0' 'job.yaml checkpoint.dir=run/rank_2/ checkpoint.sliced=true' run/rank_1; do
    # shellcheck disable=SC2086
    expect 1 'run/rank_' train $words train.steps=13
done
find run | grep 13 && fail "a step beside a rank's slices"

# --- lost and damaged folders: ranks {0, 2} and {1, 3} hold the same ---
"$weft" checkpoint reshard run --to plan3.json --list 1 >list 2>&1 || fail 'no list' list
while read -r file; do
    mv "$file" kept
    expect 0 'of which 0 differ' checkpoint diff whole run
    mv kept "$file"
done <list
cp -r run lost
rm -r lost/rank_0 lost/rank_3
expect 0 'good, but: rank 0 is lost; rank 3 is lost' checkpoint verify lost
[ "$(digest lost)" = "$whole" ] || fail 'another digest without two ranks'
cp -r run copied
rm -r copied/rank_1
cp -r run/rank_1 copied/rank_1
cp -r run/rank_1 copied/rank_01 # no name of a rank
expect 0 'good' checkpoint verify copied
grep -q lost out && fail 'a folder of another name counts' out
rm -r lost/rank_1
expect 1 'mlp|is lost|rank 1, rank 3' checkpoint digest lost
expect 1 'DAMAGED|mlp|rank 1, rank 3' checkpoint verify lost
expect 1 'is lost' checkpoint inspect lost
mv copied/rank_1 copied/rank_7
expect 0 'rank 1 is lost' checkpoint verify copied
mkdir copied/rank_1
cp -r copied/rank_0/step-000000000012 copied/rank_1/
expect 0 'rank 1 is lost' checkpoint verify copied
cp -r $step alone
expect 1 'rank 0|rank_0' checkpoint digest alone
[ -s list ] || fail 'an empty list'

# --- damaged slices: the bytes of another rank stand in, whatever reads them ---
damage() { # in the last bytes of the parameters of some ranks
    for rank in "$@"; do
        file=hurt/rank_$rank/step-000000000012/slices-model-00001-of-00001.safetensors
        printf 'damaged!' | dd of="$file" bs=1 seek=$(($(wc -c <"$file") - 8)) conv=notrunc 2>/dev/null
    done
}
cp -r run hurt
rm -r hurt/rank_*/step-000000000006
damage 0 1
expect 0 'good, but: |rank_0|damaged|rank_1|damaged' checkpoint verify hurt
[ "$(digest hurt)" = "$whole" ] || fail 'another digest with damaged slices'
expect 0 'of which 0 differ' checkpoint diff whole hurt
expect 0 'weft' checkpoint reshard hurt mended
expect 0 'of which 0 differ' checkpoint diff whole mended
for rank in 0 1 2; do
    expect 0 'slices' checkpoint reshard hurt only$rank --to plan3.json --only $rank
    cmp only$rank/rank_$rank/*.safetensors three/rank_$rank/*.safetensors || fail "rank $rank has other slices"
done
"$weft" generate hurt --prompt weft --tokens 8 >b 2>/dev/null || fail 'no text of damaged slices'
cmp a b || fail 'another text of damaged slices'
damage 2 3
for command in 'digest hurt' 'diff whole hurt' 'reshard hurt none' 'reshard hurt none --to plan3.json --only 0'; do
    # shellcheck disable=SC2086
    expect 1 'is lost|has the checksum that was written' checkpoint $command
    [ -e none ] && fail "$command: it has left a destination"
done
expect 1 'DAMAGED|is lost' checkpoint verify hurt

# --- killed before ranks 1 and 3 had put step 12 into place ---
cp -r run killed
for rank in 1 3; do
    mv killed/rank_$rank/step-000000000012 killed/rank_$rank/.tmp-step-000000000012
    echo step-000000000006 >killed/rank_$rank/latest
done
cp -r killed first
rm -r first/rank_*/step-000000000006
rm first/rank_[13]/latest
expect 0 'step-000000000006|good|step-000000000012|unfinished|rank 1' checkpoint verify killed
expect 0 'steps        6|skipped step 12|unfinished|step         6' checkpoint inspect killed
expect 0 'destination  from_killed' checkpoint reshard killed from_killed
expect 0 'of which 0 differ' checkpoint diff killed from_killed
expect 1 'unfinished|first' checkpoint verify first
expect 1 'step 12|unfinished|rank 1' generate first --prompt weft
again() { # RUN STEPS
    "$weft" launch -n 4 --no-logs -- "$weft" train job.yaml "$mesh" "$split" checkpoint.sliced=true checkpoint.dir="$1" \
        train.steps="$2" >log 2>&1 || fail "$1 does not go on" log
}
again killed 7
grep -q 'unfinished' log || fail 'no note on the unfinished step' log
[ -e killed/rank_0/step-000000000012 ] && fail 'the unfinished step was left'
expect 0 'steps        6 7' checkpoint inspect killed
again first 2
expect 0 'steps        2' checkpoint inspect first
expect 0 'step-000000000002|good' checkpoint verify first

# --- a run with sliced steps alone continues its own job ---
cp -r run goes_on
"$weft" launch -n 4 --no-logs -- "$weft" train goes_on/ train.steps=13 >log 2>&1 || fail 'a sliced run does not continue' log
expect 0 'steps        6 12 13' checkpoint inspect goes_on
expect 1 'goes_on/rank_2' train goes_on/rank_2

# --- on with it: one process saves whole steps into the same directory ---
"$weft" train job.yaml --devices 4 "$mesh" "$split" checkpoint.dir=run checkpoint.keep=1 train.steps=13 >log 2>&1 ||
    fail 'no resume' log
expect 0 'steps        13|step         13' checkpoint inspect run
[ -e run/rank_0/step-000000000012 ] && fail 'checkpoint.keep left a sliced step'
exit $failed
