#!/bin/sh
# Names of the code in the documentation exist: functions, types, enumerators, macros and variables (weft_, wefti_,
# WEFT_, WEFTI_), and source files with their folder.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
pages=$(ls README.md docs/*.md docs/*/*.md | grep -vE 'design/(recovery|data-plane)') # these speak of what is not there yet
find src include tests fortran cmake modules bench examples tools .ci CMakeLists.txt Makefile -type f ! -name '*.md' \
    ! -path tests/tools/test_docs_names.sh -exec grep -ohaE '\b(weft|WEFT)I?i?_[A-Za-z0-9_]+' {} + 2>/dev/null | sort -u >"$work/known"
[ "$(wc -l <"$work/known")" -gt 1000 ] || { echo "the tree was not found"; exit 1; }
find src fortran bench modules tests -name 'weft*' | sed 's,.*/,,; s/[.].*//' >>"$work/known"
# Options of the build: weft_dependency(NAME ...) makes WEFT_NAME.
sed -n 's/^ *option(\(WEFT_[A-Z_]*\).*/\1/p' CMakeLists.txt cmake/*.cmake >>"$work/known"
sed -n 's/^ *weft_dependency(\([A-Z]*\) .*/WEFT_\1/p' CMakeLists.txt cmake/*.cmake >>"$work/known"
sort -u "$work/known" -o "$work/known"
for page in $pages; do
    # Not patterns: WEFT_* and weft_graph_*, nor placeholders such as wefti_build_NAME.
    grep -noE '\b(weft|WEFT)I?i?_[A-Za-z0-9_]+\*?' "$page" | grep -v '\*$' | grep -vE '_$|_(NAME|name|X)$' >"$work/names"
    # Names that the page itself defines, in pieces for files: tests/build/test_guides.sh compiles these.
    awk '/^```/ { on = NF > 1; next } on' "$page" | grep -oE '\b(weft|WEFT)I?i?_[A-Za-z0-9_]+' | sort -u >"$work/own"
    cut -d: -f2 "$work/names" | sort -u | comm -23 - "$work/known" | comm -23 - "$work/own" >"$work/gone"
    while IFS= read -r name; do
        line=$(grep -m1 ":$name$" "$work/names" | cut -d: -f1)
        echo "$page:$line: there is no $name"
        bad=1
    done <"$work/gone"
    grep -noE '`(src|include|tests|bench|examples|tools|fortran|cmake)/[A-Za-z0-9_/.-]+\.(c|h|sh|def|py|f90|inc|cmake)`' "$page" |
        tr -d '`' | grep -v NAME >"$work/files"
    while IFS=: read -r line file; do
        [ -e "$file" ] || { echo "$page:$line: there is no $file"; bad=1; }
    done <"$work/files"
done
[ $bad = 0 ] && echo "names in $(echo "$pages" | wc -l) pages"
exit $bad
