#!/bin/sh
# The conformance suite of communicators in jobs of each mpirun, on 1 to 8 ranks: by messages of MPI alone, and with
# ranks of two hosts that share memory within each. What all ranks get is that of threads, to the bit.
. tests/mpi/run.inc
conformance=$WEFT_BUILD_DIR/weft-conformance
[ -x "$conformance" ] || { echo 'SKIP: weft-conformance is not built'; exit 77; }
WEFT_TEST_SEED=${WEFT_TEST_SEED:-$(($(date +%s) % 100000))}
export WEFT_TEST_SEED
echo "seed $WEFT_TEST_SEED (WEFT_TEST_SEED=$WEFT_TEST_SEED repeats it)"
cat >"$work/hosts.sh" <<'END'
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
WEFT_HOST_ID=host-$((rank * 2 / RANKS)) exec "$@"
END
digest() { sed -n 's/.*good (seed .*, digest \([0-9a-f]*\)).*/\1/p' "$@"; }

# programs RANKS, bytes RANKS: how many random ones, and the size of the largest tensor
programs() { echo $((48 / $1)); }
bytes() { if [ "$1" = 2 ]; then echo 16000000; else echo $((1200000 / $1)); fi; }
# threads RANKS: what threads of one process make of it
threads() {
    if [ "$1" = 1 ]; then set -- 1 "$(programs 1)" "$(bytes 1)"; else set -- "$1" "$(programs "$1")" "$(bytes "$1")" "$1"; fi
    name=$work/threads.$1
    shift
    "$conformance" "$@" >"$name" 2>&1 && [ -n "$(digest "$name")" ] || fail "threads: $*" "$name"
}
# same FLAVOUR RANKS COMMUNICATOR words before the program...
same() {
    flavour=$1 n=$2 communicator=$3
    shift 3
    WEFT_COMM=$communicator RANKS=$n good "$flavour" "$n" "$@" "$conformance" "$(programs "$n")" "$(bytes "$n")"
    [ "$(digest "$work/out")" = "$(digest "$work/threads.$n")" ] ||
        fail "$flavour, $n ranks, '$communicator' $*: other bits than those of threads:" "$work/out"
    grep 'calls good' "$work/out" | sed "s/^/$flavour: /"
    [ -z "$communicator" ] || [ "$n" = 1 ] || grep -q ", $communicator:" "$work/out" || fail "no $communicator" "$work/out"
}
for n in 1 2 3 4 5 8; do threads $n; done
for flavour in $flavours; do
    if [ ! -e "$WEFT_BUILD_DIR/weft-$flavour.so" ]; then
        echo "SKIP $flavour: this build has no weft-$flavour.so"
        continue
    fi
    for n in 1 2 3 5 8; do same "$flavour" $n mpi; done
    same "$flavour" 4 '' sh "$work/hosts.sh"
done
exit $failed
