#!/bin/sh
# docs/reference/job-file.md holds the table of keys exactly as the command prints it.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^<!-- keys -->$/,/^<!-- end of keys -->$/p' docs/reference/job-file.md | sed '1,2d;$d' | sed '$d' >"$work/documented"
"$WEFT_BIN" train --keys >"$work/known"
if ! diff -u "$work/documented" "$work/known"; then
    echo "docs/reference/job-file.md is not up to date: run tools/job_doc"
    exit 1
fi
# A key that is read as a path says so.
sed -n 's/^JOB_KEY[A-Z_]*("\([a-z_.]*\)", FILE,.*/\1/p' src/job/keys.def >"$work/paths"
[ "$(wc -l <"$work/paths")" -gt 10 ] || { echo 'src/job/keys.def could not be read'; exit 1; }
while IFS= read -r key; do
    grep -qE "^\| \`$key\` \| [^|]*\| path " "$work/known" || { echo "$key is a path, and its type says otherwise"; exit 1; }
done <"$work/paths"
