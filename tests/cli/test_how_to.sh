#!/bin/sh
# The commands of the README, of the how-to pages and of `weft VERB --help` run, on a small job and its run. Only those of
# `elsewhere` do not: each has a test of its own. docs/how-to-plan.md has one, too (tests/search/test_how_to_plan.sh).
. tests/cli/run.inc
root=$OLDPWD
for variable in WEFT_RANK WEFT_SIZE RANK WORLD_SIZE MASTER_ADDR MASTER_PORT MS_ROLE RANK_TABLE_FILE; do
    unset $variable
done
HOME=$work # for the user's secret
export HOME
mkdir bin base
ln -s "$weft" bin/weft
PATH=$work/bin:$PATH
export PATH

# --- the files that the pages speak of ---
mv text.txt base
cd base || exit 1
cat >job.yaml <<'END'
model: {family: gpt2, layers: 4, hidden: 32, heads: 4, context: 16}
data: {path: text.txt}
train: {steps: 3, batch: 64}
device: {threads: 2}
END
made() { "$@" >made.out 2>&1 || fail "$*" made.out; }
made weft train job.yaml train.steps=100 checkpoint.dir=run
made weft plan job.yaml --devices 4 --out plan.json
made weft plan job.yaml --devices 2 parallel.pipeline.stages=2 parallel.pipeline.microbatches=2 --out stages.json
split='parallel.tensors=[{match: "h.*.mlp.c_fc.weight", layout: [-, tp]}]'
made weft plan job.yaml --devices 4 'parallel.mesh={tp: 4}' "$split" --out a.json
made weft plan job.yaml --devices 8 'parallel.mesh={tp: 8}' "$split" --out b.json
made weft plan job.yaml --devices 4 'parallel.mesh={tp: 4}' "$split" --export-strategy strategy.json
made weft checkpoint reshard run slices --to a.json
made weft checkpoint reshard run exported
mkdir models
mv exported models/gpt2
printf '{"prompt": "weft"}\n{"prompt": "over", "tokens": 3}\n' >prompts.jsonl
head -c 2000 text.txt >held-out.txt
head -c 100 text.txt >chapter.txt
{ # 2 samples of 16 tokens
    printf '\223NUMPY\001\000\166\000'
    printf '%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 16), }"
    head -c 128 /dev/zero
} >tokens.npy
cp tokens.npy x.npy
cp models/gpt2/config.json config.json
cp config.json llama-8b.json
cat >run.sh <<'END'
torchrun --nnodes 2 --nproc-per-node 4 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 8 \
    --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 512 --vocab-size 256 \
    --tensor-model-parallel-size 2 --bf16 --lr 1e-3 --train-iters 10
END
cd ..

# Commands that another test runs, or whose programs another one compiles: other launchers, several hosts, compilers,
# measurements of a machine and audits by it, programs of the reader, images, and demonstrations.
elsewhere='mpirun|srun|torchrun|mpicc|mpifort|^F=|--hosts|--rank-table|^cc |cmake|machine measure|this-machine'
elsewhere="$elsewhere"'|audit|calibrated|a\.out|manual_parallel|slice-|images.npy|make demo|build/weft|whole.safetensors'

# Prints the commands in blocks of sh, one a line.
of_page() {
    awk '/^```sh/ { on = 1; next } /^```/ { on = 0 } on' "$1" | sed -e ':a' -e '/\\$/N; s/\\\n *//; ta'
}
of_help() {
    weft "$1" --help | awk '/^example:/ { on = 1; next } on' | sed 's/^  //'
}

# run_all NAME LEAST: runs the commands on the input in a copy of the files; there are at least LEAST.
run_all() {
    cp -r base "$1"
    cd "$1" || exit 1
    ran=0
    grep -Ev "$elsewhere" ../commands >here
    while IFS= read -r command; do
        case $command in '' | '#'*) continue ;; esac
        ran=$((ran + 1))
        # Fewer steps, shorter measurements, and a place of this test.
        command=$(printf '%s\n' "$command" | sed 's/train.steps=[0-9]*/train.steps=4/; s,/models/,models/,; s/bench comm/& --seconds 0.0001/')
        timeout 120 sh -c "$command" </dev/null >out 2>&1 || fail "$1: exit $?: $command" out
    done <here
    [ $ran -ge "$2" ] || fail "$1: $ran commands, not $2" here
    cd ..
}
for page in README:9 how-to-collectives:3 how-to-generate:16 how-to-hugging-face:1 how-to-launch:2 how-to-other-systems:7 \
    how-to-parallel:12 how-to-reshard:5 how-to-simulate:3 how-to-train-text:3; do
    name=${page%:*}
    file=$root/docs/$name.md
    [ -f "$file" ] || file=$root/$name.md
    of_page "$file" >commands
    run_all "$name" "${page#*:}"
done
for verb in $(weft --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    of_help "$verb" >commands
    [ -s commands ] || fail "weft $verb --help has no example"
    run_all "help-$verb" 0
done
exit $failed
