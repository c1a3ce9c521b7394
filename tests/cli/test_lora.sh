#!/bin/sh
# Adapters from a job to a plain model: training, on devices and resumed, PEFT's form out and in, merged weights, frozen
# parameters, and what is refused.
. tests/cli/run.inc
step=step-000000000004
more="data.path=text.txt train.batch=4 data.validation=0"
# shellcheck disable=SC2086
expect 0 'done: 4 steps' train model.family=llama model.layers=2 model.hidden=16 model.heads=4 model.kv_heads=2 \
    model.context=8 $more train.steps=4 checkpoint.dir=base
lora="train model.from=base $more train.steps=4 train.optimizer.lr=0.02 model.lora.rank=2 model.lora.alpha=6"
lora="$lora model.lora.targets=[q_proj,o_proj,down_proj]"
# shellcheck disable=SC2086
expect 0 'done: 4 steps' $lora checkpoint.dir=tuned
# shellcheck disable=SC2086
expect 0 'done: 4 steps' $lora checkpoint.dir=split parallel.devices=4 parallel.mode=auto "parallel.fix=dp=2 tp=2"
# A resume goes on to the bit.
# shellcheck disable=SC2086
expect 0 'done: 2 steps' $lora train.steps=2 train.schedule.name=constant checkpoint.dir=parts
# shellcheck disable=SC2086
expect 0 'continued|done: 2 steps' $lora train.schedule.name=constant checkpoint.dir=parts checkpoint.resume=true
# shellcheck disable=SC2086
expect 0 'done: 4 steps' $lora train.schedule.name=constant checkpoint.dir=whole
expect 0 '0 differ' checkpoint diff parts/$step whole/$step
# Frozen tensors are those of the model; adapters are not.
"$weft" checkpoint diff base/$step/model.safetensors tuned/$step/model.safetensors >log 2>&1
grep -q 'layers.0.self_attn.q_proj.lora_A' log || fail 'no adapters in the checkpoint' log
! grep -E 'differ, first' log || fail 'a frozen tensor changed' log


# --- PEFT's form, and merged weights ---
"$weft" checkpoint adapter tuned adapters --base base >log 2>&1 || fail "checkpoint adapter" log
grep -q '"base_model_name_or_path": "base".*"r": 2, "lora_alpha": 6.*"down_proj"' adapters/adapter_config.json ||
    fail 'adapter_config.json' adapters/adapter_config.json
expect 0 'base_model.model.model.layers.1.mlp.down_proj.lora_B.weight f32' checkpoint inspect adapters/adapter_model.safetensors
"$weft" checkpoint merge-adapter tuned merged >log 2>&1 || fail "merge-adapter" log
"$weft" checkpoint merge-adapter adapters merged2 --base base >log 2>&1 || fail "merge-adapter" log
expect 0 '0 differ' checkpoint diff merged merged2
! grep -q lora merged/config.json || fail 'a merged model has adapters' merged/config.json
for prompt in ab cd; do
    "$weft" generate tuned --prompt $prompt --tokens 8 --temperature 0 >one 2>log || fail generate log
    "$weft" generate merged --prompt $prompt --tokens 8 --temperature 0 >two 2>log || fail generate log
    cmp -s one two || fail 'merged weights generate another text' two
done
expect 0 'done: 1 step' train model.from=base model.lora.from=adapters data.path=text.txt train.steps=1 train.batch=4 \
    checkpoint.dir=further
grep -q '"lora": {"r": 2, "lora_alpha": 6' further/step-000000000001/config.json || fail 'model.lora.from' \
    further/step-000000000001/config.json

# --- refused ---
expect 1 'exists' checkpoint merge-adapter tuned merged
expect 1 'no adapters' checkpoint adapter base none
expect 1 '--base' checkpoint merge-adapter adapters none
expect 1 'tuned' checkpoint merge-adapter adapters none --base tuned
expect 2 '--base' checkpoint inspect tuned --base base
expect 1 'merge-adapter|model.lora.from' train model.from=adapters data.path=text.txt
expect 1 'model.from' train model.lora.from=adapters data.path=text.txt
expect 1 'model.lora.from' train model.from=base model.lora.from=adapters model.lora.rank=2 data.path=text.txt
expect 1 'model.lora.targets|c_fc|q_proj' train model.from=base model.lora.rank=2 model.lora.targets=c_fc data.path=text.txt
expect 1 'model.lora.rank' train model.from=base model.lora.alpha=2 data.path=text.txt
sed 's/"bias": "none"/"bias": "all"/' adapters/adapter_config.json >bad && mv bad adapters/adapter_config.json
expect 1 'adapter_config.json|bias' train model.from=base model.lora.from=adapters data.path=text.txt
[ ! -e none ] && [ ! -e none.partial ] || fail 'a refused directory is there'

# --- frozen by pattern ---
# shellcheck disable=SC2086
expect 0 'done: 4 steps' train model.from=base $more train.steps=4 checkpoint.dir=half \
    'train.frozen={"layers.0.*": true, "*norm*": true, "layers.0.mlp.up_proj.weight": false}'
"$weft" checkpoint diff base/$step/model.safetensors half/$step/model.safetensors >log 2>&1
for name in layers.1.self_attn.q_proj.weight layers.0.mlp.up_proj.weight; do
    grep -q "$name" log || fail "$name did not change" log
done
! grep -E '(layers.0.self_attn|norm).*differ, first' log || fail 'a frozen tensor changed' log
expect 1 'train.frozen|norm.weigh|norm.weight' train model.from=base data.path=text.txt 'train.frozen={"norm.weigh": true}'
expect 1 'frozen' train model.from=base data.path=text.txt train.batch=4 train.steps=1 'train.frozen={"*": true}'
[ $failed = 0 ] && echo "adapters: trained, exported, merged; frozen parameters"
exit $failed
