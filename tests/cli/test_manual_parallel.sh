#!/bin/sh
# examples/manual_parallel: alone and on several processes it makes the same steps, up to rounding, and says that all
# ranks have the same parameters. Images and labels that it has no room for are refused.
. tests/cli/run.inc
program=$WEFT_BUILD_DIR/examples/manual_parallel
images=$WEFT_TEST_DATA/t10k-images-idx3-ubyte.gz labels=$WEFT_TEST_DATA/t10k-labels-idx1-ubyte.gz
if [ ! -x "$program" ]; then
    echo "SKIP: the example is not built (target examples)"
    exit 77
fi
# 20 images of 30 x 30 pixels; labels of 12.
{ printf '\0\0\010\003\0\0\0\024\0\0\0\036\0\0\0\036' && head -c 18000 /dev/zero; } >large
{ printf '\0\0\010\003\0\0\0\024\0\0\0\034\0\0\0\034' && head -c 15680 /dev/zero; } >right
{ printf '\0\0\010\001\0\0\0\024' && head -c 20 /dev/zero; } >labels
{ printf '\0\0\010\001\0\0\0\024' && head -c 20 /dev/zero | tr '\0' '\014'; } >beyond
"$program" large labels >out 2>&1 && fail "images that are too large are taken" out
grep -q "28 x 28" out || fail "not told what is wrong with large images" out
"$program" right beyond >out 2>&1 && fail "labels beyond the classes are taken" out
grep -q "beyond.* 12" out || fail "not told what is wrong with labels" out
if [ ! -f "$images" ]; then
    echo "SKIP: no MNIST test files; WEFT_TEST_DATA names their folder"
    exit 77
fi
"$program" "$images" "$labels" >alone 2>&1 || fail "the example fails alone" alone
grep -q "^1 rank, 200 steps" alone || fail "the example does not end as it should alone" alone
"$weft" launch -n 3 --no-logs -- "$program" "$images" "$labels" >three 2>&1 || fail "the example fails on three processes" three
grep -q "^3 ranks, 200 steps" three || fail "the ranks' parameters are not said to be equal" three
[ "$(grep -c '^step ' three)" = 10 ] || fail "not one line for every 20 steps" three
grep '^step ' alone >a
grep '^step ' three >b
paste a b | awk '{ d = $4 - $8; if (d < 0) d = -d; if ($2 != $6 || d > 0.02) { print; bad = 1 } } END { exit bad }' ||
    fail "three ranks learn something else than one"
tail -1 a | awk '{ exit !($4 < 1.2) }' || fail "nothing is learned" a
exit $failed
