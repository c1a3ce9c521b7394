#!/bin/sh
# Machines: the list, a machine as a file that reads back, plans for machines, topologies for every verb, wrong machines,
# options of other systems and questions about them.
. tests/cli/run.inc
expect 0 'h100-80g|a100-80g|v100' machine list
expect 0 '"machines"|"h200"' machine list --json
json out
expect 0 '"levels"|"devices"|"source"' machine show "8 hosts of 8 h100-80g"
cp out cluster.json
expect 0 '"levels"' machine show cluster.json
cmp -s out cluster.json || fail 'a machine file does not read back equal' out
expect 1 'unknown|h100x' machine show h100x
expect 2 'list|show' machine
expect 2 'list|show' machine show

# --- measured ---
WEFT_THIS_MACHINE=$work/config/this.json
export WEFT_THIS_MACHINE
expect 1 'weft machine measure|this.json' machine show this-machine
expect 1 'machine|weft machine measure' plan job.yaml --devices 2 --machine this-machine
expect 1 'this-machine' machine show this-machin
expect 2 'measure' machine list --devices 2
expect 1 'absent' machine measure --out absent/m.json
"$weft" machine measure --devices 2 --seconds 0.0002 --json >figures 2>err || fail 'not measured' err
json figures
for name in memory_bytes launch_seconds vector_flops memory_curve product_curves.f32 product_curves.bf16 \
    pair.latency_seconds pair.bytes_per_second host.all_reduce_curve host_bytes_per_second.read \
    host_bytes_per_second.both disk_bytes_per_second.depth disk_bytes_per_second.write; do
    grep -q "\"name\": \"$name\"" figures || fail "no figure $name" figures
done
tail -n 1 figures | grep -q '"event": "done".*this.json.*"devices": 2' || fail 'no end' figures
expect 0 '"product_curves"|"memory_curve"|"all_reduce_curve"|measured' machine show this-machine
cmp -s out "$WEFT_THIS_MACHINE" || fail 'a measured file does not read back equal' out
expect 0 '"rates"|"links"' plan job.yaml --devices 2 --mode semi --machine this-machine
expect 0 'lower bound|constraints' plan job.yaml --devices 2 --machine this-machine --evaluations 1
"$weft" machine show this-machine | grep -q '"disk_bytes_per_second": {"source": "measured.*, "depth": ' ||
    fail 'no curves of the disk' "$WEFT_THIS_MACHINE"
mkdir disk
expect 0 'disk.json' machine measure --seconds 0.0002 --disk disk --out disk.json
expect 0 'in disk|host_bytes_per_second' machine show ./disk.json
[ -z "$(ls -A disk)" ] || fail 'files are left on the disk'
expect 1 'absent' machine measure --seconds 0.0002 --disk absent --out disk.json
expect 2 '[--disk' machine list --disk disk
expect 1 'this-machine|2' plan job.yaml --devices 4 --machine this-machine
expect 0 'memory_curve|m.json' machine measure --seconds 0.0002 --out m.json
expect 0 '"devices": 1' machine show ./m.json
expect 0 'world.json|2 devices' launch -n 2 --no-logs -- "$weft" machine measure --seconds 0.0002 --out world.json
expect 0 '"hosts": 1|"devices": 2' machine show ./world.json
expect 2 '--devices' launch -n 2 --no-logs -- "$weft" machine measure --devices 2
expect 1 'absent' launch -n 2 --no-logs -- "$weft" machine measure --out absent/m.json
job="model.layers=2 model.hidden=64 model.heads=4 model.vocab=256 model.context=32 train.batch=16"
# shellcheck disable=SC2086
expect 0 '"rates"' plan $job --devices 8 --mode semi --machine "2 hosts of 4 a100-80g"
# shellcheck disable=SC2086
expect 1 'machine|8' plan $job --devices 16 --machine "2 hosts of 4 a100-80g"
# shellcheck disable=SC2086
expect 0 '"strategies"' plan $job --devices 4 --search dynamic

# --- a topology is a machine for every verb ---
fast="hosts=2 gpus=2 gpu=a100-80g intra=450e9,3e-6 inter=50e9,8e-6"
semi="train.steps=1 data.path=text.txt data.validation=0 checkpoint.dir= --devices 4 --mode semi"
for words in "plan $job $semi" "model $job $semi --json" "program $job $semi --json" "simulate $job $semi --json" \
    "train $job $semi --job"; do
    for option in --machine --topology; do
        # shellcheck disable=SC2086
        "$weft" $words $option "$fast" >out$option 2>err || fail "$words $option" err
    done
    cmp -s out--machine out--topology || fail "$words: --machine and --topology differ"
    [ -s out--topology ] || fail "$words: no output"
    # shellcheck disable=SC2086
    expect 2 '--machine|--topology' $words --machine v100 --topology "$fast"
    # shellcheck disable=SC2086
    expect 1 'h100x|h100-80g' $words --topology "gpus=4 gpu=h100x"
    # shellcheck disable=SC2086
    expect 1 'h100-80g|4' $words --topology "hosts=1 gpus=2 gpu=h100-80g"
done
# shellcheck disable=SC2086
expect 0 'done: 1 step' train $job $semi --topology "$fast"
# shellcheck disable=SC2086
expect 0 'inter=50e9,8e-6' machine show "$fast"

# --- impossible topologies, and files with wrong figures ---
for text in 'hosts=0 gpu=v100' 'hosts=-2 gpu=v100' 'gpus=1.5 gpu=v100' 'hosts=99999999999 gpu=v100' \
    'hosts=1048576 gpus=8 gpu=v100' 'hosts=2 gpus=2' 'gpu=' 'gpu=v100 intra=5e9' 'gpu=v100 intra=0,1e-6' \
    'gpu=v100 inter=-5e9,1e-6' 'gpu=v100 inter=5e9,-1' 'gpu=v100 inter=inf,0' 'gpu=v100 inter=5e9,1e-6,3' \
    'gpu=v100 gpu=v100' 'gpu=v100 rack=4' '8 hosts of v100' 'two hosts of 8 v100' '2 hosts of 16 h100-80g'; do
    # shellcheck disable=SC2086
    expect 1 'weft: ' simulate $job $semi --topology "$text"
    [ "$(wc -l <out)" = 1 ] || fail "'$text' needs one message" out
done
"$weft" machine show v100 >v100.json
for change in 's/"memory_bytes": {"value": [^,]*/"memory_bytes": {"value": -1/;memory_bytes' \
    's/"memory_bytes": {"value": [^,]*/"memory_bytes": {"value": 1e30/;memory_bytes' \
    's/"memory_bytes_per_second": {"value": [^,]*/"memory_bytes_per_second": {"value": 0/;memory_bytes_per_second' \
    's/"launch_seconds": {"value": [^,]*/"launch_seconds": {"value": 3600/;launch_seconds' \
    's/"launch_seconds": {"value": [^,]*, /"launch_seconds": {/;launch_seconds.value' \
    's/"launch_seconds"/"start_seconds"/;start_seconds' \
    's/"latency_seconds": {"value": [^,]*/"latency_seconds": {"value": "fast"/;latency_seconds' \
    's/"bytes_per_second": {"value": [^,]*/"bytes_per_second": {"value": -5e9/;bytes_per_second' \
    's/"levels"/"level"/;levels'; do
    sed "${change%;*}" v100.json >wrong.json
    cmp -s v100.json wrong.json && fail "nothing changed: $change"
    # shellcheck disable=SC2086
    expect 1 "wrong.json|line|${change##*;}" simulate $job $semi --machine wrong.json
    # shellcheck disable=SC2086
    expect 1 "wrong.json|line|${change##*;}" plan $job --devices 4 --machine wrong.json
done

cat >run.sh <<'J'
TP=2
torchrun --nproc-per-node 8 pretrain.py --tensor-model-parallel-size $TP --sequence-parallel --num-layers 2 \
  --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 256 --make-vocab-size-divisible-by 1 \
  --micro-batch-size 2 --save $WHERE --frobnicate
J
expect 0 '"tp": 2|"dp": 4' plan --import run.sh
expect 0 'frobnicate|"tp": 2' plan --import run.sh
expect 0 'predicted peak' model --import run.sh
expect 0 '"tp": 2|"dp": 2' plan --import run.sh --devices 4
expect 0 '--tensor-model-parallel-size 2|--sequence-parallel' plan --import run.sh --export megatron
expect 1 'gpt2|torchtitan' plan --import run.sh --export torchtitan
expect 2 'nemo' plan --import run.sh --export nemo
expect 2 'job.yaml|--import' plan job.yaml --import run.sh
expect 1 'absent.sh' plan --import absent.sh
# Variables of the environment: in their places, and behind what the script sets. Lines keep their numbers.
sed 's/^TP=2$/TP=$OWN_TP/' run.sh >env.sh
grep -q 'OWN_TP' env.sh || fail 'run.sh sets tensor parallelism otherwise:' run.sh
expect 1 "env.sh|OWN_TP|--import-env" plan --import env.sh
QUOTED="it's" OWN_TP=2 "$weft" plan --import env.sh --import-env >out 2>&1 || fail 'variables of the environment:' out
grep -q '"tp": 2' out || fail 'variables of the environment:' out
expect 2 '--import-env|--import' plan job.yaml --import-env
# The configuration is simulated, and questioned.
few="--machine 8-gpus.json --evaluations 2"
"$weft" machine show "1 host of 8 a100-80g" >8-gpus.json
expect 0 '"step_seconds"|"ranks": 8' simulate --import run.sh --machine 8-gpus.json --json
value step_seconds <out >step
# shellcheck disable=SC2086
expect 0 '"plan"|"alternative"|"difference_seconds"|"difference_bytes"' plan --import run.sh $few --why-not "tp=1 pp=1" --json
sed -n 's/.*"plan": {"step_seconds": \([^,]*\),.*/\1/p' out >plan.step
cmp -s step plan.step || fail 'the imported plan has another step in the question' out
sed -n 's/.*"alternative": {"step_seconds": \([^,]*\),.*/\1/p' out >alternative.step
# The number is that of forcing the alternative.
# shellcheck disable=SC2086
expect 0 "\"step_seconds\": $(cat alternative.step)," plan model.layers=2 model.hidden=64 model.heads=4 model.context=32 \
    model.vocab=256 train.batch=8 --devices 8 $few --fix "tp=1 pp=1" --json
# shellcheck disable=SC2086
expect 0 'the alternative|all_reduce|peak memory' plan --import run.sh $few --why-not "tp=4"
expect 0 'p.json' plan --import run.sh --devices 8 --machine 8-gpus.json --out p.json
# shellcheck disable=SC2086
expect 0 '"difference_seconds": 0,|"difference_bytes": 0' plan --import run.sh $few --why-not p.json --json
# shellcheck disable=SC2086
expect 1 'tp=3' plan --import run.sh $few --why-not "tp=3"
expect 1 'machine' plan --import run.sh --why-not "tp=4"
sed 's/TP=2/TP=3/' run.sh >odd.sh
expect 1 'odd.sh|3' plan --import odd.sh
# A line of the job that the options make is no line of the script, which has 4.
sed 's/--save/--train-iters 10 --lr-warmup-iters 20 --save/' run.sh >late.sh
expect 1 'job of late.sh|train.steps' plan --import late.sh
# A searched plan goes out and comes back: the same step and peak. What does not go is named.
searched="model.family=llama model.layers=4 model.hidden=64 model.heads=4 model.kv_heads=2 model.vocab=256 model.context=32
    train.batch=16 train.precision=bf16"
cluster="2 hosts of 4 a100-80g"
for fix in "tp=2 pp=2 schedule=1f1b" "tp=2 pp=1 level=1 sp=1" "dp=8 level=3 recompute=full" "cp=2 tp=2 pp=1"; do
    # shellcheck disable=SC2086
    "$weft" plan $searched --machine "$cluster" --evaluations 2 --fix "$fix" --json >out 2>&1 || fail "no plan for $fix" out
    facts='s/.*"step_seconds": \([^,]*\), "tokens.*"predicted_peak_bytes": \([0-9]*\), "predicted_peak_rank".*/\1 s, \2 bytes/'
    sed "$facts" out >there
    # shellcheck disable=SC2086
    "$weft" plan $searched --machine "$cluster" --evaluations 2 --fix "$fix" --export megatron >back.txt 2>notes || fail "no export of $fix" notes
    [ -s notes ] && fail "$fix: Megatron-LM can express it" notes
    "$weft" simulate --import back.txt --devices 8 --machine "$cluster" --json 2>err |
        sed "$facts" >back
    cmp -s there back || fail "$fix: another step or peak after the way out and back: $(cat there back err)"
done
# shellcheck disable=SC2086
"$weft" plan $searched --machine "$cluster" --evaluations 2 --fix "pp=2 schedule=zero_bubble" --export megatron >back.txt 2>notes
grep -q zero_bubble notes || fail 'the schedule zero_bubble is no option of Megatron-LM' notes
expect 0 '"step_seconds"' simulate --import back.txt --devices 8 --machine "$cluster" --json
# shellcheck disable=SC2086
expect 0 'pipeline_parallel_degree=2|tensor_parallel_degree=2|note|flavor' \
    plan $searched --machine "$cluster" --evaluations 2 --fix "tp=2 pp=2 schedule=1f1b" --export torchtitan
[ $failed = 0 ] && echo "machines, plans for them, options of other systems"
exit $failed
