#!/bin/sh
# `mpirun weft train JOB` is `weft train JOB --devices N`: the same losses and the same checkpoint to the bit, under
# each MPI, with ranks that share memory and with messages of MPI alone.
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
losses() { # the file that a run wrote
    sed -n 's/.*"step": \([0-9]*\),.*"loss": \([-0-9.e+]*\).*/\1 \2/p' "$1"
}
for job in job split staged; do
    "$weft" train $job.yaml --devices 4 train.log=$job.log checkpoint.dir=$job.run >out 2>&1 || fail "$job: 4 devices" out
    losses $job.log >$job.losses
    [ "$(wc -l <$job.losses)" -ge 6 ] || fail "$job: losses of 4 devices" $job.log
done
same() { # FLAVOUR JOB COMMUNICATOR
    name=$1.$2.$3
    WEFT_COMM=$3 ranks "$1" 4 "$weft" train "$2.yaml" train.log="$name.log" checkpoint.dir="$name.run" >out 2>&1 ||
        { fail "$name (exit $?)" out; return; }
    losses "$name.log" >"$name.losses"
    cmp -s "$2.losses" "$name.losses" || { fail "$name: other losses than 4 devices of one process" "$name.losses"; cat "$2.losses"; }
    file=$(find "$2.run" -name model.safetensors | sort | tail -1)
    cmp "$file" "$name.run/${file#*/}" || fail "$name: another model than that of 4 devices"
}
for flavour in $flavours; do
    if [ ! -e "$(dirname "$weft")/weft-$flavour.so" ]; then
        echo "SKIP $flavour: this build has no weft-$flavour.so"
        continue
    fi
    for job in job split staged; do same "$flavour" $job ''; done
    same "$flavour" split mpi
    echo "$flavour: as 4 devices of one process"
done
cd "$here" || exit 1
exit $failed
