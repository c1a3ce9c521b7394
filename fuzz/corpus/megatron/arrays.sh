#!/bin/bash
export A=${A:-1}
N=${SLURM_NNODES:-"1"} # hosts
PER=8; WORLD=$(($PER*$N + (2 - 2)))
SCALE="8B"
case "${SCALE}" in
    "1B" | small) TP=1 ;;
    *) TP=2 ;;
esac
DIST=(
    --nproc_per_node $PER
    --nnodes $N
)
MODEL=(
    --num-layers 4 # blocks
    --hidden-size 64
    --num-attention-heads 4
    --seq-length 32
    "--vocab-size 500"
    "--split '99,1,0'"
)
[[ "$TP" == 2 && -n "$PER" ]] && MODEL+=(--tensor-model-parallel-size ${TP})
if [ ! -d "$(dirname "$1")" ]; then exit 1; elif [ "$N" -gt 1 ]; then MODEL+=(--bf16); else MODEL+=("${DIST[@]}"); fi
options=" --lr 1e-3 \
  --micro-batch-size ${MB:=2}"
torchrun "${DIST[@]}" pretrain_gpt.py ${MODEL[@]} ${options} ${#MODEL[@]} ${DIST[1]} > log 2>&1 || echo "`date`"
