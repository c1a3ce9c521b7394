#!/bin/sh
# The Fortran module `weft` with gfortran and each MPI, from an installed tree.
. tests/mpi/run.inc
cmake --install "$WEFT_BUILD_DIR" --prefix "$work/tree" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$work/tree" -name weft.pc)")
export PKG_CONFIG_PATH
sources=$(pkg-config --variable=fortran weft)
tested=0
for flavour in $flavours; do
    mpifort=mpifort$(suffix "$flavour")
    if ! command -v "$mpifort" >/dev/null || ! "$mpifort" --version >/dev/null 2>&1; then
        echo "SKIP $flavour: no working $mpifort (gfortran)"
        continue
    fi
    mkdir "$work/$flavour"
    here=$PWD
    # shellcheck disable=SC2046
    (cd "$work/$flavour" &&
        "mpicc$(suffix "$flavour")" -Wall -Wextra -Werror -c $(pkg-config --cflags weft) "$sources/weft_fortran.c" &&
        "$mpifort" -std=f2018 -Wall -c "$sources/weft.f90" &&
        "$mpifort" -std=f2018 -fall-intrinsics "$here/tests/mpi/fortran.f90" weft.o weft_fortran.o \
            $(pkg-config --libs weft) -o fortran) >"$work/log" 2>&1 ||
        { fail "$flavour: the Fortran test does not compile" "$work/log"; continue; }
    for n in 1 3; do good "$flavour" $n "$work/$flavour/fortran"; done
    echo "$flavour: $(cat "$work/out")"
    tested=1
done
[ $tested = 1 ] || [ $failed = 1 ] || exit 77
exit $failed
