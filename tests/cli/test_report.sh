#!/bin/sh
# The page of weft simulate --report: tags that match, nothing from elsewhere, and the parts of every kind of prediction.
# With Chromium also: no message of its console, and nothing wider than the window.
. tests/cli/run.inc
job="model.layers=4 model.hidden=64 model.heads=4 model.vocab=128 model.context=16 train.batch=16"
# shellcheck disable=SC2086
{
    expect 0 'predicted step' simulate $job --machine '2 hosts of 2 a100-80g' parallel.evaluations=4 --report joint.html
    expect 0 'predicted step' simulate $job --machine 'hosts=2 gpus=4 gpu=v100' --devices 8 'parallel.mesh={dp: 2, tp: 2}' \
        parallel.pipeline.stages=2 parallel.pipeline.microbatches=4 parallel.optimizer.level=1 parallel.recompute.mode=full \
        --slow rank=1,x=2 --report stages.html
    expect 0 'stop after' simulate $job --machine v100 --devices 4 --mode semi --fail rank=2,at=0.0001 --report stopped.html
    expect 0 'predicted step' simulate $job --machine v100 --devices 1 --mode semi --report one.html
}

# Each tag that opens is closed in order; meta and link have no end.
tags() {
    tr '\n' ' ' <"$1" | sed 's/<!doctype html>//' | tr '<' '\n' | awk '
        NR == 1 { next }
        !/>/ { print "no end of <" $0; bad = 1; next }
        /^\// { name = substr($0, 2); sub(/>.*/, "", name); if (name != open[depth--]) { print "</" name "> ends " open[depth + 1]; bad = 1 } next }
        { name = $0; sub(/[ \/>].*/, "", name); whole = $0; sub(/>.*/, "", whole)
          if (name == "meta" || name == "link" || whole ~ /\/$/) next
          open[++depth] = name }
        END { if (depth || NR < 20) { print depth " tags stay open"; bad = 1 } exit bad }'
}
printf '<!doctype html><p><b></p></b>' >wrong.html
tags wrong.html >tags && fail 'tags in a wrong order are not found'
for page in joint stages stopped one; do
    tags $page.html >tags || fail "$page.html: tags do not match" tags
    grep -qE '<script|<img|<iframe|src=|url\(|@import|https?:| on[a-z]+="' $page.html && fail "$page.html needs something else"
    grep -qE '[^a-z](nan|inf)[^a-z]' $page.html && fail "$page.html has a number that is none"
    for fact in 'charset="utf-8"' 'prefers-color-scheme:dark' 'width=device-width' 'Time by cause' '<svg' 'Largest tensors' \
        'Mesh on hosts' 'host 0' 'kinds of ranks' 'Ranks</h2>'; do
        grep -qF "$fact" $page.html || fail "no $fact in $page.html"
    done
done
for fact in 'dp = 2</h3>' 'tp = 2</h3>' 'stages</h3>' '2 stages, 4 microbatches' 'optimizer level 1' 'full' \
    'title="rank 7, stage 1, dp 1, tp 1"' 'microbatch 3' 'links: host' 'host 1'; do
    grep -qF "$fact" stages.html || fail "no $fact in stages.html"
done
grep -qF 'ranks stop after' stopped.html || fail 'the page does not say that ranks stop'
grep -qF 'Alternatives' stages.html && fail 'alternatives without a search'

# The alternatives are those of weft plan.
# shellcheck disable=SC2086
expect 0 '"alternatives": [{' plan $job --machine '2 hosts of 2 a100-80g' --evaluations 4 --json
sed 's/.*"alternatives"//' out | grep -o '"constraints": "[^"]*"' | cut -d'"' -f4 >constraints
[ "$(wc -l <constraints)" -ge 2 ] || fail 'few alternatives' out
while IFS= read -r line; do
    grep -qF ">$line</td>" joint.html || fail "joint.html has no alternative $line"
done <constraints

# --- in a browser, if there is one ---
browser() { # PAGE WIDTH [option]: the title of the page, which a script in a copy sets, and the console
    sed 's|</body>|<script>document.title = document.documentElement.scrollWidth + "/" + innerWidth</script></body>|' "$1" >copy.html
    page_width=$2
    shift 2
    timeout 120 chromium --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --enable-logging=stderr \
        --window-size="$page_width",900 "$@" --dump-dom "file://$work/copy.html" 2>log >dom
}
if command -v chromium >/dev/null 2>&1 && timeout 60 chromium --version >/dev/null 2>&1; then
    for page in joint stages; do
        for width in 400 1200; do
            browser $page.html $width || { fail "$page.html does not open" log; continue; }
            grep -q CONSOLE log && fail "$page.html: messages of the console" log
            size=$(sed -n 's|.*<title>\([0-9]*/[0-9]*\)</title>.*|\1|p' dom)
            [ -n "$size" ] && [ "${size%/*}" -le "${size#*/}" ] || fail "$page.html at $width pixels: content and window are $size wide"
        done
        browser $page.html 1200 --force-dark-mode --blink-settings=preferredColorScheme=0 || fail "$page.html in dark mode" log
        grep -q CONSOLE log && fail "$page.html in dark mode: messages of the console" log
    done
fi
[ $failed = 0 ] && echo 'reports: tags, parts, alternatives'
exit $failed
