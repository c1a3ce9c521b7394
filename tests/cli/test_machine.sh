#!/bin/sh
# Machines: the list, a machine as a file that reads back, plans for machines, options of other systems.
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
    pair.latency_seconds pair.bytes_per_second host.all_reduce_curve disk_bytes_per_second; do
    grep -q "\"name\": \"$name\"" figures || fail "no figure $name" figures
done
tail -n 1 figures | grep -q '"event": "done".*this.json.*"devices": 2' || fail 'no end' figures
expect 0 '"product_curves"|"memory_curve"|"all_reduce_curve"|measured' machine show this-machine
cmp -s out "$WEFT_THIS_MACHINE" || fail 'a measured file does not read back equal' out
expect 0 '"rates"|"links"' plan job.yaml --devices 2 --machine this-machine
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
sed 's/TP=2/TP=3/' run.sh >odd.sh
expect 1 'odd.sh|3' plan --import odd.sh
[ $failed = 0 ] && echo "machines, plans for them, options of other systems"
exit $failed
