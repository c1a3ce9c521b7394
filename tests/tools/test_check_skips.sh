#!/bin/sh
# tools/check_skips reads the log of ctest: reasons of tests and of cases, what .ci/skips accepts, and what it does not.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/Testing/Temporary"

run() { # exit code, text of the report ("" for: none), option of the build, test, its output
    printf 'WEFT_YAML:BOOL=%s\n' "$3" >"$work/CMakeCache.txt"
    printf '1/1 Testing: %s\n1/1 Test: %s\nCommand: "x"\nOutput:\n----\n%b\n<end of output>\nTest Passed.\n' "$4" "$4" "$5" \
        >"$work/Testing/Temporary/LastTest.log"
    code=0
    tools/check_skips "$work" --strict >"$work/out" || code=$?
    if [ $code != "$1" ] || ! grep -qF -- "$2" "$work/out"; then
        echo "$4: exit $code instead of $1, or no '$2':"
        cat "$work/out"
        exit 1
    fi
}

run 0 'skipped: nothing' ON base.text '[==========] Running 1 test(s).\n[ RUN      ] a\n[       OK ] a'
run 0 'libyaml-dev' OFF cli.train 'SKIP: this build has no libyaml, which reads job files'
run 1 'cli.train: this build has no libyaml' ON cli.train 'SKIP: this build has no libyaml, which reads job files'
run 1 'base.text: the moon is full' ON base.text '[==========] Running 1 test(s).\nSKIP: the moon is full\n[  SKIPPED ] a'
run 1 'says no reason' ON base.text '[==========] Running 2 test(s).\n[ RUN      ] a\n[  SKIPPED ] a'
run 0 'data.set' ON data.set '[==========] Running 1 test(s).\nSKIP: x is not there (set WEFT_TEST_DATA)\n[  SKIPPED ] a\n[==========] 1 test(s) run.\n[  SKIPPED ] a'
[ ! -e /dev/full ] || run 1 'launch.launch: /dev/full' ON launch.launch 'SKIP: /dev/full is not there'
unset WEFT_TEST_PEERS
run 0 'interop.pretrained' ON interop.pretrained 'SKIP: WEFT_TEST_PEERS names no folder'
WEFT_TEST_PEERS=$work
export WEFT_TEST_PEERS
run 1 'interop.pretrained: WEFT_TEST_PEERS' ON interop.pretrained 'SKIP: WEFT_TEST_PEERS names no folder'
unset WEFT_TEST_PEERS
if [ "$(id -u)" = 0 ] && command -v ip >/dev/null; then
    code=0
    unshare -n true 2>/dev/null && code=1
    run $code 'launch.launch_hosts' ON launch.launch_hosts 'SKIP: no network namespaces can be made here'
fi
echo "check_skips: accepted and other skips are told apart"
