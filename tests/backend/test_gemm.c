/* Matrix products against a naive product in doubles: random shapes, strides, dtypes and epilogues,
 * for every isa of this processor. Guards lie around all buffers, and 1, 2 and 3 threads give equal
 * bits. */
#include <stdatomic.h>

#include "backend/kinds.h"
#include "backend/cpu/gemm/kernel_table.h"
#include "backend/gemm_problem.h"
#include "sanitized.h"
#include "weft/bench.h"

/* Products of more operations than this take the emulated kernels too long. */
static const double EMULATED_WORK = SANITIZED ? 2e6 : 7e7, EMULATED_THREADS_WORK = 5e6;

static double work_of(const wefti_gemm_spec *s) {
    return (double)(s->m * s->n * s->k * s->batch[0] * s->batch[1]);
}

/* With 1 to `most` threads. */
static void run_problem(problem *p, wefti_isa isa, wefti_pool *pools[3], int most) {
    const wefti_gemm_spec *s = &p->spec;
    const size_t c_bytes = (size_t)p->c.bytes;
    wefti_gemm gemm;
    assert_int_equal(wefti_gemm_prepare(s, isa, &gemm), WEFT_OK);
    buffer first_c = {0};
    for (int threads = 1; threads <= most; threads++) {
        buffer workspace = buffer_new(wefti_gemm_workspace_bytes(&gemm, threads));
        buffer c = buffer_new(p->c.bytes);
        memcpy(buffer_data(&c), buffer_data(&p->c), c_bytes);
        wefti_gemm_args args = problem_args(p, &c);
        wefti_gemm_run(&gemm, &args, buffer_data(&workspace), pools[threads - 1]);
        buffer_check(&workspace);
        if (threads == 1) {
            compare(p, &c, p->want, p->want_bound);
            first_c = c;
        } else {
            buffer_check(&c);
            assert_memory_equal(buffer_data(&c), buffer_data(&first_c), c_bytes);
            free(c.base);
        }
        free(workspace.base);
    }
    free(first_c.base);
}

static void problem_test(wefti_gemm_spec spec, wefti_pool *pools[3]) {
    problem p = problem_new(spec);
    for (int path = 0; path < PATHS; path++) {
        if (!path_begin_product(path, spec.bf16)) continue;
        const bool slow = path_is_emulated(path) && work_of(&spec) > EMULATED_THREADS_WORK;
        if (path_is_emulated(path) && work_of(&spec) > EMULATED_WORK) continue;
        run_problem(&p, path_isa(path), pools, slow ? 1 : 3);
    }
    path_end();
    problem_free(&p);
}

static void random_dtypes(wefti_gemm_spec *s) {
    s->a.dtype = random_below(2) ? WEFT_F32 : WEFT_BF16;
    s->b.dtype = random_below(2) ? WEFT_F32 : WEFT_BF16;
    s->c.dtype = random_below(2) ? WEFT_F32 : WEFT_BF16;
}

static void test_random_small(void **state) {
    for (int round = 0; round < (SANITIZED ? 150 : 400); round++) {
        /* Sizes from 0: every remainder of every register tile, and the few-row path. */
        wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, random_below(round % 4 ? 71 : 9),
                                               random_below(71), random_below(71));
        s.batch[0] = random_below(8) ? 1 : random_below(3);
        s.batch[1] = random_below(4) ? 1 : random_below(4);
        random_dtypes(&s);
        random_epilogue(&s);
        s.bf16 = random_below(2) == 0;
        problem_test(s, *state);
    }
}

static void test_random_f64(void **state) {
    for (int round = 0; round < (SANITIZED ? 20 : 60); round++) {
        wefti_gemm_spec s =
            wefti_gemm_spec_of(WEFT_F64, random_below(40), random_below(200), random_below(71));
        s.batch[1] = random_below(3);
        random_epilogue(&s);
        problem_test(s, *state);
    }
}

/* Shapes that reach every loop: several blocks of k, rows and columns, many tiles, long few-row
 * products. */
static void test_large(void **state) {
    static const int64_t shapes[][4] = {/* m, n, k, batch */
                                        {300, 500, 1100, 1}, {3300, 70, 530, 1}, {70, 3300, 530, 1},
                                        {300, 600, 1030, 2}, {9, 1200, 700, 1},  {1, 3000, 700, 1},
                                        {5, 700, 1500, 1},   {8, 1300, 200, 3},  {130, 33, 2100, 1},
                                        {257, 129, 64, 6}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int round = SANITIZED; round < 2; round++) {
            wefti_gemm_spec s =
                wefti_gemm_spec_of(WEFT_F32, shapes[i][0], shapes[i][1], shapes[i][2]);
            s.batch[1] = shapes[i][3];
            random_dtypes(&s);
            if (round) random_epilogue(&s);
            s.bf16 = random_below(2) == 0;
            problem_test(s, *state);
        }
}

/* bf16 operands with rows that are read in place: whole tiles and partial ones, dense rows and
 * padded ones, several blocks of k. The columns are enough for tasks that pack their own, or too
 * few. */
static void test_bf16_rows(void **state) {
    static const int64_t shapes[][4] = {/* m, n, k, batch */
                                        {64, 1200, 96, 1},  {150, 420, 1056, 1}, {97, 2000, 64, 1},
                                        {33, 700, 2080, 2}, {300, 40, 320, 1},   {96, 64, 32, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int round = SANITIZED ? 3 : 0; round < 6; round++) {
            wefti_gemm_spec s =
                wefti_gemm_spec_of(WEFT_BF16, shapes[i][0], shapes[i][1], shapes[i][2]);
            s.batch[1] = shapes[i][3];
            random_dtypes(&s);
            s.a.dtype = WEFT_BF16;
            if (round) random_epilogue(&s);
            s.bf16 = true;
            problem_test(s, *state);
        }
}

/* More rows than columns: tasks pack their own rows of A if there are enough rows and kernels
 * cannot read them in place. */
static void test_bf16_tall(void **state) {
    static const int64_t shapes[][3] = {/* m, n, k */
                                        {1300, 100, 96},
                                        {700, 420, 1056},
                                        {2750, 40, 65}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int round = SANITIZED ? 2 : 0; round < 4; round++) {
            wefti_gemm_spec s =
                wefti_gemm_spec_of(WEFT_F32, shapes[i][0], shapes[i][1], shapes[i][2]);
            random_dtypes(&s);
            if (round > 1) random_epilogue(&s);
            s.a.dtype = round % 2 ? WEFT_BF16 : WEFT_F32;
            s.bf16 = true;
            if (round % 2) s.a = wefti_gemm_transposed(s.a.dtype, s.m);
            problem_test(s, *state);
        }
}

/* f32 on tiles: whole register tiles and parts, contiguous rows and columns, tasks that pack for
 * themselves, tasks of tiles, small products and batches. */
static void test_f32_tiles(void **state) {
    static const int64_t shapes[][4] = {/* m, n, k, batch */
                                        {64, 1200, 96, 1}, {150, 420, 1056, 1}, {1300, 100, 96, 1},
                                        {700, 64, 65, 1},  {33, 300, 2080, 2},  {17, 33, 40, 3},
                                        {9, 32, 32, 1},    {96, 64, 33, 5}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int round = SANITIZED ? 3 : 0; round < 4; round++) {
            wefti_gemm_spec s =
                wefti_gemm_spec_of(WEFT_F32, shapes[i][0], shapes[i][1], shapes[i][2]);
            s.batch[1] = shapes[i][3];
            if (round) random_epilogue(&s);
            if (round == 1) s.a = wefti_gemm_transposed(WEFT_F32, s.m);
            if (round == 2) s.b = wefti_gemm_transposed(WEFT_F32, s.k);
            problem_test(s, *state);
        }
}

/* Numbers of every sign; of widely differing sizes; all positive, where sums grow. */
static float number_of(int kind) {
    double x = random_value();
    if (kind == 1) x *= exp(12 * random_value());
    if (kind == 2) x = fabs(x);
    return (float)x;
}

/* The root of the mean square of |C - AB| / |A||B| over all elements. */
static double error_of(wefti_isa isa, int64_t size, int64_t k, const float *a, const float *b) {
    wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, size, size, k);
    wefti_gemm gemm;
    assert_int_equal(wefti_gemm_prepare(&s, isa, &gemm), WEFT_OK);
    buffer workspace = buffer_new(wefti_gemm_workspace_bytes(&gemm, 1));
    float *c = malloc(sizeof *c * (size_t)(size * size));
    assert_non_null(c);
    wefti_gemm_run(&gemm, &(wefti_gemm_args){.a = a, .b = b, .c = c}, buffer_data(&workspace),
                   NULL);
    double sum = 0;
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < size; j++) {
            double exact = 0, scale = 0;
            for (int64_t p = 0; p < k; p++) {
                double product = (double)a[i * k + p] * (double)b[p * size + j];
                exact += product;
                scale += fabs(product);
            }
            double error = ((double)c[i * size + j] - exact) / scale;
            sum += error * error;
        }
    free(c);
    free(workspace.base);
    return sqrt(sum / (double)(size * size));
}

/* Three bf16 pieces hold an f32: errors are no larger than in products in f32. */
static void test_f32_tiles_are_exact(void **state) {
    (void)state;
    enum { SIZE = 48 };
    if (!wefti_isa_has(WEFTI_ISA_AMX)) wefti_cpu_tune(&wefti_cpu_emulated);
    static float a[SIZE * 3000], b[SIZE * 3000];
    for (int kind = 0; kind < 3; kind++)
        for (int64_t k = 40; k <= 3000; k += 740) {
            for (int i = 0; i < SIZE * 3000; i++) a[i] = number_of(kind);
            for (int i = 0; i < SIZE * 3000; i++) b[i] = number_of(kind);
            const double tiles = error_of(WEFTI_ISA_AMX, SIZE, k, a, b);
            const double vectors = error_of(WEFTI_ISA_AVX512, SIZE, k, a, b);
            print_message("kind %d, k %4d: %.2g with tiles, %.2g with vectors, in units of 2^-24\n",
                          kind, (int)k, tiles * 0x1p24, vectors * 0x1p24);
            /* For ten seeds the largest ratio is 1. Numbers of two pieces only would give 26. */
            assert_true(tiles > 0 && tiles <= 1.25 * vectors);
        }
    path_end();
}

/* One product of numbers with digits in each piece. It is exact to a rounding for every power of
 * two at which all pieces are representable. Outside of that range it gives NaN, as documented. */
static void test_f32_tiles_of_any_size(void **state) {
    (void)state;
    enum { SIDE = 32 };
    static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    if (!wefti_isa_has(WEFTI_ISA_AMX)) wefti_cpu_tune(&wefti_cpu_emulated);
    wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, SIDE, SIDE, SIDE);
    wefti_gemm gemm;
    assert_int_equal(wefti_gemm_prepare(&s, WEFTI_ISA_AMX, &gemm), WEFT_OK);
    buffer workspace = buffer_new(wefti_gemm_workspace_bytes(&gemm, 1));
    for (int i = 0; i < SIDE; i++) b[i * SIDE + i] = 1.0f; /* C = A */
    for (int power = -106; power < 128; power++) {
        for (int i = 0; i < SIDE * SIDE; i++)
            a[i] = (float)ldexp(power == 127 ? 1.97 * fabs(random_value()) : 1.0 + random_value(),
                                power);
        wefti_gemm_run(&gemm, &(wefti_gemm_args){.a = a, .b = b, .c = c}, buffer_data(&workspace),
                       NULL);
        for (int i = 0; i < SIDE * SIDE; i++)
            assert_true(fabsf(c[i] - a[i]) <= fmaxf(fabsf(a[i]) * 0x1p-24f, 0x1p-126f));
    }
    static const float large[] = {INFINITY, -INFINITY, 3.4e38f, -3.4e38f};
    for (int i = 0; i < 4; i++) {
        a[0] = large[i];
        wefti_gemm_run(&gemm, &(wefti_gemm_args){.a = a, .b = b, .c = c}, buffer_data(&workspace),
                       NULL);
        assert_true(isnan(c[0]));
    }
    path_end();
    free(workspace.base);
}

/* A NaN in a row of A reaches every column of that row of C, and no other row. */
static void test_nan_is_kept(void **state) {
    wefti_pool **pools = *state;
    enum { M = 20, N = 37, K = 50 };
    static float a[M * K], b[K * N], c[M * N];
    for (int m = 1; m <= M; m += M - 1)
        for (int form = 0; form < 2 * PATHS; form++) { /* in f32, then as bf16 */
            const wefti_isa isa = path_isa(form % PATHS);
            const bool bf16 = form >= PATHS;
            if (!path_begin_product(form % PATHS, bf16)) continue;
            for (int i = 0; i < M * K; i++) a[i] = (float)random_value();
            for (int i = 0; i < K * N; i++) b[i] = (float)random_value();
            const int bad = m / 2;
            a[bad * K + 7] = NAN;
            wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, m, N, K);
            s.bf16 = bf16;
            wefti_gemm gemm;
            assert_int_equal(wefti_gemm_prepare(&s, isa, &gemm), WEFT_OK);
            buffer workspace = buffer_new(wefti_gemm_workspace_bytes(&gemm, 1));
            wefti_gemm_run(&gemm, &(wefti_gemm_args){.a = a, .b = b, .c = c},
                           buffer_data(&workspace), pools[0]);
            free(workspace.base);
            for (int i = 0; i < m * N; i++) assert_int_equal(isnan(c[i]) != 0, i / N == bad);
        }
    path_end();
}

static void test_refusals(void **state) {
    (void)state;
    wefti_gemm gemm;
    wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, 4, 4, -1);
    assert_int_equal(wefti_gemm_prepare(&s, WEFTI_ISA_PLAIN, &gemm), WEFT_E_SHAPE);
    s = wefti_gemm_spec_of(WEFT_F32, 4, 4, 4);
    s.b.dtype = WEFT_F64;
    assert_int_equal(wefti_gemm_prepare(&s, WEFTI_ISA_PLAIN, &gemm), WEFT_E_NO_IMPL);
    assert_non_null(strstr(weft_error_message(), "f64"));
    s = wefti_gemm_spec_of(WEFT_I32, 4, 4, 4);
    assert_int_equal(wefti_gemm_prepare(&s, WEFTI_ISA_PLAIN, &gemm), WEFT_E_NO_IMPL);
    s = wefti_gemm_spec_of(WEFT_BF16, 4, 4, 4);
    s.bf16 = true;
    assert_int_equal(wefti_gemm_prepare(&s, WEFTI_ISA_PLAIN, &gemm), WEFT_E_NO_IMPL);
    s = wefti_gemm_spec_of(WEFT_F32, 4, 4, 4);
    assert_int_equal(wefti_gemm_prepare(&s, WEFTI_ISA_PLAIN, &gemm), WEFT_OK);
    assert_int_equal(wefti_gemm_prepare(&s, WEFTI_ISAS, &gemm), WEFT_E_ARG);
}

static void test_isa_choice(void **state) {
    (void)state;
    assert_true(wefti_isa_has(WEFTI_ISA_PLAIN));
    assert_true(wefti_isa_has(wefti_isa_best()));
    assert_int_equal(setenv("WEFT_ISA", "plain", 1), 0);
    assert_int_equal(wefti_isa_best(), WEFTI_ISA_PLAIN);
    assert_int_equal(setenv("WEFT_ISA", "avx2", 1), 0);
    assert_true(wefti_isa_best() <= WEFTI_ISA_AVX2);
    assert_int_equal(setenv("WEFT_ISA", "avx512", 1), 0);
    assert_true(wefti_isa_best() <= WEFTI_ISA_AVX512);
    assert_false(wefti_isa_best_has_bf16());
    assert_string_equal(wefti_isa_arithmetic(true), wefti_isa_text(wefti_isa_best()));
    assert_int_equal(setenv("WEFT_ISA", "avx512_bf16", 1), 0);
    assert_true(wefti_isa_best() <= WEFTI_ISA_AVX512);
    assert_int_equal(wefti_isa_best_has_bf16(), wefti_isa_has_bf16(wefti_isa_best()));
    assert_string_equal(wefti_isa_arithmetic(true), wefti_isa_best_has_bf16()
                                                        ? "avx512_bf16"
                                                        : wefti_isa_text(wefti_isa_best()));
    assert_string_equal(wefti_isa_arithmetic(false), wefti_isa_text(wefti_isa_best()));
    assert_int_equal(unsetenv("WEFT_ISA"), 0);
    for (int isa = 0; isa < WEFTI_ISAS; isa++)
        if (wefti_isa_has((wefti_isa)isa)) assert_true(wefti_isa_best() >= (wefti_isa)isa);
}

static void test_unknown_forms_are_refused(void **state) {
    (void)state;
    static const char *const known[] = {"", "plain", "avx2", "avx512", "avx512_bf16", "amx"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(setenv("WEFT_ISA", known[i], 1), 0);
        ASSERT_OK(wefti_kind_check(wefti_kind_of(0)));
    }
    assert_int_equal(setenv("WEFT_ISA", "avx21", 1), 0);
    assert_int_equal(wefti_kind_check(wefti_kind_of(0)), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "WEFT_ISA is 'avx21'"));
    assert_non_null(strstr(weft_error_message(), "plain, avx2, avx512, avx512_bf16 or amx"));
    assert_int_equal(unsetenv("WEFT_ISA"), 0);
    assert_int_equal(setenv("WEFT_BACKEND", "refrence", 1), 0);
    assert_int_equal(wefti_kind_check(wefti_kind_of(0)), WEFT_E_ARG);
    assert_non_null(strstr(weft_error_message(), "WEFT_BACKEND is 'refrence'"));
    assert_int_equal(setenv("WEFT_BACKEND", "reference", 1), 0);
    ASSERT_OK(wefti_kind_check(wefti_kind_of(0)));
    assert_int_equal(unsetenv("WEFT_BACKEND"), 0);
    ASSERT_OK(wefti_kind_check(wefti_kind_of(0)));
}

/* What was measured, or what a test sets. */
static void test_bf16_choice(void **state) {
    (void)state;
    for (int path = 0; path < PATHS; path++) {
        if (!path_begin(path)) continue;
        const wefti_isa isa = path_isa(path);
        wefti_cpu_tuning tuning =
            path_is_emulated(path) ? wefti_cpu_emulated : (wefti_cpu_tuning){0};
        wefti_cpu_tune(&tuning);
        for (int choice = WEFTI_BF16_MEASURED; choice <= WEFTI_BF16_FASTER; choice++) {
            bool native = true;
            tuning.bf16 = (wefti_bf16_speed)choice;
            if (path_is_emulated(path) && choice == WEFTI_BF16_MEASURED) continue;
            assert_int_equal(wefti_gemm_bf16_choice(isa, &native), WEFT_OK);
            assert_true(!native || wefti_isa_has_bf16(isa));
            if (choice == WEFTI_BF16_SLOWER) assert_false(native);
            if (choice == WEFTI_BF16_FASTER) assert_int_equal(native, wefti_isa_has_bf16(isa));
            assert_int_equal(wefti_kind_choose_bf16(wefti_kind_of(0)),
                             native ? WEFTI_BF16_NATIVE : WEFTI_BF16_AS_F32);
            for (int again = 0; again < 20 && choice == WEFTI_BF16_MEASURED; again++) {
                bool same = !native; /* it was measured once */
                assert_int_equal(wefti_gemm_bf16_choice(isa, &same), WEFT_OK);
                assert_int_equal(same, native);
            }
            if (choice == WEFTI_BF16_MEASURED)
                print_message("%s: bf16 products in %s\n", path_text(path),
                              native ? "bf16" : "f32");
        }
    }
    path_end();
}

static _Atomic int64_t bf16_tiles;

static void count_tile(int rows, int64_t k, const void *a, int64_t a_stride, const void *b,
                       float *c, int64_t c_stride, bool add, wefti_gemm_ahead *ahead) {
    atomic_fetch_add(&bf16_tiles, 1);
    wefti_gemm_forms_emulated.avx512_bf16->tile(rows, k, a, a_stride, b, c, c_stride, add, ahead);
}

/* A machine file has the products that sessions compute. */
static void test_measured_as_chosen(void **state) {
    (void)state;
    wefti_gemm_kernels kernels = *wefti_gemm_forms_emulated.avx512_bf16;
    wefti_gemm_forms forms = wefti_gemm_forms_emulated;
    wefti_cpu_tuning tuning = wefti_cpu_emulated;
    kernels.tile = count_tile;
    forms.avx512_bf16 = &kernels;
    tuning.gemm = &forms;
    assert_true(path_begin(WEFTI_ISAS + WEFTI_ISA_AVX512));
    wefti_cpu_tune(&tuning);
    for (int speed = WEFTI_BF16_SLOWER; speed <= WEFTI_BF16_FASTER; speed++) {
        const weft_machine_options o = WEFT_STRUCT(weft_machine_options, .seconds = 1e-4);
        char *text;
        tuning.bf16 = (wefti_bf16_speed)speed;
        atomic_store(&bf16_tiles, 0);
        ASSERT_OK(weft_machine_measure(NULL, &o, &text));
        weft_text_free(text);
        assert_int_equal(wefti_kind_choose_bf16(wefti_kind_of(0)),
                         speed == WEFTI_BF16_FASTER ? WEFTI_BF16_NATIVE : WEFTI_BF16_AS_F32);
        assert_int_equal(atomic_load(&bf16_tiles) > 0, speed == WEFTI_BF16_FASTER);
    }
    path_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_small),
                                       cmocka_unit_test(test_random_f64),
                                       cmocka_unit_test(test_large),
                                       cmocka_unit_test(test_bf16_rows),
                                       cmocka_unit_test(test_bf16_tall),
                                       cmocka_unit_test(test_f32_tiles),
                                       cmocka_unit_test(test_f32_tiles_are_exact),
                                       cmocka_unit_test(test_f32_tiles_of_any_size),
                                       cmocka_unit_test(test_nan_is_kept),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_isa_choice),
                                       cmocka_unit_test(test_unknown_forms_are_refused),
                                       cmocka_unit_test(test_bf16_choice),
                                       cmocka_unit_test(test_measured_as_chosen)};
    return cmocka_run_group_tests(tests, make_pools, destroy_pools);
}
