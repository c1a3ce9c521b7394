#!/bin/sh
# Elastic jobs whose launchers run no scheduler and start nothing again: a rank is killed, and the world goes on without it;
# processes are added, before and after the standby scheduler has taken over. Each step is made once, in order, and its loss is
# that of one device to 1e-5.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
need_openssl
words='train.steps=1000000 train.batch=12 train.eval_every=0 train.optimizer.lr=1e-5 train.schedule.name=constant'

# begin NAME RANKS: addresses, and the command of the job.
begin() {
    name=$1 one=127.0.0.1:$(free_port) two=127.0.0.1:$(free_port)
    job="$weft train job.yaml $words recovery.elastic=true parallel.mesh={\"dp\":$2} checkpoint.dir=run-$name checkpoint.stop_file=stop-$name train.log=$name.log"
}
said() { # TIMES TEXT FILE...
    times=$1 text=$2
    shift 2
    [ "$(cat "$@" 2>/dev/null | grep -c -- "$text")" -ge "$times" ]
}
await() { # TIMES TEXT FILE...: or the launcher `first` has ended
    for _ in $(seq 9000); do
        said "$@" && return
        kill -0 "$first" 2>/dev/null || break
        sleep 0.1
    done
    said "$@" && return
    fail "$name: '$text' did not come in $*" "$name.0"
    exit 1
}
scheduler_process() { # `timeout`, its parent, has the same words
    for place in $(grep -lzxs -- --scheduler-only /proc/[0-9]*/cmdline | sed 's|/proc/\([0-9]*\)/.*|\1|'); do
        [ "$(cat "/proc/$place/comm" 2>/dev/null)" = weft ] && grep -qzx -- "$one" "/proc/$place/cmdline" && echo "$place" && return
    done
}
kill_rank() { # RANK, as it was started
    victim=$(grep -lzxs "WEFT_RANK=$1" $(grep -lzxs "WEFT_SCHEDULER=$one" /proc/[0-9]*/environ) | head -n 1 | sed 's|/proc/\([0-9]*\)/.*|\1|')
    kill -9 "$victim" || fail "$name: rank $1 is not found"
}
# add NAME OPTIONS...: one more process
add() {
    to=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 10 900 "$weft" launch --add -n 1 --scheduler $one --logs "$to-logs" "$@" -- $job >"$to" 2>&1 &
}
ends_with() { # CODE PROCESS FILE
    wait "$2"
    got=$?
    [ $got = "$1" ] || fail "$name: $3 ends with $got, not $1" "$3"
}
stop() {
    last=$(tail -n 1 "$name.log" | value step)
    await 1 "\"step\": $((last + 20))," "$name.log"
    echo '{"GracefulExit": 1}' >"stop-$name"
}
same() { # each step once, with the loss of one device
    made=$(grep -c '"loss"' "$name.log")
    # shellcheck disable=SC2086
    "$weft" train job.yaml $words train.steps="$made" train.log=one.log >one.out 2>&1 || fail 'one device does not train' one.out
    awk 'function number(key) { return match($0, "\"" key "\": [-0-9.e+]+") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : -1 }
        !/"loss"/ || /validation_loss/ { next }
        FNR == NR { loss[number("step")] = number("loss"); next }
        { off = number("loss") - loss[number("step")]; if (off < 0) off = -off
          if (number("step") != ++line || off > 1e-5 * loss[line]) { print "line " line ", one device has " loss[line] ": " $0; bad = 1 } }
        END { exit bad }' one.log "$name.log" >wrong || fail "$name: other steps than of one device" wrong
}

# Three ranks, two, three, another scheduler, two, three.
begin added 3
three="-n 3 --scheduler $one --standby $two --heartbeat 5"
# shellcheck disable=SC2086
{
    timeout -k 10 900 "$weft" launch --standby-only $three >added.standby 2>&1 &
    standby=$!
    timeout -k 10 900 "$weft" launch --scheduler-only $three >added.scheduler 2>&1 &
    timeout -k 10 900 "$weft" launch --no-scheduler $three --logs added-logs -- $job >added.0 2>&1 &
    first=$!
}
await 1 '"step": 20,' added.log
kill_rank 1
await 1 'goes on with 2 ranks (state from memory)' added-logs/*
has_facts added.0 'rank 1|goes on without it' || fail 'the launcher does not say that a rank is lost' added.0
add before --standby "$two"
before=$!
await 1 'goes on with 3 ranks (state from memory)' added-logs/*
kill -9 "$(scheduler_process)"
await 1 'has the job now' added.standby
last=$(tail -n 1 added.log | value step)
await 1 "\"step\": $((last + 20))," added.log
kill_rank 0
await 1 'rank 0 .*the job goes on without it' added.0
last=$(tail -n 1 added.log | value step)
await 1 "\"step\": $((last + 20))," added.log
add after --standby "$two"
after=$!
await 2 'goes on with 3 ranks (state from memory)' added-logs/*
stop
ends_with 0 $first added.0
ends_with 0 $standby added.standby
ends_with 0 $before before
ends_with 0 $after after
same

# Two hosts, with the scheduler in the launcher of the first one. The second loses a rank, then its last one.
begin hosts 4
for host in 1 0; do
    # shellcheck disable=SC2086
    timeout -k 10 900 "$weft" launch --hosts 2 --host-rank $host -n 2 --scheduler $one --logs hosts-logs-$host -- $job >hosts.$host 2>&1 &
    [ $host = 0 ] && first=$! || second=$!
done
await 1 '"step": 20,' hosts.log
kill_rank 3
await 1 'goes on with 3 ranks (state from memory)' hosts-logs-0/*
has_facts hosts.1 'rank 3|goes on without it' || fail 'the second launcher does not say that a rank is lost' hosts.1
kill_rank 2
await 1 'goes on with 2 ranks (state from memory)' hosts-logs-0/*
ends_with 75 $second hosts.1
has_facts hosts.1 'all 2 processes of this host|lost|the job goes on' || fail 'the second launcher names no reason' hosts.1
stop
ends_with 0 $first hosts.0
same
exit $failed
