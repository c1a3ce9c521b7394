#!/bin/sh
# A standby scheduler on one host: two launchers of two ranks each, and two schedulers in processes of their own. If the
# scheduler is killed, or stopped, in the midst of a training, the standby takes over, and the losses are those of an
# undisturbed run. A standby that is killed harms nothing. If both are killed, all ranks end with 75.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
steps='train.steps=6000 train.eval_every=0'
endless='train.steps=1000000 train.eval_every=0'
need_openssl

# begin NAME 'OPTIONS' COMMAND...: schedulers, and a launcher for each of two hosts. *.0 and *.1 are what these say.
begin() {
    name=$1 options=$2
    shift 2
    one=127.0.0.1:$(free_port) two=127.0.0.1:$(free_port)
    all="--hosts 2 -n 2 --scheduler $one --standby $two --heartbeat 5 $options"
    # shellcheck disable=SC2086
    {
        timeout -k 10 900 "$weft" launch --standby-only $all >"$name.standby" 2>&1 &
        standby=$!
        timeout -k 10 900 "$weft" launch --scheduler-only $all >"$name.scheduler" 2>&1 &
        scheduler=$!
        for host in 0 1; do
            timeout -k 10 900 "$weft" launch --no-scheduler --host-rank $host $all --logs "$name-logs-$host" -- "$@" >"$name.$host" 2>&1 &
            [ $host = 0 ] && first=$! || second=$!
        done
    }
}
# process_of ROLE: the process of that scheduler; `timeout`, its parent, has the same words
process_of() {
    for place in $(grep -lzxs -- "--$1-only" /proc/[0-9]*/cmdline | sed 's|/proc/\([0-9]*\)/.*|\1|'); do
        [ "$(cat "/proc/$place/comm" 2>/dev/null)" = weft ] && grep -qzx -- "$one" "/proc/$place/cmdline" && echo "$place" && return
    done
    fail "$name: no process of the $1"
}
rank_process() { # RANK: its process
    # shellcheck disable=SC2046
    grep -lzxs "WEFT_RANK=$1" $(grep -lzxs "WEFT_STANDBY=$two" /proc/[0-9]*/environ) | head -n 1 | sed 's|/proc/\([0-9]*\)/.*|\1|'
}
await() { # TEXT FILE: or the first launcher has ended
    for _ in $(seq 9000); do
        grep -qs -- "$1" "$2" && return
        kill -0 "$first" 2>/dev/null || break
        sleep 0.1
    done
    grep -qs -- "$1" "$2" && return
    fail "$name: '$1' did not come in $2" "$2"
}
# answers ADDRESS: that scheduler says that the job makes steps
answers() {
    for _ in $(seq 600); do
        "$weft" health --scheduler $one --standby $two --json --timeout 2 >health.json 2>health.err &&
            grep -q "\"scheduler\": \"$1\"" health.json && return
        sleep 0.1
    done
    fail "$name: no answer from $1" health.json
}
# end CODE CODE CODE: launchers and the standby have ended so
end() {
    wait $first
    ends=$?
    wait $second
    ends="$ends $?"
    wait $standby
    ends="$ends $?"
    wait $scheduler
    [ "$ends" = "$1 $2 $3" ] || {
        fail "$name: exits $ends, not $*" "$name.0"
        cat "$name.1" "$name.standby" "$name.scheduler"
    }
}
same() {
    losses "$name.0" | cmp -s - alone || fail "$name: other losses than in one process:" "$name.0"
}

# shellcheck disable=SC2086
"$weft" train job.yaml --devices 4 --json $steps >alone.json 2>alone.err || fail 'four devices:' alone.err
losses alone.json >alone
[ -s alone ] || fail 'no losses of four devices'

# Nothing happens: both schedulers end by themselves.
# shellcheck disable=SC2086
begin calm '' "$weft" train job.yaml --json $steps
end 0 0 0
same
grep -q 'job now' calm.standby && fail 'a standby that was not needed has taken over' calm.standby

# The scheduler is killed.
# shellcheck disable=SC2086
begin killed --tls "$weft" train job.yaml --json $steps
await '"step": 100,' killed.0
kill -9 "$(process_of scheduler)"
await 'has the job now' killed.standby
end 0 0 0
same

# Half of the ranks die at once, rank 0 among them. Their launcher says so: no other scheduler has them.
# shellcheck disable=SC2086
begin halves '--restart 2' "$weft" train job.yaml --json $steps recovery.enabled=true parallel.mesh='{dp: 4}'
await '"step": 100,' halves.0
# shellcheck disable=SC2046
kill -9 $(for rank in 0 1; do rank_process $rank; done) || fail 'ranks 0 and 1 are not found'
end 0 0 0
sort alone >alone.sorted
losses halves.0 | sort -u | comm -23 - alone.sorted >other
[ -s other ] && fail 'halves: other losses than in one process' other
has_facts halves.0 'rank 0|rank 1|started again (' || fail 'halves: not started again' halves.0

# Rank 0 of two dies, and is not started again. The scheduler is deposed, nobody comes to the standby, and that one ends soon and
# says why.
# shellcheck disable=SC2086
begin deposed '-n 1' "$weft" train job.yaml --json $endless
await '"step": 100,' deposed.0
kill -9 "$(rank_process 0)" || fail 'rank 0 is not found'
end 75 75 75
has_facts deposed.standby 'no rank has come|rank 0|half of the ranks' || fail 'deposed: the standby gives another reason' deposed.standby

# The standby is killed, and nobody notices.
# shellcheck disable=SC2086
begin lone '' "$weft" train job.yaml --json $endless
await '"step": 100,' lone.0
kill -9 "$(process_of standby)"
answers $one
kill -TERM $first $second
end 143 143 137

# The scheduler is stopped, and goes on when the job has left it: its own part is over, and nobody else notices. It is
# started again, and is the standby now: the other one is killed. Then a rank dies, and is started again.
# shellcheck disable=SC2086
begin stopped '--restart 1' "$weft" train job.yaml --json $endless recovery.enabled=true parallel.mesh='{dp: 4}'
await '"step": 100,' stopped.0
victim=$(process_of scheduler)
kill -STOP "$victim"
await 'has the job now' stopped.standby
answers $two
kill -CONT "$victim"
wait $scheduler
[ $? = 75 ] || fail 'a scheduler that has lost its job does not end with 75' stopped.scheduler
# shellcheck disable=SC2086
timeout -k 10 900 "$weft" launch --scheduler-only $all >again.scheduler 2>&1 &
scheduler=$!
await "$one" again.scheduler
kill -9 "$(process_of standby)"
await 'has the job now' again.scheduler
answers $one
kill -9 "$(rank_process 3)" || fail 'rank 3 is not found'
await 'rank 3 .* is started again (1 of 1' stopped.1
answers $one
kill -TERM $first $second
end 143 143 137

# Both are killed.
# shellcheck disable=SC2086
begin both '--timeout 8' "$weft" train job.yaml --json $endless
await '"step": 100,' both.0
kill -9 "$(process_of scheduler)" "$(process_of standby)"
end 75 75 137
has_facts both-logs-0/rank-0.log "schedulers at|$one|$two|for 8 s" || fail 'both: another reason' both-logs-0/rank-0.log

# Processes that this script starts. The scheduler is killed; all end with the digest of an undisturbed run.
mend=$WEFT_BUILD_DIR/weft-mend
digests() { # NAME: of both ranks
    sed -n 's/.* digest \([0-9a-f]*\) .*/\1/p' "$1".rank-*
}
for name in mend_calm mend_killed; do
    one=127.0.0.1:$(free_port) two=127.0.0.1:$(free_port)
    timeout -k 10 900 "$weft" launch --standby-only -n 2 --scheduler $one --standby $two >$name.standby 2>&1 &
    standby=$!
    timeout -k 10 900 "$weft" launch --scheduler-only -n 2 --scheduler $one --standby $two >$name.scheduler 2>&1 &
    scheduler=$!
    for rank in 0 1; do
        WEFT_LAUNCH=1 WEFT_RANK=$rank WEFT_SIZE=2 WEFT_SCHEDULER=$one WEFT_STANDBY=$two timeout 900 "$mend" 50000 >$name.rank-$rank 2>&1 &
        [ $rank = 0 ] && first=$! || second=$!
    done
    for _ in $(seq 6000); do
        "$weft" health --scheduler $one --json --timeout 2 2>health.err | grep -q '"here": 2' && break
        sleep 0.1
    done
    [ $name = mend_calm ] || kill -9 "$(process_of scheduler)"
    end 0 0 0
done
[ "$(digests mend_calm | wc -l)" = 2 ] || fail 'no digests' mend_calm.rank-0
[ "$(digests mend_calm)" = "$(digests mend_killed)" ] || fail 'other digests:' mend_killed.rank-0
grep -q 'job now' mend_killed.standby || fail 'the standby has not taken over' mend_killed.standby

# Refusals.
expect 2 'standby|no-scheduler' launch -n 2 --standby 127.0.0.1:9 -- true
expect 2 'standby-only|--standby' launch --standby-only -n 2 --scheduler 127.0.0.1:9
expect 2 'scheduler-only|command|true' launch --scheduler-only -n 2 --scheduler 127.0.0.1:9 -- true
expect 2 'exclude' launch --scheduler-only --standby-only -n 2 --scheduler 127.0.0.1:9 --standby 127.0.0.1:8
expect 2 'no-scheduler|--scheduler' launch --no-scheduler -n 2 -- true
expect 1 "standby|127.0.0.1:9|scheduler's own" launch --hosts 2 -n 1 --scheduler 127.0.0.1:9 --standby 127.0.0.1:9 -- true
expect 1 'standby|127.0.0.1|HOST:PORT' launch --hosts 2 -n 1 --scheduler 127.0.0.1:9 --standby 127.0.0.1 -- true
expect 1 'standby|no.such.host.invalid' launch --hosts 2 --host-rank 1 -n 1 --scheduler 127.0.0.1:9 --standby no.such.host.invalid:9 -- true
exit $failed
