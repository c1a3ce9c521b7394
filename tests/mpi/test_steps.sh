#!/bin/sh
# examples/checkpoint.c and .f90, built outside the tree against an installed weft: saved on n ranks and loaded on m, under
# mpirun and weft launch, the tensors are the same to the bit.
. tests/mpi/run.inc
cmake --install "$WEFT_BUILD_DIR" --prefix "$work/tree" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$work/tree" -name weft.pc)")
export PKG_CONFIG_PATH
cp examples/checkpoint.c examples/checkpoint.f90 "$work/"
cd "$work" || exit 1
weft=$WEFT_BIN

launch() { # N program words...
    launch_n=$1
    shift
    "$weft" launch -n "$launch_n" --no-logs -- "$@" >out 2>&1 || fail "launch -n $launch_n $* (exit $?)" out
}
equal() { # A B: of one step
    "$weft" checkpoint verify "$2" >out 2>&1 || fail "$2 is damaged" out
    "$weft" checkpoint diff "$1" "$2" >out 2>&1 || fail "$1 and $2 differ" out
}
# from_to START PROGRAM N M: N ranks train to step 7; M ranks take the step over, and save it as theirs
from_to() {
    start=$1 program=$2 n=$3 m=$4
    rm -rf run other
    $start "$n" "$program" run 7
    cp -r run other
    rm -rf other/latest
    $start "$m" "$program" other 7
    grep -q '^begins.* 7$' out || fail "$program: $m ranks do not begin at step 7" out
    equal run other
    "$weft" checkpoint inspect run >out 2>&1 || fail "inspect" out
    grep -q 'hidden.weight' out || fail 'inspect lacks a tensor' out
}

${CC:-cc} -O2 -Wall -Wextra -Werror checkpoint.c $(pkg-config --cflags --libs weft) -o checkpoint_c >log 2>&1 ||
    fail 'checkpoint.c does not compile' log
for pair in '1 3' '2 1' '3 4' '4 2'; do
    # shellcheck disable=SC2086
    from_to launch ./checkpoint_c $pair
done
# A run that went on has the bits of a whole one on the same ranks.
rm -rf run whole
launch 2 ./checkpoint_c whole 12
launch 2 ./checkpoint_c run 7
launch 2 ./checkpoint_c run 12
equal whole run
"$weft" checkpoint reshard run sharded --format hf >out 2>&1 || fail 'reshard' out

for flavour in $flavours; do
    mpirun_of() { good "$flavour" "$@"; }
    most=4
    [ "$flavour" = openmpi ] || most=2
    for pair in "1 $most" "$most 1" '2 2'; do
        # shellcheck disable=SC2086
        from_to mpirun_of "$PWD/checkpoint_c" $pair
    done
    has_fortran "$flavour" || continue
    fortran "$flavour" checkpoint_f checkpoint.f90 -O2 >log 2>&1 || { fail "$flavour: checkpoint.f90" log; continue; }
    from_to mpirun_of "$PWD/checkpoint_f" 2 "$most"
    from_to mpirun_of "$PWD/checkpoint_f" "$most" 1
    echo "$flavour: saved on some ranks, loaded on others"
done
exit $failed
