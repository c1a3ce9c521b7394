/* The kernel paths that tests run: each isa of this processor natively, and each of x86-64 in plain
 * C (backend/cpu/emulated.h), so that every path is tested on every processor. */
#ifndef TESTS_BACKEND_PATHS_H
#define TESTS_BACKEND_PATHS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/cpu/emulated.h"
#include "backend/cpu/kernels/kernels.h"

enum { PATHS = 2 * WEFTI_ISAS };

/* Paths that this test ran, and those of them that multiplied bf16 as such. */
static bool path_ran[PATHS], path_ran_bf16[PATHS];

static inline wefti_isa path_isa(int path) {
    return (wefti_isa)(path % WEFTI_ISAS);
}
static inline bool path_is_emulated(int path) {
    return path >= WEFTI_ISAS;
}
static inline const char *path_text(int path) {
    static char text[32];
    snprintf(text, sizeof text, "%s, %s", wefti_isa_text(path_isa(path)),
             path_is_emulated(path) ? "emulated" : "native");
    return text;
}
static inline void path_end(void) {
    wefti_cpu_tune(NULL);
    (void)unsetenv("WEFT_ISA");
}
/* Makes the backend use the path until path_end, with bf16 products if it has them. False: this
 * processor lacks the path, or, for plain C, there is nothing to emulate. Use it as
 * `if (!path_begin(path)) continue;`. */
static inline bool path_begin(int path) {
    const wefti_isa isa = path_isa(path);
    if (path_is_emulated(path) && isa == WEFTI_ISA_PLAIN) return false;
    wefti_cpu_tune(path_is_emulated(path) ? &wefti_cpu_emulated : NULL);
    if (!wefti_isa_has(isa)) return false;
    const char *name = isa == WEFTI_ISA_AVX512 ? "avx512_bf16" : wefti_isa_text(isa);
    assert_int_equal(setenv("WEFT_ISA", name, 1), 0);
    path_ran[path] = true;
    return true;
}
/* The same for a product. With `bf16`, false too if the path does not multiply bf16. */
static inline bool path_begin_product(int path, bool bf16) {
    if (!path_begin(path) || (bf16 && !wefti_isa_has_bf16(path_isa(path)))) return false;
    if (bf16) path_ran_bf16[path] = true;
    return true;
}
/* The vector kernels of the path, which is begun; NULL: there is no such path here. */
static inline const wefti_kernels *path_kernels(int path) {
    return path_begin(path) ? wefti_kernels_of(path_isa(path)) : NULL;
}

static inline void path_print(const char *name, bool native, bool emulated) {
    if (native || emulated)
        print_message("path %s: %s\n", name,
                      !emulated ? "native"
                      : native  ? "native and emulated"
                                : "emulated");
}
/* Ends the path and prints a line for each form that ran. tools/run_tests counts these lines. */
static inline void paths_print(void) {
    path_end();
    for (int isa = 0; isa < WEFTI_ISAS; isa++) {
        const int emulated = isa + WEFTI_ISAS;
        path_print(wefti_isa_text((wefti_isa)isa), path_ran[isa], path_ran[emulated]);
        if (isa == WEFTI_ISA_AVX512)
            path_print("avx512_bf16", path_ran_bf16[isa], path_ran_bf16[emulated]);
    }
}

#endif
