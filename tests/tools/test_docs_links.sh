#!/bin/sh
# The documentation points at what exists: files behind relative links, the index of all pages, verbs and options
# of the command (docs/reference/command.md has all of them), keys of job files; and its job files load and its C programs
# compile.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
complain() {
    echo "$*"
    bad=1
}
pages=$(ls ./*.md docs/*.md docs/*/*.md bench/*/*.md)
[ "$(echo "$pages" | wc -l)" -gt 5 ] || { echo "the pages were not found"; exit 1; }

# Without the command only what needs no command is checked.
WEFT_BIN=${WEFT_BIN:-build/weft}
has_command=1
[ -x "$WEFT_BIN" ] || has_command=

# Code blocks of a page, by language: block LANGUAGE PAGE prints them, each behind a line "@@ line number".
block() {
    awk -v language="$1" '
        /^ *```/ { if (on) on = 0; else if ($0 ~ "^ *```" language "$") { on = 1; print "@@ " NR } ; next }
        on' "$2"
}

[ -z "$has_command" ] || "$WEFT_BIN" --help >"$work/verbs"
for page in $pages; do
    # Links, outside of code blocks.
    awk '/^ *```/ { code = !code; next } !code' "$page" | grep -o '](\([^)]*\))' | sed 's/^](//; s/)$//' >"$work/links"
    while IFS= read -r link; do
        case $link in http://* | https://* | mailto:* | '#'*) continue ;; esac
        [ -e "$(dirname "$page")/${link%%#*}" ] || complain "$page: there is no $link"
    done <"$work/links"

    [ -n "$has_command" ] || continue

    # Commands: lines of shell blocks and inline code that begin with weft; one within `weft launch` is one of its own.
    { block sh "$page"; grep -o '`weft [^`]*`' "$page" | tr -d '`'; } |
        sed -n 's/^\$ //; s/.*[|(] *weft /weft /; /^weft [a-z]/p' | sed 's/  *#.*//' |
        sed 's/ -- weft /\
weft /' >"$work/commands"
    while read -r _ verb rest; do
        grep -q "^  $verb " "$work/verbs" || [ "$verb" = help ] || { complain "$page: there is no weft $verb"; continue; }
        "$WEFT_BIN" "$verb" --help >"$work/help" 2>&1
        for option in $(echo "$rest" | grep -o -- ' --[a-z][a-z-]*'); do
            grep -q "^  $option " "$work/help" || complain "$page: weft $verb knows no $option"
        done
        [ "$verb" = checkpoint ] && continue # which has names of tensors there, and no job
        for key in $(echo "$rest" | grep -o '[a-z_]*\.[a-z_.]*=' | tr -d '='); do
            echo "$key" >>"$work/keys"
        done
    done <"$work/commands"

    # Keys of job files, in inline code. Designs speak of what is not there yet.
    case $page in docs/design/recovery.md | docs/design/data-plane.md) continue ;; esac
    grep -oE '`(model|data|train|checkpoint|device|parallel)\.[a-z_.]+[`=:]' "$page" | tr -d '`=:' |
        grep -vE '\.(safetensors|json|npy|bin|yaml|txt|md|c|h|vocab\.txt)$' >>"$work/keys"
    "$WEFT_BIN" train --keys | sed -n 's/^| `\([a-z_.]*\)`.*/\1/p' >"$work/known"
    while read -r key; do
        [ -f "tests/${key%%.*}/test_${key#*.}.c" ] || [ -f "tests/${key%%.*}/test_${key#*.}.sh" ] && continue # ctest's name of a test
        grep -qE "^$(echo "$key" | sed 's/\./\\./g')(\.|$)" "$work/known" || complain "$page: there is no key $key"
    done <"$work/keys"
    : >"$work/keys"
done

# Every page of docs/ is in the index.
for page in docs/*/*.md; do
    name=${page#docs/}
    grep -q "]($name)" docs/README.md || complain "docs/README.md does not link $name"
done

# Every option of every verb is in the verb's part of docs/reference/command.md.
[ -z "$has_command" ] || for verb in $("$WEFT_BIN" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    awk -v verb="$verb" '/^## / { on = $0 == "## weft " verb } on' docs/reference/command.md >"$work/part"
    [ -s "$work/part" ] || complain "docs/reference/command.md has no part for weft $verb"
    for option in $("$WEFT_BIN" "$verb" --help | sed -n 's/^  \(--[a-z-]*\) .*/\1/p'); do
        [ "$option" = --help ] || grep -qE -- "\`${option}[\` ]" "$work/part" || complain "docs/reference/command.md: weft $verb has $option"
    done
done

# Whole job files load. Pages show parts of jobs, too; these are jobs as well.
if [ -n "$has_command" ] && "$WEFT_BIN" info --quick --json | grep -q '"libyaml": true'; then
    for page in $pages; do
        block yaml "$page" | awk -v to="$work/job" '/^@@ / { n++; next } n { print > (to "." n ".yaml") }'
        for job in "$work"/job.*.yaml; do
            [ -f "$job" ] || continue
            "$WEFT_BIN" train "$job" --job >/dev/null 2>"$work/error" || complain "$page: $(cat "$work/error")"
            rm "$job"
        done
    done
fi

# Whole C programs compile against the public headers.
for page in $pages; do
    block c "$page" | awk -v to="$work/program" '/^@@ / { n++; next } n { print > (to "." n ".c") }'
    for program in "$work"/program.*.c; do
        [ -f "$program" ] || continue
        if grep -q '^int main' "$program"; then
            "${CC:-cc}" -std=c17 -Wall -Werror -fsyntax-only -Iinclude "$program" 2>"$work/error" ||
                complain "$page: $(cat "$work/error")"
        fi
        rm "$program"
    done
done
[ $bad = 0 ] && [ -z "$has_command" ] && { echo "SKIP: $WEFT_BIN is not built, so only links and programs were checked"; exit 77; }
exit $bad
