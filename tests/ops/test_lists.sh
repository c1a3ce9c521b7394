#!/bin/sh
# A public op is complete: each call of weft/ops.h has its Fortran binding (or a reason in tests/mpi/fortran_exceptions),
# a row in docs/reference/ops.md, and a test of this folder that makes it. It reads texts only, so it runs without MPI and gfortran.
# tests/ops/test_ops.c checks that each op has cases, tests/ops/test_docs.sh that docs/reference/ops.md lists each op.
set -eu
status=0
missing() {
    echo "$1"
    status=1
}
calls=$(grep -oE '\bweft_[a-z0-9_]+\(weft_graph \*g' include/weft/ops.h | sed 's/(.*//' | sort -u)
[ "$(echo "$calls" | wc -l)" -gt 60 ] || { echo "include/weft/ops.h could not be read"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Fortran in one line for each statement; tests without their comments.
cat fortran/weft.f90 fortran/*.inc | sed 's/& *$//' >"$work/fortran"
cat tests/ops/*.[ch] | sed 's,/\*.*\*/,,' >"$work/tests"
for call in $calls; do
    grep -qE "(function|subroutine) $call *\(" "$work/fortran" || grep -q "^$call " tests/mpi/fortran_exceptions ||
        missing "fortran: $call has no interface in fortran/weft_ops.inc or fortran/weft.f90"
    grep -qE "\b$call\b" "$work/tests" || missing "tests/ops: no test calls $call"
    op=${call#weft_} op=${op#graph_}
    grep -qE "\`($op|$call)(\`|\()" docs/reference/ops.md || missing "docs/reference/ops.md: $call is missing"
done
# Each op's definition names its cases; rows of macros share the line of their macro.
for file in src/ops/*/*.c; do
    definitions=$(grep -cE '^(const )?wefti?_op_def ' "$file" || true)
    [ "$definitions" = 0 ] || grep -q '\.cases = ' "$file" || missing "$file: no cases"
done
[ $status = 0 ] && echo "$(echo "$calls" | wc -l) public ops: Fortran, docs, tests"
exit $status
