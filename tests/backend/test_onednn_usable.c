/* The oneDNN found at run time may be built for other devices or threads. Then it is reported as
 * not used, and is not used. This program has a dnnl_version of its own, which is found before the
 * library's. */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/conv/conv.h"
#include "weft/info.h"

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>

static dnnl_version_t version = {.major = DNNL_VERSION_MAJOR, .minor = DNNL_VERSION_MINOR};

const dnnl_version_t *dnnl_version(void) {
    return &version;
}

static weft_status convolution(void) {
    const wefti_conv conv = {.spatial = 2,
                             .batch = 8,
                             .groups = 1,
                             .in = 16,
                             .out = 16,
                             .x = {1, 8, 8},
                             .k = {1, 1, 1},
                             .y = {1, 8, 8},
                             .stride = {1, 1, 1},
                             .dilation = {1, 1, 1},
                             .x_dtype = WEFT_F32,
                             .w_dtype = WEFT_F32,
                             .y_dtype = WEFT_F32};
    wefti_onednn_conv *c;
    weft_status status = wefti_onednn_conv_create(&conv, 1, false, &c);
    if (status == WEFT_OK) wefti_onednn_conv_destroy(c);
    return status;
}

static void only_what_runs_here(void **state) {
    (void)state;
    static const struct {
        unsigned runtime;
        const char *unused; /* NULL: used */
    } runtimes[] = {{DNNL_RUNTIME_SEQ, NULL},
                    {DNNL_RUNTIME_OMP, NULL},
                    {DNNL_RUNTIME_TBB, NULL},
                    {DNNL_RUNTIME_SYCL, "SYCL"},
                    {DNNL_RUNTIME_THREADPOOL, "threads"}};
    weft_info info;
    weft_info_get(&info);
    assert_string_equal(info.components[0].name, "oneDNN");
    if (!info.components[0].built_in) {
        print_message("SKIP: built without oneDNN\n");
        skip();
    }
    for (size_t i = 0; i < sizeof runtimes / sizeof *runtimes; i++) {
        version.cpu_runtime = runtimes[i].runtime;
        weft_info_get(&info);
        const char *unused = info.components[0].unused;
        if (runtimes[i].unused) {
            assert_non_null(unused);
            assert_non_null(strstr(unused, runtimes[i].unused));
            assert_int_equal(convolution(), WEFT_E_NO_IMPL);
        } else {
            assert_null(unused);
            assert_int_equal(convolution(), WEFT_OK);
        }
        for (int k = 1; k < info.component_count; k++) assert_null(info.components[k].unused);
    }
}
#else
static void only_what_runs_here(void **state) {
    (void)state;
    print_message("SKIP: there is no oneDNN to build against\n");
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_what_runs_here)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
