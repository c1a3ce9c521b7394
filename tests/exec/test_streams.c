/* Kernels that work in their device's stream: each submits a copy and returns before the copy is
 * done. (weft-test: threads) */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "device_bytes.h"
#include "exec/exec.h"
#include "weft/ops.h"

enum { ELEMS = 1000, KERNELS = 4 };

static wefti_rank_device *device;
static int launched;

/* relu, of operands that are not negative. */
static weft_status run_copy(const wefti_kernel *kernel, const wefti_run *run, const void *const *in,
                            void *const *out, void *workspace) {
    (void)kernel, (void)workspace;
    launched++;
    assert_non_null(run->stream);
    assert_ptr_equal(run->stream->device, wefti_rank_device_device(device));
    return wefti_stream_copy(run->stream, out[0], WEFTI_SPACE_DEVICE, in[0], WEFTI_SPACE_DEVICE,
                             ELEMS * (int64_t)sizeof(float));
}
static void destroy_copy(wefti_kernel *kernel) {
    free(kernel);
}
static weft_status prepare_copy(const wefti_backend *backend, const weft_node *node,
                                const wefti_prepare *prepare, wefti_kernel **out) {
    (void)backend, (void)prepare;
    assert_string_equal(node->op->name, "relu");
    *out = calloc(1, sizeof **out);
    assert_non_null(*out);
    **out =
        (wefti_kernel){.run = run_copy, .destroy = destroy_copy, .label = "copy", .in_place = -1};
    return WEFT_OK;
}

static void work_of_kernels_is_done_in_order(void **state) {
    (void)state;
    static const wefti_backend copies = {.name = "copies", .prepare = prepare_copy};
    static const wefti_backend *const backends[] = {&copies, NULL};
    weft_graph *g;
    wefti_routine *r;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 1, (int64_t[]){ELEMS}));
    weft_cell_begin(g, "cell");
    for (int k = 0; k < KERNELS; k++) x = weft_relu(g, x);
    (void)weft_cell_end(g, x);
    ASSERT_OK(weft_graph_status(g));
    wefti_routine_spec spec = {
        .body = g->cells[0], .prepare = {.threads = 1}, .backends = backends};
    ASSERT_OK(wefti_routine_compile(&spec, &r));
    const int64_t bytes = (int64_t)sizeof(float) * ELEMS, second = (bytes + 63) & ~(int64_t)63;
    wefti_location args[] = {{0}, {second}};
    int64_t frame = 2 * second;
    ASSERT_OK(wefti_rank_device_create(1, (wefti_footprint){{{frame + r->frame_bytes, 0}}}, NULL,
                                       NULL, &device));
    wefti_device *d = wefti_rank_device_device(device);
    unsigned char *memory = wefti_rank_device_at(device, args[0]);
    float given[ELEMS], got[ELEMS];
    for (int i = 0; i < ELEMS; i++) given[i] = (float)i;
    ASSERT_OK(device_write(d, memory, given, bytes));
    wefti_step step = {.kind = WEFTI_STEP_CALL,
                       .routine = r,
                       .args = args,
                       .frame = {frame},
                       .tensor = -1,
                       .to = r->code_count,
                       .parts = 1,
                       .name = "cell"};
    wefti_program program = {.persistent_bytes = frame + r->frame_bytes};
    program.steps[WEFTI_SECTION_FIRST] = &step;
    program.step_count[WEFTI_SECTION_FIRST] = 1;
    ASSERT_OK(wefti_rank_device_run(device, &program, WEFTI_SECTION_FIRST,
                                    &(wefti_exec_options){.check_finite = true}));
    assert_int_equal(launched, KERNELS);
    ASSERT_OK(device_read(d, got, memory + second, bytes));
    assert_memory_equal(got, given, sizeof given);
    wefti_rank_device_destroy(device);
    wefti_routine_destroy(r);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_of_kernels_is_done_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
