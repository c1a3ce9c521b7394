#!/bin/sh
# Elastic trainings: ranks are killed (kill -9) and nobody takes their place. The run goes on with those that are left, on a plan for
# fewer devices; processes that are added make it grow. Each step is made once, and its loss is that of one device to 1e-5: the batch,
# the samples and their order stay. With fewer ranks than recovery.min, or without a plan for fewer, the job ends and says why.
# A run lasts until a file asks it to stop. At a rate of 1e-4, rounding alone moves losses of undisturbed runs by 1e-5 after 590
# steps; at 1e-5 not in 4000. The seed is printed. WEFT_TEST_ROUNDS: how often each case is run.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
mark=$$ made=0 launch=$$
splits='parallel.strategies=[{match: h.*.mlp.c_fc, split: n0=tp}, {match: h.*.mlp.c_proj, split: k=tp}]'
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=../launch/chance.inc
. "$(dirname "$0")/../launch/chance.inc"

words='train.batch=12 train.eval_every=50 train.optimizer.lr=1e-5 train.schedule.name=constant'

# train N MESH NAME words of weft train...
train() {
    ranks=$1 mesh=$2 name=$3
    shift 3
    rm -rf logs
    # shellcheck disable=SC2086 # several words
    timeout 1200 "$weft" launch -n "$ranks" --logs logs --env "ELASTIC_TEST=$mark-$name" -- "$weft" train job.yaml recovery.elastic=true \
        train.steps=1000000 $words parallel.mesh="$mesh" checkpoint.dir="run-$name" checkpoint.stop_file="stop-$name" \
        train.log="$name.log" "$@" >out 2>err
}

# lines NAME: the steps that its log has.
lines() {
    have=$(grep -c '"loss"' "$1.log" 2>/dev/null)
    echo "${have:-0}"
}

# wait_lines NAME N: until its log has so many steps, or the job has ended.
wait_lines() {
    while kill -0 $launch 2>/dev/null && [ "$(lines "$1")" -lt "$2" ]; do sleep 0.02; done
}

# wait_for 'words' FILE...: until they are said, or the job has ended.
wait_for() {
    words_said=$1
    shift
    while kill -0 $launch 2>/dev/null && ! cat "$@" 2>/dev/null | grep -q "$words_said"; do sleep 0.02; done
}

# kill_at NAME LINES RANK...: once the log has so many lines, these ranks at once.
kill_at() {
    name=$1 at=$2 victims=
    shift 2
    wait_lines "$name" 1
    for place in $(grep -lzs "^ELASTIC_TEST=$mark-$name\$" /proc/[0-9]*/environ | sed 's|/environ||'); do
        { tr '\0' ' ' <"$place/cmdline" | grep -q 'weft train ' || continue; } 2>/dev/null
        for rank in "$@"; do
            { tr '\0' '\n' <"$place/environ" | grep -qx "WEFT_RANK=$rank" && victims="$victims ${place#/proc/}"; } 2>/dev/null
        done
    done
    wait_lines "$name" "$at"
    # shellcheck disable=SC2086 # several processes
    [ -z "$victims" ] || kill -9 $victims
}

# stop NAME: some steps later the job ends by request. `code` is its exit code.
stop() {
    wait_lines "$1" $(($(lines "$1") + 5))
    echo '{"GracefulExit": 1}' >"stop-$1"
    wait $launch
    code=$?
}

# same NAME BACK: each step once, in order, with the loss of one device. After a return to the disk (BACK 1) the steps begin again.
same() {
    last=$(sed -n 's/^{"step": \([0-9]*\), "loss".*/\1/p' "$1.log" | sort -n | tail -1)
    if [ "$last" -gt $made ]; then
        made=$((last + 300))
        rm -f one.log
        # shellcheck disable=SC2086 # several words
        "$weft" train job.yaml train.steps=$made $words train.log=one.log >one.out 2>&1 || fail "one device does not train" one.out
    fi
    awk -v least=20 -v back="$2" '
        function number(key) { return match($0, "\"" key "\": [-0-9.e+]+") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : -1 }
        !/"step"/ || /validation_loss/ { next }
        FNR == NR { loss[number("step")] = number("loss"); next }
        { at = number("step"); is = number("loss"); off = is - loss[at]
          if (at == 1 && last > 1 && back > 0) { back--; last = 0 }
          if (at != last + 1) { print "step " at " follows step " last; bad = 1 }
          if (off < 0) off = -off
          if (off > 1e-5 * loss[at]) { print "step " at ": loss " is ", one device has " loss[at]; bad = 1 }
          last = at; lines++ }
        END { if (lines < least) { print "only " lines " steps"; bad = 1 } exit bad }' one.log "$1.log" >wrong || fail "$what" wrong
    "$weft" checkpoint verify "run-$1" >verified 2>&1 || fail "$what: bad checkpoints" verified
}

case_number=0
# shrinks N MESH 'ranks that die' 'what is said' words of weft train...
shrinks() {
    case_number=$((case_number + 1))
    draw 60
    what="$2: SIGKILL to $3 at line $number" name=case-$case_number at=$((number + 20)) deaths=$3 said=$4 size=$1 plan=$2
    shift 4
    train "$size" "$plan" "$name" "$@" &
    launch=$!
    # shellcheck disable=SC2086 # several ranks
    kill_at $name $at $deaths
    wait_for "$said" out logs/*.log
    stop $name
    [ $code = 0 ] || fail "$what: exit code $code" err
    grep -q "without it" err || fail "$what: the launcher does not say so" err
    cat out logs/*.log | grep -q "$said" || fail "$what: the run does not say '$said'" err
    case $said in *checkpoint*) same $name 1 ;; *) same $name 0 ;; esac
}

# add NAME N words...: processes for that job, of the mesh `plan`. Other jobs of this user may run on this machine: the launcher tells where this one is.
add() {
    name=$1 ranks=$2
    shift 2
    where=$(sed -n 's/.*scheduler at \([0-9.:]*\),.*/\1/p' err)
    keys=$(for place in $(grep -lzs "^ELASTIC_TEST=$mark-$name\$" /proc/[0-9]*/environ); do
        tr '\0' '\n' <"$place" | sed -n 's/^WEFT_SECRET_FILE=//p'
    done 2>/dev/null | head -1)
    # shellcheck disable=SC2086 # several words
    timeout 1200 "$weft" launch --add -n "$ranks" --scheduler "$where" --secret "$keys" --logs "added-$name" \
        --env "ELASTIC_TEST=$mark-$name" -- "$weft" train job.yaml recovery.elastic=true train.steps=1000000 $words \
        parallel.mesh="$plan" checkpoint.dir="run-$name" checkpoint.stop_file="stop-$name" train.log="$name.log" "$@" >"added-$name.out" 2>&1
}

# grows NAME words...: four ranks, three, two, and four again: two that never were there.
grows() {
    name=$1 what='4, 3, 2, 4 ranks'
    shift
    plan='{dp: 4}'
    train 4 "$plan" "$name" "$@" &
    launch=$!
    kill_at "$name" 5
    add "$name" 1 "$@"
    [ $? = 1 ] || fail "a full job takes a process" "added-$name.out"
    grep -q 'job is full.*4 ranks' "added-$name.out" || fail "a full job does not say so" "added-$name.out"
    kill_at "$name" 20 1
    wait_for 'goes on with 3 ranks (state from memory)' out
    kill_at "$name" 40 0
    wait_for 'goes on with 2 ranks (state from memory)' out logs/*.log
    add "$name" 2 "$@" &
    added=$!
    wait_for 'goes on with 4 ranks (state from memory)' out logs/*.log
    stop "$name"
    wait $added
    got=$?
    [ $code = 0 ] || fail "$what: exit code $code" err
    [ $got = 0 ] || fail "added ranks: exit code $got" "added-$name.out"
    cat out logs/*.log | grep -q 'with 4 ranks (state from memory)' || fail "the run does not grow" out
    same "$name" 0
}

# exceeds NAME: two ranks, then four, more than ever; of these, three stay.
exceeds() {
    name=$1 what='2, 4, 3 ranks'
    plan='{dp: 2}'
    train 2 "$plan" "$name" recovery.max=4 &
    launch=$!
    kill_at "$name" 20
    add "$name" 3 recovery.max=4
    [ $? = 1 ] || fail "a job takes more processes than recovery.max" "added-$name.out"
    grep -q '3 processes.*4 ranks.*2 more' "added-$name.out" || fail "too many are not refused" "added-$name.out"
    add "$name" 2 recovery.max=4 &
    added=$!
    wait_for 'goes on with 4 ranks (state from memory)' out
    kill_at "$name" $(($(lines "$name") + 10)) 0
    wait_for 'goes on with 3 ranks (state from memory)' "added-$name.out" "added-$name"/*.log logs/*.log
    stop "$name"
    wait $added
    got=$?
    [ $code = 0 ] || fail "$what: exit code $code" err
    [ $got = 0 ] || fail "$what: added ranks: exit code $got" "added-$name.out"
    cat out logs/*.log | grep -q '4 ranks.*memory' || fail "the run does not grow" out
    cat out logs/*.log | grep -q '3 ranks.*memory' || fail "the run does not shrink" out
    same "$name" 0
}

round=0
while [ $round -lt "${WEFT_TEST_ROUNDS:-1}" ]; do
    round=$((round + 1))
    shrinks 4 '{dp: 4}' 2 'goes on with 3 ranks (state from memory)'
    shrinks 4 '{dp: 4}' 0 'goes on with 3 ranks (state from memory)'
    shrinks 4 '{dp: 4}' '1 3' 'goes on with 2 ranks (state from memory)'
    shrinks 4 '{dp: 2, tp: 2}' '1 2' 'goes on with 2 ranks (state from memory)' "$splits"
    # Three ranks have no plan: one of them leaves, and its state stays with another one.
    shrinks 4 '{dp: 2, tp: 2}' 1 'goes on with 2 ranks (state from memory)' "$splits"
    shrinks 4 '{dp: 4}' 3 'goes on with 3 ranks (state from the last checkpoint)' parallel.optimizer.level=1
    shrinks 4 '{dp: 4}' 1 'goes on with 3 ranks (state from memory)' checkpoint.sliced=true checkpoint.every=20
    # Buddies have the parts of the lost rank. The one that leaves is not the buddy of the lost one.
    shrinks 4 '{dp: 4}' 3 'goes on with 3 ranks (state from memory)' parallel.optimizer.level=1 recovery.buddy=1
    shrinks 4 '{dp: 2, tp: 2}' 1 'goes on with 2 ranks (state from memory)' "$splits" parallel.optimizer.level=1 recovery.buddy=1
    grows grows-$round
    grows buddies-$round parallel.optimizer.level=2 recovery.buddy=1
    exceeds exceeds-$round
done

# The last line counts the steps of all sizes.
train 4 '{dp: 4}' counts train.steps=900 &
launch=$!
kill_at counts 20 2
wait $launch || fail "a run that shrinks ends with $?" err
grep -q '^done: 900 steps in' out || fail "the last line of a run that shrinks" out

# Who cannot add.
printf '%064d\n' 7 >other.key
chmod 600 other.key
train 4 '{dp: 4}' keeps recovery.elastic=false &
launch=$!
kill_at keeps 5
add keeps 1
[ $? = 1 ] || fail "a job that keeps its size takes a process" added-keeps.out
grep -q 'keeps its size.*recovery.elastic' added-keeps.out || fail "a job that keeps its size does not say so" added-keeps.out
where=$(sed -n 's/.*scheduler at \([0-9.:]*\),.*/\1/p' err)
expect 1 'secret' launch --add -n 1 --scheduler "$where" --secret other.key -- true
stop keeps
expect 75 'scheduler|127.0.0.1:9' launch --add -n 1 --timeout 1 --scheduler 127.0.0.1:9 --secret other.key -- true
expect 2 'add|restart' launch --add -n 1 --restart 2 -- true

# The job ends, and says why.
ends() {
    case_number=$((case_number + 1))
    name=case-$case_number code=$4 said=$5 size=$1 plan=$2 deaths=$3
    shift 5
    train "$size" "$plan" "$name" "$@" &
    launch=$!
    kill_at $name 5 "$deaths"
    wait $launch
    got=$?
    cat out err logs/*.log >all
    [ $got = "$code" ] || fail "$plan: exit code $got, not $code" all
    grep -q "$said" all || fail "$plan: does not say '$said'" all
}
ends 4 '{dp: 4}' 1 75 'recovery.min' recovery.min=4
ends 4 '{tp: 4}' 1 75 'no plan' "$splits"
expect 1 'recovery.elastic|recovery.enabled' train job.yaml recovery.elastic=true recovery.enabled=false
exit $failed
