#!/bin/sh
# A stranger on the job's network (weft-hostile) calls every open port while ranks connect and train: malformed, replayed,
# recorded, slow and oversized connections. Each job ends well with the losses of one process, to the bit. In turns, the
# last rank and rank 0 keep the others waiting, so that the port of each rank is met: a rank takes connections of higher ranks
# and makes those to lower ones. 1000 connections for each carrier, 20000 in .ci/nightly, or as many as
# WEFT_TEST_CONNECTIONS says. With WEFT_TEST_EACH there are that many to the port of each rank in place of this.
# The full count takes longer than ctest lets it; with WEFT_BIN and WEFT_BUILD_DIR set to a build it is
#     WEFT_TEST_EACH=100000 WEFT_TEST_RANKS=2 sh tests/launch/test_launch_hostile.sh
# WEFT_TEST_CARRIERS (mac, tls) chooses carriers, WEFT_TEST_RANKS (4) the number of ranks. Needs root and iproute2.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
count=1000
[ -z "${WEFT_NIGHTLY:-}" ] || count=20000
count=${WEFT_TEST_CONNECTIONS:-$count}
each=${WEFT_TEST_EACH:-0} ranks=${WEFT_TEST_RANKS:-4}
[ "$each" = 0 ] || count=1000000000
seed=${WEFT_TEST_SEED:-$(($(date +%s) % 100000))}
echo "seed $seed (WEFT_TEST_SEED=$seed repeats it)"
if ! "$weft" info --quick 2>/dev/null | grep -q '^ *OpenSSL *built in'; then
    echo 'SKIP: no OpenSSL, by which messages are authenticated'
    exit 77
fi
place=weft-ho-$$
if [ "$(id -u)" != 0 ] || ! ip netns add $place 2>netns.err || ! ip netns exec $place true 2>netns.err; then
    ip netns del $place 2>/dev/null
    echo "SKIP: no network namespaces can be made here (root and iproute2): $(cat netns.err 2>/dev/null)"
    exit 77
fi
trap 'ip netns del $place; rm -rf "$work"' EXIT
ip -n $place link set lo up || exit 1
HOME=$work TMPDIR=$work/tmp
export HOME TMPDIR
mkdir "$TMPDIR"
(umask 077 && od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >secret)
losses() {
    sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$1"
}
steps=400
[ "$count" -gt 19000 ] || steps=$((20 + count / 50))
long="train.steps=$steps train.eval_every=0"
# shellcheck disable=SC2086
"$weft" train job.yaml $long --devices "$ranks" --json >alone.json 2>alone.err || fail "$ranks devices:" alone.err
losses alone.json >alone
[ "$(wc -l <alone)" = $steps ] || fail "no losses of $ranks devices" alone.err
cat >rank.sh <<'END'
[ $WEFT_RANK != $HELD ] || export LD_PRELOAD="$WEFT_BUILD_DIR/weft-late-connect.so" LATE_CONNECT_BUT=9000
[ $WEFT_RANK != $HELD ] || [ $HELD != 0 ] || export LATE_ACCEPT=1
echo $$ >pid.$WEFT_RANK
exec "$@"
END
export WEFT_STREAMS="${WEFT_STREAMS:-2}" # of each pair
export WEFT_HEARTBEAT_SECONDS=600 # a rank is stopped for as long as the stranger likes
number() { sed -n "s/.*$1 \([0-9]*\).*/\1/p" said; }
# one CARRIER RANK CONNECTIONS NUMBER EACH: a job with a stranger; that rank keeps the others waiting
one() {
    rm -f pid.*
    HELD=$2
    export HELD
    ip netns exec $place "$WEFT_BUILD_DIR/weft-hostile" "$3" "$5" secret 9000 "pid.$2" $((seed + $4)) >said &
    stranger=$!
    # shellcheck disable=SC2086
    WEFT_COMM=$1 ip netns exec $place timeout -k 10 900 "$weft" launch -n "$ranks" --no-logs --secret secret \
        --scheduler 127.0.0.1:9000 -- sh rank.sh "$weft" train job.yaml $long --json >job.json 2>job.err
    code=$?
    kill $stranger 2>/dev/null
    wait $stranger || fail "$1: the stranger failed"
    [ $code = 0 ] || { fail "$1, job $4: exit $code" job.err; return 1; }
    losses job.json | cmp -s - alone || { fail "$1, job $4: other losses than in one process" job.json; return 1; }
}
for carrier in ${WEFT_TEST_CARRIERS:-mac tls}; do
    made=0 at_ranks=0 held=$((ranks - 1)) job=0 had=0 begun=$(date +%s)
    while [ $job -lt 2000 ]; do
        job=$((job + 1))
        share=$((count - made))
        [ $job -gt 1 ] || share=$((count / 2))
        [ $share -gt 0 ] || share=$((count / 4)) # each rank's port is met, however many the scheduler's has met
        one "$carrier" $held $share $job $((each - had)) || break
        made=$((made + $(number connections))) at_ranks=$((at_ranks + $(number ranks)))
        [ $made -lt "$count" ] || [ $job = 1 ] || break
        if [ "$each" != 0 ]; then
            had=$((had + $(number 'at least')))
            [ $had -ge "$each" ] || continue # a slow machine
            [ $held != 0 ] || break
            had=0
        fi
        held=$((ranks - 1 - held))
    done
    echo "$carrier: $made connections, $at_ranks of them to ports of ranks, in $job jobs and $(($(date +%s) - begun)) s"
    [ $failed = 1 ] || [ "$each" = 0 ] || echo "$carrier: at least $each to the port of each rank"
    [ $failed = 1 ] || [ "$each" != 0 ] || [ $made -ge "$count" ] || fail "$carrier: only $made connections"
    [ $failed = 1 ] || [ $at_ranks -gt 0 ] || fail "$carrier: no port of a rank was met"
done
exit $failed
