#!/bin/sh
# A rank is killed, and the process that follows it has another job: another seed, another model. It is refused alone, with both
# ranks named, and the others wait for the next one, which is like them.
# shellcheck source=../cli/run.inc
. "$(dirname "$0")/../cli/run.inc"
# shellcheck source=../launch/jobs.inc
. "$(dirname "$0")/../launch/jobs.inc"

# unlike NAME WORDS FACTS OPTIONS...: what the second process of rank 1 has in addition; what is said of it; options of the launcher
unlike() {
    name=$1 words=$2 facts=$3
    shift 3
    cat >start-$name.sh <<END
n=\$(cat $name-\$WEFT_RANK 2>/dev/null || echo 0)
echo \$((n + 1)) >$name-\$WEFT_RANK
[ "\$WEFT_RANK\$n" = 11 ] && set -- $words
exec $weft train job.yaml train.steps=1000000 train.eval_every=0 train.log=$name.log recovery.enabled=true 'parallel.mesh={dp: 2}' checkpoint.dir=run-$name "\$@"
END
    timeout -k 10 900 "$weft" launch -n 2 "$@" --logs $name-logs -- sh start-$name.sh >$name.out 2>&1 &
    launcher=$!
    goes_on $name.log 50 $launcher
    for place in $(grep -slzx "WEFT_RANK=1" /proc/[0-9]*/environ | sed 's|/proc/\([0-9]*\)/.*|\1|'); do
        [ "$(readlink "/proc/$place/cwd")" = "$PWD" ] && [ "$(cat "/proc/$place/comm" 2>/dev/null)" = weft ] || continue
        kill -9 "$place"
    done
    goes_on $name.log 1000 $launcher && kill -TERM $launcher
    wait $launcher
    got=$?
    [ "$got $(cat $name-1)" = '143 3' ] || fail "$name: exit $got after $(cat $name-1) starts of rank 1" $name.out
    has_facts $name.out 'rank 1|exit code 1' || fail "$name: nobody says that a process was refused" $name.out
    cat $name-logs/*1* >$name.refused
    has_facts $name.refused "$facts" || fail "$name: another reason" $name.refused
}

unlike seed train.seed=7 'rank 0|rank 1|seed' --restart 3
unlike model model.ffn=48 'rank 0|rank 1|model' --restart 3
exit $failed
