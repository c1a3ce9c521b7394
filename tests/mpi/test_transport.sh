#!/bin/sh
# Messages through weft/mpi.h, under each MPI, on 1 to 4 ranks, with and without threads in MPI; long ones in one
# piece and in many.
. tests/mpi/run.inc
seed=${WEFT_TEST_SEED:-$(($(date +%s) % 100000))}
echo "seed $seed (WEFT_TEST_SEED=$seed repeats it)"
for flavour in $flavours; do
    compile "$flavour" "$work/whole" tests/mpi/transport.c || continue
    compile "$flavour" "$work/pieces" -DWEFT_MPI_PIECE=5000 tests/mpi/transport.c || continue
    for n in 1 2 3 4; do
        good "$flavour" $n "$work/whole" single "$seed"
        good "$flavour" $n "$work/pieces" multiple "$seed"
    done
    echo "$flavour: $(cat "$work/out")"
done
exit $failed
