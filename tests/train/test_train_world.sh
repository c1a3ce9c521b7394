#!/bin/sh
# Jobs of every kind of split as processes: losses, norms and files are those of one process with as many devices, to
# the bit; any number of processes goes on with what another has left; every end has its exit code and its reason.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
TMPDIR=$work/tmp HOME=$work # for the folders of runs, and the user's secret
export TMPDIR HOME
mkdir "$TMPDIR"
for variable in WEFT_RANK WEFT_SIZE RANK WORLD_SIZE MASTER_ADDR MASTER_PORT MS_ROLE RANK_TABLE_FILE WEFT_COMM; do
    unset $variable
done
splits='parallel.strategies=[{match: h.*.attn.c_attn, split: n1=tp}, {match: h.*.attn, split: heads=tp}, {match: h.*.attn.c_proj, split: k=tp}, {match: h.*.mlp.c_fc, split: n0=tp}, {match: h.*.mlp.c_proj, split: k=tp}]'

# What must be equal of a run's JSON: everything but times, and the memory of a process.
numbers() {
    sed 's/"time": {[^}]*},\{0,1\}//g; s/"\(memory\|resident\)_bytes": [^,}]*,\{0,1\}//g; s/"[a-z_]*seconds": [^,}]*,\{0,1\}//g; s/"[a-z]*_per_second": [^,}]*,\{0,1\}//g; s/"checkpoint": [^,}]*//' "$1"
}
# Every file of every step but the manifests, which name the job.
files() {
    (cd "$1" && find . -type f ! -name manifest.json ! -name .lock ! -name measured.json | sort | xargs cksum)
}
# same NAME OTHER: runs that must have come to the same.
same() {
    numbers "$1.json" >"$1.numbers"
    numbers "$2.json" >"$2.numbers"
    cmp -s "$1.numbers" "$2.numbers" || fail "$2 is not as $1:" "$2.numbers"
    files "$1" >"$1.files"
    files "$2" >"$2.files"
    [ -s "$1.files" ] && cmp -s "$1.files" "$2.files" || fail "$2 leaves other files than $1:" "$2.files"
}
# compare NAME COUNT words...: in one process and in COUNT of them.
compare() {
    name=$1 count=$2
    shift 2
    "$weft" train job.yaml --json checkpoint.every=2 checkpoint.dir="$name" "$@" >"$name.json" 2>"$name.err" ||
        fail "$name, in one process:" "$name.err"
    "$weft" launch -n "$count" --no-logs -- "$weft" train job.yaml --json checkpoint.every=2 checkpoint.dir="$name-world" \
        "$@" >"$name-world.json" 2>"$name-world.err" || fail "$name, in $count processes:" "$name-world.err"
    same "$name" "$name-world"
}
set -- train.eval_every=3 train.eval_batches=2
compare data 4 "$@" parallel.devices=4
compare sharded 4 "$@" parallel.devices=4 parallel.optimizer.level=3
compare tensor 4 "$@" 'parallel.mesh={dp: 2, tp: 2}' "$splits"
compare stages 4 "$@" parallel.pipeline.stages=2 parallel.pipeline.microbatches=2 'parallel.mesh={dp: 2}'
compare half 2 "$@" parallel.devices=2 train.precision=bf16
compare accumulated 2 "$@" parallel.devices=2 train.accumulate=2
all_in() { echo "memory.offload=[{match: '*', what: optimizer, to: $1}, {match: '*', what: parameters, to: $1}, {match: '*', what: saved, to: $1}, {match: '*', what: gradients, to: $1}]"; }
compare tiers 4 "$@" parallel.devices=4 parallel.optimizer.level=3 "$(all_in disk)" memory.disk.path="$work"
[ "$(grep step- sharded.files)" = "$(grep step- tiers.files)" ] || fail 'tensors on the disk are not as in memory:' tiers.files
compare saved 4 "$@" parallel.pipeline.stages=2 parallel.pipeline.microbatches=2 'parallel.mesh={dp: 2}' model.context=64 \
    "memory.offload=[{match: 'h.*', what: saved, to: disk}]" memory.disk.path="$work"

# --- messages instead of shared memory ---
WEFT_COMM=ucx "$weft" launch -n 4 --no-logs -- "$weft" train job.yaml --json checkpoint.every=2 checkpoint.dir=ucx "$@" \
    parallel.devices=4 parallel.optimizer.level=3 >ucx.json 2>ucx.err && code=0 || code=$?
if grep -q 'built without UCX\|cannot load UCX' ucx.err; then
    echo "SKIP: no UCX here: $(cat ucx.err)"
elif [ $code != 0 ]; then
    fail 'over UCX:' ucx.err
else
    same sharded ucx
fi

# --- going on: 4 processes, then 2, then one, each with its tensors in another tier; data that only rank 0 can reach are enough ---
for next in 4 2 1; do
    steps=$((6 - next))
    [ $next = 4 ] && steps=2
    [ $next = 1 ] && steps=6
    case $next in 4) tier=disk ;; 2) tier=device ;; *) tier=host ;; esac
    "$weft" launch -n $next --no-logs -- "$weft" train job.yaml --json train.steps=$steps train.schedule.name=constant checkpoint.dir=moved \
        "$(all_in $tier)" memory.disk.path="$work" >moved.json 2>moved.err || fail "$next processes go on:" moved.err
    [ -d "$(printf 'moved/step-%012d' $steps)" ] || fail "$next processes left no checkpoint of step $steps" moved.err
done

# --- unlike processors: refused with what each has, as bits would differ; WEFT_ISA makes them alike ---
# unlike FORM CODE words...: rank 1 has FORM at most.
unlike() {
    form=$1 want=$2
    shift 2
    # shellcheck disable=SC2016 # for the shell of each rank
    "$weft" launch -n 2 --no-logs -- sh -c '[ "$WEFT_RANK" = 0 ] || export WEFT_ISA=$0; exec "$@"' "$form" "$weft" train job.yaml \
        checkpoint.dir="unlike-$form" "$@" >out 2>&1
    got=$?
    if [ $got != "$want" ] || { [ "$want" != 0 ] && ! grep -q "rank 1 computes with $form instructions, rank 0 with " out; }; then
        fail "a process with $form: exit $got, not $want:" out
    fi
}
kernels=$("$weft" info | sed -n 's/^ *kernels  *//p')
[ "$kernels" = plain ] || unlike plain 1
"$weft" train job.yaml train.precision=bf16 checkpoint.dir=native >out 2>&1 || fail 'in bf16:' out
if [ "$kernels" = avx512 ] && grep -q 'bf16 with native' out; then
    grep -q '"isa": "avx512_bf16"' native/*/manifest.json || fail 'the arithmetic in a manifest:' native/*/manifest.json
    unlike avx512 0 # products of f32 are the same with dot products of bf16 and without: those are taken for bf16 too
    unlike avx512 0 train.precision=bf16 train.steps=6 checkpoint.dir=agreed
    grep -q 'bf16 with f32 products' out || fail 'processes of which one has no bf16:' out
    unlike avx512 1 train.precision=bf16 checkpoint.dir=native train.steps=15 # which is asked for
    WEFT_ISA=avx512 "$weft" train job.yaml train.precision=bf16 checkpoint.dir=native train.steps=15 >out 2>&1
    grep -q 'avx512_bf16 .*avx512:' out && grep -q 'bf16 with f32 products' out ||
        fail 'going on without dot products of bf16:' out
else
    echo "SKIP: dot products of bf16 are not there, or not the faster: kernels $kernels, $(grep 'bf16 with' out)"
fi

# --- unlike data: texts of one size, of which two stages would read inputs of one and targets of the other ---
tr e a <text.txt >text.0
tr e o <text.txt >text.1
cp text.0 copy.1 && cp text.0 copy.0
# shellcheck disable=SC2016 # for the shell of each rank
for name in text copy; do
    "$weft" launch -n 2 --no-logs -- sh -c 'exec "$@" data.path="$0.$WEFT_RANK"' "$name" "$weft" train job.yaml data.format=text \
        parallel.pipeline.stages=2 parallel.pipeline.microbatches=2 checkpoint.dir="of-$name" >out 2>&1
    echo $? >"$name.code"
    cp out "$name.out"
done
[ "$(cat copy.code)" = 0 ] || fail 'copies of a text under other names:' copy.out
[ "$(cat text.code)" = 1 ] && grep -q 'text.1 on rank 1 .*text.0 on rank 0' text.out || fail 'unlike texts of one size:' text.out
# The same at a resume.
expect 1 'other data|text.1|copy.0|checkpoint.other_data' train job.yaml data.format=text data.path=text.1 checkpoint.dir=of-copy
expect 0 'other data|text.1|copy.0' train job.yaml data.format=text data.path=text.1 checkpoint.dir=of-copy checkpoint.other_data=true

# --- ends ---
expect 1 '2 devices|3 processes' launch -n 3 --no-logs -- "$weft" train job.yaml parallel.devices=2
expect 1 "cell '" launch -n 2 --no-logs -- "$weft" train job.yaml train.clip=0 \
    train.optimizer.name=sgd train.optimizer.lr=1e6 train.schedule.name=constant train.steps=50
expect 1 'data|checkpoints' launch -n 2 --no-logs -- "$weft" train job.yaml checkpoint.dir=data checkpoint.resume=false
expect 1 'rank |nothing.txt' launch -n 2 --no-logs -- "$weft" train job.yaml data.path=nothing.txt

# --- a stop: after the same step everywhere, with a checkpoint (accept 35(b)) ---
"$weft" launch -n 3 --no-logs -- "$weft" train job.yaml --json train.steps=1000000 train.batch=6 checkpoint.dir=stopped >stop.json 2>stop.err &
run=$!
for _ in $(seq 1200); do
    grep -q '"step": 3,' stop.json && break
    sleep 0.1
done
kill -TERM $run
wait $run
code=$?
[ $code = 143 ] || fail "stopped with exit code $code, not 143:" stop.err
grep -q 'step [1-9]' stop.err || fail 'nothing tells of the stop:' stop.err
ls stopped | grep -q step- || fail 'a stopped run left no checkpoint:' stop.err

# --- a stop by the file of one rank: the same, with exit code 0 ---
# shellcheck disable=SC2016 # for the shell of each rank
"$weft" launch -n 3 --no-logs -- sh -c 'exec "$0" "$@" checkpoint.stop_file="stop.$WEFT_RANK"' "$weft" train job.yaml --json \
    train.steps=1000000 train.batch=6 checkpoint.dir=filed >filed.json 2>filed.err &
run=$!
for _ in $(seq 1200); do
    grep -q '"step": 3,' filed.json && break
    sleep 0.1
done
printf '{"GracefulExit": 1}' >stop.2
wait $run
code=$?
[ $code = 0 ] || fail "stopped by a file with exit code $code, not 0:" filed.err
grep -q 'step [1-9].*checkpoint.stop_file' filed.err || fail 'nothing tells of the stop by a file:' filed.err
tail -n 1 filed.json | grep -q '"done": false, "stopped": true' || fail 'the result of a stop by a file:' filed.json
ls filed | grep -q step- || fail 'a run that a file stopped left no checkpoint:' filed.err

exit $failed
