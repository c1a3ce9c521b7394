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

# Without MPI: the module, the C but for that of MPI, and weft launch.
cat >"$work/alone.f90" <<'END'
program alone
    use weft
    implicit none
    type(weft_world) :: world
    integer :: sum(1)
    if (weft_world_join(world) < 0) error stop 'join'
    sum = weft_world_rank(world)
    if (weft_all_reduce_in_place(world, sum, WEFT_REDUCE_SUM) < 0) error stop 'all_reduce'
    print '(2(a, i0))', 'ranks ', weft_world_size(world), ' sum ', sum(1)
    call weft_world_leave(world)
end program
END
if command -v gfortran >/dev/null && [ -x "$WEFT_BUILD_DIR/weft" ]; then
    sources=$(pkg-config --variable=fortran weft)
    # shellcheck disable=SC2046
    (mkdir "$work/alone" && cd "$work/alone" && cp "$sources"/weft_fortran* . && rm weft_fortran_mpi.c &&
        ${CC:-cc} -c -idirafter "$(gfortran -print-file-name=include)" $(pkg-config --cflags weft) weft_fortran*.c &&
        gfortran "$sources/weft.f90" ../alone.f90 weft_fortran*.o $(pkg-config --libs weft) -o alone) >"$work/log" 2>&1 ||
        fail "the module does not compile without MPI" "$work/log"
    "$WEFT_BUILD_DIR/weft" launch -n 3 --no-logs -- "$work/alone/alone" >"$work/out" 2>&1 && grep -q '^ranks 3 sum 3$' "$work/out" ||
        fail "three ranks without MPI" "$work/out"
    echo "without MPI: $(grep '^ranks' "$work/out")"
    tested=1
fi
[ $tested = 1 ] || [ $failed = 1 ] || exit 77
exit $failed
