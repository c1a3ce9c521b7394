#!/bin/sh
# examples/heat.c, built outside the tree against an installed weft: the same bits however the ranks divide the box, under
# weft launch and mpirun.
. tests/mpi/run.inc
cmake --install "$WEFT_BUILD_DIR" --prefix "$work/tree" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$work/tree" -name weft.pc)")
export PKG_CONFIG_PATH
cp examples/heat.c "$work/"
cd "$work" || exit 1
${CC:-cc} -O2 -Wall -Wextra -Werror heat.c $(pkg-config --cflags --libs weft) -o heat >log 2>&1 || { fail 'heat.c does not compile' log; exit 1; }

./heat >out 2>&1 || fail 'heat alone' out
grep -q '^after 50 steps: [0-9a-f]\{16\}$' out || fail 'no result' out
cp out alone
for parts in '2 1 1' '1 1 2' '1 3 1' '2 2 1' '1 2 2' '2 2 2'; do
    # shellcheck disable=SC2086
    set -- $parts
    "$WEFT_BIN" launch -n $(($1 * $2 * $3)) --no-logs -- ./heat "$@" >out 2>&1 || fail "weft launch, $parts (exit $?)" out
    grep '^after' out | cmp -s - alone || fail "$parts: other bits than of one rank" out
done
"$WEFT_BIN" launch -n 2 --no-logs -- ./heat 3 1 1 >out 2>&1 && fail '2 ranks for a grid of 3 parts' out
grep -q '3 x 1 x 1 parts for 2 members' out || fail '2 ranks for a grid of 3 parts are not refused' out
for flavour in $flavours; do
    good "$flavour" 2 "$work/heat" 1 2 1
    grep '^after' "$work/out" | cmp -s - alone || fail "$flavour: other bits than of one rank" "$work/out"
done
exit $failed
