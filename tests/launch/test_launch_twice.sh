#!/bin/sh
# A second launcher with the --host-rank of another one, by mistake: before all ranks have come, while they run, and with another
# WEFT_JOB. It ends with 1 and names both launchers, and the healthy job ends with the digest of an undisturbed run.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=ports.inc
. "$(dirname "$0")/ports.inc"
mend=$WEFT_BUILD_DIR/weft-mend
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
own_secret

host() { # NUMBER command...
    number=$1
    shift
    timeout 120 "$weft" launch --hosts 2 --host-rank "$number" --scheduler "127.0.0.1:$port" -n 1 --heartbeat 60 --no-logs \
        --env TWICE_TEST=$$ -- "$@"
}
digests() {
    cat "$@" | sed -n 's/.* digest \([0-9a-f]*\) .*/\1/p' | sort -u
}
# await FILE: until it is there
await() {
    for _ in $(seq 600); do
        [ -e "$1" ] && return
        sleep 0.1
    done
    fail "$what: no $1"
}
# refused FACTS options of env...: a second launcher of host 1
refused() {
    facts=$1
    shift
    timeout 60 env "port=$port" "$@" "$weft" launch --hosts 2 --host-rank 1 --scheduler "127.0.0.1:$port" -n 1 --no-logs -- "$mend" 40 >twice 2>&1
    code=$?
    [ $code = 1 ] || fail "$what: the second launcher ends with $code" twice
    has_facts twice "launcher process|$facts" || fail "$what: both are not named" twice
}
# whole: both hosts ended well, with the digest
whole() {
    wait $zero
    code0=$?
    wait $one
    code1=$?
    [ "$code0$code1" = 00 ] || { fail "$what: exit codes $code0 and $code1" zero.err; cat one.err; }
    [ "$(digests zero one)" = "$right" ] || fail "$what: another state" zero
}
begin() { # command of rank 0 -- command of rank 1
    port=$(free_port)
    rm -rf deaths go joined
    mkdir deaths
    host 0 sh -c "$1" >zero 2>zero.err &
    zero=$!
    host 1 sh -c "$2" >one 2>one.err &
    one=$!
}

what='undisturbed' right=
begin "exec '$mend' 40" "exec '$mend' 40"
wait $zero && wait $one || fail 'does not run' zero.err
right=$(digests zero one)
[ -n "$right" ] || fail 'no digest' zero.err

both='rank 1|started by launcher process|--host-rank'
what='while it forms'
begin "while [ ! -e go ]; do sleep 0.1; done; exec '$mend' 40" "touch joined; exec '$mend' 40"
await joined
refused "$both" X=1
refused "job ''|job 'another'" WEFT_JOB=another
touch go
whole

what='while it runs'
begin "exec '$mend' 40" "exec '$mend' 40 deaths 1@step:5:19"
await deaths/death-0
refused "$both" X=1
refused "job ''|job 'another'" WEFT_JOB=another
for place in $(grep -lzsx "TWICE_TEST=$$" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|'); do
    [ "$(cat "/proc/$place/comm" 2>/dev/null)" = weft-mend ] && kill -CONT "$place"
done
whole
exit $failed
