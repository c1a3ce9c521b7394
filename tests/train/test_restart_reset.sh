#!/bin/sh
# The kernel resets a connection between two ranks of a training (ss --kill), as a firewall does. Nobody is dead. With restarts the
# last checkpoint has the digest of an undisturbed run: in a job with recovery on new connections, else all ranks begin again. Without
# restarts the job ends with 75, and names the two ranks and the cause. Needs root and a kernel that can end sockets.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/ports.inc
. "$(dirname "$0")/../launch/ports.inc"
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
command -v ss >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || exit 77

train() { # FOLDER options of weft launch...
    folder=$1
    shift
    timeout 120 "$weft" launch -n 3 --logs logs --env WEFT_COMM=mac "$@" -- "$weft" train job.yaml 'parallel.mesh={dp: 3}' train.steps=2000 \
        train.batch=6 train.eval_every=1000 checkpoint.every=100 checkpoint.dir="$folder" $keys >out 2>err
}
# data_ports MARK PORT: "OWN OTHER" of each connection of the marked processes, but for those to the scheduler
data_ports() {
    for place in $(grep -lzsx "RESET_TEST=$1" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|'); do
        ss -tnpH state established | grep "pid=$place," | awk '{print $3, $4}' | sed 's/[^ ]*:\([0-9]*\)/\1/g' | grep -vw "$2"
    done
}
# reset NAME options...: a run with one reset after its first checkpoint; sets code
reset() {
    name=$1 port=$(free_port)
    shift
    rm -rf logs
    train "$name" --scheduler "127.0.0.1:$port" --env "RESET_TEST=$$-$name" "$@" &
    launch=$!
    for _ in $(seq 600); do
        [ -e "$name/step-000000000100/manifest.json" ] && break
        sleep 0.05
    done
    # shellcheck disable=SC2046 # two numbers
    set -- $(data_ports "$$-$name" "$port" | head -n 1)
    [ $# = 2 ] || fail "$name: no connection between ranks" err
    ss --kill -tn sport = ":$1" dport = ":$2" >killed 2>&1
    wait $launch
    code=$?
}

keys='' && train right || fail 'does not run' err
"$weft" checkpoint digest right >right.digest || fail 'no digest' err
for case in 'mended recovery.enabled=true' 'again '; do
    keys=${case#* }
    reset "${case%% *}" --restart 8
    grep -q . killed || exit 77 # this kernel ends no sockets
    [ $code = 0 ] || fail "$case: exit code $code" err
    "$weft" checkpoint digest "${case%% *}" | cmp -s - right.digest || fail "$case: another state" err
done
keys=
reset ends
[ $code = 75 ] || fail "without restarts: exit code $code" err
has_facts err 'lost|rank 0|rank 1' || has_facts err 'lost|rank 0|rank 2' || has_facts err 'lost|rank 1|rank 2' ||
    fail 'the two ranks are not named' err
exit $failed
