#!/bin/sh
# The modules by which the `weft` command, linked to no MPI, works under each mpirun; and what is said when there is
# none, or a wrong one.
. tests/mpi/run.inc
# shellcheck disable=SC2086
"${CC:-cc}" -std=c17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -Iinclude -Isrc tests/mpi/module.c \
    "$WEFT_BUILD_DIR/libweft.a" $libraries -lpthread -lm -ldl -o "$work/module" || exit 1
# shellcheck disable=SC2086
"${CC:-cc}" -std=c17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -Iinclude tests/mpi/late.c \
    "$WEFT_BUILD_DIR/libweft.a" $libraries -lpthread -lm -ldl -o "$work/late" || exit 1
if ldd "$work/module" | grep -qi mpi; then fail 'the program is linked to an MPI'; fi

for flavour in $flavours; do
    if [ ! -e "$WEFT_BUILD_DIR/weft-$flavour.so" ]; then
        echo "SKIP $flavour: this build has no weft-$flavour.so"
        continue
    fi
    for n in 1 3; do WEFT_MODULE_PATH=$WEFT_BUILD_DIR good "$flavour" $n "$work/module" "$flavour" $n; done
    echo "$flavour: $(cat "$work/out")"
    # Who leaves early ends no MPI that another one still has.
    WEFT_MODULE_PATH=$WEFT_BUILD_DIR good "$flavour" 2 "$work/late" 13
    grep -q '^rank 0 of 2 is done$' "$work/out" || fail "$flavour: rank 0 was ended in its work" "$work/out"
    # Found beside the program, and in an installed tree that was moved.
    cp "$WEFT_BUILD_DIR/weft-$flavour.so" "$work/"
    good "$flavour" 2 "$work/module" "$flavour" 2
    rm "$work/weft-$flavour.so"
    cmake --install "$WEFT_BUILD_DIR" --prefix "$work/tree" >"$work/log" 2>&1 || fail 'install' "$work/log"
    mkdir -p "$work/tree/bin"
    cp "$work/module" "$work/tree/bin/"
    mv "$work/tree" "$work/moved"
    good "$flavour" 2 "$work/moved/bin/module" "$flavour" 2
    rm -r "$work/moved"
done

refused() { # flavour, text: without mpirun, as it must fail before MPI has a say
    "$work/module" "$1" refused "$2" >"$work/out" 2>&1 || fail "$1 is not refused with '$2'" "$work/out"
}
mkdir "$work/none"
refused mpich "this weft has no module for MPICH: there is no weft-mpich.so in $work,"
WEFT_MODULE_PATH=$work/none refused openmpi "there is no weft-openmpi.so in $work/none;"
refused ../module "is not the name of an MPI"
echo 'no library' >"$work/none/weft-mpich.so"
WEFT_MODULE_PATH=$work/none refused mpich 'cannot load the module for MPICH'
echo 'int nothing;' >"$work/a.c"
"${CC:-cc}" -shared -fPIC "$work/a.c" -o "$work/none/weft-other.so"
WEFT_MODULE_PATH=$work/none refused other 'is not a module of weft'
printf 'const char weft_module_version[] = "0.0.1"; int weft_module_transport(void) { return 0; }\n' >"$work/a.c"
"${CC:-cc}" -shared -fPIC "$work/a.c" -o "$work/none/weft-old.so"
WEFT_MODULE_PATH=$work/none refused old 'is of weft 0.0.1, this is weft'
exit $failed
