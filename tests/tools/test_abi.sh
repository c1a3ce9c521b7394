#!/bin/sh
# tools/abi finds a change of the headers that breaks programs, and lets structures with struct_bytes grow at their end.
set -u
command -v abidiff >/dev/null 2>&1 && command -v python3 >/dev/null 2>&1 || { echo "no abidiff or python3 here"; exit 77; }
here=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
unset CI
header=$work/include/weft/data.h
renew() {
    rm -rf "$work/include" "$work/tools" && mkdir "$work/tools" && cp -r "$here/include" "$work/include" &&
        cp "$here/tools/abi" "$here/tools/abi.txt" "$work/tools/" && git -C "$work" init -q
}
expect() { # what, status, words, sed's command for weft/data.h
    renew
    sed -i "$4" "$header"
    [ -z "$4" ] || ! cmp -s "$header" "$here/include/weft/data.h" || { echo "FAILED: $1: nothing changed"; failed=1; }
    "$work/tools/abi" --check >"$work/log" 2>&1
    status=$?
    [ $status = "$2" ] && grep -q "$3" "$work/log" && return
    echo "FAILED: $1: exit $status"
    cat "$work/log"
    failed=1
}
expect "as it is" 0 "clean" ""
expect "a member at the end" 1 "none breaks a program" 's/^    bool skip_bad_lines;/&\n    int64_t more, still_more;/'
expect "a member between others" 1 "would break" 's/^    int64_t vocab;/    int64_t more;\n&/'
expect "a member of another type" 1 "would break" 's/^    bool skip_bad_lines;/    double skip_bad_lines;/'
expect "a member that goes" 1 "would break" '/^    bool skip_bad_lines;/d'
expect "a function that goes" 1 "would break" '/^WEFT_API void weft_data_close/d'
expect "one more argument" 1 "would break" 's/^WEFT_API void weft_data_close(weft_data \*data/&, int more/'
expect "a function that comes" 1 "none breaks a program" 's/^WEFT_API void weft_data_close/WEFT_API int weft_data_more(int a);\n&/'
expect "options without a size" 1 "weft_data_new is filled in by callers" \
    's/^WEFT_API void weft_data_close/typedef struct weft_data_new {\n int a;\n} weft_data_new;\nWEFT_API int weft_data_more(const weft_data_new *a);\n&/'
# A released SONAME is kept: --write takes what breaks no program only.
renew
sed -i '/^    bool skip_bad_lines;/d' "$header"
git -C "$work" -c user.name=a -c user.email=a@b commit -q --allow-empty -m start && git -C "$work" tag v0.1.0 &&
    ! "$work/tools/abi" --write >"$work/log" 2>&1 && grep -q "version\.h" "$work/log" ||
    { echo "FAILED: a released interface was overwritten"; cat "$work/log"; failed=1; }
exit $failed
