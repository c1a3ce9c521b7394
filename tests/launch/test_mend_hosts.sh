#!/bin/sh
# `weft launch --hosts 2 --restart N`: two hosts are network namespaces with a cable between them, 2 ranks each. Ranks of either host
# die and are started again; a host is lost (its launcher is killed, its cable pulled), and a launcher that comes back, or a spare one,
# takes its seats. All end with the digest of an undisturbed run. If nobody comes, or the host of the scheduler is lost, the job ends
# with 75 on all hosts, and nothing hangs. Needs root and iproute2.
# shellcheck source=../cli/run.inc
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/run.inc"
# shellcheck source=hosts.inc
. "$here/hosts.inc"
mend=$WEFT_BUILD_DIR/weft-mend spare=weft-lc-$$
trap 'ip netns del $a; ip netns del $b; ip netns del $spare 2>/dev/null; rm -rf "$work"' EXIT
three_hosts $spare || exit 1

# mending NAME STEPS 'DEATHS' OPTIONS...: on both hosts.
mending() {
    host_0 "$@"
    shift 3
    host_1 "$@"
}
host_0() {
    name=$1 steps=$2 deaths=$3
    shift 3
    what="$name '$deaths' $*"
    rm -rf deaths logs-* "$name".[0-9]
    mkdir deaths
    launch $a 0 --logs logs-0 --timeout 20 "$@" -- "$mend" "$steps" deaths "$deaths" >"$name.0" 2>&1 &
    first=$!
}
host_1() {
    launch $b 1 --logs logs-1 --timeout 20 "$@" -- "$mend" "$steps" deaths "$deaths" >"$name.1" 2>&1 &
    second=$!
}
spare_host() {
    ip netns exec $spare timeout -k 10 600 "$weft" launch --hosts 2 --spare --scheduler 10.97.0.1:9000 -n 2 --logs logs-2 --timeout 20 "$@" \
        -- "$mend" "$steps" deaths "$deaths" >"$name.2" 2>&1 &
    third=$!
}
digest_of() {
    sed -n 's/^process .* digest \([0-9a-f]*\) begun .*/\1/p' "$1"
}
# whole FOLDERS...: all four ranks ended with the digest, each in one of these.
whole() {
    for rank in 0 1 2 3; do
        ends=''
        for folder in "$@"; do [ -f "$folder/rank-$rank.log" ] && ends=$ends$(digest_of "$folder/rank-$rank.log"); done
        [ "$ends" = "$right" ] || fail "$what: rank $rank ends with '$ends'" "$name.0"
    done
}
ended() { # CODE CODE
    [ "$code0 $code1" = "$1 $2" ] || {
        fail "$what: exit $code0 and $code1" "$name.0"
        cat "$name.1"
    }
}
launcher_of() { # HOST: the process of `weft launch` there; its reaper, which has the same words, is younger
    for place in $(ip netns pids "$1" | sort -n); do
        tr '\0' ' ' <"/proc/$place/cmdline" 2>/dev/null | grep -q "^[^ ]*weft launch .*-n 2" && echo "$place" && return
    done
}
await_deaths() { # COUNT: until so many of `deaths` have happened
    for _ in $(seq 600); do
        [ -e deaths/death-$(($1 - 1)) ] && return
        sleep 0.1
    done
    fail "$what: death $1 did not come" "$name.0"
}

mending none 40 ''
end
right=$(digest_of logs-0/rank-0.log)
[ -n "$right" ] || fail 'no digest' none.0
whole logs-0 logs-1
for deaths in 1@step:5:9 3@step:5:9 2@step:5:9,3@mended:1:9 0@reduced:4:9,2@given:1:9,3@mended:2:9; do
    mending ranks 40 "$deaths" --restart 3
    end
    ended 0 0
    whole logs-0 logs-1
done
grep -q 'rank 2 .* started again (. of 3 for all hosts)' ranks.1 || fail "$what: host 1 does not say so" ranks.1
# Encrypted, and a rank of the other host that is silent.
mending tls 40 3@step:5:19 --restart 1 --tls --heartbeat 3
end
ended 0 0
whole logs-0 logs-1
# As often as it may be; on the other host too.
mending often 40 3@step:5:9,3@step:1:9 --restart 1
end
ended 75 75
grep -q 'rank 3 .*as often as it may be' often.0 || fail "$what: the reason is not said" often.0

# Before all have come, and before they can be mended: on either host, and a whole host, whose place a spare one takes.
for deaths in 3@start:1:9 3@joined:1:9 0@joined:1:9 2@joined:1:9,1@joined:1:9,3@step:4:9; do
    mending early 40 "$deaths" --restart 3
    end
    ended 0 0
    whole logs-0 logs-1
done
mending early-spare 40 2@joined:1:0 --restart 1
spare_host --restart 1
wait_for 'spare one' early-spare.2
await_deaths 1
kill -9 "$(launcher_of $b)"
end
wait $third || fail "$what: the spare host ends badly" early-spare.2
[ $code0 = 0 ] || fail "$what: exit $code0" early-spare.0
rm -rf logs-1
whole logs-0 logs-2

# The launcher of host 1 is killed, with its ranks; it comes again.
# (2@step:9:0 keeps rank 2 there.)
mending back 40 2@step:9:0 --restart 2
await_deaths 1
kill -9 "$(launcher_of $b)"
wait $second
host_1 --restart 2
end
ended 0 0
whole logs-0 logs-1
# A spare host takes its place.
mending spare 40 2@step:9:0 --restart 2
spare_host --restart 2
wait_for 'spare one' spare.2
await_deaths 1
kill -9 "$(launcher_of $b)"
end
wait $third || fail "$what: the spare host ends badly" spare.2
[ $code0 = 0 ] || fail "$what: exit $code0" spare.0
grep -q 'place of host 1: ranks 2 to 3' spare.2 || fail "$what: the spare host does not say so" spare.2
rm -rf logs-1
whole logs-0 logs-2
# Its rank 2 fails again, and this would be the last restart: it is left out, with rank 3, which lives.
# The same before the world can be mended, and before it has formed.
for deaths in 2@step:5:9,2@step:3:9 2@joined:1:9,2@joined:1:9 2@start:1:9,2@start:1:9; do
    host_0 bad 40 "$deaths" --restart 2
    spare_host --restart 2
    wait_for 'spare one' bad.2
    host_1 --restart 2
    end
    wait $third || fail "$what: the spare host ends badly" bad.2
    ended 0 75
    has_facts bad.0 '2 to 3|2 times|10.97.0.3' || fail "$what: the host is not named" bad.0
    has_facts bad.0 'process 0' && fail "$what: a process that is none is named" bad.0
    has_facts bad.2 'host 1|2 to 3' || fail "$what: the spare host does not say so" bad.2
    rm -rf logs-1
    whole logs-0 logs-2
done
# Its cable is pulled: as soon as it is silent for too long. The old host ends with 75.
mending cable 40 2@step:9:0 --restart 2 --heartbeat 3
spare_host --restart 2
wait_for 'spare one' cable.2
await_deaths 1
ip -n $b link set veth0 down
wait $first || fail "$what: exit $?" cable.0
wait $third || fail "$what: the spare host ends badly" cable.2
ip -n $b link set veth0 up
end
rm -rf logs-1
whole logs-0 logs-2
[ $code1 = 75 ] || fail "$what: the lost host ends with $code1" cable.1
# A spare host that nobody needs.
mending unused 40 '' --restart 2
spare_host --restart 2
end
wait $third || fail "$what: the spare host ends badly" unused.2
ended 0 0

# Nobody comes: 75 after the waiting time, and the reason.
mending nobody 40 2@step:9:0 --restart 2 --timeout 3
await_deaths 1
kill -9 "$(launcher_of $b)"
end
[ $code0 = 75 ] || fail "$what: exit $code0" nobody.0
has_facts nobody.0 'host 1|seat' || fail "$what: another reason" nobody.0
# The launcher of host 0, with the scheduler.
mending zero 40 2@step:9:0 --restart 2
await_deaths 1
kill -9 "$(launcher_of $a)"
end
[ $code1 = 75 ] || fail "$what: exit $code1" zero.1
# A training: a rank of the other host is killed, then all of that host, and a spare one takes its place. The bits stay.
train_words="train job.yaml --json recovery.enabled=true train.steps=400 train.batch=8 train.eval_every=1000"
training() { # NAME OPTIONS...
    name=$1
    shift
    # shellcheck disable=SC2086
    begin $name --no-logs --timeout 20 "$@" -- "$weft" $train_words "parallel.mesh={dp: 4}" checkpoint.dir=run-$name
}
training right
end
ended 0 0
training lost --restart 3
# shellcheck disable=SC2086
ip netns exec $spare timeout -k 10 600 "$weft" launch --hosts 2 --spare --scheduler 10.97.0.1:9000 -n 2 --no-logs --restart 3 \
    -- "$weft" $train_words "parallel.mesh={dp: 4}" checkpoint.dir=run-lost >lost.2 2>&1 &
third=$!
wait_for '"step": 5,' lost.0
for place in $(ip netns pids $b); do
    tr '\0' '\n' <"/proc/$place/environ" 2>/dev/null | grep -qx WEFT_RANK=3 && kill -9 "$place"
done
wait_for 'started again' lost.1
kill -9 "$(launcher_of $b)"
end
wait $third || fail 'training: the spare host ends badly' lost.2
[ $code0 = 0 ] || fail "training: exit $code0" lost.0
for run in right lost; do "$weft" checkpoint digest run-$run >$run.digest || fail "training: no digest of $run"; done
cmp -s right.digest lost.digest || fail 'training: other bits' lost.0

# Random instants: ranks and launchers, with a spare host. It goes on, or ends with 75 where that cannot be.
# shellcheck source=chance.inc
. "$here/chance.inc"
round=0
mending long 1500 ''
end
right=$(digest_of logs-0/rank-0.log)
while [ $round -lt "${WEFT_TEST_ROUNDS:-2}" ]; do
    round=$((round + 1))
    mending random 1500 '' --restart 4 --env MEND_TEST=$$-$round
    spare_host --restart 4 --env MEND_TEST=$$-$round
    draw 900
    sleep "$(printf '0.%03d' $((number + 100)))"
    draw 5
    if [ "$number" = 4 ]; then
        victim=$(launcher_of $b)
    else
        victim=$(grep -lzs "^MEND_TEST=$$-$round\$" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|' |
            while read -r place; do tr '\0' '\n' <"/proc/$place/environ" 2>/dev/null | grep -qx "WEFT_RANK=$number" && echo "$place"; done | head -n 1)
    fi
    what="random: round $round, victim $number"
    # shellcheck disable=SC2086
    [ -z "$victim" ] || kill -9 $victim
    end
    wait $third
    tells_the_end random.0 "$code0" && continue
    [ "$code0" = 75 ] && [ "$(cat logs-*/*.log | grep -c " digest $right ")" = 4 ] && continue
    [ "$code0" = 0 ] || fail "$what: exit $code0" random.0
    whole logs-0 logs-1 logs-2
done

# One launcher restarts, the other does not.
rm -rf deaths
mkdir deaths
name=unlike steps=40 deaths=
host_1 --restart 2
launch $a 0 --logs logs-0 --timeout 5 -- "$mend" 40 deaths '' >unlike.0 2>&1 && fail 'host 1 alone has --restart' unlike.0
wait $second && fail 'host 1 alone has --restart' unlike.1
has_facts unlike.1 '--restart|scheduler' || fail 'unlike restarts are not told' unlike.1
exit $failed
