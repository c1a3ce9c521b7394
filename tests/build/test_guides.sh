#!/bin/sh
# docs/guide/how-to-add-an-op.md and docs/guide/how-to-models.md are complete: a copy of the tree that gets nothing but the pieces on
# these pages builds, without warnings, and passes the tests and commands that the pages name.
#
# A block that begins with "```c FILE" is a new file; in one that begins with "```diff FILE", lines with + are added between
# the lines around them, which must be there once. Only the files that include a changed header are compiled again, without
# optimization, in front of the library of this build: that takes half a minute instead of several.
set -u
root=$PWD
commands=$WEFT_BUILD_DIR/compile_commands.json
[ -f "$commands" ] || { echo "SKIP: this generator writes no compile_commands.json"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'model: {family: gpt2}' >"$work/job.yaml"
if "$WEFT_BUILD_DIR/weft" train "$work/job.yaml" --job 2>&1 | grep -q 'no libyaml'; then
    echo "SKIP: this build has no libyaml, which reads the pages' job files"
    exit 77
fi
unset WEFT_RANK WEFT_SIZE RANK WORLD_SIZE MASTER_ADDR MASTER_PORT MS_ROLE RANK_TABLE_FILE
tree=$work/tree
mkdir "$tree"
cp -r src include tests docs fortran "$tree"
failed=0
fail() {
    echo "$1"
    [ $# -gt 1 ] && cat "$2"
    failed=1
}

# ---- the pieces of a page ----

# Writes each block to $work/pieces/NUMBER, and "NUMBER KIND FILE" to $work/list.
pieces() {
    rm -rf "$work/pieces"
    mkdir "$work/pieces"
    awk -v to="$work/pieces/" '
        /^ *```/ && on { on = 0; close(file); next }
        /^ *```/ {
            on = 1; number++; file = to number; printf "" >file
            kind = $1; sub(/^```/, "", kind)
            if ($2 != "" || kind == "sh" || kind == "yaml") print number, kind, ($2 == "" ? "-" : $2)
            next
        }
        on { print >file }' "$root/$1" >"$work/list"
}

# edit PIECE FILE
edit() {
    awk -v piece="$1" -v file="$2" '
        FNR == NR {
            mark[++pieces] = substr($0, 1, 1); text[pieces] = substr($0, 2)
            if (mark[pieces] != "+") old[++kept] = text[pieces]
            next
        }
        { line[++lines] = $0 }
        END {
            for (i = 1; i + kept - 1 <= lines; i++) {
                for (k = 1; k <= kept && line[i + k - 1] == old[k]; k++) ;
                if (k > kept) { found++; at = i }
            }
            if (found != 1) exit 1
            for (i = 1; i < at; i++) print line[i]
            for (k = 1; k <= pieces; k++) if (mark[k] != "-") print text[k]
            for (i = at + kept; i <= lines; i++) print line[i]
        }' "$1" "$tree/$2" >"$work/edited" && cp "$work/edited" "$tree/$2"
}

# ---- building ----

# "FILE<tab>COMMAND" for each object of this build.
awk -F'"' '/"command": / { command = $0; sub(/^ *"command": "/, "", command); sub(/",? *$/, "", command) }
    /"file": / { print $4 "\t" command }' "$commands" | sed 's/\\"/"/g; s/\\\\/\\/g' >"$work/commands"
grep -q "/src/ops/dense/matmul.c	" "$work/commands" || { echo "$commands was not understood"; exit 1; }

# place FILE: of its object.
place() {
    case $1 in src/cli/*) folder=cli ;; src/*) folder=library ;; *) folder=tests ;; esac
    echo "$work/objects/$folder/$(echo "$1" | tr / .).o"
}

# object FILE: the command that compiles it from the copy.
object() {
    line=$(grep "^$root/$1	" "$work/commands" | head -1)
    [ "$line" ] || line=$(grep "^$root/$(case $1 in src/*) echo src/ops/dense/matmul.c ;; *) echo tests/ops/test_ops.c ;; esac)	" "$work/commands")
    old=${line%%	*}
    # The file and its folders become those of the copy; what comes last counts.
    command=$(printf '%s' "${line#*	}" | sed "s, -o [^ ]*, ,; s,$old,$tree/$1,g; s,-I$root/,-I$tree/,g")
    echo "$command -O0 -g0 -U_FORTIFY_SOURCE -Wno-frame-larger-than -o $(place "$1")"
}

# Sources that include one of these files, directly or not.
dependents() {
    (
        cd "$tree" || exit
        echo "$@" | tr ' ' '\n' >"$work/changed"
        : >"$work/seen"
        while [ -s "$work/changed" ]; do
            cat "$work/changed" >>"$work/seen"
            sed -n 's,^src/\(.*\.\(h\|def\)\)$,#include "\1",p; s,^include/\(.*\.h\)$,#include "\1",p' "$work/changed" >"$work/includes"
            : >"$work/next"
            [ -s "$work/includes" ] && grep -rlFf "$work/includes" src include | sort -u | grep -vxFf "$work/seen" >"$work/next"
            mv "$work/next" "$work/changed"
        done
        grep '^src/.*\.c$' "$work/seen" | sort -u
    )
}

compile_all() { # files on the input; two at a time
    mkdir -p "$work/objects/cli" "$work/objects/library" "$work/objects/tests"
    while IFS= read -r file; do object "$file"; done >"$work/compile"
    xargs -P 2 -d '\n' -n 1 sh -c <"$work/compile" >"$work/log" 2>&1 || { fail "$page: it does not compile" "$work/log"; return 1; }
}

libraries="$(sed -n 's/^Libs.private://p' "$WEFT_BUILD_DIR/weft.pc") -lcmocka"
sanitize=$(sed -n 's/^WEFT_SANITIZE:[A-Z]*=\(..*\)/-fsanitize=\1/p' "$WEFT_BUILD_DIR/CMakeCache.txt")
grep -q '^WEFT_COVERAGE:BOOL=ON' "$WEFT_BUILD_DIR/CMakeCache.txt" && sanitize="$sanitize --coverage"

# link OUT OBJECTS...: in front of the library, whose own objects of these files are then not taken.
link() {
    out=$1
    shift
    # shellcheck disable=SC2086
    ${CC:-cc} $sanitize "$@" "$work"/objects/library/*.o "$WEFT_BUILD_DIR/libweft.a" $libraries -o "$out" >"$work/log" 2>&1 ||
        fail "$page: $out cannot be linked" "$work/log"
}

# A target of the page: a test of this name, or the command.
build() {
    case $1 in
    weft_cli)
        kept=$(find "$WEFT_BUILD_DIR/CMakeFiles/weft_cli.dir" -name '*.o' | while read -r o; do
            name=${o##*weft_cli.dir/}
            [ -f "$(place "${name%.o}")" ] || echo "$o"
        done)
        mkdir -p "$work/bin"
        # shellcheck disable=SC2086
        link "$work/bin/weft" "$work"/objects/cli/*.o $kept
        ;;
    *)
        source=tests/$(echo "$1" | sed 's,\.,/test_,').c
        [ -f "$tree/$source" ] || { fail "$page: there is no test $1"; return; }
        echo "$source" | compile_all && link "$work/$1" "$(place "$source")"
        ;;
    esac
}

# ---- following a page ----

follow() {
    page=docs/guide/$1
    only=$2
    rm -rf "$work/objects" "$work/run"
    mkdir "$work/run"
    pieces "$page"
    changed=
    while read -r number kind file; do
        piece=$work/pieces/$number
        case $kind in
        c)
            mkdir -p "$(dirname "$tree/$file")"
            cp "$piece" "$tree/$file" && changed="$changed $file"
            ;;
        diff) edit "$piece" "$file" && changed="$changed $file" || fail "$page: this piece does not fit $file:" "$piece" ;;
        yaml) cp "$piece" "$work/run/job.yaml" ;;
        esac
    done <"$work/list"
    [ "$(echo "$changed" | wc -w)" -ge 6 ] || fail "$page: pieces were not found" "$work/list"
    [ $failed = 0 ] || return
    # shellcheck disable=SC2086
    dependents $changed >"$work/sources"
    compile_all <"$work/sources" || return
    echo "$page: $(echo "$changed" | wc -w) pieces, $(wc -l <"$work/sources") files compiled"
    # Everything that the page builds; then its tests, and its commands.
    sed -n 's/^cmake --build .*--target //p' "$work"/pieces/* | tr ' ' '\n' >"$work/targets"
    [ -s "$work/targets" ] || fail "$page: builds nothing"
    for target in $(cat "$work/targets"); do
        build "$target"
        [ $failed = 0 ] || return
        [ "$target" != weft_cli ] || continue
        (cd "$tree" && env "$only" "$work/$target") >"$work/log" 2>&1 || fail "$page: $target fails" "$work/log"
    done
    (cd "$tree" && sh tests/ops/test_lists.sh && sh tests/ops/test_docs.sh) >"$work/log" 2>&1 || fail "$page: lists" "$work/log"
    awk 'BEGIN { for (i = 0; i < 400; i++) print "weft " i " runs over and under warp " (i * 7) % 13 }' >"$work/run/text.txt"
    grep -h '^weft ' "$work"/pieces/* >"$work/lines"
    while IFS= read -r command; do
        (cd "$work/run" && PATH=$work/bin:$PATH HOME=$work sh -c "$command" </dev/null) >"$work/log" 2>&1 ||
            fail "$page: exit $?: $command" "$work/log"
    done <"$work/lines"
}

follow how-to-add-an-op.md WEFT_TEST_OP=distances
[ $failed = 0 ] || exit 1
follow how-to-models.md WEFT_TEST_NOTHING=1
exit $failed
