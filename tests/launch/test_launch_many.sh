#!/bin/sh
# Many ranks on one host: all join, agree and train, and the losses are those of the same number of devices in one process. 48
# ranks; 256 in .ci/nightly, 16 with a sanitizer, or as many as WEFT_TEST_RANKS says.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
ranks=48
[ -z "${WEFT_NIGHTLY:-}" ] || ranks=256
# A sanitizer's memory for each of them is too much for one machine.
nm "$weft" 2>/dev/null | grep -q -m1 -e __asan_init -e __tsan_init && ranks=16
ranks=${WEFT_TEST_RANKS:-$ranks}
for variable in WEFT_RANK WEFT_SIZE RANK WORLD_SIZE MASTER_ADDR MASTER_PORT MS_ROLE RANK_TABLE_FILE; do
    unset $variable
done
cat >many.yaml <<END
model: {family: gpt2, layers: 1, hidden: 8, heads: 1, context: 8}
data: {path: text.txt}
train: {steps: 2, batch: $ranks}
device: {threads: 1}
END
losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$1"
}
"$weft" launch -n "$ranks" --logs logs -- "$weft" train many.yaml --json >launch.json 2>launch.err ||
    fail "$ranks ranks:" launch.err
[ "$(find logs -name 'rank-*.log' | wc -l)" = "$ranks" ] || fail "not $ranks logs"
"$weft" train many.yaml --devices "$ranks" --json >alone.json 2>alone.err || fail "$ranks devices:" alone.err
losses launch.json >launch.losses
losses alone.json >alone.losses
[ -s alone.losses ] || fail 'no losses in one process' alone.err
cmp -s alone.losses launch.losses || fail 'other losses than in one process' launch.losses
[ -z "$(ls "$TMPDIR")" ] || fail "folders are left: $(ls "$TMPDIR")"
exit $failed
