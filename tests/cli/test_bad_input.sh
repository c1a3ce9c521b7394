#!/bin/sh
# Bad input of every kind ends with exit code 1, one message that names it, and nothing else: no crash, no new
# checkpoint, nothing lost.
. tests/cli/run.inc

# --- job files ---
expect 1 'cannot open nothere.yaml' train nothere.yaml
mkdir dir
expect 1 'dir' train dir
printf 'model: {family: gpt2}\ntrain:\n  steeps: 5\n' >bad.yaml
expect 1 "bad.yaml:3:3|steeps|steps" train bad.yaml
printf 'model:\n  layers: [1, 2]\n' >bad.yaml
expect 1 'bad.yaml:2' train bad.yaml
printf 'train:\n  steps: many\n' >bad.yaml
expect 1 "bad.yaml:2:3|train.steps" train bad.yaml
printf 'train: {steps: 5\n' >bad.yaml
expect 1 'bad.yaml:' train bad.yaml
printf '\000\001\002' >bad.yaml
expect 1 'bad.yaml' train bad.yaml
: >empty.yaml
expect 1 'data.path is missing' train empty.yaml
expect 1 "gpt2" train job.yaml model.family=gpt3
expect 1 'model.heads|5|model.hidden|32' train job.yaml model.heads=5
expect 1 'train.accumulate = 3 must divide train.batch = 4' train job.yaml train.accumulate=3
expect 1 'train.steps|1' train job.yaml train.steps=0
expect 1 'train.steps must be' train job.yaml train.steps=1e99
expect 1 'device.memory' train job.yaml device.memory=lots
expect 1 'train.precision' train job.yaml train.precision=f16

# --- data ---
expect 1 'cannot open nothere.txt' train job.yaml data.path=nothere.txt
expect 1 'nothere.txt' train job.yaml data.validation=nothere.txt
expect 1 'nothere.json' train job.yaml data.tokenizer=nothere.json
expect 1 'data.path is missing' train job.yaml data.path=
# What makes a plan without data possible is named, and it does.
expect 1 'data.path is missing|model.vocab' plan job.yaml data.path=
expect 0 '"weft_plan"|"mesh"' plan job.yaml data.path= model.vocab=256 --devices 2
expect 1 'data.path is missing|model.classes|model.image' plan model.family=mlp
expect 0 '"weft_plan"|"mesh"' plan model.family=mlp model.classes=10 'model.image=[1, 28, 28]' --devices 2
expect 1 'data.path is missing' train job.yaml data.path= model.vocab=256
grep model.vocab out && fail 'a size that is set is asked for' out
: >empty.txt
expect 1 'empty.txt|0 tokens|16|17' train job.yaml data.path=empty.txt
printf 'sixteen bytes...' >short.txt
expect 1 'short.txt|16 tokens|16|17' train job.yaml data.path=short.txt
expect 1 '64' train job.yaml model.vocab=64
expect 1 'data.format|idx|gpt2' train job.yaml data.format=idx
expect 1 'data.format|text|mlp|idx' train model.family=mlp data.format=text data.path=text.txt
expect 1 'text.txt' train model.family=mlp data.path=text.txt
expect 1 'text.txt' train job.yaml data.format=tokens model.vocab=256
expect 1 'text.txt' train job.yaml data.format=npy
expect 1 'text.txt' train job.yaml data.tokenizer=text.txt
expect 1 'nothere.json' train job.yaml data.tokenizer=nothere.json
if [ "$(id -u)" != 0 ]; then
    cp text.txt secret.txt
    chmod 000 secret.txt
    expect 1 'secret.txt: Permission denied' train job.yaml data.path=secret.txt
fi

# --- words of 100 KB: a message shows their begin ---
long=$(head -c 100000 /dev/zero | tr '\0' x)
for words in "$long" "help $long" "train --$long" "train -$long" "train job.yaml $long=3" "train $long" \
    "bench $long" "info $long" "train job.yaml model.family=$long" "train job.yaml --machine $long" \
    "train job.yaml parallel.search=$long" "checkpoint $long"; do
    # shellcheck disable=SC2086
    "$weft" $words >out 2>&1 && fail "100 KB are accepted: weft $(echo "$words" | head -c 60)" out
    [ "$(wc -c <out)" -lt 8000 ] || fail "$(wc -c <out) bytes of message: weft $(echo "$words" | head -c 60)" /dev/null
done

# --- devices ---
WEFT_DEVICE=moon
export WEFT_DEVICE
expect 1 'WEFT_DEVICE|moon|host|fenced' train job.yaml
unset WEFT_DEVICE

# --- places ---
expect 1 'checkpoint.dir|text.txt' train job.yaml checkpoint.dir=text.txt
expect 1 'text.txt' train job.yaml checkpoint.dir=text.txt/below
expect 1 'train.log' train job.yaml train.log=dir
expect 1 'train.tensorboard|text.txt' train job.yaml train.tensorboard=text.txt
expect 1 'nothere' train model.from=nothere data.path=text.txt
expect 1 'text.txt|directory' train model.from=text.txt data.path=text.txt
expect 1 'dir' train model.from=dir data.path=text.txt

# --- sizes: refused by memory, before anything is mapped ---
expect 1 'model.layers must be' train job.yaml model.layers=1000000
expect 1 'would fit' train job.yaml model.hidden=65536 model.ffn=16777216
grep -q 'device.memory' out || fail 'no word of the limit' out
grep -qi 'largest: ' out || fail 'no word of the largest tensors' out
expect 1 'would fit' train job.yaml train.batch=1000000000
expect 1 'batch|fit' train job.yaml device.memory=1MiB train.batch=256
expect 0 'peak memory' model job.yaml model.hidden=65536 model.ffn=16777216

# --- checkpoints ---
"$weft" train job.yaml checkpoint.dir=run checkpoint.every=6 >out 2>&1 || fail 'a good run failed' out
expect 1 'nothere' checkpoint inspect nothere
expect 1 'text.txt|.safetensors' checkpoint inspect text.txt
expect 1 'dir|neither' checkpoint verify dir
expect 1 'model' train job.yaml checkpoint.dir=run model.hidden=64 train.steps=20
expect 1 'train.optimizer.name|adamw|lion' train job.yaml checkpoint.dir=run train.optimizer.name=lion train.steps=20
expect 1 'nothere' generate nothere --prompt x
step=run/step-000000000012
for file in model.safetensors manifest.json config.json; do
    for bytes in 0 1 7 100; do
        rm -rf broken
        cp -r run broken
        head -c $bytes "$step/$file" >"broken/step-000000000012/$file"
        expect 1 DAMAGED checkpoint verify broken
        expect 0 'step 6' train job.yaml checkpoint.dir=broken train.steps=13
        grep -q 'skipped step 12' out || fail "$file cut to $bytes bytes: no note" out
        grep -q 'done: 7 steps' out || fail "$file cut to $bytes bytes: did not go on from step 6" out
    done
done
for bytes in 0 1 7 100 1000; do
    head -c $bytes "$step/model.safetensors" >cut.safetensors
    expect 1 'cut.safetensors' checkpoint inspect cut.safetensors
    rm -rf from
    cp -r $step from
    rm from/manifest.json # as from elsewhere: nothing but the format protects it
    cp cut.safetensors from/model.safetensors
    expect 1 'model.safetensors' train model.from=from data.path=text.txt train.steps=1
    head -c $bytes $step/config.json >from/config.json
    [ $bytes -lt "$(wc -c <$step/config.json)" ] &&
        expect 1 'config.json' train model.from=from data.path=text.txt train.steps=1
done
expect 0 'good' checkpoint verify run # nothing of all this touched it

# --- other formats, cut short ---
printf '\000\000\010\003\000\000\000\002\000\000\000\004\000\000\000\004' >images-idx3-ubyte # 2 images of 4 x 4, no pixels
printf '\000\000\010\001\000\000\000\002\000\001' >labels-idx1-ubyte
expect 1 'images-idx3-ubyte' train model.family=mlp data.path=images-idx3-ubyte
printf '\223NUMPY\001\000' >array.npy
expect 1 'IDX|NumPy|data.format: npy' train model.family=mlp data.path=array.npy
expect 1 'array.npy' train job.yaml data.format=npy data.path=array.npy
printf '\050\204\063\001\001' >tokens.bin
expect 1 'tokens.bin' train job.yaml data.format=tokens data.path=tokens.bin model.vocab=256
printf '{"model": {"type": "BPE"' >tokenizer.json
expect 1 'tokenizer.json' train job.yaml data.tokenizer=tokenizer.json
gzip -c text.txt 2>/dev/null | head -c 30 >images-idx3-ubyte.gz
rm images-idx3-ubyte
expect 1 'images-idx3-ubyte.gz' train model.family=mlp data.path=images-idx3-ubyte.gz

exit $failed
