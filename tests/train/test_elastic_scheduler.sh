#!/bin/sh
# An elastic training whose scheduler, a process of its own, is killed whenever the world has another size, and amid changes of it,
# and is started again at the same address: three ranks, two, three with one that is added, two without the first, three again.
# Each step is made once, in order, and its loss is that of one device to 1e-5.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
# shellcheck source=../launch/chance.inc
. "$(dirname "$0")/../launch/chance.inc"
words='train.steps=1000000 train.batch=12 train.eval_every=0 train.optimizer.lr=1e-5 train.schedule.name=constant'
one=127.0.0.1:$(free_port)
job="$weft train job.yaml $words recovery.elastic=true parallel.mesh={dp:3} checkpoint.dir=run checkpoint.stop_file=stop train.log=log"
three="-n 3 --scheduler $one --heartbeat 5"

said() { # TIMES TEXT
    [ "$(cat logs/* added*-logs/* 2>/dev/null | grep -c -- "$2")" -ge "$1" ]
}
await() { # TIMES TEXT: or the launcher has ended
    while ! said "$1" "$2"; do
        kill -0 "$first" 2>/dev/null || break
        sleep 0.05
    done
    said "$1" "$2" || {
        fail "'$2' did not come" out
        tail -n 30 scheduler.* added-one added-two logs/* added-*-logs/*
        exit 1
    }
}
steps() { # N: so many more are made
    last=$(tail -n 1 log | value step)
    while kill -0 "$first" 2>/dev/null && ! grep -q "\"step\": $((last + $1))," log; do sleep 0.05; done
}
rounds=0 ends=
begin_scheduler() {
    rounds=$((rounds + 1))
    # shellcheck disable=SC2086
    "$weft" launch --scheduler-only $three >scheduler.$rounds 2>&1 &
    scheduler=$!
}
end_scheduler() { # [SECONDS]: kill -9, and another one follows, so much later
    kill -9 $scheduler
    wait $scheduler
    sleep "${1:-0}"
    begin_scheduler
}
pause() { # of less than a second
    draw 400
    sleep "0.$(printf '%03d' "$number")"
}
kill_rank() { # RANK, as it was started
    victim=$(grep -lzxs "WEFT_RANK=$1" $(grep -lzxs "WEFT_SCHEDULER=$one" /proc/[0-9]*/environ) | head -n 1 | sed 's|/proc/\([0-9]*\)/.*|\1|')
    kill -9 "$victim" || fail "rank $1 is not found"
}
add() { # NAME
    # shellcheck disable=SC2086
    "$weft" launch --add -n 1 --scheduler $one --logs "added-$1-logs" -- $job >"added-$1" 2>&1 &
}

begin_scheduler
# shellcheck disable=SC2086
"$weft" launch --no-scheduler $three --logs logs -- $job >out 2>&1 &
first=$!
while [ ! -s log ] && kill -0 $first; do sleep 0.05; done
steps 20
kill_rank 1
await 1 'goes on with 2 ranks (state from memory)'
end_scheduler
steps 20
add one
added_one=$!
await 1 'goes on with 3 ranks (state from memory)'
end_scheduler 3 # launchers wait for it
steps 10
kill_rank 0
pause
end_scheduler # it may be amid the change
await 2 'goes on with 2 ranks (state from memory)'
end_scheduler
add two
added_two=$!
pause
end_scheduler
await 2 'goes on with 3 ranks (state from memory)'
steps 20
echo '{"GracefulExit": 1}' >stop
for process in $first $added_one $added_two $scheduler; do
    wait $process
    ends="$ends $?"
done
[ "$ends" = ' 0 0 0 0' ] || {
    fail "exit codes$ends" out
    tail -n 30 scheduler.* added-one added-two logs/* added-*-logs/*
}
made=$(grep -c '"loss"' log)
# shellcheck disable=SC2086
"$weft" train job.yaml $words train.steps="$made" train.log=one.log >one.out 2>&1 || fail 'one device does not train' one.out
awk 'function number(key) { return match($0, "\"" key "\": [-0-9.e+]+") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : -1 }
    !/"loss"/ || /validation_loss/ { next }
    FNR == NR { loss[number("step")] = number("loss"); next }
    { off = number("loss") - loss[number("step")]; if (off < 0) off = -off
      if (number("step") != ++line || off > 1e-5 * loss[line]) { print "line " line ", one device has " loss[line] ": " $0; bad = 1 } }
    END { exit bad }' one.log log >wrong || fail 'other steps than of one device' wrong
exit $failed
