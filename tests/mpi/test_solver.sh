#!/bin/sh
# examples/mpi_solver.c and .f90, built outside the tree against an installed weft: the network learns, with the same
# losses however it is split.
. tests/mpi/run.inc
cmake --install "$WEFT_BUILD_DIR" --prefix "$work/tree" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$work/tree" -name weft.pc)")
export PKG_CONFIG_PATH
cp examples/mpi_solver.c examples/mpi_solver.f90 "$work/"

# learns FLAVOUR N PROGRAM HOW
learns() {
    good "$1" "$2" "$3" "$4"
    grep '^step' "$work/out" >"$work/steps.$4"
    [ "$(wc -l <"$work/steps.$4")" = 5 ] || fail "$*: not five lines" "$work/out"
    awk 'NR == 1 { first = $4 } { last = $4 } END { exit !(last > 0 && last < first / 100) }' "$work/steps.$4" ||
        fail "$*: the loss does not fall" "$work/out"
}
# The first losses of two runs, to 2 percent: later ones differ as Adam's steps do where gradients are rounding.
alike() {
    paste "$work/steps.data" "$work/steps.$1" | head -2 |
        awk '{ d = $4 - $8; if (d < 0) d = -d; if (d > 0.02 * $4) exit 1 }' ||
        fail "$2: $1 learns otherwise than data" "$work/steps.$1"
}
# refuses FLAVOUR PROGRAM words...: says how it is used, once, and ends with 2. Alone as with others.
refuses() {
    refuses_flavour=$1
    shift
    for n in 2 1; do
        ranks "$refuses_flavour" $n "$@" >"$work/out" 2>&1
        code=$?
        [ $code = 2 ] && [ "$(grep -c '^usage: mpi_solver ' "$work/out")" = 1 ] || fail "$*, $n ranks: exit $code, expected 2 and its usage" "$work/out"
    done
}
# Four ranks; two where waiting ranks do not let others run (MPICH).
program() { # FLAVOUR PROGRAM
    n=4
    [ "$1" = openmpi ] || n=2
    for how in data zero tensor pipeline; do
        learns "$1" $n "$2" $how
        alike $how "$1, $n ranks, $(basename "$2")"
    done
    refuses "$1" "$2" nonsense
    refuses "$1" "$2" ''
    refuses "$1" "$2" 'data            zero'
    refuses "$1" "$2" data zero
    learns "$1" 3 "$2" pipeline # a pair, and one that is alone
    echo "$1: $(basename "$2") learns"
}

for flavour in $flavours; do
    # shellcheck disable=SC2046
    "mpicc$(suffix "$flavour")" -O2 -Wall -Wextra -Werror "$work/mpi_solver.c" $(pkg-config --cflags --libs weft) \
        -o "$work/solver_c" >"$work/log" 2>&1 || { fail "$flavour: mpi_solver.c" "$work/log"; continue; }
    program "$flavour" "$work/solver_c"
    has_fortran "$flavour" || continue
    (cd "$work" && fortran "$flavour" solver_f mpi_solver.f90 -O2) >"$work/log" 2>&1 || { fail "$flavour: mpi_solver.f90" "$work/log"; continue; }
    program "$flavour" "$work/solver_f"
done
exit $failed
