#!/bin/sh
# `weft checkpoint merge` and `split` from outside: a run's checkpoint cut for ranks, joined, cut for another number and
# joined again; what is refused, and how.
. tests/cli/run.inc

# --- the words ---
expect 0 "--split PATTERN=DIM" checkpoint --help
expect 2 'merge' checkpoint
expect 2 'merge' checkpoint merg x
expect 2 'inspect|verify|merge|split' checkpoint xyzzy x
expect 2 'slices|ranks' checkpoint merge --out x.safetensors
expect 2 'merge|--out' checkpoint merge x.safetensors
expect 2 'split|--out' checkpoint split x.safetensors
expect 2 'split|one path' checkpoint split a b --out x
expect 2 'split|--ranks' checkpoint split x.safetensors --out x --split w=0
expect 2 'split|--split' checkpoint split x.safetensors --out x --ranks 2
expect 2 '--ranks|from 1' checkpoint split x.safetensors --out x --ranks 0
expect 2 '--ranks|checkpoint split' checkpoint merge x.safetensors --out x --ranks 2
expect 2 '--out|--split|merge' checkpoint inspect x --out y
expect 2 '--out|--split|merge' checkpoint verify x --split w=0
for cut in w w= =1 w=x w=8 w=10 w=-1 ''; do
    expect 2 "--split takes PATTERN=DIM" checkpoint split x.safetensors --ranks 2 --out y --split "$cut"
done

# --- a run, for three ranks, joined, for two, joined ---
"$weft" train job.yaml checkpoint.dir=run >log 2>&1 || fail 'train failed' log
fc='*.c_fc.weight=1' bias='*.c_fc.bias=0'
expect 0 'dimension 1' checkpoint split run --ranks 3 --split "$fc" --split "$bias" --out three
"$weft" checkpoint inspect three-rank-00001-of-00003.safetensors >text || fail 'inspect failed' text
grep -q 'h.1.mlp.c_fc.weight.m  *f32\[32, 43\]' text || fail 'the momentum is not cut as the weight is' text
grep -q 'h.1.mlp.c_fc.bias  *f32\[43\]' text || fail 'the bias is not cut' text
grep -q 'h.1.mlp.c_proj.weight  *f32\[128, 32\]' text || fail 'the other weight is not whole' text
expect 0 'dimension 1' checkpoint merge three-rank-*.safetensors --split "$fc" --split="$bias" --out whole.safetensors
"$weft" checkpoint split whole.safetensors --ranks 2 --split "$fc" --split "$bias" --out two --json >split.json || fail 'split failed'
json split.json
grep -qF '"files": ["two-rank-00000-of-00002.safetensors", "two-rank-00001-of-00002.safetensors"]' split.json || fail 'no names' split.json
"$weft" checkpoint merge two-rank-*.safetensors --split "$fc" --split "$bias" --out again.safetensors --json >merge.json || fail 'merge failed'
json merge.json
grep -qF 'c_fc.weight.v", "dtype": "F32", "shape": [32, 128], "dimension": 1}' merge.json || fail 'no shape' merge.json
grep -qF 'ln_f.weight", "dtype": "F32", "shape": [32], "dimension": null}' merge.json || fail 'no whole tensor' merge.json
cmp whole.safetensors again.safetensors || fail 'joined again it is something else'
expect 0 'format' checkpoint verify whole.safetensors

# --- the same rules as layouts ---
mkdir folder
cp three-rank-* folder
expect 0 'of which 0 differ' checkpoint diff folder whole.safetensors --from "3:$fc,$bias"
expect 0 'slices' checkpoint reshard folder ranks --from "3:$fc,$bias" --to "4:$fc,$bias"
expect 0 'of which 0 differ' checkpoint diff ranks whole.safetensors
expect 1 "'4:$fc,bias'" checkpoint reshard folder x --from "4:$fc,bias"
expect 1 '4:w=1' checkpoint merge-strategies 4:w=1 --out x.json

# --- what is refused leaves nothing ---
expect 1 'dimension' checkpoint merge two-rank-*.safetensors --out x.safetensors
expect 1 'exists' checkpoint merge two-rank-*.safetensors --split "$fc" --split "$bias" --out again.safetensors
expect 1 'exists' checkpoint split whole.safetensors --ranks 2 --split "$fc" --out two
expect 1 '.safetensors' checkpoint merge two-rank-*.safetensors --split "$fc" --out x
expect 1 "'*.fc.weight'" checkpoint split whole.safetensors --ranks 2 --split '*.fc.weight=1' --out x
expect 1 'dimension 1' checkpoint split whole.safetensors --ranks 2 --split '*=1' --out x
expect 1 'whole' checkpoint merge two-rank-*.safetensors --split '*=-' --out x.safetensors
expect 1 'slices|order' checkpoint merge two-rank-00001* two-rank-00000* --split "$fc" --split "$bias" --out x.safetensors
expect 1 '3|rank 1' checkpoint merge three-rank-0000[02]* --split "$fc" --split "$bias" --out x.safetensors
expect 1 '2|rank 1' checkpoint merge two-rank-00000* --split "$fc" --split "$bias" --out x.safetensors
expect 2 '--out is empty' checkpoint split whole.safetensors --ranks 2 --split "$fc" --out ''
expect 1 "'./'" checkpoint split whole.safetensors --ranks 2 --split "$fc" --out ./
[ -z "$(find . -name '-rank*')" ] || fail 'files without a name'
expect 1 'none.safetensors' checkpoint merge whole.safetensors none.safetensors --out x.safetensors
(ulimit -f 1 && "$weft" checkpoint split whole.safetensors --ranks 2 --split "$fc" --out x) >out 2>&1
[ $? = 1 ] && grep -q 'too large' out || fail 'a limit on the size of files is no error:' out

# --- names that are no UTF-8 ---
name=$(printf 'name\377.safetensors')
if cp whole.safetensors "$name" 2>/dev/null; then
    "$weft" checkpoint inspect "$name" --json >name.json || fail 'inspect failed'
    json name.json
    rm "$name"
    "$weft" checkpoint merge two-rank-*.safetensors --split "$fc" --split "$bias" --out "$name" --json >name.json || fail 'merge failed'
    json name.json
fi
[ -z "$(find . -name 'x*')" ] || fail 'something was left'
exit $failed
