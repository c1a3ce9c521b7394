#!/bin/sh
# Ranks that end before the others have come, on one host and several: nobody waits for the time for joining. And
# commands that hold several trainings, one after the other; and a launcher whose standard streams are closed.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
TMPDIR=$work/tmp HOME=$work # for the folders of runs, and the user's secret
export TMPDIR HOME
mkdir "$TMPDIR"
# shellcheck source=ports.inc
. "$(dirname "$0")/ports.inc"
port=$(free_port)
for variable in WEFT_RANK WEFT_SIZE RANK WORLD_SIZE MASTER_ADDR MASTER_PORT MS_ROLE RANK_TABLE_FILE; do
    unset $variable
done

# says CODE FILE TEXT: a command ended so, and said that; 124: it had to be killed.
says() {
    [ "$1" = "$got" ] && grep -q -- "$3" "$2" && return
    fail "$what: exit $got, expected $1 and '$3':" "$2"
}
launch() {
    timeout 120 "$weft" launch --no-logs "$@"
}
# await WHAT COMMAND...: repeats the command until it succeeds, for 60 s at most.
await() {
    sought=$1
    shift
    for _ in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    fail "$what: $sought did not come in 60 s"
}
# For processes of ranks: `gone PID-FILE` returns when the process that wrote the file has ended, `come FILE` when there
# is such a file; each within 60 s.
cat >waits.inc <<'END'
come() { for _ in $(seq 600); do [ -s "$1" ] && return; sleep 0.1; done; echo "no $1 in 60 s"; exit 99; }
gone() { # a launcher keeps processes that have ended as zombies until the job ends
    come "$1"
    for _ in $(seq 600); do
        case $(cut -d')' -f2 "/proc/$(cat "$1")/stat" 2>/dev/null) in '' | ' Z'*) return 0 ;; esac
        sleep 0.1
    done
    echo "$1 goes on"
    exit 99
}
END
# callers PORT: how many connections the scheduler at that port has.
callers() {
    grep -c "^ *[0-9]*: 0100007F:$(printf %04X "$1") [0-9A-F]*:[0-9A-F]* 01 " /proc/net/tcp
}
has_caller() {
    [ "$(callers "$1")" -ge 1 ]
}

# --- one host ---
for end in 'exit 0' 'exit 7'; do
    what="rank 1 does $end at once"
    launch -n 3 -- sh -c "[ \$WEFT_RANK = 1 ] && $end; exec '$weft' train job.yaml" >early.out 2>&1
    got=$?
    [ $got != 0 ] || fail "$what: exit 0" early.out
    says $got early.out 'rank 1 '
    grep -q "${end#exit }" early.out || fail "$what: not said:" early.out
    what="the others come after rank 1 did $end"
    launch -n 3 -- sh -c ". ./waits.inc
        [ \$WEFT_RANK = 1 ] && echo \$\$ >one.pid && $end; gone one.pid; exec '$weft' train job.yaml" >early.out 2>&1
    got=$?
    rm one.pid
    [ $got != 0 ] && [ $got != 124 ] && [ $got != 99 ] || fail "$what: exit $got" early.out
done
# Nothing of that is a matter of programs that know nothing of weft.
what='other programs'
launch -n 3 -- sh -c '. ./waits.inc
    [ $WEFT_RANK = 1 ] && echo $$ >one.pid && exit 0; gone one.pid; echo fine' >early.out 2>&1
got=$?
rm one.pid
says 0 early.out fine

# --- two hosts: what ends is on the one without the scheduler ---
for end in 'exit 0' 'exit 7' 'kill -9 \$\$'; do
    what="on the second host: $end"
    launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 2 -- "$weft" train job.yaml >zero 2>&1 &
    first=$!
    launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 2 -- \
        sh -c ". ./waits.inc
            [ \$WEFT_RANK = 2 ] && { come called; $(echo "$end" | tr -d '\\'); }; exec '$weft' train job.yaml" >one 2>&1 &
    second=$!
    await 'a caller' has_caller $port # so that somebody waits already
    echo yes >called
    wait $second && fail "$what: all is well there" one
    rm called
    wait $first
    got=$?
    case $end in # a killed process was lost: trying again may help
        kill*) says 75 zero 'rank 2 (process [0-9]*) .*all ranks' ;;
        *) says 1 zero 'rank 2 (process [0-9]*) .*all ranks' ;;
    esac
    port=$(free_port)
done

# --- requests to stop that come to a rank of the second host ---
long='train.steps=1000000 train.eval_every=0'
what='all agree to stop'
# shellcheck disable=SC2086
launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 1 -- "$weft" train job.yaml $long --json >zero 2>&1 &
first=$!
launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 1 -- sh -c \
    "echo \$\$ >asked.pid; exec '$weft' train job.yaml $long" >one 2>&1 &
second=$!
# For the first step, at whose end they can agree.
wait_for_step() {
    for _ in $(seq 600); do
        grep -q '"step": 1' zero && return
        sleep 0.1
    done
    fail "$what: no step in 60 s" zero
}
wait_for_step
kill -TERM "$(cat asked.pid)"
wait $second
got=$?
says 143 one 'signal 15'
wait $first
got=$?
says 143 zero 'stopped'
port=$(free_port)
rm zero asked.pid
what='all agree to stop, and then one fails on the other host'
launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 2 -- sh -c \
    ". ./waits.inc; '$weft' train job.yaml $long --json; gone asked.pid; exit 3" >zero 2>&1 &
first=$!
launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 2 -- sh -c "
    [ \$WEFT_RANK = 2 ] && echo \$\$ >asked.pid && exec '$weft' train job.yaml $long
    '$weft' train job.yaml $long; sleep 1000" >one 2>&1 &
second=$!
wait_for_step
kill -TERM "$(cat asked.pid)"
wait $second
got=$?
says 3 one 'rank [01] .*exit code 3, .*another host'
wait $first
got=$?
says 3 zero 'rank [01] .*exit code 3'
port=$(free_port)
what='nobody has agreed'
launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 2 -- sh -c 'echo yes >begun; exec sleep 1000' >zero 2>&1 &
first=$!
launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 2 -- \
    sh -c '. ./waits.inc
    [ $WEFT_RANK = 2 ] && come begun && exit 143; exec sleep 1000' >one 2>&1
got=$?
rm begun
says 143 one 'rank 2 .*exit code 143'
wait $first
got=$?
says 143 zero 'rank 2 .*exit code 143'
port=$(free_port)

# One host has failed before the other comes: that one is told, instead of calling until its time is up.
# Also with the code of a request to stop, to which nobody can have agreed yet.
for case in '1 5' '0 5' '1 143' '0 143'; do
    late=${case% *} code=${case#* }
    what="host $late comes when the other has failed with $code"
    rm -f early.out
    launch --hosts 2 --host-rank $((1 - late)) --scheduler 127.0.0.1:$port -n 2 -- sh -c "exit $code" >early.out 2>&1 &
    first=$!
    await 'a word that it waits' grep -q 'not come' early.out
    kill -0 $first || fail "$what: it is not waited for" early.out
    launch --hosts 2 --host-rank $late --scheduler 127.0.0.1:$port -n 2 -- "$weft" train job.yaml >late.out 2>&1
    got=$?
    says 1 late.out "rank [0-3] (process [0-9]*) .*exit code $code .*all ranks"
    wait $first
    got=$?
    says $code early.out "exit code $code; .*not come"
    port=$(free_port)
done
# Who waits for a late host can be told not to, and does so no longer than the others may take to join.
what='a host that does not come'
rm -f early.out
launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 2 -- sh -c 'exit 5' >early.out 2>&1 &
first=$!
await 'a word that it waits' grep -q 'not come' early.out
kill -TERM "$(cat /proc/$first/task/$first/children)"
wait $first
got=$?
says 5 early.out 'rank [01] .*exit code 5'
for host in 0 1; do
    launch --timeout 2 --hosts 2 --host-rank $host --scheduler 127.0.0.1:$port -n 2 -- sh -c 'exit 5' >early.out 2>&1
    got=$?
    says 5 early.out 'rank [0-3] .*exit code 5'
done
port=$(free_port)

# A process fails on one host, and those on the other never ask for a scheduler: they are ended, and both hosts say whose
# failure it was. One that ends well disturbs nobody.
for host in 0 1; do
    what="other programs, of which one fails on host $host"
    launch --hosts 2 --host-rank $((1 - host)) --scheduler 127.0.0.1:$port -n 2 -- sh -c 'echo yes >begun; sleep 300' >other.out 2>&1 &
    first=$!
    launch --hosts 2 --host-rank $host --scheduler 127.0.0.1:$port -n 2 -- \
        sh -c '. ./waits.inc
            [ $((WEFT_RANK % 2)) = 0 ] && echo $$ >well.pid && exit 0; come begun; gone well.pid; exit 3' >early.out 2>&1
    got=$?
    rm begun well.pid
    says 3 early.out "rank $((2 * host + 1)) .*exit code 3\$"
    wait $first
    got=$?
    says 3 other.out "rank $((2 * host + 1)) .*exit code 3, .*another host"
    port=$(free_port)
done
what='other programs, of which one ends sooner'
launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 1 -- sh -c 'echo $$ >well.pid; exit 0' >early.out 2>&1 &
first=$!
launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 1 -- sh -c '. ./waits.inc
    gone well.pid; sleep 6; echo fine' >other.out 2>&1 # the subject: it goes on for long
got=$?
says 0 other.out fine
wait $first || fail "$what" early.out
port=$(free_port)

# `weft launch` of the scheduler's host is killed: the other one ends, too.
what='other programs, and the first host is killed'
launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 1 -- sh -c 'sleep 300' >other.out 2>&1 &
second=$!
rm -f early.out
launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 1 -- sh -c 'echo on; sleep 300' >early.out 2>&1 &
first=$!
await 'a word of the rank' grep -q on early.out
await 'the other launcher' has_caller $port
child=$(tr -d ' ' </proc/$first/task/$first/children) # timeout, whose child it is
kill -KILL "$(tr -d ' ' <"/proc/$child/task/$child/children")"
wait $second
got=$?
says 75 other.out 'rank 0 .*signal 9 .*another host'
wait $first
port=$(free_port)

# Hosts that were told different numbers of processes.
what='two ranks here, three there'
launch --hosts 2 --host-rank 0 --scheduler 127.0.0.1:$port -n 2 -- "$weft" train job.yaml >zero 2>&1 &
first=$!
launch --hosts 2 --host-rank 1 --scheduler 127.0.0.1:$port -n 3 -- "$weft" train job.yaml >one 2>&1
got=$?
says 1 one 'job of 6, .* 4'
wait $first
got=$?
says 1 zero 'rank [345] '

# --- one training after the other ---
what='three trainings'
launch -n 2 -- sh -c "for n in 1 2 3; do '$weft' train job.yaml train.steps=\$n || exit 1; done" >three 2>&1
got=$?
says 0 three 'done: 3 steps'
[ "$(grep -c '^done: ' three)" = 3 ] || fail "$what:" three

# --- paths of the launcher, where ranks are elsewhere ---
what='relative paths'
head -c 32 /dev/urandom | base64 >job.secret
chmod 600 job.secret
for secret in '' '--secret job.secret'; do
    # shellcheck disable=SC2086
    TMPDIR=tmp launch $secret -n 2 -- sh -c "cd / && exec '$weft' train '$work/job.yaml' 'data.path=$work/text.txt'" >elsewhere 2>&1
    got=$?
    says 0 elsewhere 'done: 12 steps'
done

# --- closed standard streams ---
for closed in '>&-' '2>&-' '<&- >&- 2>&-'; do
    rm -rf closed
    eval "launch -n 2 -- \"\$weft\" train job.yaml train.steps=2 checkpoint.dir=closed $closed" | cat >closed.out
    [ -d closed/step-000000000002 ] || fail "with $closed nothing was trained" closed.out
done
[ -z "$(ls "$TMPDIR")" ] || fail "folders of runs are left: $(ls "$TMPDIR")"
exit $failed
