#!/bin/sh
# The page of weft simulate --report: tags that match, nothing from elsewhere, and the parts of every kind of prediction.
# With Chromium also: no message of its console, and nothing wider than the window.
. tests/cli/run.inc
job="model.layers=4 model.hidden=64 model.heads=4 model.vocab=128 model.context=16 train.batch=16"
# shellcheck disable=SC2086
{
    expect 0 'predicted step' simulate $job --machine '2 hosts of 2 a100-80g' parallel.evaluations=4 --report joint.html
    expect 0 'predicted step' simulate job.yaml $job --machine 'hosts=2 gpus=4 gpu=v100' --devices 8 'parallel.mesh={dp: 2, tp: 2}' \
        parallel.pipeline.stages=2 parallel.pipeline.microbatches=4 parallel.optimizer.level=1 parallel.recompute.mode=full \
        --slow rank=1,x=2 --link 0-4,x=0.5 --report stages.html
    expect 0 'stop after' simulate $job --machine v100 --devices 4 --mode semi --fail rank=2,at=0.0001 --report stopped.html
    expect 0 'predicted step' simulate $job --machine v100 --devices 1 --mode semi --report one.html
    # Products are faster than the peak of this machine, and its memory is only some times the step's.
    figure() { printf '"%s": {"value": %s, "source": "s"}' "$1" "$2"; }
    printf '{"version": 1, "name": "odd <machine>", "device": {%s, %s, %s, %s, "peak_flops": {%s},
        "product_curves": {"f32": {"source": "s", "points": [[1e3, 1e13], [1e12, 1e13]]}}}, "levels": [{"name": "host", "devices": 1, %s, %s}]}' \
        "$(figure memory_bytes "$(($("$weft" model job.yaml $job --json | value predicted_peak_bytes) * 2))")" "$(figure memory_bytes_per_second 1e13)" \
        "$(figure vector_flops 1e13)" "$(figure launch_seconds 0)" "$(figure f32 1e9)" "$(figure latency_seconds 1e-6)" \
        "$(figure bytes_per_second 1e9)" >odd.json
    expect 0 '100 %: ' simulate $job --machine ./odd.json --devices 1 --mode semi --report odd.html
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
tags wrong.html >found && fail 'tags in a wrong order are not found'
for page in joint stages stopped one odd; do
    tags $page.html >found || fail "$page.html: tags do not match" found
    grep -qE '<script|<img|<iframe|src=|url\(|@import|https?:| on[a-z]+="' $page.html && fail "$page.html needs something else"
    grep -qE '[^a-z](nan|inf)[^a-z]' $page.html && fail "$page.html has a number that is none"
    for fact in 'charset="utf-8"' 'prefers-color-scheme:dark' 'width=device-width' 'Time by cause' '<svg' 'Largest tensors' \
        'Mesh on hosts' 'host 0' 'kinds of ranks' 'Ranks</h2>' '<dt>model</dt><dd>gpt2, ' '<dt>plan</dt>' '<dt>machine</dt>' \
        "<dt>weft</dt><dd>$("$weft" --version | awk '{ print $2 }')" 'limit of a device' ' ms</span>' '<span>0</span>'; do
        grep -qF "$fact" $page.html || fail "no $fact in $page.html"
    done
done
for fact in 'dp = 2</h3>' 'tp = 2</h3>' 'stages</h3>' '2 stages, 4 microbatches' 'optimizer level 1' 'full' \
    'title="rank 7, stage 1, dp 1, tp 1"' 'microbatch 3' 'links: host' 'host 1'; do
    grep -qF "$fact" stages.html || fail "no $fact in stages.html"
done
# What was predicted, how it was disturbed, transfers, and equal tensors in one line.
for fact in '<dt>job</dt><dd>job.yaml' 'kernels of rank 1 take 2 times' 'ranks 0 and 4 has 0.5 of' 'var(--move)' '<title>[0-9]* all_reduce</title>' \
    '<title>[0-9]* send</title>' 'h\.\*\..*[0-9] of them: '; do
    grep -q "$fact" stages.html || fail "no $fact in stages.html"
done
grep -q '<dt>disturbed' one.html && fail 'a step that nothing disturbs is called disturbed'
grep -qE 'fill="var\(--move\)"' one.html && fail 'one device has no transfers'
# The limit is drawn if it is near, and an MFU above 100 % is marked.
grep -q '<title>limit</title>' odd.html || fail 'the limit is not drawn'
grep -q '<title>limit</title>' one.html && fail 'a limit that is far away is drawn'
grep -q 'class="mark">MFU above 100 %' odd.html || fail 'an MFU above 100 % is not marked'
grep -q 'odd &lt;machine' odd.html || fail 'names are not escaped'
grep -q 'MFU above' one.html && fail 'an MFU below 100 % is marked'
# Labels are no part of the drawings, which stretch: their size is that of text at every width.
for page in stages one odd; do
    sed 's/<svg[^>]*>/\n<svg>/g; s/<\/svg>/<\/svg>\n/g' $page.html | grep '^<svg>' | grep -q '<text' && fail "$page.html: a drawing has text"
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
