#!/bin/sh
# weft_world_from_mpi and collectives on it, on split communicators, with and without threads in MPI.
. tests/mpi/run.inc
for flavour in $flavours; do
    compile "$flavour" "$work/worlds" tests/mpi/worlds.c || continue
    for n in 1 2 3 4; do good "$flavour" $n "$work/worlds" single; done
    for n in 2 4; do good "$flavour" $n "$work/worlds" multiple; done
    echo "$flavour: $(cat "$work/out")"
done
exit $failed
