#!/bin/sh
# Ranks of trainings whose states have no replicas are killed (kill -9) after random steps: tensor parallelism, pipelines, optimizer
# levels. Each is started again and gets its state from its buddy's copy, without the disk: there is no checkpoint before the end. So
# do all ranks of a host that is lost (hosts are numbers here), as buddies are on another one. A rank that is killed together with its
# buddy sends all ranks to the last checkpoint. In the end the checkpoint has the digest of an undisturbed run. WEFT_TEST_ROUNDS
# kills of one rank (5); the seed is printed. Optimizer levels get a model whose pieces are contiguous: others read the checkpoint if
# a rank dies amid the update. Every second run keeps parameters and optimizer states in a file of tier disk.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
rounds=${WEFT_TEST_ROUNDS:-5} steps=100 mark=$$
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
splits='parallel.strategies=[{match: h.*.mlp.c_fc, split: n0=tp}, {match: h.*.mlp.c_proj, split: k=tp}]'
tiers="memory.offload=[{match: '*', what: optimizer, to: disk}, {match: '*', what: parameters, to: disk}, {match: '*', what: gradients, to: disk}, {match: '*', what: copies, to: disk}]"
# shellcheck source=../launch/chance.inc
. "$(dirname "$0")/../launch/chance.inc"
cat >on_host.sh <<END
WEFT_HOST_ID=host-\$((WEFT_RANK / 2)) exec "$weft" "\$@"
END
# train PLAN FOLDER options of weft launch...
train() {
    plan=$1 folder=$2 ranks=2
    shift 2
    rm -rf logs
    case $plan in
    tensor) set -- "$@" -- "$weft" train job.yaml 'parallel.mesh={tp: 2}' "$splits" ;;
    stages) set -- "$@" -- "$weft" train job.yaml parallel.pipeline.stages=2 parallel.pipeline.microbatches=3 parallel.devices=2 ;;
    hosts) ranks=4 && set -- "$@" -- sh on_host.sh train job.yaml 'parallel.mesh={dp: 4}' parallel.optimizer.level=2 model.family=llama ;;
    disk) ranks=3 && set -- "$@" -- "$weft" train job.yaml 'parallel.mesh={dp: 3}' parallel.optimizer.level=1 checkpoint.every=7 ;;
    *) set -- "$@" -- "$weft" train job.yaml 'parallel.mesh={dp: 2}' parallel.optimizer.level="${plan#level }" model.family=llama ;;
    esac
    case $folder in run-*[13579]) set -- "$@" "$tiers" memory.disk.path="$work" ;; esac # others: no tier
    timeout 90 "$weft" launch -n $ranks --logs logs "$@" recovery.buddy=1 train.steps=$steps train.batch=12 train.eval_every=100 \
        train.log=metrics checkpoint.dir="$folder" >out 2>err
}
find_rank() { # $1 of round $2: its process
    for place in $(grep -lzs "^RESTART_TEST=$mark-$2\$" /proc/[0-9]*/environ | sed 's|/environ||'); do
        tr '\0' ' ' <"$place/cmdline" 2>/dev/null | grep -q 'weft train ' || continue
        tr '\0' '\n' <"$place/environ" 2>/dev/null | grep -qx "WEFT_RANK=$1" && echo "${place#/proc/}" && return
    done
}
steps_made() { # are there more than $1, or has the job ended?
    made=$(grep -c step metrics 2>/dev/null)
    [ "${made:-0}" -gt "$1" ] || ! kill -0 $launch 2>/dev/null
}

right() { # of a plan: the digest of a run without a death
    train "$1" "right-$1" || fail "$1: does not run" err
    grep -q 'splits nothing' err && fail "$1: is another plan" err
    "$weft" checkpoint digest "right-$1" >right || fail "$1: no digest" err
}
# round PLAN STATE ranks...: all these are killed at once; the state comes from there.
round=0 mended=0
round() {
    round=$((round + 1)) plan=$1 state=$2
    shift 2
    draw 60
    what="round $round: $plan, SIGKILL to $* after step $number"
    rm -f metrics
    train "$plan" run-$round --restart $# --env RESTART_TEST=$mark-$round &
    launch=$!
    until [ -e metrics ] || steps_made 0; do sleep 0.01; done
    processes=
    for rank; do processes="$processes $(find_rank "$rank" $round)"; done
    until steps_made "$number"; do sleep 0.01; done
    # shellcheck disable=SC2086
    [ "$processes" ] && kill -9 $processes 2>/dev/null
    wait $launch
    code=$?
    tells_the_end err $code && return
    [ $code = 0 ] || fail "$what: exit code $code" err
    if grep -q 'is started again' err; then
        mended=$((mended + 1)) least=$number from_file=0
        [ "$state" = memory ] || least=0 from_file=1
        after=$(cat logs/* | sed -n "s/.*state from $state.*); the run goes on after step \([0-9]*\).*/\1/p" | sort -u)
        [ "${after:--1}" -ge $least ] && [ $((from_file ? after % 7 : 0)) = 0 ] || fail "$what: goes on after '$after'" err
    fi
    "$weft" checkpoint digest run-$round >digest 2>&1 || fail "$what: no checkpoint" digest
    cmp -s right digest || fail "$what: ends with other bits" err
}

for plan in tensor stages 'level 3' 'level 1' 'level 2'; do
    right "$plan"
    for _ in $(seq $(((rounds + 4) / 5))); do
        draw 2
        round "$plan" memory $number
    done
done
right hosts
draw 2
round hosts memory $((number * 2)) $((number * 2 + 1))
right disk
draw 3
round disk 'the last checkpoint' $number $(((number + 1) % 3))
echo "$mended of $round were killed while they trained"
[ $mended -gt 0 ] || fail "none was killed in time"
exit $failed
