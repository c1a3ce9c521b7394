#!/bin/sh
# How products in bf16 are computed is decided when a training begins. A rank that is started again takes that decision over. One that
# cannot names both forms of arithmetic, and the job waits for another one.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"
if ! "$weft" info --quick 2>/dev/null | grep -q 'avx512_bf16'; then
    echo 'SKIP: this processor has no arithmetic of bf16, which WEFT_ISA could leave out'
    exit 77
fi

rank() { # RANK ISA FILE: in the background; `process` is its number
    WEFT_LAUNCH=1 WEFT_ISA=$2 WEFT_RANK=$1 WEFT_SIZE=2 WEFT_SCHEDULER=$one WEFT_RESTART=1 timeout -k 10 900 "$weft" train job.yaml train.precision=bf16 \
        train.steps=1000000 train.eval_every=0 train.log="$name.log" checkpoint.dir=run-$name recovery.enabled=true 'parallel.mesh={dp: 2}' >"$3" 2>&1 &
    process=$!
}
# restarts NAME 'ISA of a rank' 'of the victim' 'of the victim after it was killed' ['of one that comes before it']: `code0` and
# `code1` are the last exit codes
restarts() {
    name=$1 one=127.0.0.1:$(free_port)
    timeout -k 10 900 "$weft" launch --scheduler-only -n 2 --scheduler $one --restart 2 >"$name.scheduler" 2>&1 &
    rank $((1 - victim)) "$2" "$name.0"
    first=$process
    rank $victim "$3" "$name.1"
    goes_on "$name.log" 50 $first
    # Which is faster is measured, and may be f32.
    if [ $# -gt 4 ] && ! grep -qs 'bf16 with native' "$name.0" "$name.1"; then
        kill $first $process
        wait $first $process
        echo 'SKIP: this processor multiplies bf16 in f32: a newcomer needs nothing'
        exit 77
    fi
    # shellcheck disable=SC2046
    for place in $(grep -slzx "WEFT_RANK=$victim" $(grep -slzx "WEFT_SCHEDULER=$one" /proc/[0-9]*/environ) | sed 's|/proc/\([0-9]*\)/.*|\1|'); do
        [ "$(cat "/proc/$place/comm" 2>/dev/null)" = weft ] && kill -9 "$place"
    done
    wait $process
    if [ $# -gt 4 ]; then
        rank $victim "$5" "$name.refused"
        wait $process
        refused=$?
    fi
    rank $victim "$4" "$name.again"
    goes_on "$name.log" 1000 $first && kill -TERM $first $process
    wait $process
    code1=$?
    wait $first
    code0=$?
}

for victim in 0 1; do
    # Both have it, and the newcomer has not. The next one has it.
    restarts lacks-$victim '' '' '' avx512
    [ "$code0 $code1 $refused" = '143 143 1' ] || fail "$name: exit $code0 and $code1, and $refused" $name.0
    has_facts $name.refused "rank $victim|avx512 |rank $((1 - victim))|bits|WEFT_ISA" || fail "$name: another reason" $name.refused
    # The victim lacks it, so both compute in f32. The newcomer has it, and follows.
    restarts unlike-$victim '' avx512 ''
    [ "$code0 $code1" = '143 143' ] || fail "$name: exit $code0 and $code1" $name.0
    # The newcomer lacks it, and needs it no more.
    restarts needless-$victim avx512 '' avx512
    [ "$code0 $code1" = '143 143' ] || fail "$name: exit $code0 and $code1" $name.0
done

exit $failed
