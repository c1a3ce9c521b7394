/* Bits of matrix products on every kernel path, native and emulated. An element of C depends only
 * on its row of A, its column of B and k. Neighboring elements and the size of the caches have no
 * effect, nor has the number of threads. Emulated kernels give the bits of the native ones. */
#include "backend/gemm_problem.h"
#include "base/tuning.h"
#include "sanitized.h"

enum { M = 37, MOST = 40, N = 800, K = 2048 }; /* MOST: rows that the arrays hold */

static wefti_pool **pools;
static float a[MOST * K], b[K * N], bias[N];
static char whole[4 * MOST * N], part[4 * MOST * N];

static void fill(void) {
    for (int i = 0; i < MOST * K; i++) a[i] = (float)random_value();
    for (int i = 0; i < K * N; i++) b[i] = (float)random_value();
    for (int i = 0; i < N; i++) bias[i] = (float)random_value();
}

/* Sums of k blocks wait in C or beside it, and results go to C straight or through an epilogue. */
typedef enum kind { PLAIN, ADDED, BIASED, ROUNDED, KINDS } kind;
static const char *const kind_text[KINDS] = {"plain", "added to C", "with bias", "in bf16"};

static wefti_gemm_spec spec_of(kind kind, int64_t m, int64_t n, int64_t k, bool bf16) {
    wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, m, n, k);
    s.a = wefti_gemm_rows(WEFT_F32, K);
    s.b = wefti_gemm_rows(WEFT_F32, N);
    s.c = wefti_gemm_rows(kind == ROUNDED ? WEFT_BF16 : WEFT_F32, N);
    s.accumulate = kind == ADDED;
    s.has_bias = kind == BIASED;
    s.bf16 = bf16;
    return s;
}

/* Each product runs on the next number of threads, from 1 to 3. */
static void multiply(const wefti_gemm_spec *s, wefti_isa isa, void *c) {
    static int turn;
    const int threads = 1 + turn++ % 3;
    wefti_gemm gemm;
    assert_int_equal(wefti_gemm_prepare(s, isa, &gemm), WEFT_OK);
    buffer workspace = buffer_new(wefti_gemm_workspace_bytes(&gemm, threads));
    if (s->accumulate) memcpy(c, b, (size_t)(s->m * N * 4));
    wefti_gemm_run(&gemm, &(wefti_gemm_args){.a = a, .b = b, .c = c, .bias = bias},
                   buffer_data(&workspace), pools[threads - 1]);
    buffer_check(&workspace);
    free(workspace.base);
}

/* The number of rows of a product of m rows and n columns that differ from the rows of the whole
 * product. */
static int differing_rows(kind kind, int64_t m, int64_t n, int64_t k, bool bf16, wefti_isa isa) {
    const wefti_gemm_spec s = spec_of(kind, m, n, k, bf16);
    const size_t bytes = kind == ROUNDED ? 2 : 4;
    int rows = 0;
    multiply(&s, isa, part);
    for (size_t r = 0; r < (size_t)m; r++)
        rows += memcmp(part + r * N * bytes, whole + r * N * bytes, (size_t)n * bytes) != 0;
    return rows;
}

/* Prints each product with other bits. Returns how many there are. */
static int differing_products(kind kind, int path, int64_t k, bool bf16, int64_t l2_bytes) {
    static const int64_t columns[] = {32, 100, 257, N};
    const wefti_gemm_spec s = spec_of(kind, M, N, k, bf16);
    int bad = 0;
    multiply(&s, path_isa(path), whole);
    for (size_t n = 0; n < sizeof columns / sizeof *columns; n++)
        for (int64_t m = 9; m <= M; m += M - 9) {
            if (m == M && columns[n] == N) continue;
            const int rows = differing_rows(kind, m, columns[n], k, bf16, path_isa(path));
            if (rows == 0) continue;
            bad++;
            print_message("%s, %s, %s, L2 %d KiB, k %d: %d of %d rows of %d x %d are not those "
                          "of %d x %d\n",
                          path_text(path), bf16 ? "bf16" : "f32", kind_text[kind],
                          (int)(l2_bytes >> 10), (int)k, rows, (int)m, (int)m, (int)columns[n], M,
                          N);
        }
    return bad;
}

/* All kinds of products with two depths of more than one block of k. Other cache sizes run some of
 * them. */
static void test_rows_and_columns_are_alone(void **state) {
    pools = *state;
    fill();
    int bad = 0;
    for (int path = 0; path < PATHS; path++)
        for (int64_t l2 = 512 << 10; l2 <= 2 << 20; l2 *= 2)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                const bool all = l2 == 1 << 20;
                if (!path_begin_product(path, bf16)) continue;
                wefti_tune(&(wefti_tuning){.l2_bytes = l2});
                for (int form = 0; form < KINDS; form += all ? 1 : ROUNDED) {
                    bad += differing_products((kind)form, path, 1100, bf16, l2);
                    if (all && !SANITIZED && (bf16 || form == PLAIN))
                        bad += differing_products((kind)form, path, K, bf16, l2);
                }
            }
    path_end();
    wefti_tune(NULL);
    assert_int_equal(bad, 0);
}

/* A sum and a bias that almost cancel: whether the subnormal result is kept does not depend on the
 * columns beside it. */
static void test_subnormal_results(void **state) {
    enum { TINY_M = 9, TINY_N = 40, TINY_K = 32 };
    pools = *state;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (int i = 0; i < TINY_M; i++) a[(size_t)i * K] = 1.5f * 0x1p-63f;
    for (int i = 0; i < TINY_N; i++) {
        b[i] = 0x1p-63f;
        bias[i] = -0x1p-126f; /* the result is 2^-127 */
    }
    for (int path = 0; path < PATHS; path++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int64_t n = 1; path_begin_product(path, bf16) && n < TINY_N; n += 3) {
                wefti_gemm_spec s = spec_of(ROUNDED, TINY_M, TINY_N, TINY_K, bf16);
                s.has_bias = true;
                multiply(&s, path_isa(path), whole);
                s.n = n;
                multiply(&s, path_isa(path), part);
                for (size_t r = 0; r < TINY_M; r++)
                    if (memcmp(part + 2 * r * N, whole + 2 * r * N, (size_t)n * 2))
                        fail_msg("%s, %s: row %d of %d columns is not that of %d", path_text(path),
                                 bf16 ? "bf16" : "f32", (int)r, (int)n, TINY_N);
            }
    path_end();
}

/* ---- few rows ---- */

enum { FEW_ROWS = 8, FEW_N = 40, FEW_K = 1100 };

/* Whether a product of m rows may have other bits than one of more rows: the exceptions of
 * docs/guide/reproducibility.md. They are products of up to 8 rows, if the columns of B are
 * contiguous or larger products of the same operands multiply bf16. */
static bool is_exception(wefti_isa isa, bool bf16, bool transposed, int64_t m) {
    return m <= FEW_ROWS && (transposed || bf16 || isa == WEFTI_ISA_AMX);
}

/* The number of rows of m that are not those of `expected`. */
static int other_rows(const void *expected, int64_t m, size_t bytes) {
    int rows = 0;
    for (size_t r = 0; r < (size_t)m; r++)
        rows += memcmp(part + r * N * bytes, (const char *)expected + r * N * bytes,
                       FEW_N * bytes) != 0;
    return rows;
}

static int few_rows(kind kind, int path, bool bf16, bool transposed) {
    static char few[4 * FEW_ROWS * N];
    wefti_gemm_spec s = spec_of(kind, MOST, FEW_N, FEW_K, bf16);
    if (transposed) s.b = wefti_gemm_transposed(WEFT_F32, FEW_K);
    const size_t bytes = kind == ROUNDED ? 2 : 4;
    int bad = 0;
    multiply(&s, path_isa(path), whole);
    s.m = FEW_ROWS;
    multiply(&s, path_isa(path), few);
    for (s.m = 1; s.m <= MOST; s.m += SANITIZED ? 3 : 1) {
        const bool exception = is_exception(path_isa(path), bf16, transposed, s.m);
        multiply(&s, path_isa(path), part);
        const int rows = other_rows(exception ? few : whole, s.m, bytes);
        bad += rows > 0;
        if (rows > 0)
            print_message("%s, %s, %s, columns of B %s: %d of %d rows differ\n", path_text(path),
                          bf16 ? "bf16" : "f32", kind_text[kind],
                          transposed ? "contiguous" : "apart", rows, (int)s.m);
    }
    return bad;
}

/* Every number of rows from 1 to 40. */
static void test_few_rows(void **state) {
    pools = *state;
    fill();
    int bad = 0;
    for (int path = 0; path < PATHS; path++)
        for (int form = 0; form < 4 * KINDS; form++) {
            const bool bf16 = form & 1, transposed = form & 2;
            if (path_begin_product(path, bf16))
                bad += few_rows((kind)(form / 4), path, bf16, transposed);
        }
    path_end();
    assert_int_equal(bad, 0);
}

/* Products that the emulation reproduces bit for bit: scaled by 1, so that only the kernels
 * round. */
static void test_emulated_bits(void **state) {
    pools = *state;
    fill();
    for (int path = WEFTI_ISAS + 1; path < PATHS; path++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (int form = 0; form < KINDS; form++) {
                const wefti_isa isa = path_isa(path);
                path_end();
                if (!wefti_isa_has(isa) || (bf16 && !wefti_isa_has_bf16(isa))) continue;
                for (int64_t m = 5; m <= M; m += M - 5) {
                    const wefti_gemm_spec s = spec_of((kind)form, m, 257, 1100, bf16);
                    path_end();
                    multiply(&s, isa, whole);
                    assert_true(path_begin(path));
                    multiply(&s, isa, part);
                    for (size_t r = 0; r < (size_t)m; r++) {
                        const size_t bytes = form == ROUNDED ? 2 : 4, at = r * N * bytes;
                        assert_memory_equal(part + at, whole + at, 257 * bytes);
                    }
                }
                print_message("%s, %s, %s: the bits of the native kernels\n", path_text(path),
                              bf16 ? "bf16" : "f32", kind_text[form]);
            }
    path_end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_columns_are_alone), cmocka_unit_test(test_subnormal_results),
        cmocka_unit_test(test_few_rows), cmocka_unit_test(test_emulated_bits)};
    return cmocka_run_group_tests(tests, make_pools, destroy_pools);
}
