#!/bin/sh
# weft as the first process of a container, to which the kernel applies no default action of signals: a request to
# end is heard while it waits for other ranks, and by a run.
. tests/cli/run.inc
if ! unshare --fork --pid true 2>/dev/null; then
    echo 'SKIP: no process namespaces can be made here'
    exit 77
fi
HOME=$work
export HOME

# started FILE TEXT: waits until the file has the text
started() {
    for _ in $(seq 600); do
        grep -qs "$2" "$1" && return
        sleep 0.1
    done
    fail "no '$2'" "$1"
}

# first words...: in a process namespace of its own; `inner` is its number here
first() {
    # Background processes of a script ignore SIGINT; env sets it back.
    env --default-signal=INT unshare --fork --pid -- "$weft" "$@" >out 2>errors &
    outer=$!
    for _ in $(seq 600); do
        inner=$(pgrep -P $outer | head -1)
        [ -n "$inner" ] && grep -aqs "^NSpid:.*[[:space:]]1\$" "/proc/$inner/status" && break
        sleep 0.1
    done
}

for signal in TERM:143 INT:130 USR1:138; do
    export WEFT_RANK=0 WEFT_SIZE=2 WEFT_JOIN_SECONDS=600
    port=$((20000 + $$ % 20000))
    export WEFT_SCHEDULER=127.0.0.1:$port
    first train job.yaml
    # it listens: it has begun to join
    for _ in $(seq 600); do
        grep -qi ":$(printf %04X $port) .* 0A " /proc/net/tcp && break
        sleep 0.1
    done
    kill -"${signal%:*}" "$inner"
    wait $outer
    got=$?
    [ $got = "${signal#*:}" ] || fail "SIG${signal%:*} while joining: exit $got" errors
    unset WEFT_RANK WEFT_SIZE WEFT_SCHEDULER WEFT_JOIN_SECONDS
done
first train job.yaml train.steps=1000000000 checkpoint.dir=saved
started out '^step 1/'
kill -TERM "$inner"
wait $outer
got=$?
[ $got = 143 ] || fail "SIGTERM in a run: exit $got" errors
expect 0 good checkpoint verify saved
exit $failed
