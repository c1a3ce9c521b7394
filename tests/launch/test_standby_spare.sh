#!/bin/sh
# Three hosts of one rank each, as WEFT_HOST_ID says, and a spare one. The first host is killed, with its rank and the
# scheduler, which is in its launcher. The standby is in the launcher of another host. It takes over, the spare host takes
# the place of the one that was lost, and the losses are those of an undisturbed run.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
need_openssl

await() { # TEXT FILE
    for _ in $(seq 9000); do
        grep -qs -- "$1" "$2" && return
        sleep 0.1
    done
    fail "$name: '$1' did not come in $2" "$2"
}
name=host one=127.0.0.1:$(free_port) two=127.0.0.1:$(free_port)
train='train.steps=2000 train.eval_every=0 train.batch=6 recovery.enabled=true parallel.mesh={"dp":3} --json'
# shellcheck disable=SC2086
"$weft" train job.yaml --devices 3 $train >alone3.json 2>alone3.err || fail 'three devices:' alone3.err
host() { # NUMBER OPTIONS...
    number=$1
    shift
    # shellcheck disable=SC2086
    WEFT_HOST_ID=host-$number timeout -k 10 900 "$weft" launch --hosts 3 -n 1 --scheduler $one --standby $two --heartbeat 3 --timeout 60 --restart 3 "$@" \
        --logs "host-logs-$number" -- "$weft" train job.yaml $train >"host.$number" 2>&1
}
host 1 --host-rank 1 &
second=$!
host 2 --host-rank 2 &
third=$!
host 3 --spare &
spare=$!
host 0 --host-rank 0 &
first=$!
await '"step": 100,' host.0
# The launcher's reaper, which has the same words, is younger.
kill -9 "$(grep -lzx 'host-logs-0' /proc/[0-9]*/cmdline 2>/dev/null | sed 's|/proc/\([0-9]*\)/.*|\1|' | sort -n | while read -r place; do
    [ "$(cat "/proc/$place/comm" 2>/dev/null)" = weft ] && echo "$place" && break
done)"
wait $first
for process in $second $third $spare; do wait "$process" || fail "a host that was left ends with $?" host.1; done
losses alone3.json | sort >alone3
losses host.0 host.3 | sort -u | comm -23 - alone3 >other
[ -s other ] && fail 'other losses than in one process:' other
losses host.3 | grep -q '^2000 ' || fail 'the spare host has not ended the training' host.3
exit $failed
