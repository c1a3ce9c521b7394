#!/bin/sh
# examples/recovery, a program that uses a session itself: its ranks are killed (kill -9) at random steps, one, two at once, and one
# while another one's loss is repaired. Each time it ends with the digest of an undisturbed run. WEFT_TEST_ROUNDS kills (4); the seed is
# printed.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
program=$WEFT_BUILD_DIR/examples/recovery
[ -x "$program" ] || { echo "SKIP: the example is not built (target examples)"; exit 77; }
rounds=${WEFT_TEST_ROUNDS:-4} mark=$$
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=../launch/chance.inc
. "$(dirname "$0")/../launch/chance.inc"
run() { # options of weft launch...
    timeout 300 "$weft" launch -n 4 --logs logs --env OMP_NUM_THREADS=1 "$@" -- "$program" 2000 >out 2>err
}
kill_rank() { # $1 of round $2
    for place in $(grep -lzs "^RECOVERY_TEST=$mark-$2\$" /proc/[0-9]*/environ | sed 's|/environ||'); do
        [ "$(readlink "$place/exe")" = "$(readlink -f "$program")" ] || continue
        tr '\0' '\n' <"$place/environ" 2>/dev/null | grep -qx "WEFT_RANK=$1" && kill -9 "${place#/proc/}" 2>/dev/null && return
    done
}
digest_of() { grep -o 'digest [0-9a-f]*$' "$1"; }

run || fail "the example does not run" err
right=$(digest_of out)
[ -n "$right" ] || fail "the example prints no digest" out
mended=0
for round in $(seq "$rounds"); do
    draw 4
    rank=$number
    draw 4
    other=$number
    draw 4
    step=$((number * 100))
    what="round $round: SIGKILL to rank $rank at step $step"
    : >out
    run --restart 3 --env RECOVERY_TEST=$mark-"$round" &
    launch=$!
    until grep -q "^step $step " out || ! kill -0 $launch 2>/dev/null; do sleep 0.01; done
    kill_rank "$rank" "$round"
    case $((round % 4)) in
    2) kill_rank "$other" "$round" && what="$what, and to rank $other" ;;
    3) sleep 0.1 && kill_rank "$other" "$round" && what="$what, and to rank $other 0.1 s later" ;;
    esac
    wait $launch
    code=$?
    tells_the_end err $code && continue
    [ $code = 0 ] || { fail "$what: exit code $code" err && continue; }
    grep -q 'started again' err && mended=$((mended + 1))
    [ "$(digest_of out)" = "$right" ] || fail "$what: ends with other bits" out
done
echo "$mended of $rounds were killed while they trained"
[ "$mended" -gt 0 ] || fail "no kill met the training"
exit $failed
