#!/bin/sh
# One rank of an MPI program ends before the others: it finalises MPI, ends its process, or leaves the world. The others wait for it,
# and name it. The limit of a wait is half an hour here, and a run of this test has four minutes.
. tests/mpi/run.inc
for flavour in $flavours; do
    compile "$flavour" "$work/early" tests/mpi/early.c || continue
    good "$flavour" 3 "$work/early" void
    for how in finalize leave; do
        good "$flavour" 3 "$work/early" $how
        for rank in 0 2; do
            grep "^rank $rank: -" "$work/out" | grep -q 'rank 1' || fail "$flavour, $how: rank $rank names nobody" "$work/out"
        done
    done
    grep -q 'has left' "$work/out" || fail "$flavour: what rank 1 did" "$work/out"
    # A rank that makes no world at all: MPI_Comm_dup alone would wait for ever. The others say so and call MPI_Abort. How mpirun
    # then ends is not weft's: Open MPI's mpirun can hang after two ranks have called MPI_Abort at once, on a busy machine.
    WEFT_JOIN_SECONDS=2 ranks "$flavour" 3 "$work/early" before >"$work/out" 2>&1
    code=$?
    grep -q '^rank [02]: -.*WEFT_JOIN_SECONDS' "$work/out" || fail "$flavour, before: $code" "$work/out"
    # mpirun may end the others before they have said a word. Then it says who ended, that one has, or nothing, and ends with
    # any code. It must end, and nobody may name another rank.
    ranks "$flavour" 3 "$work/early" exit >"$work/out" 2>&1
    code=$?
    { [ $code != 124 ] && [ $code != 137 ]; } || fail "$flavour, exit: $code" "$work/out"
    [ ! -s "$work/out" ] || grep -qi -e 'rank[^a-z]*1\b' -e '^= *BAD TERMINATION' "$work/out" ||
        fail "$flavour, exit: nobody names rank 1" "$work/out"
done
exit $failed
