#!/bin/sh
# `weft launch` with programs that know nothing of weft: what they say, how they end, and that nothing is left of
# them after any ending.
set -u
. tests/cli/facts.inc
weft=$WEFT_BIN
work=$(mktemp -d)
failed=0
mark=$$
TMPDIR=$work/tmp # for the folders of runs: what is left there can be counted
export TMPDIR
mkdir "$TMPDIR"
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

fail() {
    echo "$1"
    shift
    [ $# -gt 0 ] && cat "$@"
    failed=1
}

# expect CODE 'text in the output' words of weft launch...
expect() {
    code=$1 text=$2
    shift 2
    "$weft" launch "$@" >out 2>&1
    got=$?
    if [ $got != "$code" ] || ! has_facts out "$text"; then
        fail "weft launch $*: exit $got, expected $code and '$text'; output:" out
    fi
}

# No process that was started with this test's mark runs, and no folder of a run is left; after SIGKILL that takes
# a moment.
nothing_left() {
    for _ in $(seq 300); do
        left=$(grep -lzs "^LAUNCH_TEST=$mark\$" /proc/[0-9]*/environ 2>/dev/null)
        folders=$(ls "$TMPDIR")
        [ -z "$left$folders" ] && return
        sleep 0.2
    done
    fail "after $1 there are left: $left $folders"
}

# wait_for FILE: until it exists.
wait_for() {
    for _ in $(seq 600); do
        [ -e "$1" ] && return
        sleep 0.1
    done
    fail "$1 did not come"
}

marked="--env LAUNCH_TEST=$mark"

# --- what ranks get and say ---
# shellcheck disable=SC2086
expect 0 'rank 0 of 3' $marked -n 3 --logs logs -- sh -c 'echo rank $WEFT_RANK of $WEFT_SIZE; echo note >&2'
grep -q 'rank 1 of' out && fail 'rank 1 is shown unasked:' out
for rank in 0 1 2; do
    grep -qx "rank $rank of 3" logs/rank-$rank.log && grep -qx note logs/rank-$rank.log || fail "log of $rank:" logs/*
done
expect 0 '[rank 2] 2 of 3 here, host 0 of 1, tested' -n 3 --no-logs --tail 1-2 --env X=tested -- \
    sh -c 'echo $WEFT_LOCAL_RANK of $WEFT_LOCAL_SIZE here, host $WEFT_HOST of $WEFT_HOSTS, $X'
grep -q 'rank 0' out && fail 'rank 0 is shown:' out
[ -e weft-logs ] && fail 'logs in spite of --no-logs'
expect 0 'logs in weft-logs/' -n 1 sh -c ':'
ls weft-logs/*/rank-0.log >/dev/null || fail 'no log by default'
expect 0 '0' -n 2 --env X=1 --env=Y=2 -- sh -c 'exit $(($X + $Y - 3))'
expect 0 'a=b' -n 1 --no-logs -- sh -c 'echo "$0" "$1"' -- a=b
# The file of the secret is for the ranks alone.
expect 0 '600' -n 1 --no-logs -- sh -c 'stat -c %a "$WEFT_SECRET_FILE"'
expect 0 '700' -n 1 --no-logs -- sh -c 'stat -c %a "$(dirname "$WEFT_SECRET_FILE")"'
# Other launchers' variables are not for the ranks.
RANK=7 OMPI_COMM_WORLD_RANK=7 SLURM_PROCID=7 WEFT_RANK=7
export RANK OMPI_COMM_WORLD_RANK SLURM_PROCID WEFT_RANK
expect 0 'seen: -- -- -- 0' -n 1 --no-logs -- \
    sh -c 'echo seen: ${RANK:---} ${OMPI_COMM_WORLD_RANK:---} ${SLURM_PROCID:---} $WEFT_RANK'
unset RANK OMPI_COMM_WORLD_RANK SLURM_PROCID WEFT_RANK
# The command itself is `weft` where PATH has none.
(PATH=/usr/bin:/bin && expect 0 'weft ' -n 1 --no-logs -- weft --version && exit $failed) || failed=1

# Output that does not end in a newline, long lines, binary bytes.
expect 0 'unfinished' -n 2 --no-logs --tail all -- printf unfinished
"$weft" launch -n 1 --logs long -- sh -c 'head -c 300000 /dev/zero | tr "\0" x' >long.out 2>/dev/null
[ "$(tr -d '\n' <long.out | wc -c)" = 300000 ] || fail 'a long line lost something'
[ "$(tr -d '\n' <long/rank-0.log | wc -c)" = 300000 ] || fail 'a long line lost something in its log'
# A terminal gets the lines of a rank as they are, and without control characters where they are cited.
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    for tail in all none; do
        script -qec "'$weft' launch -n 1 --no-logs --tail $tail -- sh -c 'printf \"<\\033]\\302\\233>\"; exit 3'" /dev/null \
            </dev/null >odd.$tail
    done
    LC_ALL=C grep -qa "<$(printf '\033]\302\233')>" odd.all || fail 'a line of a rank is changed:' odd.all
    LC_ALL=C grep -qa '  <?]?>' odd.none || fail 'controls in the last lines:' odd.none
fi
# Lines of ranks do not mix.
"$weft" launch -n 4 --no-logs --tail all -- \
    sh -c 'i=0; while [ $i -lt 300 ]; do echo "begin $i $WEFT_RANK end"; i=$((i + 1)); done' >mixed 2>/dev/null
[ "$(grep -c '^\[rank [0-3]\] begin [0-9]* [0-3] end$' mixed)" = 1200 ] || fail 'lines were mixed' mixed
# Cores are shared out.
expect 0 'end' -n 2 --no-logs --bind cores -- sh -c 'taskset -p $$ >/dev/null 2>&1; nproc; echo end'

# --- JSON ---
"$weft" launch -n 2 --json --tail all --no-logs -- sh -c 'echo "a \"quoted\" line"; exit $WEFT_RANK' >json.out 2>&1
[ $? = 1 ] || fail 'exit code with --json' json.out
grep -q '"event": "start"' json.out && grep -q '"failed_rank": 1' json.out || fail 'JSON:' json.out
if command -v python3 >/dev/null; then
    python3 -c 'import json,sys; [json.loads(line) for line in sys.stdin]' <json.out || fail 'no JSON:' json.out
fi
grep -q "$(printf '\033')" out json.out && fail 'colours in a pipe'

# --- words that are wrong ---
expect 2 'command' -n 2
expect 2 'processes' -- true
expect 2 '--processes|from 1' -n 0 -- true
expect 2 '--processes|whole' -n two -- true
expect 2 '--hosts needs --scheduler' --hosts 2 -n 1 -- true
expect 2 'exclude' -n 1 --logs x --no-logs -- true
expect 2 '--tail takes' -n 1 --tail 3- -- true
expect 2 '--tail 0,2-4|ranks 0 to 3' --hosts 2 --scheduler h:1 -n 2 --tail 0,2-4 -- true
expect 2 '--bind takes' -n 1 --bind all -- true
expect 2 'NAME=value' -n 1 --env X -- true
expect 2 '--rank-table says' -n 1 --rank-table t -- true
expect 2 'are for --rehearse' --ranks 4 -- true
expect 2 'for `weft train`' --rehearse --ranks 4 -- true
expect 2 '--hosts' --host 2 -n 1 -- true
expect 1 "number is 3" --hosts 2 --host-rank 3 --scheduler h:1 -n 1 -- true
expect 1 'HOST:PORT' --hosts 2 --scheduler nowhere -n 1 -- true
expect 1 'nosuch|PATH' -n 2 --no-logs -- nosuch
expect 1 './nosuch: No such' -n 2 --no-logs -- ./nosuch
echo 'no program' >plain
expect 1 './plain|executable' -n 2 --no-logs -- ./plain
chmod +x plain
expect 1 './plain|Exec format' -n 2 --no-logs -- ./plain
expect 1 '/dev/null' -n 1 --logs /dev/null/x -- true

# --- ends ---
# shellcheck disable=SC2086
expect 3 'rank 2|code 3' $marked -n 4 --logs ends -- \
    sh -c '[ $WEFT_RANK = 2 ] && { echo last words; exit 3; }; sleep 1000'
grep -q 'from ends/rank-2.log' out && grep -q '^  last words$' out || fail 'no log of the failed rank:' out
nothing_left 'a failure'
# shellcheck disable=SC2086
expect 75 'rank 1|signal 9' $marked -n 3 --no-logs --grace 1 -- \
    sh -c '[ $WEFT_RANK = 1 ] && kill -9 $$; trap "" TERM; sleep 1000'
nothing_left 'a rank that was killed'
# What ranks started does not outlive them, whatever group it is in.
# shellcheck disable=SC2086
expect 0 'begun' $marked -n 2 --no-logs -- sh -c 'sleep 1000 & setsid sleep 1000 & sleep 0.2; echo begun'
nothing_left 'a good end'
expect 0 ' ' -n 64 --no-logs -- sh -c 'exit 0'
nothing_left '64 ranks'

# Signals are passed on, and ranks may take their time.
for signal in TERM:143 INT:130 HUP:129 USR1:138 USR2:140 XCPU:152; do
    rm -f ready-*
    # Background processes of a script ignore SIGINT; env sets it back.
    # shellcheck disable=SC2086
    env --default-signal=INT "$weft" launch $marked -n 2 --logs signal -- sh -c '
        trap "echo orderly; exit 0" '"${signal%:*}"'
        touch ready-$WEFT_RANK
        while :; do sleep 0.1; done' >out 2>&1 &
    launcher=$!
    wait_for ready-0
    wait_for ready-1
    kill -"${signal%:*}" $launcher
    wait $launcher
    got=$?
    [ $got = "${signal#*:}" ] || fail "after $signal: exit $got" out
    grep -q orderly signal/rank-1.log || fail "$signal did not reach rank 1" out
    nothing_left "SIG$signal"
done

# An announcement and its repetitions are no requests to stop sooner; a request after it is the first.
rm -f ready-*
# shellcheck disable=SC2086
"$weft" launch $marked -n 2 --logs announced --grace 0.1 -- sh -c '
    trap "echo heard USR2" USR2
    trap "echo heard TERM; sleep 1; echo orderly; exit 0" TERM
    touch ready-$WEFT_RANK
    while :; do sleep 0.1; done' >out 2>&1 &
launcher=$!
wait_for ready-0
wait_for ready-1
kill -USR2 $launcher
for _ in $(seq 600); do grep -q 'heard USR2' announced/rank-1.log && break; sleep 0.1; done
grep -q 'heard USR2' announced/rank-1.log || fail 'SIGUSR2 did not reach rank 1' out
kill -USR2 $launcher
kill -XCPU $launcher
sleep 0.5 # the subject: none of them has a time limit
kill -0 $launcher 2>/dev/null || fail 'an announcement was not waited for' out
kill -TERM $launcher
wait $launcher
got=$?
[ $got = 143 ] || fail "after an announcement and SIGTERM: exit $got" out
grep -q orderly announced/rank-1.log || fail 'SIGTERM after an announcement does not leave time' out
nothing_left 'an announcement'

# One that does not listen is killed after the second request.
rm -f ready-*
# shellcheck disable=SC2086
"$weft" launch $marked -n 2 --no-logs --grace 0.5 -- \
    sh -c 'trap "" TERM; touch ready-$WEFT_RANK; sleep 1000' >out 2>&1 &
launcher=$!
wait_for ready-0
wait_for ready-1
kill -TERM $launcher
sleep 0.5 # the subject: the first request has no time limit
kill -0 $launcher 2>/dev/null || fail 'the first request was not waited for' out
kill -TERM $launcher
wait $launcher
got=$?
[ $got = 143 ] || fail "after two requests: exit $got" out
nothing_left 'two requests'

# The launcher itself is killed: its processes go with it, what they started too, and the run's folder.
rm -f ready-*
# shellcheck disable=SC2086
"$weft" launch $marked -n 3 --no-logs -- \
    sh -c 'sleep 1000 & setsid sleep 1000 & touch ready-$WEFT_RANK; sleep 1000' >out 2>&1 &
launcher=$!
wait_for ready-0
wait_for ready-1
wait_for ready-2
[ -n "$(ls "$TMPDIR")" ] || fail 'there is no folder of the run'
kill -9 $launcher
wait $launcher 2>/dev/null
nothing_left 'kill -9 of the launcher'
# The one who reads its output goes away.
# shellcheck disable=SC2086
"$weft" launch $marked -n 2 --no-logs -- sh -c 'while :; do echo line; done' 2>/dev/null | head -n 1 >/dev/null
nothing_left 'a broken pipe'

# --- several hosts on this one ---
port=$((20000 + mark % 9000))
ranks='echo rank $WEFT_RANK of $WEFT_SIZE, host $WEFT_HOST, at $WEFT_SCHEDULER'
HOME=$work
export HOME
"$weft" launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 2 --tail all --no-logs -- sh -c "$ranks" >one 2>&1
"$weft" launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 2 --tail all --no-logs -- sh -c "$ranks" >zero 2>&1
grep -q "rank 3 of 4, host 1, at 127.0.0.1:$port" one && grep -q "rank 1 of 4, host 0" zero || fail 'hosts:' one zero

# --- rank tables ---
cat >table.json <<END
{"version": "1.0", "server_count": "2", "status": "completed", "server_list": [
 {"server_id": "127.0.0.1", "device": [{"device_id": "0", "device_ip": "192.1.1.$((mark % 250))", "rank_id": "0"}]},
 {"server_id": "127.0.0.2", "device": [{"device_id": "0", "device_ip": "192.1.2.1", "rank_id": "1"},
                                       {"device_id": "1", "device_ip": "192.1.2.2", "rank_id": "2"}]}]}
END
expect 0 'rank 1 of 3, host 1' --rank-table table.json --server-id 127.0.0.2 --tail all --no-logs -- sh -c "$ranks"
expect 0 'rank 2 of 3, host 1' --rank-table table.json --server-id 127.0.0.2 --tail all --no-logs -- sh -c "$ranks"
expect 0 'rank 0 of 3, host 0' --rank-table table.json --tail all --no-logs -- sh -c "$ranks"
sed 's/"server_id": "127.0.0.2"/&, "server_ip": "127.0.0.1"/' table.json >twice.json
expect 1 "'127.0.0.1'|'127.0.0.2'|twice.json" --rank-table twice.json -- true
expect 0 'rank 2 of 3, host 1' --rank-table twice.json --server-id 127.0.0.2 --tail all --no-logs -- sh -c "$ranks"
expect 1 "'elsewhere'" --rank-table table.json --server-id elsewhere -- true
sed 's/completed/initializing/' table.json >early.json
expect 1 'early.json: status is "initializing"' --rank-table early.json -- true
expect 1 'none.json' --rank-table none.json -- true
# Many devices: their files are more than the usual limit, which is raised as for -n.
awk 'BEGIN {
    printf "{\"version\": \"1.0\", \"server_count\": \"1\", \"status\": \"completed\", \"server_list\": [{\"server_id\": \"127.0.0.1\", \"device\": ["
    for (i = 0; i < 60; i++) printf "%s{\"device_id\": \"%d\", \"rank_id\": \"%d\"}", i ? ", " : "", i, i
    print "]}]}"
}' >many.json
(ulimit -S -n 256 && expect 0 '60 ranks' --rank-table many.json --no-logs -- true; exit $failed) || failed=1
exit $failed
