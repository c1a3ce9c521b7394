#!/bin/sh
# Ranks of a training are killed (kill -9) at random instants, under plans with replicas, with shared memory and with messages
# (three streams for each pair). Each is started again, gets its state from a replica, and the last checkpoint has the digest of an
# undisturbed run. Every second run keeps optimizer states on the disk and parameters on the host. The checkpoints of one
# plan are sliced, and encrypted where this build can. After one has left, the job ends with 75. WEFT_TEST_ROUNDS kills (6); the seed is printed.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
rounds=${WEFT_TEST_ROUNDS:-6} mark=$$
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=../launch/chance.inc
. "$(dirname "$0")/../launch/chance.inc"
key=
"$weft" info --quick | grep -q '^ *OpenSSL *built in' && key=$work/run.key && "$weft" checkpoint make-key "$key" >/dev/null
splits='parallel.strategies=[{match: h.*.mlp.c_fc, split: n0=tp}, {match: h.*.mlp.c_proj, split: k=tp}]'
tiers="memory.offload=[{match: '*', what: optimizer, to: disk}, {match: '*', what: parameters, to: host}, {match: '*', what: saved, to: disk}, {match: '*', what: gradients, to: disk}]"
# train PLAN FOLDER options of weft launch...: each plan has two or three replicas.
train() {
    plan=$1 folder=$2 ranks=4
    shift 2
    case $plan in
    data) ranks=3 && set -- "$@" -- "$weft" train job.yaml 'parallel.mesh={dp: 3}' checkpoint.sliced=true checkpoint.every=100 \
        ${key:+"checkpoint.key=$key"} ;;
    tensor) set -- "$@" -- "$weft" train job.yaml 'parallel.mesh={dp: 2, tp: 2}' "$splits" ;;
    *) set -- "$@" -- "$weft" train job.yaml parallel.devices=4 parallel.pipeline.stages=2 parallel.pipeline.microbatches=3 ;;
    esac
    case $folder in run-*[13579]) set -- "$@" "$tiers" memory.disk.path="$work" ;; esac # others: no tier
    timeout 90 "$weft" launch -n "$ranks" --logs logs "$@" recovery.enabled=true train.steps=300 train.batch=12 \
        train.eval_every=100 checkpoint.dir="$folder" >out 2>err
}
kill_rank() { # $1 of round $2
    for place in $(grep -lzs "^RESTART_TEST=$mark-$2\$" /proc/[0-9]*/environ | sed 's|/environ||'); do
        tr '\0' ' ' <"$place/cmdline" 2>/dev/null | grep -q 'weft train ' || continue
        tr '\0' '\n' <"$place/environ" 2>/dev/null | grep -qx "WEFT_RANK=$1" && kill -9 "${place#/proc/}" 2>/dev/null && return
    done
}

layout=0 round=0 mended=0
for plan in data tensor stages; do
    layout=$((layout + 1))
    train $plan right-$layout || fail "$plan: does not run" err
    grep -q 'splits nothing' err && fail "$plan: is another plan" err
    "$weft" checkpoint digest right-$layout ${key:+--key "$key"} >right || fail "$plan: no digest" err
    for communicator in '' mac; do
        [ $((round * 6 / rounds)) -ge $((layout * 2)) ] && break
        for _ in $(seq $((rounds / 6))); do
            round=$((round + 1))
            draw "$ranks"
            rank=$number
            draw 1000
            wait=$(printf '0.%03d' "$number")
            what="round $round: $plan ${communicator:-host}, SIGKILL to rank $rank after $wait s"
            train $plan run-$round --restart 1 --env RESTART_TEST=$mark-$round --env WEFT_COMM=$communicator \
                --env WEFT_STREAMS=3 &
            launch=$!
            sleep "$wait"
            kill_rank "$rank" $round
            wait $launch
            code=$?
            tells_the_end err $code && continue
            [ $code = 0 ] || fail "$what: exit code $code" err
            grep -q 'started again (1 of 1)' err && mended=$((mended + 1))
            "$weft" checkpoint digest run-$round ${key:+--key "$key"} >digest 2>&1 || fail "$what: no checkpoint" digest
            cmp -s right digest || fail "$what: ends with other bits" err
        done
    done
done
echo "$mended of $round were killed while they trained"
exit $failed
