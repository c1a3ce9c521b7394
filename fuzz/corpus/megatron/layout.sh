A="--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 500"
torchrun x.py $A --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout "Et*1|(t|)*1t,t*1L"
