#!/bin/sh
# Each public header declares what frees what it hands out, and speaks of no function that is nowhere; it compiles alone, in C
# and in C++. The numbers of the version are those of the text, of the library and of the Fortran module.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAILED: $1"
    failed=1
}
cc=${CC:-cc}
# Names in comments, and names that a header declares or includes.
comments() { # header
    tr '\n' ' ' <"$1" | grep -o '/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/'
}
declared() { # headers...: functions, types, enumerators and macros
    for one; do echo "#include \"weft/$(basename "$one")\""; done >"$work/one.c"
    "$cc" -E -dD -P -Iinclude ${mpi:-} "$work/one.c" | grep -o '\b\(weft\|WEFT\)_[A-Za-z0-9_]*' | sort -u
}
mpi=$(mpicc.openmpi --showme:compile 2>/dev/null || mpicc --showme:compile 2>/dev/null || true)
has_mpi=true
echo '#include <mpi.h>' >"$work/mpi.c"
# shellcheck disable=SC2086
"$cc" -fsyntax-only $mpi "$work/mpi.c" 2>/dev/null || has_mpi=false
every=include/weft/weft.h
if $has_mpi; then every="$every include/weft/mpi.h"; else echo "weft/mpi.h: not tested without MPI"; fi
# shellcheck disable=SC2086
declared $every >"$work/all"
[ "$(wc -l <"$work/all")" -gt 500 ] || fail 'the list of names is too short to be true'
cxx=
command -v c++ >/dev/null && cxx=c++
headers=0
for header in include/weft/*.h; do
    name=$(basename "$header")
    if [ "$name" = mpi.h ] && ! $has_mpi; then continue; fi
    headers=$((headers + 1))
    declared "$header" >"$work/own"
    comments "$header" >"$work/comments"
    # "Freed with weft_text_free", also over two lines
    sed 's/ \* / /g; s/  */ /g' "$work/comments" |
        grep -oi 'fre[ed]\+ \(both \|it \|them \)\?with weft_[a-z0-9_]*\|for weft_[a-z_]*_destroy\|weft_[a-z_]*_free\b' |
        grep -o 'weft_[a-z0-9_]*' | sort -u >"$work/freeing" || true
    for free in $(comm -23 "$work/freeing" "$work/own"); do fail "$name: $free frees what it hands out, and is not declared"; done
    grep -o '\bweft_[a-z0-9_]*[a-z0-9]\b\|\bWEFT_E_[A-Z_]*\b' "$work/comments" | sort -u >"$work/named" || true
    for word in $(comm -23 "$work/named" "$work/all"); do fail "$name speaks of $word, which no header declares"; done
    echo "#include \"weft/$name\"" >"$work/one.c"
    # shellcheck disable=SC2086
    "$cc" -std=c17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude $mpi "$work/one.c" || fail "$name in C"
    [ -z "$cxx" ] || [ "$name" = mpi.h ] ||
        "$cxx" -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -x c++ "$work/one.c" || fail "$name in C++"
done
[ "$headers" -gt 20 ] || fail "there are $headers headers"
[ -n "$cxx" ] || echo "C++: not tested without c++"

# ---- the version ----
cat >"$work/version.c" <<'END'
#include <stdio.h>
#include <weft/version.h>
#if WEFT_VERSION_NUMBER < WEFT_VERSION_OF(0, 1, 0) || WEFT_VERSION_NUMBER >= WEFT_VERSION_OF(WEFT_VERSION_MAJOR + 1, 0, 0)
#error the number of the version does not order versions
#endif
int main(void) {
    printf("%s %d\n", WEFT_VERSION, WEFT_VERSION_NUMBER);
    printf("%d.%d.%d %d\n", WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH,
           WEFT_VERSION_OF(WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH));
    return 0;
}
END
"$cc" -Wall -Werror -Iinclude "$work/version.c" -o "$work/version"
"$work/version" >"$work/versions"
[ "$(sort -u "$work/versions" | wc -l)" = 1 ] || fail "the version's numbers are not its text: $(cat "$work/versions")"
[ "$("$WEFT_BIN" --version | awk '{ print $2 }')" = "$(awk 'NR == 1 { print $1 }' "$work/versions")" ] || fail 'the command has another version'
for part in MAJOR MINOR PATCH; do
    number=$(awk -v name="WEFT_VERSION_$part" '$2 == name { print $3 }' include/weft/version.h)
    grep -q "WEFT_VERSION_$part = $number\b" fortran/weft.f90 || fail "the Fortran module has another WEFT_VERSION_$part"
done
exit $failed
