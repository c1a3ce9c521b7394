#!/bin/sh
# docs/reference/ops.md lists every op of the registry, and no others.
set -eu
listed=$(sed -n '/WEFT_OP_LIST/,$p' src/graph/ops.def | grep -o 'X([a-z0-9_]*)' | sed 's/X(\(.*\))/\1/' | sort)
[ "$(echo "$listed" | wc -l)" -gt 50 ] || { echo "src/graph/ops.def could not be read"; exit 1; }
# The first column of every table whose header begins with "op".
documented=$(awk '/^\| op \|/ { table = 1; next } !/^\|/ { table = 0 } table' docs/reference/ops.md |
    cut -d'|' -f2 | grep -o '`[a-z0-9_]*`' | tr -d '`' | sort)
gradients=$(grep -o '`[a-z_0-9]*_grad`' docs/reference/ops.md | tr -d '`' | sort -u)
status=0
for op in $listed; do
    printf '%s\n%s\n' "$documented" "$gradients" | grep -qx "$op" || { echo "docs/reference/ops.md: $op is missing"; status=1; }
done
for op in $documented $gradients; do
    echo "$listed" | grep -qx "$op" || { echo "docs/reference/ops.md: there is no op $op"; status=1; }
done
exit $status
