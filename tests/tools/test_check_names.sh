#!/bin/sh
# tools/check_names finds names that are defined twice in a small tree, and accepts what its head comment excepts.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { # text that the report must contain ("" for: must pass), content of src/a/a.h, of src/b/b.c, of src/b/list.inc
    rm -rf "$work/t"
    mkdir -p "$work/t/src/a" "$work/t/src/b" "$work/t/include"
    printf '%s\n' "$2" >"$work/t/src/a/a.h"
    printf '%s\n' "$3" >"$work/t/src/b/b.c"
    printf '%s\n' "${4:-}" >"$work/t/src/b/list.inc"
    if tools/check_names "$work/t" >"$work/out" 2>&1; then
        [ -z "$1" ] || { echo "not caught: $2 / $3"; exit 1; }
    else
        [ -n "$1" ] || { echo "refused: $2 / $3"; cat "$work/out"; exit 1; }
        grep -q -e "^src/b/b.c:$1: src/a/a.h:" -e "^src/a/a.h:$1" "$work/out" || { echo "wrong report for $2 / $3:"; cat "$work/out"; exit 1; }
    fi
}

check '1: tag twin is defined already, as tag' 'struct twin { int x; };' 'struct twin { int y; };'
check '1: tag twin is defined already, as tag' 'typedef struct twin { int x; } twin;' 'typedef struct twin { int x; } twin;'
check '1: typedef twin is defined already, as typedef' 'typedef int twin;' 'typedef long (*twin)(int x, void *y);'
check '1: typedef twin is defined already, as typedef' 'typedef int twin[4];' 'typedef float twin __attribute__((vector_size(8)));'
check '2: enumerator TWIN is defined already, as enumerator' 'enum { TWIN = 4 };' '/* TWIN */
typedef enum order { FIRST = (1, 2), TWIN } order;'
check '2: macro TWIN is defined already, as enumerator' 'struct x { enum { TWIN } kind; };' '
#define TWIN(x) \
    (x)'
check '1: function twin is defined already, as tag' 'struct twin { int x; };' 'int twin(int x) { return x; }'
check '1: function twin is defined already, as tag' 'struct twin { int x; };' 'int twin(int x);'
check '' '#ifndef GUARD
#define GUARD
#endif' '#ifndef GUARD
#define GUARD
#endif'
check '' 'struct twin; typedef struct twin twin; struct twin { int x; };' 'typedef struct twin twin; struct twin; static struct twin *p;'
check '' 'struct twin { int x; };' 'static int twin(int x) { struct twin y = {x}; return y.x; }'
check '' 'enum { TWIN };' 'int f(int x) { enum { TWIN }; return x + TWIN; }'
check '' '#define TWIN 1' '#define TWIN 2
#undef TWIN'
check '' '#define WIDTH 1' '#define WIDTH 2
#include "b/list.inc"' 'static int f(void) { return WIDTH; }'
check '2: macro WIDTH is defined already, as macro' '#define WIDTH 1' '
#define WIDTH 2
#include "b/list.inc"' 'static int f(void) { return 5; }'
check '' '#define LIST(X) X(A) X(B)' '#ifdef __linux__
#define LINES 1
#else
#define LINES 2
#endif
typedef enum kind { LIST(NAME) KIND_COUNT } kind;'
check '1: no other file calls wefti_twin' 'int wefti_twin(int x);' 'int wefti_twin(int x) { return x; }'
check '' 'int wefti_twin(int x);' 'int wefti_twin(int x) { return x; }' 'wefti_twin(1)'
check '' 'static inline int wefti_twin(int x) { return x; }' 'int twin(void) { return wefti_twin(1); }'
echo "check_names: planted doubles are found, exceptions pass"
