#!/bin/sh
# tools/check_floors passes on this tree, and on the objects of this build. In a small tree of folders it finds each kind of planted violation.
set -eu
options="" # further arguments of the checker
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/check_floors --objects "${WEFT_BUILD_DIR:-build}" >"$work/out" || { cat "$work/out"; exit 1; }

fresh() { # a small tree that keeps all rules
    rm -rf "$work/t"
    mkdir -p "$work/t/docs/design" "$work/t/include/weft" "$work/t/src/base" "$work/t/src/graph" "$work/t/src/comm" \
        "$work/t/src/backend/cpu/inner/deep" "$work/t/src/backend/cuda" "$work/t/src/exec" "$work/t/src/cli"
    cat >"$work/t/docs/design/architecture.md" <<'TABLE'
| 0 | `base` | files | zlib |
| 3 | `graph` | files | |
| 3 | `comm` | files | ucx |
| 4 | `backend` | files | omp |
| 4 | `backend/cpu` | files | oneapi, omp |
| 4 | `backend/cpu/inner` | files | |
| 4 | `backend/cpu/inner/deep` | files | |
| 4 | `backend/cuda` | files | |
| 7 | `exec` | files | |
| 10 | `cli` | files | |
TABLE
    for header in src/base/a.h src/graph/a.h src/comm/a.h src/backend/a.h src/backend/cpu/a.h src/backend/cpu/cpu.h \
        src/backend/cpu/inner/a.h src/backend/cpu/inner/inner.h src/backend/cpu/inner/deep/deep.h src/backend/cuda/a.h \
        src/backend/cuda/cuda.h src/exec/a.h src/cli/a.h include/weft/a.h; do
        echo "/* empty */" >"$work/t/$header"
    done
}

check() { # start of the report's line ("" for: must pass), text that follows it, what was planted
    # shellcheck disable=SC2086
    if tools/check_floors "$work/t" $options >"$work/out" 2>&1; then
        [ -z "$1" ] || { echo "not caught: $3"; exit 1; }
    else
        [ -n "$1" ] || { echo "refused: $3"; cat "$work/out"; exit 1; }
        grep -q "^$1:.* .*$2" "$work/out" || { echo "wrong report for $3:"; cat "$work/out"; exit 1; }
    fi
}

plant() { # file, include line, text that the report must contain ("" for: must pass)
    fresh
    mkdir -p "$work/t/$(dirname "$1")"
    printf '/* planted */\n%s\n' "$2" >"$work/t/$1"
    check "${3:+$1:[12]}" "$3" "$2 in $1"
}

plant src/graph/x.c '#include "base/a.h"' ''
plant src/graph/x.c '#include "weft/a.h"' ''
plant src/backend/cpu/x.c '#include "backend/a.h"' ''
# Doors: the parent folder, what is below it, and higher floors see x/x.h of a sub-folder x, and nothing else of it.
plant src/backend/x.c '#include "backend/cpu/cpu.h"' ''
plant src/backend/cuda/x.c '#include "backend/cpu/cpu.h"' ''
plant src/backend/cpu/inner/deep/x.c '#include "backend/cuda/cuda.h"' ''
plant src/exec/x.c '#include "backend/cpu/cpu.h"' ''
plant src/x.c '#include "backend/cpu/cpu.h"' ''
plant src/backend/cpu/x.c '#include "backend/cpu/inner/inner.h"' ''
plant src/backend/cpu/inner/deep/x.c '#include "backend/cpu/inner/a.h"' ''
plant src/graph/x.c '#include "backend/cpu/cpu.h"' 'goes up'
plant src/backend/cpu/x.c '#include "backend/cpu/inner/a.h"' 'private to src/backend/cpu/inner'
plant src/backend/cpu/x.c '#include "backend/cpu/inner/deep/deep.h"' 'private to src/backend/cpu/inner/deep'
plant src/backend/x.c '#include "backend/cpu/inner/inner.h"' 'private to src/backend/cpu/inner'
plant src/backend/cuda/x.c '#include "backend/cpu/inner/inner.h"' 'private to src/backend/cpu/inner'
plant src/backend/cuda/x.c '#include "backend/cpu/inner/a.h"' 'private to src/backend/cpu/inner'
plant src/exec/x.c '#include "backend/cpu/inner/inner.h"' 'private to src/backend/cpu/inner'
plant src/x.c '#include "backend/cpu/a.h"' 'private to src/backend/cpu'
plant src/x.c '#include "backend/cpu/inner/inner.h"' 'private to src/backend/cpu/inner'
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
plant src/graph/x.c '#include <yaml.h>' 'may not use yaml'
plant src/graph/x.c '#include "graph/missing.h"' 'does not exist'
plant src/backend/x.c '#include <oneapi/dnnl/dnnl.h>' 'may not use oneapi'
plant src/novel/x.c '#include "base/a.h"' 'no row in the floor table'
plant include/weft/x.h '#include "base/a.h"' 'a public header includes only'
plant include/weft/x.h '#include <yaml.h>' 'no third-party header'
plant include/weft/x.h '#include <mpi.h>' 'no third-party header'
plant include/weft/mpi.h '#include <mpi.h>' ''
plant include/weft/mpi.h '#include <yaml.h>' 'no third-party header'
plant src/comm/x.c '#include <mpi.h>' 'may not use mpi'
# The table and the folders are the same set; each row has a caption.
fresh
mkdir "$work/t/src/graph/novel"
check "src/graph/novel:1" "no row" "a sub-folder without a row"
fresh
echo '| 5 | `plan` | files | |' >>"$work/t/docs/design/architecture.md"
check "docs/design/architecture.md:11" "src/plan does not exist" "a row without a folder"
fresh
sed -i 's/| 4 | `backend.cuda`/| 5 | `backend\/cuda`/' "$work/t/docs/design/architecture.md"
check "docs/design/architecture.md:8" "stands on the floor of backend" "a sub-folder on another floor than its parent"
fresh
sed -i 's/| 7 | `exec` | files/| 7 | `exec` |/' "$work/t/docs/design/architecture.md"
check "docs/design/architecture.md:9" "exec has no caption" "a row without a caption"
# What a header declares is defined in the header's folder: seen in the objects of a build.
implement() { # source file, report's start ("" for: must pass): the file defines what src/graph/a.h declares
    fresh
    objects="$work/t/build/CMakeFiles/weft_objects.dir"
    mkdir -p "$objects/$(dirname "$1")"
    printf '/* int comment(void); */\ntypedef struct { int (*member)(void); } table;\nint planted(int number);\nextern int kept[2];\n' \
        >"$work/t/src/graph/a.h"
    echo 'int planted(int number) { return number; } int comment(void) { return 0; } int kept[2] = {1, 2};' >"$work/t/$1"
    ${CC:-cc} -c "$work/t/$1" -o "$objects/$1.o"
    options="--objects $work/t/build"
    check "$2" "declared here, but $1 defines it" "functions of src/graph/a.h in $1"
}
implement src/graph/x.c ''
implement src/exec/x.c src/graph/a.h:3
grep -q "^src/graph/a.h:4: kept " "$work/out" || { echo "no variable reported:"; cat "$work/out"; exit 1; }
! grep comment "$work/out" || { echo "reported what no header declares"; exit 1; }
echo "check_floors: clean tree passes, planted violations are caught"
