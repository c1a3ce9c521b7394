#!/bin/sh
# `mpirun weft train JOB` is `weft train JOB --devices N`: the same losses and the same checkpoint to the bit, under
# each MPI, with ranks that share memory, with messages of MPI alone, and with both (as on two hosts). A rank that is
# killed ends the job.
here=$PWD
. tests/mpi/run.inc
weft=$WEFT_BIN
cd "$work" || exit 1
awk 'BEGIN { for (i = 0; i < 400; i++) print "weft " i " runs over and under warp " (i * 7) % 13 }' >text.txt
cat >job.yaml <<END
model: {family: gpt2, layers: 2, hidden: 32, heads: 2, context: 16}
data: {path: text.txt}
train: {steps: 6, batch: 8}
device: {threads: 4}
END
if "$weft" train job.yaml --job 2>&1 | grep -q 'no libyaml'; then
    echo "SKIP: this build has no libyaml, which reads job files"
    exit 77
fi
cat >plan.yaml <<END
parallel:
  mesh: {dp: 2, tp: 2}
  optimizer: {level: 2}
  strategies:
    - {match: "h.*.attn.c_attn:linear", split: {n1: tp}}
    - {match: "h.*.mlp.c_fc:linear", split: {n0: tp}}
END
cat job.yaml plan.yaml >split.yaml
cat job.yaml >staged.yaml
echo 'parallel: {mesh: {dp: 2}, pipeline: {stages: 2, microbatches: 2}}' >>staged.yaml
cat job.yaml >auto.yaml # rank 0 searches
echo 'parallel: {devices: 4, mode: auto, fix: "pp=2 microbatches=4"}' >>auto.yaml
escape=$(printf '\033')
export TERM=xterm # terminals that mpirun makes are none that anybody sees
losses() { # the file that a run wrote
    sed -n 's/.*"step": \([0-9]*\),.*"loss": \([-0-9.e+]*\).*/\1 \2/p' "$1"
}
for job in job split staged auto; do
    "$weft" train $job.yaml --devices 4 train.log=$job.log checkpoint.dir=$job.run >out 2>&1 || fail "$job: 4 devices" out
    losses $job.log >$job.losses
    [ "$(wc -l <$job.losses)" -ge 6 ] || fail "$job: losses of 4 devices" $job.log
done
# On two hosts, as far as weft can tell: ranks 0 and 1, and the others.
cat >pair.sh <<'END'
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
WEFT_HOST_ID=host-$((rank / 2)) exec "$@"
END
same() { # FLAVOUR JOB COMMUNICATOR words before the command...
    flavour=$1 job=$2 communicator=$3
    shift 3
    name=$flavour.$job.$communicator.$#
    WEFT_COMM=$communicator ranks "$flavour" 4 "$@" "$weft" train "$job.yaml" train.log="$name.log" checkpoint.dir="$name.run" >out 2>&1 ||
        { fail "$name (exit $?)" out; return; }
    losses "$name.log" >"$name.losses"
    cmp -s "$job.losses" "$name.losses" || { fail "$name: other losses than 4 devices of one process" "$name.losses"; cat "$job.losses"; }
    file=$(find "$job.run" -name model.safetensors | sort | tail -1)
    grep -q "$escape" out && fail "$name: its output, a file, has what is for terminals" out
    cmp "$file" "$name.run/${file#*/}" || fail "$name: another model than that of 4 devices"
}
recorded() { # FLAVOUR: the plan that rank 0 found is recorded, and used again
    run=$1.auto..0.run
    cmp auto.run/record/plan.json "$run/record/plan.json" || fail "$1: another plan than that of 4 devices"
    grep -q '"stages": 2' "$run/record/plan.json" || fail "$1: not the plan of the search" "$run/record/plan.json"
    ranks "$1" 4 "$weft" train auto.yaml train.steps=8 checkpoint.dir="$run" >out 2>&1 || fail "$1: a run does not go on" out
    grep -q "$run/record/plan.json" out || fail "$1: a resume does not use the recorded plan" out
}
killed() { # FLAVOUR: rank 1, while all are training
    cat >suicide.sh <<'END'
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
if [ "$rank" = 1 ]; then
    me=$$
    (until [ "$(grep -c loss long.log)" -ge 3 ] || ! kill -0 $me; do sleep 0.05; done; kill -9 $me) >/dev/null 2>&1 &
fi
exec "$@"
END
    rm -f long.log
    ranks "$1" 3 sh suicide.sh "$weft" train job.yaml train.batch=6 train.steps=1000000 train.log="$work/long.log" >out 2>&1
    code=$?
    [ "$(grep -c loss long.log)" -ge 3 ] || fail "$1: it did not train" out
    [ $code != 0 ] && [ $code != 124 ] || fail "$1: a killed rank does not end the job (exit $code)" out
    for _ in $(seq 600); do
        pgrep -f "$work/long.log" >/dev/null || break
        sleep 0.1
    done
    if pgrep -f "$work/long.log" >/dev/null; then fail "$1: processes are left over: $(pgrep -af "$work/long.log")"; fi
}
missing() { # FLAVOUR, how a rank ends before MPI begins: nobody waits in MPI_Init for ever
    cat >absent.sh <<'END'
how=$1
shift
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || $how
exec "$@"
END
    WEFT_JOIN_SECONDS=3 ranks "$1" 3 sh absent.sh "$2" "$weft" train job.yaml train.batch=6 >out 2>&1
    code=$?
    [ $code != 0 ] && [ $code != 124 ] && [ $code != 137 ] || fail "$1: a rank does $2 before MPI begins: exit $code" out
    # Some launchers end the others themselves.
    [ "$1" != mpich ] || grep -q 'MPI_Init_thread has waited for 3 s' out || fail "$1: a rank does $2: not said" out
}
for flavour in $flavours; do
    if [ ! -e "$(dirname "$weft")/weft-$flavour.so" ]; then
        echo "SKIP $flavour: this build has no weft-$flavour.so"
        continue
    fi
    for job in job split staged auto; do same "$flavour" $job ''; done
    recorded "$flavour"
    same "$flavour" split mpi
    same "$flavour" split '' sh pair.sh
    killed "$flavour"
    missing "$flavour" 'exit 0'
    missing "$flavour" 'exit 7'
    echo "$flavour: as 4 devices of one process"
done
cd "$here" || exit 1
exit $failed
