#!/bin/sh
# The jobs of examples/parallel, small: each has the losses of one device, none says that a strategy matches nothing.
examples=$(pwd)/examples/parallel
. tests/cli/run.inc

{
    printf '\0\0\010\003\0\0\0\100\0\0\0\040\0\0\0\040'
    awk 'BEGIN { for (i = 0; i < 65536; i++) printf "%c", 33 + (i * 7 + int(i / 1024)) % 90 }'
} >train-images-idx3-ubyte
{
    printf '\0\0\010\001\0\0\0\100'
    awk 'BEGIN { for (i = 0; i < 64; i++) printf "%c", 1 + i % 9 }'
} >train-labels-idx1-ubyte

# losses JOB words...: of three steps, to four digits.
losses() {
    job=$1
    shift
    "$weft" train "$job" train.steps=3 device.threads=2 --json "$@" >out 2>&1 || fail "$job $* failed" out
    grep '"step"' out | sed 's/.*"loss": \([0-9]*\.[0-9]\{4\}\).*/\1/'
}

tried=0
for job in "$examples"/*.yaml; do
    name=$(basename "$job" .yaml)
    case $name in
    vit) small='model.layers=2 model.hidden=32 model.heads=4 model.patch=8 train.batch=8' ;;
    mlp) small='model.hidden=32 train.batch=8' ;;
    resnet) small='model.hidden=4 train.batch=4' ;;
    mixtral) small='model.layers=2 model.hidden=32 model.heads=4 model.kv_heads=2 model.experts=4 model.context=16 train.batch=8' ;;
    llama) small='model.layers=2 model.hidden=32 model.heads=4 model.kv_heads=2 model.head_dim=12 model.attention_bias=true
        model.mlp_bias=true model.context=16 train.batch=8' ;;
    *) small='model.layers=2 model.hidden=32 model.heads=4 model.context=16 train.batch=8' ;;
    esac
    case $name in
    vit | mlp | resnet) data='data.path=train-images-idx3-ubyte' ;;
    *) data='data.path=text.txt' ;;
    esac
    sed '/^parallel:/,$d' "$job" >one.yaml
    micro=
    [ "$name" = pipeline ] && micro='train.accumulate=4'
    # shellcheck disable=SC2086
    want=$(losses one.yaml $data $small $micro)
    # shellcheck disable=SC2086
    is=$(losses "$job" $data $small)
    if [ "$(echo "$want" | wc -l)" != 3 ] || [ "$want" != "$is" ]; then
        fail "$name: losses are $(echo $is), those of one device $(echo $want)" out
    fi
    # shellcheck disable=SC2086
    "$weft" plan "$job" $data $small --out plan.json >out 2>&1 || fail "$name: no plan" out
    grep -q 'note: .*yaml' out && fail "$name: something matches nothing" out
    tried=$((tried + 1))
done
[ $tried -ge 8 ] || fail "only $tried jobs were found in $examples"
exit $failed
