#!/bin/sh
# tools/check_floors passes on this tree and catches each kind of planted violation.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/check_floors >/dev/null

plant() { # file, include line, text that the report must contain ("" for: must pass)
    rm -rf "$work/t"
    mkdir -p "$work/t/docs" "$work/t/include/weft" "$work/t/src/base" "$work/t/src/graph" "$work/t/src/comm" \
        "$work/t/src/backend/cpu/inner" "$work/t/src/backend/cuda" "$work/t/src/exec" "$work/t/src/cli"
    cp docs/architecture.md "$work/t/docs/"
    for header in src/base/a.h src/graph/a.h src/comm/a.h src/backend/a.h src/backend/cpu/a.h src/backend/cpu/inner/a.h src/backend/cuda/a.h \
        src/exec/a.h src/cli/a.h include/weft/a.h; do
        echo "/* empty */" >"$work/t/$header"
    done
    mkdir -p "$(dirname "$work/t/$1")"
    printf '/* planted */\n%s\n' "$2" >"$work/t/$1"
    if tools/check_floors "$work/t" >"$work/out" 2>&1; then
        [ -z "$3" ] || { echo "not caught: $2 in $1"; exit 1; }
    else
        [ -n "$3" ] || { echo "refused: $2 in $1"; cat "$work/out"; exit 1; }
        grep -q "^$1:2: .*$3" "$work/out" || grep -q "^$1:1: .*$3" "$work/out" ||
            { echo "wrong report for $2 in $1:"; cat "$work/out"; exit 1; }
    fi
}

plant src/graph/x.c '#include "base/a.h"' ''
plant src/graph/x.c '#include "weft/a.h"' ''
plant src/backend/cpu/x.c '#include "backend/a.h"' ''
plant src/backend/cpu/x.c '#include "backend/cpu/inner/a.h"' ''
plant src/backend/cuda/x.c '#include "backend/cpu/inner/a.h"' 'private to src/backend/cpu/inner'
plant src/x.c '#include "backend/cpu/a.h"' ''
plant src/backend/cpu/x.c '#include <oneapi/dnnl/dnnl.h>' ''
plant src/graph/x.c '#include "exec/a.h"' 'goes up'
plant src/graph/x.c '  #  include "exec/a.h"' 'goes up'
plant src/graph/x.c '#include "../exec/a.h"' 'goes up'
plant src/graph/x.c '#include "comm/a.h"' 'goes sideways'
plant src/exec/x.c '#include "backend/cpu/a.h"' 'private to src/backend/cpu'
plant src/backend/x.c '#include "backend/cpu/a.h"' 'private to src/backend/cpu'
plant src/backend/cpu/x.c '#include "backend/cuda/a.h"' 'private to src/backend/cuda'
plant src/cli/x.c '#include "base/a.h"' 'public headers only'
plant src/cli/x.c 'printf("%s", name);' 'printf: what the command shows goes through cli_say'
plant src/cli/x.c '    if (text) fputs(text, stdout);' 'fputs: what the command shows'
plant src/cli/x.c 'puts (text);' 'puts: what the command shows'
plant src/cli/x.c 'dprintf(1, "%s", name);' 'dprintf: what the command shows'
plant src/cli/x.c 'fputs_unlocked(text, stdout);' 'fputs_unlocked: what the command shows'
plant src/cli/x.c 'putc_unlocked(c, stdout);' 'putc_unlocked: what the command shows'
plant src/cli/x.c 'ssize_t done = write(1, text, bytes);' 'write: what the command shows'
plant src/cli/x.c 'ssize_t done = write(STDERR_FILENO, text, sizeof text - 1);' ''
plant src/cli/x.c 'rewrite(text); cli_say_output(text); checkpoint_write(path);' ''
plant src/cli/x.c 'snprintf(line, 5, "%d", 1); cli_say(stdout, "%s", line);' ''
plant src/cli/json.c 'fputc(c, stream);' ''
plant src/base/x.c 'fputs(text, file);' ''
plant src/graph/x.c '#include <oneapi/dnnl/dnnl.h>' 'may not use oneapi'
plant src/graph/x.c '#include <jansson.h>' 'may not use jansson'
plant src/graph/x.c '#include "graph/missing.h"' 'does not exist'
plant src/novel/x.c '#include "base/a.h"' 'no row in the floor table'
plant include/weft/x.h '#include "base/a.h"' 'a public header includes only'
plant include/weft/x.h '#include <jansson.h>' 'no third-party header'
plant include/weft/x.h '#include <mpi.h>' 'no third-party header'
plant include/weft/mpi.h '#include <mpi.h>' ''
plant include/weft/mpi.h '#include <jansson.h>' 'no third-party header'
plant src/comm/x.c '#include <mpi.h>' 'may not use mpi'
echo "check_floors: clean tree passes, planted violations are caught"
