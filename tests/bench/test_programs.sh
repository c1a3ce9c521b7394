#!/bin/sh
# The programs of bench/ still run: each once, on as little as it takes. What they measure is not looked at.
set -u
bench=$WEFT_BUILD_DIR/bench
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
cd "$work" || exit 1
if [ ! -x "$bench/ops" ]; then
    echo "SKIP: the programs of bench/ are not built (target bench)"
    exit 77
fi
# fail 'what is wrong' FILE-THAT-SHOWS-IT
fail() {
    echo "$1"
    cat "$2"
    failed=1
}

# runs PATTERN-OF-THE-LAST-LINE PROGRAM ARGUMENTS...
runs() {
    ends=$1 program=$2
    shift 2
    "$bench/$program" "$@" >out 2>err || fail "bench/$program $* fails" err
    [ ! -s err ] || fail "bench/$program $* complains" err
    tail -1 out | grep -q "$ends" || fail "the last line of bench/$program $* has no '$ends'" out
}

small() {
    program=$1
    shift
    runs '"tokens_per_second"' "$program" --layers 1 --hidden 64 --heads 2 --vocab 300 --batch 2 --seq 32 \
        --steps 2 --warmup 1 --threads 1 "$@"
}

runs '^opt_adafactor' ops 1 "" 0
runs '%' kernels 1 "gelu gradient bf16"
runs 'GFLOP/s' gemm 1 1 "proj dx"
small gpt2
small gpt2 --precision bf16 --json
for split in one data tensor parameters; do
    small parallel --split $split
done
runs '"images_per_second"' resnet --batch 2 --size 32 --classes 10 --steps 1 --warmup 1 --threads 1
runs '^in_place 1024' comm 1 1024
runs '^all_gather 1024' comm --processes 2 1 1024
runs 'or longer$' watch 0.1
runs '^ratio' compile 1
runs '^real build' build 2
cat >rows.json <<'END'
[{"id": "one", "category": "dense", "status": "ok", "source": "test", "model": "GPT", "layers": 2, "hidden": 64,
  "heads": 4, "vocab": 256, "seq_len": 32, "gpu": "A100-80GB SXM", "num_gpus": 4, "gpus_per_node": 2, "precision": "fp16",
  "global_batch": 8, "micro_batch": 1, "tp": 2, "pp": 2, "dp": 1, "recompute": "full"},
 {"id": "odd", "category": "dense", "status": "ok", "source": "test", "gpu": "A100-80GB SXM", "tp": 2}]
END
runs '"rows": 1, "compared": 1, "slower": 0, "not_fitting": 0, "not_found": 0' planner "$WEFT_BIN" published rows.json
if "$WEFT_BIN" info | grep -q '^ *OpenSSL *built in'; then
    port=$((20000 + $$ % 10000))
    for what in plain ''; do
        # shellcheck disable=SC2086
        "$bench/tls_pair" listen 127.0.0.1 $port $what >/dev/null &
        # shellcheck disable=SC2086
        runs '^[0-9.]*$' tls_pair connect 127.0.0.1 $port $what
        wait
    done
fi
if "$WEFT_BIN" info | grep -q '^ *UCX *built in'; then
    runs '^ *8 ' rounds --ranks 2 --bytes 8 16 --seconds 0.02
fi
exit $failed
