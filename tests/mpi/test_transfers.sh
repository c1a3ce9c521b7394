#!/bin/sh
# Transfers through MPI give the bits that the threads of one process give.
. tests/mpi/run.inc
seed=${WEFT_TEST_SEED:-$(($(date +%s) % 100000))}
echo "seed $seed (WEFT_TEST_SEED=$seed repeats it)"
for flavour in $flavours; do
    compile "$flavour" "$work/transfers" -Wno-unused-function tests/mpi/transfers.c || continue
    for n in 1 2 3 4; do
        good "$flavour" $n "$work/transfers" single $((seed + n))
        [ $n -gt 2 ] || good "$flavour" $n "$work/transfers" multiple $((seed + n))
    done
    echo "$flavour: $(cat "$work/out")"
done
exit $failed
