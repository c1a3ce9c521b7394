#!/bin/sh
# examples/manual_parallel: alone and on several processes it makes the same steps, up to rounding, and says that all
# ranks have the same parameters.
# shellcheck source=/dev/null
. tests/cli/run.inc
program=$WEFT_BUILD_DIR/examples/manual_parallel
images=$WEFT_TEST_DATA/t10k-images-idx3-ubyte.gz labels=$WEFT_TEST_DATA/t10k-labels-idx1-ubyte.gz
if [ ! -x "$program" ]; then
    echo "SKIP: the example is not built (target examples)"
    exit 77
fi
if [ ! -f "$images" ]; then
    echo "SKIP: no MNIST test files; WEFT_TEST_DATA names their folder"
    exit 77
fi
"$program" "$images" "$labels" >alone 2>&1 || fail "the example fails alone" alone
grep -q "^1 rank, 200 steps: parameters equal" alone || fail "the example does not end as it should alone" alone
"$weft" launch -n 3 --no-logs -- "$program" "$images" "$labels" >three 2>&1 || fail "the example fails on three processes" three
grep -q "^3 ranks, 200 steps: parameters equal on all ranks after each" three || fail "the ranks' parameters are not said to be equal" three
[ "$(grep -c '^step ' three)" = 10 ] || fail "not one line for every 20 steps" three
grep '^step ' alone >a
grep '^step ' three >b
paste a b | awk '{ d = $4 - $8; if (d < 0) d = -d; if ($2 != $6 || d > 0.02) { print; bad = 1 } } END { exit bad }' ||
    fail "three ranks learn something else than one"
tail -1 a | awk '{ exit !($4 < 1.2) }' || fail "nothing is learned" a
exit $failed
