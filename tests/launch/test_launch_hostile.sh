#!/bin/sh
# A stranger on the job's network (weft-hostile) calls every open port while ranks connect and train: malformed, replayed,
# recorded, slow and oversized connections. Each job ends well with the losses of one process, to the bit. 1000 connections
# for each carrier, 20000 in .ci/nightly, or as many as WEFT_TEST_CONNECTIONS says. The full count may take longer
# than ctest lets it; with WEFT_BIN and WEFT_BUILD_DIR set to a build it is
#     WEFT_TEST_CONNECTIONS=100000 sh tests/launch/test_launch_hostile.sh
# WEFT_TEST_CARRIERS (mac, tls) chooses carriers. Needs root and iproute2.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
count=1000
[ -z "${WEFT_NIGHTLY:-}" ] || count=20000
count=${WEFT_TEST_CONNECTIONS:-$count}
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
steps=$((20 + count / 50))
[ $steps -lt 400 ] || steps=400
long="train.steps=$steps train.eval_every=0"
# shellcheck disable=SC2086
"$weft" train job.yaml $long --devices 4 --json >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone
[ "$(wc -l <alone)" = $steps ] || fail 'no losses of four devices' alone.err
cat >rank.sh <<'END'
[ $WEFT_RANK != 3 ] || export LD_PRELOAD="$WEFT_BUILD_DIR/weft-late-connect.so" LATE_CONNECT_BUT=9000
echo $$ >pid.$WEFT_RANK
exec "$@"
END
export WEFT_HEARTBEAT_SECONDS=600 # a rank is stopped for as long as the stranger likes
number() { sed -n "s/.*$1 \([0-9]*\).*/\1/p" said; }
for carrier in ${WEFT_TEST_CARRIERS:-mac tls}; do
    made=0 at_ranks=0
    for job in $(seq 2000); do
        rm -f pid.*
        ip netns exec $place "$WEFT_BUILD_DIR/weft-hostile" $((count - made)) secret 9000 pid.3 $((seed + job)) >said &
        stranger=$!
        # shellcheck disable=SC2086
        WEFT_COMM=$carrier ip netns exec $place timeout -k 10 300 "$weft" launch -n 4 --no-logs --secret secret \
            --scheduler 127.0.0.1:9000 -- sh rank.sh "$weft" train job.yaml $long --json >job.json 2>job.err
        code=$?
        kill $stranger 2>/dev/null
        wait $stranger || fail "$carrier: the stranger failed"
        [ $code = 0 ] || { fail "$carrier, job $job: exit $code" job.err; break; }
        losses job.json | cmp -s - alone || { fail "$carrier, job $job: other losses than in one process" job.json; break; }
        made=$((made + $(number connections))) at_ranks=$((at_ranks + $(number ranks)))
        [ $made -lt "$count" ] || break
    done
    echo "$carrier: $made connections, $at_ranks of them to ports of ranks, in $job jobs"
    [ $failed = 1 ] || [ $made -ge "$count" ] || fail "$carrier: only $made connections"
    [ $failed = 1 ] || [ $at_ranks -gt 0 ] || fail "$carrier: no port of a rank was met"
done
exit $failed
