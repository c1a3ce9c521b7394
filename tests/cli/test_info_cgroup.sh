#!/bin/sh
# `weft info` in a control group whose parent has a limit: the parent's counts, and its file is named.
set -u
weft=$WEFT_BIN
name=weft-test-$$
failed=0

fail() {
    echo "$1"
    shift
    [ $# -gt 0 ] && cat "$@"
    failed=1
}

# begin FOLDER FILE: two groups, one in the other, of which the outer one can have a limit
begin() {
    outer=$1/$name inner=$1/$name/inner
    mkdir "$outer" 2>/dev/null || return 1
    [ -e "$1/cgroup.controllers" ] && echo "+memory +cpu" 2>/dev/null >"$outer/cgroup.subtree_control"
    mkdir "$inner" && [ -e "$outer/$2" ] && return 0
    rmdir "$inner" "$outer"
    return 1
}

# As a process of the inner group. Its shell is the one that enters.
inside() {
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$inner" "$@"
}

finish() {
    [ -n "${outer:-}" ] || return
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        rmdir "$inner" "$outer" 2>/dev/null && break
        sleep 0.1
    done
    outer=
}
out=$(mktemp)
trap 'finish; rm -f "$out"' EXIT

# check KEY VALUE LIMIT: info has this value, and names a file of the outer group as its limit
tried=0
check() {
    inside "$weft" info --quick --json >"$out" 2>&1 || fail 'weft info in a group:' "$out"
    grep -q "\"$1\": $2[,}]" "$out" || fail "$1 is not $2:" "$out"
    grep -q "\"$3\": \"$outer/" "$out" || fail "$3 does not name $outer:" "$out"
    inside "$weft" info --quick >"$out" 2>&1
    grep -q "by $outer/" "$out" || fail "info does not name $outer:" "$out"
    tried=$((tried + 1))
}
for folder in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    for file in memory.limit_in_bytes memory.max; do
        begin $folder $file || continue
        echo 536870912 2>/dev/null >"$outer/$file" && inside true 2>/dev/null &&
            check memory_bytes 536870912 memory_limit
        finish
    done
done
for folder in /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct /sys/fs/cgroup; do
    for file in cpu.cfs_quota_us cpu.max; do
        [ "$(nproc)" -gt 1 ] && begin $folder $file || continue
        limit=100000
        [ $file = cpu.max ] && limit='100000 100000'
        echo "$limit" 2>/dev/null >"$outer/$file" && inside true 2>/dev/null &&
            check cores 1 cores_limit
        finish
    done
done
if [ $tried = 0 ] && [ $failed = 0 ]; then
    echo 'SKIP: no control groups can be made here'
    exit 77
fi
exit $failed
