#!/bin/sh
# The reaper of a launch is killed, and then the launcher: the launcher has started another reaper by then, so that no
# process and no file of the job is left, processes that left their group among them.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
mark=REAPER_TEST=$$
TMPDIR=$work/tmp HOME=$work
export TMPDIR HOME
mkdir "$TMPDIR"
cat >rank.sh <<'END_OF_SCRIPT'
setsid sleep 1000 &
echo $! >daemon.$WEFT_RANK
exec sleep 1000
END_OF_SCRIPT
"$weft" launch -n 2 --no-logs --env $mark -- sh rank.sh >out 2>&1 &
launch=$!
trap 'kill -9 $launch 2>/dev/null; rm -rf "$work"' EXIT
until_true() { # a command, a minute at most
    for _ in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    return 1
}
# The reaper is the child of the launcher that has the launcher's own words.
reaper() {
    for process in $(cat /proc/$launch/task/*/children 2>/dev/null); do
        cmp -s /proc/$launch/cmdline "/proc/$process/cmdline" && echo "$process" && return
    done
    return 1
}
both_daemons() { [ -s daemon.0 ] && [ -s daemon.1 ]; }
another() { new=$(reaper) && [ "$new" != "$old" ]; }
nothing_left() {
    left=$(grep -lzs "^$mark\$" /proc/[0-9]*/environ)
    folders=$(ls "$TMPDIR")
    [ -z "$left$folders" ]
}
until_true both_daemons || fail 'the ranks did not start:' out
for round in 1 2; do
    old=$(reaper) || fail "round $round: there is no reaper" out
    kill -9 "$old"
    until_true another || fail "round $round: no other reaper was started" out
done
kill -9 $launch
until_true nothing_left || fail "there are left: $left $folders"

# Launcher and reaper are killed at once: the secret stays until the next launcher of this user starts, which leaves
# those of running jobs alone.
rm -f daemon.*
"$weft" launch -n 2 --no-logs --env $mark -- sh rank.sh >out 2>&1 &
launch=$!
until_true both_daemons || fail 'the ranks did not start:' out
old=$(reaper) || fail 'there is no reaper' out
stale=$(echo "$TMPDIR"/weft-*/secret)
kill -STOP $launch "$old"
kill -9 "$old" $launch
wait $launch 2>/dev/null
kill -9 "$(cat daemon.0)" "$(cat daemon.1)"
[ -e "$stale" ] || fail 'the secret did not stay: nothing is tested'
"$weft" launch -n 1 --no-logs --env $mark -- sh -c 'touch begun; until [ -e go ]; do sleep 0.1; done' >out 2>&1 &
launch=$!
until_true test -e begun || fail 'no job after a stale one' out
[ -e "$stale" ] && fail 'a secret without a launcher stays'
fresh=$(echo "$TMPDIR"/weft-*/secret)
[ -e "$fresh" ] || fail 'a running job has no secret' out
mkdir -m 700 "$TMPDIR/weft-abcdef" "$TMPDIR/weft-other" # no secret there: not ours to judge
"$weft" launch -n 1 --no-logs -- true >out 2>&1 || fail 'a job beside another:' out
[ -e "$fresh" ] || fail 'the secret of a running job was removed'
[ -d "$TMPDIR/weft-abcdef" ] || fail 'a folder without a secret was removed'
rmdir "$TMPDIR/weft-abcdef" "$TMPDIR/weft-other"
: >go
wait $launch || fail 'the job beside another' out
rm -f go
until_true nothing_left || fail "there are left: $left $folders"

# A job whose reaper was killed ends as well as any.
"$weft" launch -n 1 --no-logs --env $mark -- sh -c 'until [ -e go ]; do sleep 0.1; done; exit 3' >out 2>&1 &
launch=$!
old=
until_true another || fail 'there is no reaper' out
old=$new
kill -9 "$old"
until_true another || fail 'no other reaper was started' out
: >go
wait $launch
code=$?
[ $code = 1 ] || [ $code = 3 ] || fail "exit $code" out
grep -q 'exit code 3' out || fail 'the failed rank is not named' out
until_true nothing_left || fail "there are left: $left $folders"
exit $failed
