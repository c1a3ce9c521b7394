#!/bin/sh
# The Fortran module `weft` with gfortran and each MPI, from an installed tree.
. tests/mpi/run.inc
cmake --install "$WEFT_BUILD_DIR" --prefix "$work/tree" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$work/tree" -name weft.pc)")
export PKG_CONFIG_PATH
tested=0
for flavour in $flavours; do
    has_fortran "$flavour" || continue
    mkdir "$work/$flavour"
    here=$PWD
    (cd "$work/$flavour" &&
        fortran "$flavour" fortran "$here/tests/mpi/fortran.f90" -std=f2018 -fall-intrinsics -fcheck=all,no-array-temps -g) >"$work/log" 2>&1 ||
        { fail "$flavour: the Fortran test does not compile" "$work/log"; continue; }
    for n in 1 3; do good "$flavour" $n "$work/$flavour/fortran"; done
    echo "$flavour: $(cat "$work/out")"
    tested=1
done
[ $tested = 1 ] || [ $failed = 1 ] || exit 77
exit $failed
