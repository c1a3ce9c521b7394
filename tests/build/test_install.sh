#!/bin/sh
# An installed weft: a program built with nothing but pkg-config, and one built with CMake, compile and start, also
# after the installed tree was moved.
set -eu
command -v pkg-config >/dev/null || { echo "SKIP: no pkg-config"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$WEFT_BUILD_DIR" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/moved"
"$work/moved/bin/weft" --version

cat >"$work/hello.c" <<'END'
#include <stdio.h>
#include <string.h>

#include "weft/info.h"
#include "weft/job.h"

int main(void) {
    weft_job *job;
    const char *words[] = {"train.steps=3"};
    if (weft_job_load(NULL, words, 1, &job) < 0) return 1;
    printf("weft %s, %d steps\n", weft_version(), (int)job->train.steps);
    int equal = strcmp(weft_version(), WEFT_VERSION) == 0 && weft_version_number() == WEFT_VERSION_NUMBER && job->train.steps == 3;
    weft_job_free(job);
    return !equal;
}
END
# Pages and examples come with it, and their links lead somewhere.
guide=$(find "$work/moved" -path '*docs/guide/how-to-mpi.md')
[ -f "$guide" ] || { echo "the pages are not installed"; exit 1; }
for link in $(grep -oE '\]\(\.\./examples/[a-z_.0-9]+\)' "$guide" | sed 's/](//; s/)//'); do
    [ -f "$(dirname "$guide")/$link" ] || { echo "$guide leads to $link, which is not installed"; exit 1; }
done
PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name weft.pc)")
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion weft)" = "$("$work/moved/bin/weft" --version | cut -d' ' -f2)" ]
# shellcheck disable=SC2046
${CC:-cc} -Wall -Werror "$work/hello.c" $(pkg-config --cflags --libs weft) -o "$work/hello"
"$work/hello"
# The same with the static library alone.
archive=$(find "$work/moved" -name libweft.a)
# shellcheck disable=SC2046
${CC:-cc} "$work/hello.c" $(pkg-config --cflags weft) "$archive" \
    $(pkg-config --static --libs weft | tr ' ' '\n' | grep -v -e '-lweft' -e rpath) -o "$work/hello_static"
"$work/hello_static"
# The example that is one page: compiles by the line in its head, and learns where there are digits to learn from.
# shellcheck disable=SC2046
${CC:-cc} -Wall -Wextra -Werror examples/mlp.c $(pkg-config --cflags --libs weft) -o "$work/mlp"
# 20 images of 30 x 30 pixels, for which it has no room, and 20 of 28 x 28, of which too few are held out.
{ printf '\0\0\010\003\0\0\0\024\0\0\0\036\0\0\0\036' && head -c 18000 /dev/zero; } >"$work/large"
{ printf '\0\0\010\003\0\0\0\024\0\0\0\034\0\0\0\034' && head -c 15680 /dev/zero; } >"$work/few"
{ printf '\0\0\010\001\0\0\0\024' && head -c 20 /dev/zero; } >"$work/zeros"
for odd in large few; do
    if "$work/mlp" "$work/$odd" "$work/zeros" >"$work/out" 2>&1; then echo "mlp takes $odd images"; exit 1; fi
    grep -q "^mlp: " "$work/out" || { cat "$work/out"; exit 1; }
done
images=${WEFT_TEST_DATA:-}/t10k-images-idx3-ubyte labels=${WEFT_TEST_DATA:-}/t10k-labels-idx1-ubyte
if [ -f "$images.gz" ]; then
    gzip -dc "$images.gz" >"$work/images" # a library without zlib reads no packed files
    gzip -dc "$labels.gz" >"$work/labels"
    "$work/mlp" "$work/images" "$work/labels" >"$work/out" || { cat "$work/out"; exit 1; }
    awk '/^accuracy/ { percent = $2 } END { exit !(percent > 85) }' "$work/out" || { cat "$work/out"; exit 1; }
    tail -1 "$work/out"
else
    echo "SKIP: examples/mlp.c is compiled but not run, there are no MNIST test files (WEFT_TEST_DATA)"
fi
# Headers stand alone, in C and (where a compiler is there) in C++; mpi.h where an MPI is.
for header in "$work"/moved/include/weft/*.h; do
    [ "$(basename "$header")" != mpi.h ] || continue
    echo "#include \"weft/$(basename "$header")\"" >"$work/one.c"
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(pkg-config --cflags weft) "$work/one.c"
    if command -v c++ >/dev/null; then
        # shellcheck disable=SC2046
        c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(pkg-config --cflags weft) -x c++ "$work/one.c"
    fi
done
# What they define is there in C++ too.
cat >"$work/use.cc" <<'END'
#include <cstdio>

#include <weft/weft.h>

int main() {
    weft_graph *graph;
    weft_session *session;
    weft_tensor_info info;
    if (weft_graph_create(&graph) < 0) return 1;
    weft_value x = weft_input(graph, "x", WEFT_DESC(WEFT_F32, 2, 1, 4, 4));
    weft_value w = weft_param(graph, "w", WEFT_DESC(WEFT_F32, 3, 1, 2, 2), {WEFT_INIT_NORMAL, 0.1});
    weft_attention_options attention = weft_attention_defaults();
    x = weft_conv2d(graph, x, w, WEFT_NO_VALUE, NULL);
    weft_loss(graph, weft_mean(graph, x, 0, nullptr, false));
    if (weft_session_create(graph, nullptr, &session) < 0) return std::puts(weft_error_message()), 1;
    bool found = weft_session_find(session, 0, "w", &info) == WEFT_OK && info.role == WEFT_ROLE_PARAM;
    weft_session_destroy(session);
    weft_graph_destroy(graph);
    return !found || attention.causal;
}
END
if command -v c++ >/dev/null; then
    # shellcheck disable=SC2046
    c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$work/use.cc" $(pkg-config --cflags --libs weft) -o "$work/use"
    "$work/use"
fi
echo '#include <weft/mpi.h>' >"$work/one.c"
for mpi in mpicc mpicc.openmpi mpicc.mpich mpicxx mpicxx.openmpi mpicxx.mpich; do
    command -v $mpi >/dev/null || continue
    case $mpi in mpicxx*) language='-x c++ -std=c++17' ;; *) language='-x c -std=c17 -Wpedantic' ;; esac
    # shellcheck disable=SC2046,SC2086
    $mpi $language -Wall -Wextra -Werror -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX -fsyntax-only \
        $(pkg-config --cflags weft) "$work/one.c"
done
cat >"$work/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.18)
project(hello C)
find_package(weft REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello weft::weft)
END
if ! { cmake -S "$work" -B "$work/b" -DCMAKE_PREFIX_PATH="$work/moved" && cmake --build "$work/b"; } >"$work/log" 2>&1; then
    cat "$work/log"
    exit 1
fi
"$work/b/hello"
# A folder of libraries that is given from the root.
cmake -S . -B "$work/absolute" -DCMAKE_INSTALL_PREFIX=/opt/weft -DCMAKE_INSTALL_LIBDIR=/opt/weft/lib64 >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
PKG_CONFIG_PATH="$work/absolute"
[ "$(pkg-config --variable=libdir weft)" = /opt/weft/lib64 ]
[ "$(pkg-config --variable=includedir weft)" = /opt/weft/include ]
