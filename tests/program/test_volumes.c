/* The volume of tensor parallelism in one, two and three dimensions for a pair of products, in
 * elements that each device receives. With P = x y z devices, s rows, widths h and e:
 *
 *     one dimension   2 (P - 1) s h / P
 *     two             2 s (e (x - 1) + h (y - 1)) / (x y)
 *     three           2 (s e (x - 1) + s h (y - 1) + h e (z - 1)) / (x y z)
 *
 * (Xu et al., "An efficient 2D method for training super-large deep learning models", 2021; Bian et
 * al., "Maximizing parallelism in distributed training for huge neural networks", 2021.) Between
 * the products, a reduce-scatter and the gather after it are one all-reduce of the same volume. The
 * result and all gradients equal the values of one device. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

#include "program/print.h"
#include "session/session.h"
#include "weft/ops.h"

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

static weft_plan *plan_of(const scheme *s) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(s->x * s->y * s->z, &plan));
    ASSERT_OK(weft_plan_axis(plan, "x", s->x));
    ASSERT_OK(weft_plan_axis(plan, "y", s->y));
    ASSERT_OK(weft_plan_axis(plan, "z", s->z));
    ASSERT_OK(weft_plan_split_tensor(plan, "x", s->input));
    ASSERT_OK(weft_plan_split_tensor(plan, "a", s->first));
    ASSERT_OK(weft_plan_split_tensor(plan, "b", s->second));
    ASSERT_OK(weft_plan_split_op(plan, "first:matmul", s->first_split));
    ASSERT_OK(weft_plan_split_op(plan, "second:matmul", s->second_split));
    if (s->after) ASSERT_OK(weft_plan_split_op(plan, "second:neg", s->after));
    return plan;
}

/* Two products of rows [rows, h] with a [h, e] and b [e, h]. */
static weft_value products(weft_graph *g, weft_value v, int64_t h, int64_t e) {
    weft_init zeros = {.kind = WEFT_INIT_ZEROS};
    weft_value a = weft_param(g, "a", weft_desc_of(WEFT_F32, 2, (int64_t[]){h, e}), zeros);
    weft_value b = weft_param(g, "b", weft_desc_of(WEFT_F32, 2, (int64_t[]){e, h}), zeros);
    weft_cell_begin(g, "first");
    v = weft_cell_end(g, weft_matmul(g, v, a, false, false));
    weft_cell_begin(g, "second");
    return weft_cell_end(g, weft_neg(g, weft_matmul(g, v, b, false, false)));
}

static int64_t received(const scheme *s, int64_t rows, int64_t h, int64_t e) {
    weft_graph *g;
    weft_session *session;
    int64_t bytes = 0;
    ASSERT_OK(weft_graph_create(&g));
    weft_value v = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){rows, h}));
    weft_output(g, "y", products(g, v, h, e));
    weft_plan *plan = plan_of(s);
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

/* ---- values and gradients ---- */

enum { ROWS = 1024, H = 256, E = 512, MOST = ROWS * H, READ = 4 };
static const char *const reads[READ] = {"y", "grad:x", "grad:a", "grad:b"};
static const int64_t sizes_of[READ] = {ROWS * H, ROWS *H, H *E, E *H};

static void fill(float *data, int64_t count, int kind) {
    for (int64_t i = 0; i < count; i++) data[i] = sinf((float)(i % 9973) * 0.37F + (float)kind);
}

/* The result and all gradients of a squared error, by a scheme, or on one device. The rows are a
 * parameter, so that they have a gradient too. */
static void run_products(const scheme *s, float *out[READ]) {
    static float data[MOST];
    static const char *const names[] = {"x", "a", "b"};
    static const int64_t counts[] = {ROWS * H, H * E, E * H};
    weft_graph *g;
    weft_session *session;
    weft_init zeros = {.kind = WEFT_INIT_ZEROS};
    weft_desc rows = weft_desc_of(WEFT_F32, 2, (int64_t[]){ROWS, H});
    ASSERT_OK(weft_graph_create(&g));
    weft_value y = products(g, weft_param(g, "x", rows, zeros), H, E);
    weft_output(g, "y", y);
    weft_loss(g, weft_mse(g, y, weft_input(g, "t", rows)));
    weft_plan *plan = s ? plan_of(s) : NULL;
    weft_session_options o = weft_session_defaults();
    o.keep_gradients = true;
    o.threads = 2;
    o.plan = plan;
    ASSERT_OK(weft_session_create(g, &o, &session));
    for (int i = 0; i < 3; i++) {
        fill(data, counts[i], i);
        ASSERT_OK(weft_session_write(session, 0, names[i], data, (size_t)counts[i] * 4));
    }
    fill(data, ROWS * H, 3);
    ASSERT_OK(weft_session_feed(session, 0, "t", data, sizeof data));
    ASSERT_OK(weft_session_accumulate(session, NULL));
    for (int i = 0; i < READ; i++)
        ASSERT_OK(weft_session_read(session, 0, reads[i], out[i], (size_t)sizes_of[i] * 4));
    weft_session_destroy(session);
    weft_plan_destroy(plan);
    weft_graph_destroy(g);
}

static void assert_near(const scheme *s, const char *name, const float *is, const float *want,
                        int64_t count) {
    float most = 0, apart = 0;
    for (int64_t i = 0; i < count; i++) {
        most = fmaxf(most, fabsf(want[i]));
        apart = fmaxf(apart, fabsf(is[i] - want[i]));
    }
    if (!(most > 0 && apart <= 1e-5F * most))
        fail_msg("%s (%d, %d, %d): %s is %g apart, of at most %g", s->what, s->x, s->y, s->z, name,
                 (double)apart, (double)most);
}

static void values_and_gradients_are_those_of_one_device(void **state) {
    (void)state;
    float *is[READ], *want[READ];
    for (int i = 0; i < READ; i++) {
        is[i] = calloc(MOST, sizeof(float));
        want[i] = calloc(MOST, sizeof(float));
    }
    run_products(NULL, want);
    for (int k = 0; k < SCHEMES; k++) {
        run_products(&schemes[k], is);
        for (int i = 0; i < READ; i++)
            assert_near(&schemes[k], reads[i], is[i], want[i], sizes_of[i]);
    }
    for (int i = 0; i < READ; i++) {
        free(is[i]);
        free(want[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(volumes_follow_the_formulas),
        cmocka_unit_test(values_and_gradients_are_those_of_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
