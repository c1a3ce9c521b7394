/* What tensor parallelism in one, two and three dimensions moves for a pair of products, in
 * elements that each device receives: with P = x y z devices, s rows, widths h and e,
 *
 *     one dimension   2 (P - 1) s h / P
 *     two             2 s (e (x - 1) + h (y - 1)) / (x y)
 *     three           2 (s e (x - 1) + s h (y - 1) + h e (z - 1)) / (x y z)
 *
 * (Xu et al., "An efficient 2D method for training super-large deep learning models", 2021; Bian et
 * al., "Maximizing parallelism in distributed training for huge neural networks", 2021.) Between
 * the products a reduce-scatter and the gather after it are one all-reduce of the same volume. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "program/print.h"
#include "train/session.h"
#include "weft/ops.h"

#define ASSERT_OK(expr)                                                                            \
    do {                                                                                           \
        weft_status status_ = (expr);                                                              \
        if (status_ < 0) fail_msg("%s: %s", #expr, weft_error_message());                          \
    } while (0)

typedef struct scheme {
    const char *what;
    int x, y, z;
    const char *input, *first, *second;             /* layouts */
    const char *first_split, *second_split, *after; /* strategies */
} scheme;

static const scheme schemes[] = {
    {"one dimension", 8, 1, 1, "[-, -]", "[-, x]", "[x, -]", "n=x", "k=x", NULL},
    {"two dimensions", 2, 4, 1, "[-, x+y]", "[x, y]", "[y, x]", "k=x n=y", "k=y n=x", "d1=x+y"},
    {"two dimensions", 4, 2, 1, "[-, x+y]", "[x, y]", "[y, x]", "k=x n=y", "k=y n=x", "d1=x+y"},
    {"three dimensions", 2, 2, 2, "[z+y, x]", "[x+z, y]", "[y+z, x]", "m=z k=x n=y", "m=z k=y n=x",
     "d0=z+y d1=x"},
};
enum { SCHEMES = sizeof schemes / sizeof *schemes };

static int64_t received(const scheme *s, int64_t rows, int64_t h, int64_t e) {
    weft_graph *g;
    weft_plan *plan;
    weft_session *session;
    int64_t bytes = 0;
    ASSERT_OK(weft_graph_create(&g));
    weft_value v = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){rows, h}));
    weft_init zeros = {.kind = WEFT_INIT_ZEROS};
    weft_value a = weft_param(g, "a", weft_desc_of(WEFT_F32, 2, (int64_t[]){h, e}), zeros);
    weft_value b = weft_param(g, "b", weft_desc_of(WEFT_F32, 2, (int64_t[]){e, h}), zeros);
    weft_cell_begin(g, "first");
    v = weft_cell_end(g, weft_matmul(g, v, a, false, false));
    weft_cell_begin(g, "second");
    v = weft_neg(g, weft_matmul(g, v, b, false, false));
    weft_output(g, "y", weft_cell_end(g, v));
    ASSERT_OK(weft_plan_create(s->x * s->y * s->z, &plan));
    ASSERT_OK(weft_plan_axis(plan, "x", s->x));
    ASSERT_OK(weft_plan_axis(plan, "y", s->y));
    ASSERT_OK(weft_plan_axis(plan, "z", s->z));
    ASSERT_OK(weft_tensor_split(plan, "x", s->input));
    ASSERT_OK(weft_tensor_split(plan, "a", s->first));
    ASSERT_OK(weft_tensor_split(plan, "b", s->second));
    ASSERT_OK(weft_op_split(plan, "first:matmul", s->first_split));
    ASSERT_OK(weft_op_split(plan, "second:matmul", s->second_split));
    if (s->after) ASSERT_OK(weft_op_split(plan, "second:neg", s->after));
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    o.plan = plan;
    ASSERT_OK(weft_session_create(g, &o, &session));
    const wefti_program *p = wefti_session_program_of(session, 0, 3);
    for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
        wefti_step_transfer t;
        for (int32_t at = 0;
             wefti_step_transfer_next(p, &p->steps[WEFTI_SECTION_FIRST][i], &at, &t);)
            bytes += wefti_transfer_bytes(t.transfer);
    }
    weft_session_destroy(session);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
    return bytes / 4;
}

static int64_t formula(const scheme *s, int64_t rows, int64_t h, int64_t e) {
    int64_t x = s->x, y = s->y, z = s->z;
    if (y == 1) return 2 * (x - 1) * rows * h / x;
    if (z == 1) return 2 * rows * (e * (x - 1) + h * (y - 1)) / (x * y);
    return 2 * (rows * e * (x - 1) + rows * h * (y - 1) + h * e * (z - 1)) / (x * y * z);
}

static void volumes_follow_the_formulas(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1024, 256, 512}, {2048, 1024, 4096}};
    static const int64_t known[][SCHEMES] = {{458752, 327680, 458752, 229376},
                                             {3670016, 3670016, 6815744, 3670016}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < SCHEMES; k++) {
            int64_t got = received(&schemes[k], sizes[i][0], sizes[i][1], sizes[i][2]);
            assert_int_equal(formula(&schemes[k], sizes[i][0], sizes[i][1], sizes[i][2]),
                             known[i][k]);
            if (got != known[i][k])
                fail_msg("%s (%d, %d, %d): %lld elements, not %lld", schemes[k].what, schemes[k].x,
                         schemes[k].y, schemes[k].z, (long long)got, (long long)known[i][k]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(volumes_follow_the_formulas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
