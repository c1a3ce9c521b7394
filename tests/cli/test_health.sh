#!/bin/sh
# weft health, as a probe runs it: 0 while a training makes steps, 1 once a rank is stopped, and when all have ended; 2 for wrong
# words, 75 when nothing answers. No line of the answer is lost with --brief and --json.
# shellcheck source=run.inc
. "$(dirname "$0")/run.inc"
HOME=$work
export HOME
head -c 48 /dev/urandom | base64 >secret
head -c 48 /dev/urandom | base64 >other
chmod 600 secret other

expect 2 'now' health now
expect 2 'within' health --within 0
expect 75 '127.0.0.1:1|not answered' health --scheduler 127.0.0.1:1 --secret secret --timeout 0.2
expect 1 "HOST:PORT" health --scheduler nowhere --secret secret

"$weft" launch -n 2 --no-logs --heartbeat 20 --secret secret -- \
    sh -c 'echo $$ >pid.$WEFT_RANK; echo $WEFT_SCHEDULER >address; exec "$@"' sh "$weft" train job.yaml train.steps=1000000 \
    train.eval_every=0 checkpoint.every=0 >train.out 2>&1 &
launcher=$!
trap 'kill -9 $launcher 2>/dev/null; rm -rf "$work"' EXIT
turns=0
until [ -s address ] && "$weft" health --scheduler "$(cat address)" --secret secret --brief >out 2>&1; do
    turns=$((turns + 1))
    [ $turns -lt 600 ] || { fail 'no steps' out; fail '' train.out; exit 1; }
    sleep 0.1
done
has_facts out 'steps: 2 ranks|limit 60 s' || fail 'brief' out
[ "$(wc -l <out)" = 1 ] || fail 'more than one line' out
expect 0 'steps: 2 ranks|rank|stepping|heartbeat' health --scheduler "$(cat address)" --secret secret
expect 1 'another secret' health --scheduler "$(cat address)" --secret other --timeout 5
# As in a rank's environment.
WEFT_SCHEDULER=$(cat address) WEFT_SECRET_FILE=$PWD/secret "$weft" health --json >out 2>&1 || fail 'by the environment' out
json out
[ "$(value size <out)" = 2 ] || fail 'size' out
grep -q '"restarts": 0,' out || fail 'restarts' out
grep -q '"makes_steps": true' out && grep -q '"state": "stepping"' out || fail 'members' out
# A scheduler of this host needs no secret; a second job does not hide the first.
"$weft" health --scheduler "$(cat address)" --brief >out 2>&1 || fail 'by the address alone' out
mkdir second
(cd second && WEFT_JOB=alpha exec "$weft" launch -n 1 --no-logs -- sh -c 'echo $WEFT_SCHEDULER >address; exec sleep 1000') >second.out 2>&1 &
other=$!
trap 'kill -9 $launcher $other 2>/dev/null; rm -rf "$work"' EXIT
turns=0
until [ -s second/address ]; do
    turns=$((turns + 1))
    [ $turns -lt 600 ] || { fail 'no second job' second.out; exit 1; }
    sleep 0.1
done
expect 2 'now' jobs now
"$weft" jobs --timeout 20 >list 2>errors || fail 'jobs' errors
name_in() { sed -n "s|^\([0-9a-z]*\) .* $(cat "$1/address") *$(realpath "$1") *\$|\1|p" list; }
first=$(name_in .) second=$(name_in second)
[ -n "$first" ] && [ "$second" = alpha ] || fail "jobs are '$first' and '$second'" list
"$weft" health --job "$first" --timeout 20 --brief >out 2>&1 || fail 'by its name' out
has_facts out 'steps: 2 ranks' || fail 'the named job' out
expect 1 '0 of 1' health --job "$second" --timeout 20
expect 75 'nosuch|weft jobs' health --job nosuch
expect 2 'scheduler' health --job "$first" --scheduler "$(cat address)"
expect 1 'several jobs' health
grep -qF "$first" out && grep -qF "$second" out || fail 'the jobs are not named' out
expect 2 'job NAME is for' launch -n 1 --job "$first" -- true
expect 1 'recovery.elastic|elastic' launch -n 1 --add --job "$first" --no-logs -- true
"$weft" jobs --timeout 20 --json >out 2>&1 || fail 'jobs --json' out
json out
grep -q "\"name\": \"$first\"" out && grep -q '"makes_steps": true' out && grep -q '"ranks": 2' out || fail 'jobs --json' out
kill -TERM $other
wait $other
"$weft" jobs --timeout 20 >list 2>&1
grep -q "^$second " list && fail 'a job that has ended is listed' list
# A rank stands still: its heartbeats too. The others wait for it.
kill -STOP "$(cat pid.1)"
turns=0
while "$weft" health --scheduler "$(cat address)" --secret secret --within 3 --brief >out 2>&1; do
    turns=$((turns + 1))
    [ $turns -lt 300 ] || { fail 'a stopped rank makes steps' out; break; }
    sleep 0.1
done
has_facts out 'no steps: 2 ranks|limit 3 s' || fail 'stopped' out
kill -CONT "$(cat pid.1)"
kill -TERM $launcher
wait $launcher
expect 75 'not answered' health --scheduler "$(cat address)" --secret secret --timeout 0.2
exit $failed
