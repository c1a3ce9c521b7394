/* softmax, log_softmax and cross-entropy, forward and backward, against double-precision loops. */
#include "kernels_support.h"

typedef struct softmax_case {
    bool log;
    wefti_softmax_args f;
    wefti_softmax_backward_args b;
    operand x, y, dy, dx;
} softmax_case;

static void run_softmax(const wefti_kernels *k, wefti_pool *pool, void *context) {
    softmax_case *c = context;
    (c->log ? k->log_softmax : k->softmax)(pool, &c->f);
    (c->log ? k->log_softmax_backward : k->softmax_backward)(pool, &c->b);
}

static double log_sum_exp(operand x, int64_t start, int64_t dim) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < dim; i++) max = fmax(max, before(x, start + i));
    for (int64_t i = 0; i < dim; i++) sum += exp(before(x, start + i) - max);
    return max + log(sum);
}

static void check_softmax(void *context) {
    softmax_case *c = context;
    int64_t dim = c->f.dim;
    for (int64_t r = 0; r < c->f.rows; r++) {
        double lse = log_sum_exp(c->x, r * dim, dim), dot = 0.0;
        for (int64_t i = r * dim; i < (r + 1) * dim; i++) {
            double log_p = before(c->x, i) - lse;
            check_close(c->y, i, c->log ? log_p : exp(log_p),
                        c->log ? 4e-6 + fabs(log_p) * 1.2e-7 : 1e-6, "y");
            double y = get(c->y, i); /* backward starts from the stored output */
            dot += before(c->dy, i) * (c->log ? 1.0 : y);
        }
        for (int64_t i = r * dim; i < (r + 1) * dim; i++) {
            double d = before(c->dy, i), y = get(c->y, i);
            check_close(c->dx, i, c->log ? d - exp(y) * dot : y * (d - dot),
                        1e-6 * (2.0 + fabs(dot) + sqrt((double)dim)), "dx");
        }
    }
}

static void test_softmax(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 3, 16, 31, 33, 100, 2048, 2049, 5000};
    for (int round = 0; round < 60; round++) {
        softmax_case c = {.log = random_bool()};
        int64_t dim = round < 9 ? dims[round] : random_int(1, 300), rows = random_int(0, 40);
        float size = random_bool() ? 3.0f : 80.0f;
        c.x = operand_random(INPUT, random_type(), rows * dim, -size, size);
        if (dim > 1)
            for (int64_t r = 0; r < rows; r += 3) /* a masked element, first in its row */
                wefti_store(c.x.dtype, c.x.data, r * dim, -INFINITY);
        c.y = operand_new(OUTPUT, random_type(), rows * dim);
        bool in_place = random_bool();
        c.dy = operand_random(in_place ? OUTPUT : INPUT, random_type(), rows * dim, -1.0f, 1.0f);
        c.dx = in_place ? c.dy : operand_new(OUTPUT, random_type(), rows * dim);
        c.f = (wefti_softmax_args){.x = in(c.x), .y = out(c.y), .rows = rows, .dim = dim};
        c.b = (wefti_softmax_backward_args){
            .dy = in(c.dy), .y = in(c.y), .dx = out(c.dx), .rows = rows, .dim = dim};
        run_case(run_softmax, check_softmax, &c);
    }
}

/* A whole chunk of -infinity before the first finite logit; a NaN anywhere makes the row NaN. */
static void test_softmax_special(void **state) {
    (void)state;
    enum { DIM = 5000 };
    static float x[2][DIM], y[2][DIM];
    for (int i = 0; i < DIM; i++) {
        x[0][i] = i < 4000 ? -INFINITY : (float)i / 1000.0f;
        x[1][i] = i == 3777 ? NAN : 1.0f;
    }
    double sum = 0.0;
    for (int i = 4000; i < DIM; i++) sum += exp((double)x[0][i]);
    for (int path = 0; path < PATHS; path++) {
        const wefti_kernels *k = path_kernels(path);
        if (!k) continue;
        wefti_softmax_args a = {
            .x = wefti_src_f32(x[0]), .y = wefti_dst_f32(y[0]), .rows = 2, .dim = DIM};
        k->softmax(NULL, &a);
        for (int i = 0; i < DIM; i++) {
            double want = i < 4000 ? 0.0 : exp((double)x[0][i]) / sum;
            assert_true(fabs((double)y[0][i] - want) < 1e-8);
            assert_true(y[1][i] != y[1][i]);
        }
    }
}

typedef struct entropy_case {
    wefti_cross_entropy_args f;
    wefti_cross_entropy_backward_args b;
    wefti_cross_entropy_fused_args c;
    operand logits, targets, loss, lse, dlogits, fused, fused_loss, fused_lse, row_scale;
    int64_t stride; /* of rows of `fused`, in its dtype */
    bool narrow;    /* gradients are bf16 in rows twice as long */
} entropy_case;

static void run_entropy(const wefti_kernels *k, wefti_pool *pool, void *context) {
    entropy_case *c = context;
    k->cross_entropy(pool, &c->f);
    k->cross_entropy_backward(pool, &c->b);
    k->cross_entropy_fused(pool, &c->c);
}

static void check_entropy(void *context) {
    entropy_case *c = context;
    int64_t vocab = c->f.vocab;
    double eps = (double)c->f.smoothing;
    for (int64_t r = 0; r < c->f.rows; r++) {
        int64_t target = (int64_t)get(c->targets, r);
        double lse = log_sum_exp(c->logits, r * vocab, vocab), mean = 0.0, loss = 0.0;
        bool ignored = target == c->f.ignore_index, legal = target >= 0 && target < vocab;
        for (int64_t i = 0; i < vocab; i++) mean += get(c->logits, r * vocab + i) / (double)vocab;
        if (!ignored)
            loss =
                legal ? lse - (1.0 - eps) * get(c->logits, r * vocab + target) - eps * mean : NAN;
        check_close(c->loss, r, loss, 1e-5, "loss");
        check_close(c->fused_loss, r, loss, 1e-5, "fused loss");
        check_close(c->lse, r, lse, 1e-5, "lse");
        check_close(c->fused_lse, r, lse, 1e-5, "fused lse");
        double scale = (double)c->b.scale * (c->b.row_scale ? get(c->row_scale, r) : 1.0);
        for (int64_t i = 0; i < vocab; i++) {
            double p = exp(get(c->logits, r * vocab + i) - lse) - eps / (double)vocab;
            if (i == target) p -= 1.0 - eps;
            if (ignored || !legal) p = 0.0;
            check_close(c->dlogits, r * vocab + i, p * scale, 2e-6, "dlogits");
            operand fused = c->fused;
            if (c->narrow) fused.dtype = WEFT_BF16;
            check_close(fused, r * c->stride * (c->narrow ? 2 : 1) + i, p * scale, 2e-6,
                        "fused dlogits");
        }
    }
}

static void test_cross_entropy(void **state) {
    (void)state;
    for (int round = 0; round < 50; round++) {
        entropy_case c = {0};
        int64_t rows = random_int(0, 30), vocab = round < 5 ? 5003 : random_int(1, 400);
        c.logits = operand_random(INPUT, random_type(), rows * vocab, -5.0f, 5.0f);
        c.targets = operand_new(INPUT, random_bool() ? WEFT_I32 : WEFT_I64, rows);
        for (int64_t r = 0; r < rows; r++) {
            int64_t t = random_int(0, vocab - 1);
            if (random_int(0, 5) == 0) t = -100;                       /* ignored */
            if (random_int(0, 9) == 0) t = random_bool() ? vocab : -1; /* illegal */
            wefti_store(c.targets.dtype, c.targets.data, r, (double)t);
        }
        c.loss = operand_new(OUTPUT, WEFT_F32, rows);
        c.lse = operand_new(OUTPUT, WEFT_F32, rows);
        c.fused_loss = operand_new(OUTPUT, WEFT_F32, rows);
        c.fused_lse = operand_new(OUTPUT, WEFT_F32, rows);
        c.dlogits = operand_new(OUTPUT, random_type(), rows * vocab);
        c.row_scale = f32_random(INPUT, rows, 0.5f, 1.5f);
        c.stride = random_bool() ? vocab : vocab + random_int(1, 40);
        c.narrow = c.logits.dtype == WEFT_F32 && random_bool();
        c.fused = operand_new(OUTPUT, c.logits.dtype, rows * c.stride);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < vocab; i++)
                wefti_store(c.fused.dtype, c.fused.data, r * c.stride + i,
                            get(c.logits, r * vocab + i));
        float smoothing = random_bool() ? 0.0f : 0.1f;
        c.f = (wefti_cross_entropy_args){.logits = in(c.logits),
                                         .targets = in(c.targets),
                                         .rows = rows,
                                         .vocab = vocab,
                                         .ignore_index = -100,
                                         .smoothing = smoothing,
                                         .loss = f32(c.loss),
                                         .lse = f32(c.lse)};
        c.b = (wefti_cross_entropy_backward_args){.logits = in(c.logits),
                                                  .targets = in(c.targets),
                                                  .lse = f32(c.lse),
                                                  .dlogits = out(c.dlogits),
                                                  .rows = rows,
                                                  .vocab = vocab,
                                                  .ignore_index = -100,
                                                  .smoothing = smoothing,
                                                  .scale = 0.7f,
                                                  .row_scale =
                                                      random_bool() ? f32(c.row_scale) : NULL};
        c.c = (wefti_cross_entropy_fused_args){.logits = out(c.fused),
                                               .stride = c.stride == vocab ? 0 : c.stride,
                                               .narrow = c.narrow,
                                               .targets = in(c.targets),
                                               .rows = rows,
                                               .vocab = vocab,
                                               .ignore_index = -100,
                                               .smoothing = smoothing,
                                               .scale = 0.7f,
                                               .row_scale = c.b.row_scale,
                                               .loss = f32(c.fused_loss),
                                               .lse = f32(c.fused_lse)};
        run_case(run_entropy, check_entropy, &c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_softmax),
                                       cmocka_unit_test(test_softmax_special),
                                       cmocka_unit_test(test_cross_entropy)};
    return cmocka_run_group_tests(tests, support_setup, support_teardown);
}
