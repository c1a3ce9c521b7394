#!/bin/sh
# libweft.so shows its public interface and nothing else, under the version of its SONAME; each function of the headers is
# there.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
library=$WEFT_BUILD_DIR/libweft.so
if [ ! -e "$library" ]; then echo "SKIP: no shared library in this build"; exit 77; fi
failed=0
fail() {
    echo "FAILED: $1"
    [ $# -lt 2 ] || cat "$2"
    failed=1
}
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$work/shown"
sed 's/@.*//' "$work/shown" | sort -u >"$work/names"
[ "$(wc -l <"$work/names")" -gt 200 ] || fail 'the list of symbols is too short to be true' "$work/names"
grep -v '^weft_' "$work/names" >"$work/others" || true
[ ! -s "$work/others" ] || fail 'symbols that are not public:' "$work/others"
version=$(readelf -d "$library" | sed -n 's/.*SONAME.*libweft\.so\.\([0-9.]*\)\].*/\1/p')
[ -n "$version" ] || fail 'no SONAME'
grep -v "@@WEFT_$version\$" "$work/shown" >"$work/others" || true
[ ! -s "$work/others" ] || fail "symbols without the version WEFT_$version:" "$work/others"
# Functions that the headers declare, weft/mpi.h aside: it is for libraries with MPI.
echo '#include <weft/weft.h>' >"$work/all.c"
${CC:-cc} -E -P -Iinclude "$work/all.c" | tr '\n' ' ' | sed -E 's/\{[^{}]*\}//g' | tr ';' '\n' |
    sed -nE 's/.*visibility *\( *"default" *\) *\) *\)[^(]*[ *](weft_[a-z0-9_]+) *\(.*/\1/p' | sort -u >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 200 ] || fail 'the list of functions is too short to be true' "$work/declared"
comm -23 "$work/declared" "$work/names" >"$work/others"
[ ! -s "$work/others" ] || fail 'functions of the headers that the library lacks:' "$work/others"
comm -13 "$work/declared" "$work/names" | grep -v '^weft_world_from_mpi$' >"$work/others" || true
[ ! -s "$work/others" ] || fail 'symbols that no header declares:' "$work/others"
exit $failed
