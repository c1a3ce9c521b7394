#!/bin/sh
# docs/job-file.md holds the table of keys exactly as the command prints it.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^<!-- keys -->$/,/^<!-- end of keys -->$/p' docs/job-file.md | sed '1,2d;$d' | sed '$d' >"$work/documented"
"$WEFT_BIN" train --keys >"$work/known"
if ! diff -u "$work/documented" "$work/known"; then
    echo "docs/job-file.md is not up to date: run tools/job_doc"
    exit 1
fi
