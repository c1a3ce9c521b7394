#!/bin/sh
# Ranks of a training are killed (kill -9) at random instants, under plans with replicas, with shared memory and with messages. Each is
# started again, gets its state from a replica, and the last checkpoint has the digest of an undisturbed run. Without restarts left the
# job ends with 75. WEFT_TEST_ROUNDS kills (6); the seed is printed.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
rounds=${WEFT_TEST_ROUNDS:-6} mark=$$
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=../launch/chance.inc
. "$(dirname "$0")/../launch/chance.inc"
# train N MESH FOLDER options of weft launch...
train() {
    ranks=$1 mesh=$2 folder=$3
    shift 3
    timeout 90 "$weft" launch -n "$ranks" --logs logs "$@" -- "$weft" train job.yaml recovery.enabled=true train.steps=300 \
        train.batch=6 train.eval_every=100 parallel.mesh="$mesh" checkpoint.dir="$folder" >out 2>err
}
kill_rank() { # $1 of round $2
    for place in $(grep -lzs "^RESTART_TEST=$mark-$2\$" /proc/[0-9]*/environ | sed 's|/environ||'); do
        tr '\0' ' ' <"$place/cmdline" 2>/dev/null | grep -q 'weft train ' || continue
        tr '\0' '\n' <"$place/environ" 2>/dev/null | grep -qx "WEFT_RANK=$1" && kill -9 "${place#/proc/}" 2>/dev/null && return
    done
}

layout=0 round=0 mended=0
for mesh in '3 {dp: 3}' '4 {dp: 2, tp: 2}' '4 {dp: 2, pp: 2}'; do
    ranks=${mesh%% *} mesh=${mesh#* } layout=$((layout + 1))
    train "$ranks" "$mesh" right-$layout || fail "$mesh: does not run" err
    "$weft" checkpoint digest right-$layout >right || fail "$mesh: no digest" err
    for communicator in '' mac; do
        [ $((round * 6 / rounds)) -ge $((layout * 2)) ] && break
        for _ in $(seq $((rounds / 6))); do
            round=$((round + 1))
            draw "$ranks"
            rank=$number
            draw 900
            wait=$(printf '0.%03d' $((number + 100)))
            what="round $round: $mesh ${communicator:-host}, SIGKILL to rank $rank after $wait s"
            train "$ranks" "$mesh" run-$round --restart 1 --env RESTART_TEST=$mark-$round --env WEFT_COMM=$communicator &
            launch=$!
            sleep "$wait"
            kill_rank "$rank" $round
            wait $launch
            code=$?
            # Before all ranks can be mended, and after the first has left, the job ends.
            [ $code = 75 ] && grep -q 'could be mended yet\|before all ranks had come\|left already\|has left$' err && continue
            [ $code = 0 ] || fail "$what: exit code $code" err
            grep -q 'is started again (1 of 1)' err && mended=$((mended + 1))
            "$weft" checkpoint digest run-$round >digest 2>&1 || fail "$what: no checkpoint" digest
            cmp -s right digest || fail "$what: ends with other bits" err
        done
    done
done
echo "$mended of $round were killed while they trained"
exit $failed
