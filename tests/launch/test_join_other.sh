#!/bin/sh
# Processes of another job come to a scheduler: with torchrun's variables, and from a second launcher. They run other settings, other
# data or another command. Each is refused with what differs, and exit code 1; the first job goes on, with its place still free.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=ports.inc
. "$(dirname "$0")/ports.inc"
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
own_secret
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%s\n", i % 97 }' >one.txt
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%s\n", (i + 1) % 97 }' >other.txt
cp one.txt copy.txt
cat >job.yaml <<'END'
model: {family: gpt2, layers: 1, hidden: 16, heads: 2, context: 16}
data: {path: one.txt, tokenizer: bytes}
train: {steps: 20, batch: 4}
END

# refused FACTS command...: it ends with 1
refused() {
    facts=$1
    shift
    "$@" >refused 2>&1
    code=$?
    [ $code = 1 ] || fail "$what: $* ends with $code" refused
    has_facts refused "$facts" || fail "$what: $*" refused
}
# whole FILE PROCESS: the first job, which a process like it has joined
whole() {
    wait "$2" || fail "$what: the first job fails" "$1"
    grep -q 'done: 20 steps' "$1" || fail "$what: the first job makes other steps" "$1"
}
# await TEXT FILE: until it is there
await() {
    for _ in $(seq 600); do
        grep -qs "$1" "$2" && return
        sleep 0.1
    done
    fail "$what: $2 says no $1" "$2"
}

what=torchrun
port=$(free_port)
rank() {
    number=$1
    shift
    timeout 120 env RANK="$number" LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" "$weft" "$@"
}
rank 0 train job.yaml >zero 2>&1 &
zero=$!
refused 'train.seed|is 4 here and 1 there|WEFT_JOB' rank 1 train job.yaml train.seed=4
refused 'data.path|bytes' rank 1 train job.yaml data.path=other.txt
refused 'checkpoint.dir|is set here and not set there' rank 1 train job.yaml checkpoint.dir=run
refused 'weft bench|weft train' rank 1 bench comm
rank 1 train job.yaml data.path=copy.txt >one 2>&1 || fail 'torchrun: the right one' one
whole zero $zero

what='two launchers'
rm -f zero
port=$(free_port)
host() {
    number=$1
    shift
    timeout 120 "$weft" launch --hosts 2 --host-rank "$number" --scheduler "127.0.0.1:$port" -n 1 --no-logs "$@"
}
host 0 -- "$weft" train job.yaml >zero 2>&1 &
zero=$!
await scheduler zero
refused 'train.seed|is 4 here and 1 there' host 1 -- "$weft" train job.yaml train.seed=4
await train.seed zero # the first launcher tells of it, and of the next one
refused "launcher process|job ''|job 'b'|WEFT_JOB" env WEFT_JOB=b timeout 60 "$weft" launch --hosts 2 --host-rank 1 \
    --scheduler "127.0.0.1:$port" -n 1 --no-logs -- "$weft" train job.yaml
await "job 'b'" zero
host 1 -- "$weft" train job.yaml >one 2>&1 || fail "$what: the right one" one
whole zero $zero

what='the wrong one first'
rm -f zero
port=$(free_port)
host 0 -- sh -c 'while [ ! -e go ]; do sleep 0.1; done; exec "$@"' sh "$weft" train job.yaml >zero 2>&1 &
zero=$!
await scheduler zero
host 1 -- sh -c 'touch came; exec "$@"' sh "$weft" train job.yaml train.seed=4 >wrong 2>&1 &
wrong=$!
for _ in $(seq 600); do
    [ -e came ] && break
    sleep 0.1
done
touch go
wait $wrong
code=$?
[ $code = 1 ] && has_facts wrong 'train.seed|is 4 here and 1 there' || fail "$what: the wrong one ends with $code" wrong
host 1 -- "$weft" train job.yaml >one 2>&1 || fail "$what: the right one" one
whole zero $zero

# One launcher's own ranks: that is an end of the job, which says what differs on each rank.
what='one launcher'
# shellcheck disable=SC2016 # for the shell of each rank
refused 'train.steps|exit code 1' "$weft" launch -n 2 --no-logs -- sh -c 'exec "$@" train.steps=$((20 + WEFT_RANK))' sh "$weft" train job.yaml

# Who has a name of its job has it under a launcher, too.
what='a name'
rm -f zero
port=$(free_port)
WEFT_JOB=a host 0 -- "$weft" train job.yaml >zero 2>&1 &
zero=$!
await scheduler zero
WEFT_JOB=a host 1 -- "$weft" train job.yaml >one 2>&1 || fail "$what: the right one" one
whole zero $zero
exit $failed
