#!/bin/bash
# GPT-3 175B
TP=8; PP=8
GPUS_PER_NODE=8
NNODES=${NNODES:-128}
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes ${NNODES} pretrain_gpt.py \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} \
  --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 1 --global-batch-size 1536 --tokenizer-type GPT2BPETokenizer \
  --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel --use-distributed-optimizer --recompute-activations \
  --lr 6e-5 --min-lr 6e-6 --lr-decay-style cosine --bf16 --save $CHECKPOINTS --foo 3 --train-iters 500
