#!/bin/sh
# With --json every verb ends a failure with an object on standard output: {"error": {"status", "message", "exit_code"}}. The
# message is the one on standard error.
. tests/cli/run.inc

# fails CODE STATUS 'facts of the message' words...
fails() {
    want=$1 status=$2 facts=$3
    shift 3
    "$weft" "$@" >out 2>err </dev/null
    got=$?
    [ $got = "$want" ] || fail "weft $*: exit $got, not $want" err
    [ "$(grep -c '^{"error": {' out)" = 1 ] || { fail "weft $*: no object, or more than one" out; return; }
    tail -1 out >last
    json last
    has_facts last "\"status\": \"$status\"|\"exit_code\": $want}}|$facts" || fail "weft $*: $status, $facts" last
    message=$(sed 's/.*"message": "//; s/", "exit_code.*//; s/\\"/"/g; s/\\\\/\\/g' last)
    grep -qF -- "$message" err || fail "weft $*: standard error does not have the message" last
}

# --- every verb that the command lists: wrong usage, whatever stands first ---
verbs=$("$weft" --help | sed -n 's/^  \([a-z]*\)  *.*/\1/p')
[ "$(echo "$verbs" | wc -w)" -ge 15 ] || fail 'the verbs are not listed'
for verb in $verbs; do
    fails 2 usage "unknown option" "$verb" --json --nonsense
    fails 2 usage --nonsense "$verb" --nonsense --json
done
fails 2 usage trian trian job.yaml --json
fails 2 usage -x info -x --json

# --- every verb: a failure of its work ---
fails 1 failed nothere.yaml train nothere.yaml --json
fails 1 failed train.steps train --json job.yaml train.steps=0
fails 1 failed nothere generate nothere --prompt x --json
fails 1 failed nothere eval job.yaml nothere --json
fails 1 failed x.npy infer job.yaml nothere --input x.npy --out y.npy --json
fails 1 failed nothere.yaml model nothere.yaml --json
fails 1 failed nothere.yaml plan nothere.yaml --json
fails 1 failed nothere.yaml program nothere.yaml --json
fails 1 failed nothere.yaml simulate nothere.yaml --json --machine h100-80g
fails 1 failed nothere audit nothere --json
fails 2 usage machine machine nothere --json
fails 1 failed nothere checkpoint inspect nothere --json
fails 1 failed nothere checkpoint verify nothere --json
fails 2 usage nothere bench nothere --json
fails 2 usage threads info --threads many --json

# --- a result that says what is wrong is the whole output ---
"$weft" train job.yaml checkpoint.dir=run train.steps=1 >out 2>&1 || fail 'a good run failed' out
: >run/step-000000000001/model.safetensors
"$weft" checkpoint verify run --json >out 2>err && fail 'damage was not found'
json out
[ "$(wc -l <out)" = 1 ] && grep -q '"good": false' out || fail 'verify: not its result alone' out

# --- without --json there is none; a process of the job that is not the first has none ---
"$weft" model nothere.yaml >out 2>err
[ -s out ] && fail 'an object without --json' out
"$weft" launch -n 2 --no-logs -- "$weft" train nothere.yaml --json >out 2>err
[ "$(grep -c '"error"' out)" = 1 ] || fail 'not one object of two processes' out
exit $failed
