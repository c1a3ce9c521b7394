#!/bin/sh
# Images of one to three dimensions train; more are refused by their number of dimensions.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. tests/cli/npy.inc
zeros() { head -c "$3" /dev/zero | npy "$1" '|u1' "$2"; } # FILE SHAPE BYTES
run() { # shape and bytes of the images
    zeros "$work/images.npy" "$1" "$2"
    "$WEFT_BIN" train model.family=mlp model.hidden=4 model.classes=2 data.format=npy "data.path=$work/images.npy" \
        data.validation=0 train.steps=2 train.batch=2 device.threads=1 >"$work/out" 2>&1
}
zeros "$work/labels.npy" '(6,)' 6
bad=0
for images in '(6, 64)=384' '(6, 8, 8)=384' '(6, 1, 8, 8)=384'; do
    run "${images%=*}" "${images#*=}" || { echo "refused: ${images%=*}"; cat "$work/out"; bad=1; }
done
"$WEFT_BIN" train model.family=mlp model.hidden=4 model.classes=2 data.format=npy "data.path=$work/images.npy" \
    data.validation=0 train.steps=2 train.batch=2 device.threads=1 "train.log=$work/log" --json >"$work/out" 2>&1
for file in out log; do
    [ "$(grep -c '"samples_per_second": [0-9]' "$work/$file")" -ge 2 ] || { echo "no speed:"; cat "$work/$file"; bad=1; }
    grep tokens_per_second "$work/$file" && { echo "tokens of images:"; cat "$work/$file"; bad=1; }
done
for images in '(6, 1, 2, 8, 8)=768' '(6, 2, 1, 1, 1, 1, 1, 8)=96'; do
    run "${images%=*}" "${images#*=}" && { echo "taken: ${images%=*}"; bad=1; }
    grep -q 'images of [0-9] dimensions' "$work/out" || { echo "another message for ${images%=*}:"; cat "$work/out"; bad=1; }
done
exit $bad
