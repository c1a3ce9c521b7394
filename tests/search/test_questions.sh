#!/bin/sh
# Answers that other plans have once beaten, bounds that a plan has broken, and a refusal that a plan contradicted.
. tests/cli/run.inc

# number KEY words...: a member of the answer; nothing if there is none
number() {
    key=$1
    shift
    "$weft" plan data.path=none "$@" --json 2>err | sed -n "s/.*\"$key\": \([0-9.e+-]*\).*/\1/p"
}
# holds EXPRESSION 'what does not hold'
holds() { awk "BEGIN { exit !($1) }" </dev/null || fail "$2: not $1" err; }
# no_faster CONSTRAINT words...: the answer is as good, and its bound holds
no_faster() {
    constraint=$1
    shift
    answer=$(number step_seconds "$@") bound=$(number lower_bound_seconds "$@" --evaluations 1)
    other=$(number step_seconds "$@" --fix "$constraint")
    holds "${answer:-9e9} <= ${other:-0} * 1.002" "the answer beside $constraint ($*)"
    holds "${bound:-9e9} <= ${other:-0} * 1.000001" "the bound beside $constraint ($*)"
}

# Level 1 seemed as fast as level 0, and replicas within a host seemed to cross hosts.
no_faster 'recompute=none' --machine "hosts=2 gpus=6 gpu=h100-80g intra=300e9,2e-6 inter=50e9,3e-6" train.precision=bf16 \
    model.family=bert model.layers=12 model.hidden=64 model.heads=8 model.context=512 model.vocab=64 train.batch=6
no_faster 'dp=3 tp=6 inner=dp' --machine "hosts=3 gpus=6 gpu=a100-80g intra=900e9,3e-6 inter=10e9,5e-6" \
    model.family=gpt2 model.layers=2 model.hidden=1536 model.heads=12 model.context=24 model.vocab=8000 train.batch=24
# Guesses left out that the first and the last stage sum the embedding's gradient, that stages of a
# model with few blocks send values, and that tensors may lie between replicas.
no_faster 'dp=6 tp=2 sp=0 pp=2 microbatches=4 level=0 recompute=none' --machine \
    "hosts=4 gpus=6 gpu=a100-80g intra=30e9,2e-6 inter=100e6,5e-5" train.precision=bf16 model.family=gpt2 \
    model.layers=3 model.hidden=1024 model.heads=8 model.context=24 model.vocab=8000 train.batch=48
# With one device a host, guesses took links between hosts for slower than those of two devices, by their ratio.
no_faster 'tp=4 recompute=none' --machine "hosts=4 gpus=1 gpu=h100-80g intra=30e9,2e-6 inter=100e6,5e-5" \
    train.precision=bf16 model.family=mixtral model.layers=2 model.hidden=80 model.heads=4 model.experts=6 \
    model.context=512 model.vocab=50257 train.batch=2 train.clip=0

# Plans of experts fit in less than most others.
moe="model.family=gpt2-moe model.layers=2 model.experts=6 model.hidden=64 model.heads=4 model.context=16 model.vocab=500 train.batch=6"
machine="hosts=3 gpus=2 gpu=h100-80g"
# shellcheck disable=SC2086
bytes=$(number predicted_peak_bytes $moe --machine "$machine" --fix "tp=2 ep=3 level=3 recompute=full" --evaluations 1)
# shellcheck disable=SC2086
less=$(number predicted_peak_bytes $moe --machine "$machine" --memory "${bytes:-0}")
holds "${less:-9e9} <= ${bytes:-0}" 'a plan fits where one is known'

# Six ranks of tensors do not divide eight experts, so each has all of them: two ranks need less.
bytes=$(number predicted_peak_bytes --machine "hosts=3 gpus=2 gpu=a100-40g intra=300e9,2e-6 inter=10e9,5e-6" \
    train.precision=bf16 model.family=gpt2-moe model.layers=1 model.experts=8 model.hidden=192 model.heads=12 \
    model.context=32 model.vocab=64 train.batch=2 train.clip=0 --memory 15548649 --evaluations 1)
holds "${bytes:-9e9} <= 15548649" 'a plan with experts on ranks of tensors fits'

# Plans with stages need more than guessed. Plans without them, of which the one with dp=4 tp=4 fits, came too late.
bytes=$(number predicted_peak_bytes --machine "hosts=4 gpus=4 gpu=a100-40g intra=30e9,2e-6 inter=100e6,5e-5" \
    train.precision=bf16 model.family=llama model.layers=8 model.hidden=512 model.heads=4 model.context=128 \
    model.vocab=8000 train.batch=8 train.clip=0 --memory 43609040 --evaluations 1)
holds "${bytes:-9e9} <= 43609040" 'a plan without stages fits'

# The bytes of kernels are those of one processor, whichever this one is.
alike() { # words...: the model
    here=$(asked "$@") other=$(WEFT_ISA=plain ONEDNN_MAX_CPU_ISA=SSE41 asked "$@")
    [ "${here:-0}" = "${other:-1}" ] || fail "the bytes depend on the processor ($*): ${here:-none}, ${other:-none}" err
}
asked() { "$weft" plan --machine "1 hosts of 2 a100-40g" "$@" --fix dp=2 --evaluations 1 --json 2>err |
    sed -n 's/.*"predicted_peak_bytes": \([0-9]*\).*/\1/p'; }
language="model.layers=2 model.hidden=64 model.heads=4 model.context=32 model.vocab=500 train.batch=8 data.path=none"
for precision in f32 bf16; do
    # shellcheck disable=SC2086
    for family in gpt2 mixtral; do alike train.precision=$precision model.family=$family $language; done
    alike train.precision=$precision model.family=resnet18 'model.image=[3,32,32]' model.classes=10 train.batch=16
done

# Machines of random numbers.
files=${WEFT_TEST_DATA:-nowhere}/planner
if [ -d "$files" ]; then
    no_faster 'dp=2 tp=2 sp=1 level=0' --machine "$files/bound-2x2.json" --devices 4 model.family=gpt2 model.layers=2 \
        model.hidden=128 model.heads=4 model.context=32 model.vocab=64 train.batch=16
    no_faster 'dp=2' --machine "$files/m200003.json" --devices 12 model.family=gpt2 model.layers=8 model.heads=3 \
        model.hidden=48 model.context=24 model.vocab=1000 train.batch=2 train.clip=0
    no_faster 'dp=8' --machine "$files/m1200127.json" --devices 8 model.family=vit model.layers=6 model.hidden=64 \
        model.heads=4 'model.image=[3,32,32]' model.patch=8 model.classes=10 train.batch=8
fi
exit $failed
