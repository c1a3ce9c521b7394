#!/bin/sh
# The conformance suite on processes of this host, in worlds of several sizes, and alone: what all ranks get is that of
# threads, to the bit.
set -u
conformance=$WEFT_BUILD_DIR/weft-conformance
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
if [ ! -x "$conformance" ]; then
    echo "SKIP: weft-conformance is not built"
    exit 77
fi
bad=0
WEFT_TEST_SEED=${WEFT_TEST_SEED:-$(($(date +%s) % 100000))}
export WEFT_TEST_SEED
# few PROGRAMS: fewer on a device each of whose buffers is a mapping of its own
few() { if [ "${WEFT_DEVICE:-host}" = fenced ]; then echo $((($1 + 7) / 8)); else echo "$1"; fi; }
digest() { sed -n 's/.*good (seed .*, digest \([0-9a-f]*\)).*/\1/p' "$@"; }
# as_threads RANKS PROGRAMS BYTES: `out` has the bits that threads get.
as_threads() {
    "$conformance" "$2" "$3" "$1" >threads 2>&1
    [ -n "$(digest threads)" ] && [ "$(digest threads)" = "$(digest out)" ] && return
    echo "$1 ranks: other bits than those of threads:"
    cat threads out
    bad=1
}
# run RANKS PROGRAMS BYTES
run() {
    if ! timeout 120 "$WEFT_BIN" launch -n "$1" --no-logs -- "$conformance" "$2" "$3" >out 2>&1 ||
        ! grep -q "^$1 ranks, .* calls good" out; then
        echo "$1 ranks:"
        cat out
        bad=1
    else
        grep "calls good" out
        as_threads "$@"
    fi
}
"$conformance" "$(few 20)" 1000000 >out 2>&1 && grep -q "^1 ranks" out || { cat out; bad=1; }
run 2 "$(few 40)" 16000000
run 3 "$(few 30)" 1000000
run 4 "$(few 30)" 4000000
run 7 "$(few 12)" 300000
# By authenticated and by encrypted messages, also within the host; of five ranks, each pair has three streams.
for carrier in mac tls; do
    for ranks in 2 5; do
        WEFT_STREAMS=$((ranks / 2 + ranks % 2)) WEFT_COMM=$carrier timeout 120 "$WEFT_BIN" launch -n $ranks --no-logs -- "$conformance" "$(few 20)" 1000000 >out 2>&1
        if grep -q 'without OpenSSL' out; then
            echo "SKIP: messages by $carrier: no OpenSSL"
        elif grep -q "^$ranks ranks, $carrier: .* calls good" out; then
            grep "calls good" out
            as_threads $ranks "$(few 20)" 1000000
        else
            echo "$ranks ranks, messages by $carrier:"
            cat out
            bad=1
        fi
    done
done
# Two hosts of two and three ranks, which share no memory.
hosts='WEFT_HOST_ID=host$((WEFT_RANK / RANKS_OF_A_HOST)) exec "$@"'
for ranks in 4 6; do
    # shellcheck disable=SC2016
    RANKS_OF_A_HOST=$((ranks / 2)) timeout 120 "$WEFT_BIN" launch -n $ranks --no-logs -- \
        sh -c "$hosts" sh "$conformance" "$(few 20)" 1000000 >out 2>&1
    if grep -q 'without OpenSSL' out; then
        echo "SKIP: two hosts: $(grep -m1 OpenSSL out)"
    elif grep -q "^$ranks ranks, .* calls good" out; then
        grep "calls good" out
        as_threads $ranks "$(few 20)" 1000000
    else
        echo "$ranks ranks on two hosts:"
        cat out
        bad=1
    fi
done
exit $bad
