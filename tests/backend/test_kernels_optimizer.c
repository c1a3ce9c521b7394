/* Optimizer updates over several steps against double-precision updates written from the papers and
 * PyTorch's documentation. */
#include "kernels_support.h"

enum { STEPS = 4 };

typedef enum kind { SGD, ADAM, LION, ADAGRAD, LAMB, ADAFACTOR, KINDS } kind;

typedef struct optimizer_case {
    kind kind;
    wefti_listed_rows listed;
    int64_t rows, cols, n; /* rows 0: a vector of cols */
    float lr, beta1, beta2, eps, decay, momentum, dampening, grad_scale, clip, initial;
    bool flag;                               /* nesterov, decoupled, scale_parameter */
    bool flag_m;                             /* sgd: momentum; adafactor: first moment */
    bool split;                              /* lamb: norms first, then the update */
    operand param, m, v, row, shadow, grads; /* grads: STEPS of them */
    void *workspace;
    double *p, *pm, *pv, *prow, *pcol;
} optimizer_case;

static wefti_src grad(const optimizer_case *c, int step) {
    return (wefti_src){(char *)c->grads.data +
                           (size_t)(step * c->n) * weft_dtype_bytes(c->grads.dtype),
                       c->grads.dtype};
}

static void lamb(const wefti_kernels *k, wefti_pool *pool, optimizer_case *c, int step) {
    double norms[2];
    wefti_lamb_args a = {.param = f32(c->param),
                         .grad = grad(c, step),
                         .m = f32(c->m),
                         .v = f32(c->v),
                         .shadow = c->shadow.data,
                         .elements = c->n,
                         .step = step + 1,
                         .grad_scale = c->grad_scale,
                         .lr = c->lr,
                         .beta1 = c->beta1,
                         .beta2 = c->beta2,
                         .eps = c->eps,
                         .weight_decay = c->decay,
                         .norms_only = c->split,
                         .norms = norms,
                         .workspace = c->workspace};
    k->lamb(pool, &a);
    if (!c->split) return;
    a.norms_only = false;
    a.norms_given = true;
    k->lamb(pool, &a);
}

static void run(const wefti_kernels *k, wefti_pool *pool, void *context) {
    optimizer_case *c = context;
    for (int step = 0; step < STEPS; step++) {
        switch (c->kind) {
        case SGD:
            k->sgd(pool, &(wefti_sgd_args){.param = f32(c->param),
                                           .grad = grad(c, step),
                                           .momentum_buffer = c->flag_m ? f32(c->m) : NULL,
                                           .shadow = c->shadow.data,
                                           .elements = c->n,
                                           .listed = c->listed,
                                           .grad_scale = c->grad_scale,
                                           .lr = c->lr,
                                           .momentum = c->momentum,
                                           .dampening = c->dampening,
                                           .weight_decay = c->decay,
                                           .nesterov = c->flag,
                                           .first = step == 0});
            break;
        case ADAM:
            k->adam(pool, &(wefti_adam_args){.param = f32(c->param),
                                             .grad = grad(c, step),
                                             .m = f32(c->m),
                                             .v = f32(c->v),
                                             .shadow = c->shadow.data,
                                             .elements = c->n,
                                             .listed = c->listed,
                                             .step = step + 1,
                                             .grad_scale = c->grad_scale,
                                             .lr = c->lr,
                                             .beta1 = c->beta1,
                                             .beta2 = c->beta2,
                                             .eps = c->eps,
                                             .weight_decay = c->decay,
                                             .decoupled = c->flag});
            break;
        case LION:
            k->lion(pool, &(wefti_lion_args){.param = f32(c->param),
                                             .grad = grad(c, step),
                                             .m = f32(c->m),
                                             .shadow = c->shadow.data,
                                             .elements = c->n,
                                             .listed = c->listed,
                                             .grad_scale = c->grad_scale,
                                             .lr = c->lr,
                                             .beta1 = c->beta1,
                                             .beta2 = c->beta2,
                                             .weight_decay = c->decay});
            break;
        case ADAGRAD:
            k->adagrad(pool, &(wefti_adagrad_args){.param = f32(c->param),
                                                   .grad = grad(c, step),
                                                   .sum = f32(c->v),
                                                   .shadow = c->shadow.data,
                                                   .elements = c->n,
                                                   .listed = c->listed,
                                                   .grad_scale = c->grad_scale,
                                                   .lr = c->lr,
                                                   .initial = c->initial,
                                                   .eps = c->eps,
                                                   .weight_decay = c->decay});
            break;
        case LAMB:
            lamb(k, pool, c, step);
            break;
        default:
            k->adafactor(pool, &(wefti_adafactor_args){.param = f32(c->param),
                                                       .grad = grad(c, step),
                                                       .row = f32(c->row),
                                                       .col = f32(c->v),
                                                       .m = c->flag_m ? f32(c->m) : NULL,
                                                       .shadow = c->shadow.data,
                                                       .rows = c->rows,
                                                       .cols = c->cols,
                                                       .grad_scale = c->grad_scale,
                                                       .lr = c->lr,
                                                       .beta1 = c->beta1,
                                                       .beta2 = c->beta2,
                                                       .eps1 = 1e-30f,
                                                       .eps2 = 1e-3f,
                                                       .clip = c->clip,
                                                       .weight_decay = c->decay,
                                                       .scale_parameter = c->flag,
                                                       .workspace = c->workspace});
        }
    }
}

static double gradient(const optimizer_case *c, int step, int64_t i) {
    return get(c->grads, step * c->n + i) * (double)c->grad_scale;
}

static void adafactor_step(optimizer_case *c, int step) {
    int64_t rows = c->rows ? c->rows : 1, cols = c->cols;
    double b2 = (double)c->beta2, u2 = 0.0, p2 = 0.0, mean_row = 0.0;
    double *u = calloc((size_t)c->n + 1, sizeof *u);
    for (int64_t i = 0; i < rows && c->rows; i++) {
        double s = 0.0;
        for (int64_t j = 0; j < cols; j++) s += pow(gradient(c, step, i * cols + j), 2.0) + 1e-30;
        c->prow[i] = b2 * c->prow[i] + (1.0 - b2) * s / (double)cols;
        mean_row += c->prow[i] / (double)rows;
    }
    for (int64_t j = 0; j < cols; j++) {
        double s = 0.0;
        for (int64_t i = 0; i < rows; i++) s += pow(gradient(c, step, i * cols + j), 2.0) + 1e-30;
        c->pcol[j] = b2 * c->pcol[j] + (1.0 - b2) * s / (double)rows;
    }
    for (int64_t i = 0; i < c->n; i++) {
        double v = c->pcol[i % cols] * (c->rows ? c->prow[i / cols] / mean_row : 1.0);
        u[i] = gradient(c, step, i) / sqrt(v);
        u2 += u[i] * u[i] / (double)c->n;
        p2 += c->p[i] * c->p[i] / (double)c->n;
    }
    double lr = (double)c->lr * (c->flag ? fmax(1e-3, sqrt(p2)) : 1.0);
    for (int64_t i = 0; i < c->n; i++) {
        double d = u[i] / fmax(1.0, sqrt(u2) / (double)c->clip);
        if (c->flag_m) d = c->pm[i] = (double)c->beta1 * c->pm[i] + (1.0 - (double)c->beta1) * d;
        c->p[i] -= lr * (double)c->decay * c->p[i];
        c->p[i] -= lr * d;
    }
    free(u);
}

static void reference_step(optimizer_case *c, int step) {
    double b1 = (double)c->beta1, b2 = (double)c->beta2, lr = (double)c->lr, wd = (double)c->decay;
    double fix1 = 1.0 - pow(b1, step + 1), fix2 = 1.0 - pow(b2, step + 1), p2 = 0.0, u2 = 0.0;
    double *u = calloc((size_t)c->n + 1, sizeof *u);
    for (int64_t i = 0; i < c->n; i++) {
        double g = gradient(c, step, i), *p = &c->p[i], *m = &c->pm[i], *v = &c->pv[i];
        if (c->kind == SGD) {
            g += wd * *p;
            if (c->flag_m) {
                *m = step == 0 ? g : (double)c->momentum * *m + (1.0 - (double)c->dampening) * g;
                g = c->flag ? g + (double)c->momentum * *m : *m;
            }
            *p -= lr * g;
        } else if (c->kind == LION) {
            double sign = b1 * *m + (1.0 - b1) * g;
            *p -= lr * wd * *p;
            *p -= lr * (sign > 0.0 ? 1.0 : sign < 0.0 ? -1.0 : 0.0);
            *m = b2 * *m + (1.0 - b2) * g;
        } else if (c->kind == ADAGRAD) {
            g += wd * *p;
            *v += g * g;
            *p -= lr * g / (sqrt((double)c->initial + *v) + (double)c->eps);
        } else {
            if (c->kind == ADAM && c->flag) *p -= lr * wd * *p;
            if (c->kind == ADAM && !c->flag) g += wd * *p;
            *m = b1 * *m + (1.0 - b1) * g;
            *v = b2 * *v + (1.0 - b2) * g * g;
            u[i] = *m / fix1 / (sqrt(*v) / sqrt(fix2) + (double)c->eps);
            if (c->kind == ADAM) *p -= lr * u[i];
            if (c->kind == LAMB) u[i] += wd * *p;
            p2 += *p * *p;
            u2 += u[i] * u[i];
        }
    }
    if (c->kind == LAMB)
        for (int64_t i = 0; i < c->n; i++)
            c->p[i] -= lr * (p2 > 0.0 && u2 > 0.0 ? sqrt(p2 / u2) : 1.0) * u[i];
    free(u);
}

static void check(void *context) {
    optimizer_case *c = context;
    size_t n = (size_t)c->n + 1;
    c->p = calloc(n, sizeof(double));
    c->pm = calloc(n, sizeof(double));
    c->pv = calloc(n, sizeof(double));
    c->pcol = calloc(n, sizeof(double));
    c->prow = calloc(n + (size_t)c->rows, sizeof(double));
    for (int64_t i = 0; i < c->n; i++) {
        c->p[i] = before(c->param, i);
        c->pm[i] = before(c->m, i);
        c->pv[i] = before(c->v, i % c->v.count);
    }
    for (int64_t j = 0; j < c->cols; j++) c->pcol[j] = before(c->v, j);
    for (int64_t i = 0; i < c->rows; i++) c->prow[i] = before(c->row, i);
    for (int step = 0; step < STEPS; step++)
        if (c->kind == ADAFACTOR)
            adafactor_step(c, step);
        else
            reference_step(c, step);
    for (int64_t i = 0; i < c->n; i++) {
        check_close(c->param, i, c->p[i], 1e-6, "param"); /* a few roundings of |p| < 2 */
        if (c->shadow.data)
            assert_int_equal(((uint16_t *)c->shadow.data)[i], wefti_f32_to_bf16(f32(c->param)[i]));
    }
    free(c->p);
    free(c->pm);
    free(c->pv);
    free(c->pcol);
    free(c->prow);
}

static void test_optimizers(void **state) {
    (void)state;
    for (int round = 0; round < 100; round++) {
        optimizer_case c = {.kind = (kind)(round % KINDS)};
        c.rows = random_int(0, 3) ? random_int(1, 70) : 0;
        c.cols = round < 10 ? 20011 : random_int(1, 300);
        if (round < 10) c.rows = random_int(0, 3);
        c.n = (c.rows ? c.rows : 1) * c.cols;
        c.lr = random_float(0.001f, 0.05f);
        c.beta1 = 0.9f;
        c.beta2 = random_bool() ? 0.95f : 0.999f;
        c.eps = 1e-6f;
        c.decay = random_bool() ? 0.0f : 0.1f;
        c.momentum = 0.9f;
        c.dampening = random_bool() ? 0.0f : 0.2f;
        c.grad_scale = random_float(0.2f, 1.0f);
        c.clip = random_float(0.2f, 2.0f);
        c.initial = random_bool() ? 0.0f : 0.3f;
        c.flag = random_bool();
        c.flag_m = random_bool();
        c.split = random_bool();
        c.param = f32_random(OUTPUT, c.n, -1.0f, 1.0f);
        c.m = f32_random(OUTPUT, c.n, -0.1f, 0.1f);
        c.v = f32_random(OUTPUT, c.kind == ADAFACTOR ? c.cols : c.n, 0.01f, 0.1f);
        c.row = f32_random(OUTPUT, c.rows, 0.01f, 0.1f);
        c.grads = operand_random(INPUT, random_type(), STEPS * c.n, -1.0f, 1.0f);
        if (random_bool()) c.shadow = operand_new(OUTPUT, WEFT_BF16, c.n);
        size_t bytes = wefti_lamb_workspace_bytes(c.n);
        if (c.kind == ADAFACTOR) bytes = wefti_adafactor_workspace_bytes(c.rows, c.cols);
        c.workspace = scratch(bytes);
        run_case(run, check, &c);
    }
}

/* Copies rows of `width` floats between a table and a list of them. */
static void copy_rows(float *table, float *list, const wefti_listed_rows *x, bool back) {
    for (int64_t r = 0; r < x->count; r++) {
        float *at = table + x->number[r] * x->width, *row = list + r * x->width;
        memcpy(back ? at : row, back ? row : at, (size_t)x->width * sizeof *row);
    }
}

/* Updating rows where they lie has the bits of updating copies of them, and leaves all others. */
static void test_rows_of_tables(void **state) {
    (void)state;
    for (int round = 0; round < 60; round++) {
        enum { ROWS = 400 };
        const int64_t width = random_int(0, 70), count = random_int(0, ROWS);
        int32_t number[ROWS];
        const wefti_listed_rows listed = {number, count, width};
        for (int32_t r = 0; r < ROWS; r++) {
            const int64_t other = random_int(0, r);
            number[r] = number[other];
            number[other] = r;
        }
        optimizer_case a = {.kind = (kind)(round % LAMB),
                            .lr = 0.01f,
                            .beta1 = 0.9f,
                            .beta2 = 0.99f,
                            .eps = 1e-6f,
                            .momentum = 0.9f,
                            .grad_scale = 0.7f};
        a.decay = random_bool() ? 0.0f : 0.1f;
        a.flag = random_bool();
        a.flag_m = random_bool();
        a.grads = operand_random(INPUT, random_type(), STEPS * ROWS * width, -1.0f, 1.0f);
        for (int path = 0; path < PATHS; path++) {
            const wefti_kernels *k = path_kernels(path);
            if (!k) continue;
            optimizer_case b = a;
            b.listed.number = NULL;
            operand *const of_a[] = {&a.param, &a.m, &a.v}, *const of_b[] = {&b.param, &b.m, &b.v};
            float *whole[3];
            a.n = b.n = count * width; /* each step's gradient follows the one before */
            for (int i = 0; i < 3; i++) {
                *of_a[i] = f32_random(OUTPUT, ROWS * width, 0.01f, 0.1f);
                *of_b[i] = f32_random(OUTPUT, ROWS * width, 0.01f, 0.1f);
                whole[i] = malloc((size_t)(ROWS * width + 1) * sizeof(float));
                memcpy(whole[i], f32(*of_a[i]), (size_t)(ROWS * width) * sizeof(float));
                copy_rows(whole[i], f32(*of_b[i]), &listed, false);
            }
            a.listed = listed;
            run(k, pools[round % THREADS], &a);
            run(k, NULL, &b);
            check_guards("rows of tables");
            for (int i = 0; i < 3; i++) {
                copy_rows(whole[i], f32(*of_b[i]), &listed, true);
                assert_memory_equal(whole[i], f32(*of_a[i]),
                                    (size_t)(ROWS * width) * sizeof(float));
                free(whole[i]);
            }
        }
        buffers_free();
    }
}

/* Lion must not move where the interpolated gradient is exactly 0; LAMB must survive a parameter of
 * zeros. */
static void test_zeros(void **state) {
    (void)state;
    for (int path = 0; path < PATHS; path++) {
        const wefti_kernels *k = path_kernels(path);
        if (!k) continue;
        float p[20] = {0}, g[20] = {0}, m[20] = {0}, v[20] = {0};
        p[3] = 1.0f;
        k->lion(NULL, &(wefti_lion_args){.param = p,
                                         .grad = wefti_src_f32(g),
                                         .m = m,
                                         .elements = 20,
                                         .grad_scale = 1.0f,
                                         .lr = 0.5f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.99f});
        assert_true(p[3] == 1.0f && p[0] == 0.0f);
        p[3] = 0.0f;
        g[5] = 1.0f;
        double workspace[16];
        k->lamb(NULL, &(wefti_lamb_args){.param = p,
                                         .grad = wefti_src_f32(g),
                                         .m = m,
                                         .v = v,
                                         .elements = 20,
                                         .step = 1,
                                         .grad_scale = 1.0f,
                                         .lr = 0.5f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.99f,
                                         .eps = 1e-6f,
                                         .workspace = workspace});
        assert_true(fabsf(p[5] + 0.5f) < 1e-5f && p[0] == 0.0f); /* ratio 1 */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_optimizers),
                                       cmocka_unit_test(test_rows_of_tables),
                                       cmocka_unit_test(test_zeros)};
    return cmocka_run_group_tests(tests, support_setup, support_teardown);
}
