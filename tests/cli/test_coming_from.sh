#!/bin/sh
# The pages for users of MindSpore and PyTorch keep their word: the example of each row runs, each C function is declared,
# each row says what weft has or that it is not there; variables of MindSpore without effect are named.
. tests/cli/run.inc
root=$OLDPWD
# shellcheck source=tests/cli/pages.inc
. "$OLDPWD/tests/cli/pages.inc"
mv text.txt text

"$weft" --help | sed -n 's/^  \([a-z]*\) .*/\1/p' | while read -r verb; do "$weft" "$verb" --help; done |
    grep -oE -- '--[a-z][a-z-]*' | sort -u >options
"$weft" train --keys | sed -n 's/^| `\([a-z_.]*\)`.*/\1/p' | sort -u >keys
[ "$(wc -l <options)" -gt 30 ] && [ "$(wc -l <keys)" -gt 50 ] || fail 'options or keys were not found' options

for page in mindspore pytorch; do
    file=$root/docs/guide/coming-from-$page.md
    mkdir $page
    cp text $page/text.txt
    awk '/^```yaml/ { on = 1; next } /^```/ { if (on) exit } on' "$file" >$page/job.yaml
    # The last cell of each row, without the rows of titles and lines.
    awk '/^\| / && !/^\|---/ && !/ example \|$/ { sub(/ *\|$/, ""); n = split($0, cell, / *\| */); print NR ": " cell[n] }' "$file" >examples
    [ "$(wc -l <examples)" -gt 30 ] || fail "coming-from-$page.md: rows were not found" examples
    ran=0
    while IFS= read -r line; do
        number=${line%%: *} cell=${line#*: }
        case $cell in
        'not there' | 'see '*) continue ;;
        '`'*'`') ;;
        *) fail "coming-from-$page.md:$number: '$cell' is neither an example nor 'not there'" && continue ;;
        esac
        command=$(printf '%s' "$cell" | sed 's/^`//; s/`$//')
        ran=$((ran + 1))
        (cd $page && timeout 120 sh -c "$command" </dev/null >out 2>&1) ||
            fail "coming-from-$page.md:$number: exit $?: $command" $page/out
    done <examples
    [ $ran -gt 25 ] || fail "coming-from-$page.md: $ran examples"
    # Every C function is declared.
    for name in $(grep -o '`weft_[a-z0-9_]*' "$file" | tr -d '`' | sort -u); do
        grep -q "\b$name\b" "$root"/include/weft/*.h || fail "coming-from-$page.md: the headers have no $name"
    done
    # Each option and job key of weft's column exists.
    awk -F'|' '/^\| / { print $3 }' "$file" | grep -oE '`[^`]*`' >column
    grep -oE -- '--[a-z][a-z-]*' column | sort -u | comm -23 - options >unknown
    grep -oE '\b(model|data|train|checkpoint|memory|device|parallel)\.[a-z_.]*[a-z]' column | sort -u >named
    while IFS= read -r key; do
        grep -qE "^$(echo "$key" | sed 's/\./\\./g')(\.|$)" keys || echo "$key" >>unknown
    done <named
    [ -s unknown ] && fail "coming-from-$page.md: weft has no" unknown
    echo "coming-from-$page.md: $ran examples"
done

# --- variables without effect ---
for variable in MS_ENABLE_RECOVERY=1 MS_RECOVERY_PATH=recovery GROUP_INFO_FILE=groups.pb; do
    (cd mindspore && env "$variable" "$weft" train job.yaml train.steps=1 >out 2>err) || fail "$variable ends the run" mindspore/err
    has_facts mindspore/err "${variable%=*}|docs/guide/coming-from-mindspore.md" || fail "nothing is said of $variable" mindspore/err
done
(cd mindspore && MS_ENABLE_RECOVERY=0 "$weft" train job.yaml train.steps=1 >out 2>err) || fail 'MS_ENABLE_RECOVERY=0' mindspore/err
[ -s mindspore/err ] && fail 'MS_ENABLE_RECOVERY=0 needs no warning' mindspore/err
exit $failed
