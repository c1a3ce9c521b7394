/* layer_norm, rms_norm and batch_norm, forward and backward, against double-precision loops. */
#include "kernels_support.h"

typedef struct norm_case {
    bool layer, stored_sum, in_place;
    wefti_norm_args f;
    wefti_norm_backward_args b;
    operand x, residual, sum, gamma, beta, y, mean, rstd, dy, add, dx, dgamma, dbeta;
} norm_case;

static void run_norm(const wefti_kernels *k, wefti_pool *pool, void *context) {
    norm_case *c = context;
    (c->layer ? k->layer_norm : k->rms_norm)(pool, &c->f);
    (c->layer ? k->layer_norm_backward : k->rms_norm_backward)(pool, &c->b);
}

/* What the kernel normalizes: the sum as stored, so that a bf16 sum counts as rounded. */
static double normalized(const norm_case *c, int64_t i) {
    if (c->stored_sum) return get(c->sum, i);
    return get(c->x, i) + (c->residual.data ? get(c->residual, i) : 0.0);
}

static void check_norm(void *context) {
    norm_case *c = context;
    int64_t rows = c->f.rows, dim = c->f.dim;
    double *dgamma = calloc((size_t)dim + 1, sizeof *dgamma),
           *dbeta = calloc((size_t)dim + 1, sizeof *dbeta);
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0.0, square = 0.0, sum_g = 0.0, sum_gx = 0.0;
        for (int64_t i = 0; i < dim; i++) {
            if (c->stored_sum)
                check_close(c->sum, r * dim + i,
                            get(c->x, r * dim + i) + get(c->residual, r * dim + i), 1e-6, "sum");
            if (c->layer) mean += normalized(c, r * dim + i) / (double)dim;
        }
        for (int64_t i = 0; i < dim; i++)
            square += pow(normalized(c, r * dim + i) - mean, 2.0) / (double)dim;
        double rstd = 1.0 / sqrt(square + (double)c->f.eps);
        check_close(c->rstd, r, rstd, 2e-6 * rstd, "rstd");
        if (c->layer) check_close(c->mean, r, mean, 1e-6, "mean");
        for (int64_t i = 0; i < dim; i++) {
            double hat = (normalized(c, r * dim + i) - mean) * rstd, d = before(c->dy, r * dim + i);
            double y = hat * get(c->gamma, i) + (c->f.beta ? get(c->beta, i) : 0.0);
            check_close(c->y, r * dim + i, y, 3e-6 * (1.0 + rstd), "y");
            sum_g += d * get(c->gamma, i) / (double)dim;
            sum_gx += d * get(c->gamma, i) * hat / (double)dim;
            dgamma[i] += d * hat;
            dbeta[i] += d;
        }
        if (!c->layer) sum_g = 0.0;
        for (int64_t i = 0; i < dim; i++) {
            double x = c->stored_sum || !c->residual.data ? normalized(c, r * dim + i)
                                                          : get(c->x, r * dim + i);
            double hat = (x - mean) * rstd, g = before(c->dy, r * dim + i) * get(c->gamma, i);
            double dx = rstd * (g - sum_g - hat * sum_gx);
            if (c->add.data) dx += before(c->add, r * dim + i);
            check_close(c->dx, r * dim + i, dx, 1e-5 * (1.0 + rstd), "dx");
        }
    }
    for (int64_t i = 0; i < dim; i++) {
        double base_gamma = c->b.accumulate ? before(c->dgamma, i) : 0.0;
        double base_beta = c->b.accumulate ? before(c->dbeta, i) : 0.0;
        check_close(c->dgamma, i, base_gamma + dgamma[i], 2e-5 * sqrt((double)rows + 1), "dgamma");
        check_close(c->dbeta, i, base_beta + dbeta[i], 1e-5 * sqrt((double)rows + 1), "dbeta");
    }
    free(dgamma);
    free(dbeta);
}

static void norm(int64_t rows, int64_t dim) {
    norm_case c = {.layer = random_bool()};
    int64_t n = rows * dim;
    c.x = operand_random(INPUT, random_type(), n, -2.0f, 3.0f);
    /* Backward takes the normalized input: without a stored sum, forward must not add one. */
    c.stored_sum = random_bool();
    if (c.stored_sum) {
        c.residual = operand_random(INPUT, random_type(), n, -1.0f, 1.0f);
        c.sum = operand_new(OUTPUT, random_type(), n);
    }
    c.gamma = f32_random(INPUT, dim, 0.5f, 1.5f);
    c.beta = f32_random(INPUT, dim, -1.0f, 1.0f);
    c.y = operand_new(OUTPUT, random_type(), n);
    c.mean = operand_new(OUTPUT, WEFT_F32, rows);
    c.rstd = operand_new(OUTPUT, WEFT_F32, rows);
    c.f = (wefti_norm_args){.x = in(c.x), .gamma = f32(c.gamma), .y = out(c.y), .rows = rows};
    c.f.dim = dim;
    c.f.eps = 1e-5f;
    c.f.mean = f32(c.mean);
    c.f.rstd = f32(c.rstd);
    if (random_bool()) c.f.beta = f32(c.beta);
    if (c.stored_sum) {
        c.f.residual = in(c.residual);
        c.f.sum = out(c.sum);
    }
    bool in_place = random_bool();
    c.dy = operand_random(in_place ? OUTPUT : INPUT, random_type(), n, -1.0f, 1.0f);
    c.dx = in_place ? c.dy : operand_new(OUTPUT, random_type(), n);
    c.dgamma = f32_random(OUTPUT, dim, -1.0f, 1.0f);
    c.dbeta = f32_random(OUTPUT, dim, -1.0f, 1.0f);
    c.b =
        (wefti_norm_backward_args){.dy = in(c.dy), .gamma = f32(c.gamma), .rows = rows, .dim = dim};
    c.b.x = c.stored_sum ? (wefti_src){c.sum.data, c.sum.dtype} : in(c.x);
    if (random_bool()) {
        c.add = operand_random(INPUT, random_type(), n, -1.0f, 1.0f);
        c.b.dx_add = in(c.add);
    }
    c.b.mean = f32(c.mean);
    c.b.rstd = f32(c.rstd);
    c.b.dx = out(c.dx);
    c.b.dgamma = f32(c.dgamma);
    c.b.dbeta = f32(c.dbeta);
    c.b.accumulate = random_bool();
    c.b.workspace = scratch(wefti_norm_backward_workspace_bytes(rows, dim));
    run_case(run_norm, check_norm, &c);
}

static void test_norm(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 2, 15, 16, 17, 64, 100, 768, 1023};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int64_t rows = 0; rows < 3; rows++) norm(rows, dims[d]);
    for (int round = 0; round < 40; round++) norm(random_int(1, 200), random_int(2, 300));
}

/* y = norm(x + residual) without keeping the sum. */
static void run_forward(const wefti_kernels *k, wefti_pool *pool, void *context) {
    norm_case *c = context;
    (c->layer ? k->layer_norm : k->rms_norm)(pool, &c->f);
}
static void check_forward(void *context) {
    norm_case *c = context;
    for (int64_t r = 0; r < c->f.rows; r++) {
        double mean = 0.0, square = 0.0;
        int64_t dim = c->f.dim;
        if (c->layer)
            for (int64_t i = 0; i < dim; i++) mean += normalized(c, r * dim + i) / (double)dim;
        for (int64_t i = 0; i < dim; i++)
            square += pow(normalized(c, r * dim + i) - mean, 2.0) / (double)dim;
        double rstd = 1.0 / sqrt(square + (double)c->f.eps);
        for (int64_t i = 0; i < dim; i++)
            check_close(c->y, r * dim + i, (normalized(c, r * dim + i) - mean) * rstd,
                        3e-6 * (1.0 + rstd), "y");
    }
}
static void test_residual_not_stored(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        int64_t rows = random_int(1, 90), dim = random_int(2, 200);
        norm_case c = {.layer = random_bool()};
        c.x = operand_random(INPUT, random_type(), rows * dim, -2.0f, 3.0f);
        c.residual = operand_random(INPUT, random_type(), rows * dim, -2.0f, 3.0f);
        c.y = operand_new(OUTPUT, random_type(), rows * dim);
        c.f = (wefti_norm_args){
            .x = in(c.x), .residual = in(c.residual), .y = out(c.y), .rows = rows};
        c.f.dim = dim;
        c.f.eps = 1e-5f;
        run_case(run_forward, check_forward, &c);
    }
}

typedef struct bn_case {
    wefti_batch_norm_args f;
    wefti_batch_norm_backward_args b;
    operand x, y, gamma, beta, mean, rstd, running_mean, running_var, dy, dx, dgamma, dbeta;
} bn_case;

static int64_t bn_at(const bn_case *c, int64_t n, int64_t ch, int64_t s) {
    return c->f.channels_last ? (n * c->f.spatial + s) * c->f.channels + ch
                              : (n * c->f.channels + ch) * c->f.spatial + s;
}

static void run_bn(const wefti_kernels *k, wefti_pool *pool, void *context) {
    bn_case *c = context;
    k->batch_norm(pool, &c->f);
    k->batch_norm_backward(pool, &c->b);
}

#define EACH(c, n, s)                                                                              \
    for (int64_t n = 0; n < (c)->f.n; n++)                                                         \
        for (int64_t s = 0; s < (c)->f.spatial; s++)

static void check_bn(void *context) {
    bn_case *c = context;
    double count = (double)(c->f.n * c->f.spatial);
    for (int64_t ch = 0; ch < c->f.channels; ch++) {
        double mean = 0.0, squares = 0.0, dgamma = 0.0, dbeta = 0.0;
        EACH(c, n, s) mean += get(c->x, bn_at(c, n, ch, s)) / count;
        EACH(c, n, s) squares += pow(get(c->x, bn_at(c, n, ch, s)) - mean, 2.0);
        double variance = squares / count, momentum = (double)c->f.momentum;
        double old_mean = before(c->running_mean, ch), old_var = before(c->running_var, ch);
        if (c->f.train && count > 0) {
            double unbiased = squares / (count > 1 ? count - 1 : 1);
            check_close(c->running_mean, ch, old_mean + momentum * (mean - old_mean), 1e-6,
                        "running mean");
            check_close(c->running_var, ch, old_var + momentum * (unbiased - old_var), 3e-6,
                        "running var");
        }
        if (!c->f.train) {
            mean = old_mean;
            variance = old_var;
        }
        double rstd = 1.0 / sqrt(variance + (double)c->f.eps);
        double gamma = get(c->gamma, ch), beta = get(c->beta, ch);
        EACH(c, n, s) {
            int64_t i = bn_at(c, n, ch, s);
            double hat = (get(c->x, i) - mean) * rstd, y = hat * gamma + beta, d = before(c->dy, i);
            if (c->f.relu && y < 0.0) y = 0.0;
            check_close(c->y, i, y, 4e-6 * (2.0 + rstd), "y");
            if (c->f.relu && get(c->y, i) <= 0.0)
                d = 0.0; /* y is checked; its sign may be rounding */
            dgamma += d * hat;
            dbeta += d;
        }
        double old_gamma = c->b.accumulate ? before(c->dgamma, ch) : 0.0;
        double old_beta = c->b.accumulate ? before(c->dbeta, ch) : 0.0;
        if (count > 0) {
            check_close(c->dgamma, ch, old_gamma + dgamma, 1e-5 * (1.0 + sqrt(count)), "dgamma");
            check_close(c->dbeta, ch, old_beta + dbeta, 1e-5 * (1.0 + sqrt(count)), "dbeta");
        }
        EACH(c, n, s) {
            int64_t i = bn_at(c, n, ch, s);
            double hat = (get(c->x, i) - mean) * rstd, d = before(c->dy, i);
            if (c->f.relu && get(c->y, i) <= 0.0) d = 0.0;
            double dx = c->f.train ? gamma * rstd * (d - dbeta / count - hat * dgamma / count)
                                   : gamma * rstd * d;
            check_close(c->dx, i, dx, 1e-5 * (1.0 + rstd) * (1.0 + rstd), "dx");
        }
    }
}

static void batch_norm(int64_t n, int64_t channels, int64_t spatial) {
    bn_case c = {0};
    int64_t count = n * channels * spatial;
    c.x = operand_random(INPUT, random_type(), count, -2.0f, 4.0f);
    c.y = operand_new(OUTPUT, random_type(), count);
    c.gamma = f32_random(INPUT, channels, 0.5f, 1.5f);
    c.beta = f32_random(INPUT, channels, -1.0f, 1.0f);
    c.mean = operand_new(OUTPUT, WEFT_F32, channels);
    c.rstd = operand_new(OUTPUT, WEFT_F32, channels);
    c.running_mean = f32_random(OUTPUT, channels, -1.0f, 1.0f);
    c.running_var = f32_random(OUTPUT, channels, 0.5f, 2.0f);
    bool in_place = random_bool();
    c.dy = operand_random(in_place ? OUTPUT : INPUT, random_type(), count, -1.0f, 1.0f);
    c.dx = in_place ? c.dy : operand_new(OUTPUT, random_type(), count);
    c.dgamma = f32_random(OUTPUT, channels, -1.0f, 1.0f);
    c.dbeta = f32_random(OUTPUT, channels, -1.0f, 1.0f);
    bool last = random_bool(), train = random_bool(), relu = random_bool();
    void *workspace = scratch(wefti_batch_norm_workspace_bytes(n, channels, spatial));
    c.f = (wefti_batch_norm_args){.x = in(c.x),
                                  .y = out(c.y),
                                  .n = n,
                                  .channels = channels,
                                  .spatial = spatial,
                                  .channels_last = last,
                                  .train = train,
                                  .relu = relu,
                                  .gamma = f32(c.gamma),
                                  .beta = f32(c.beta),
                                  .mean = f32(c.mean),
                                  .rstd = f32(c.rstd),
                                  .running_mean = f32(c.running_mean),
                                  .running_var = f32(c.running_var),
                                  .momentum = 0.1f,
                                  .eps = 1e-5f,
                                  .workspace = workspace};
    c.b = (wefti_batch_norm_backward_args){.dy = in(c.dy),
                                           .x = in(c.x),
                                           .dx = out(c.dx),
                                           .n = n,
                                           .channels = channels,
                                           .spatial = spatial,
                                           .channels_last = last,
                                           .train = train,
                                           .relu = relu,
                                           .gamma = f32(c.gamma),
                                           .beta = f32(c.beta),
                                           .mean = f32(c.mean),
                                           .rstd = f32(c.rstd),
                                           .dgamma = f32(c.dgamma),
                                           .dbeta = f32(c.dbeta),
                                           .accumulate = random_bool(),
                                           .workspace = workspace};
    run_case(run_bn, check_bn, &c);
}

static void test_batch_norm(void **state) {
    (void)state;
    batch_norm(0, 3, 4);
    batch_norm(2, 0, 4);
    batch_norm(2, 3, 0);
    batch_norm(4, 70, 49);
    batch_norm(300, 5, 1);
    for (int round = 0; round < 40; round++)
        batch_norm(random_int(2, 9), random_int(1, 70), random_int(2, 60));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_norm),
                                       cmocka_unit_test(test_residual_not_stored),
                                       cmocka_unit_test(test_batch_norm)};
    return cmocka_run_group_tests(tests, support_setup, support_teardown);
}
