/* Bits of matrix products on every kernel path, native and emulated. An element of C depends only
 * on its row of A, its column of B and k. Neighboring elements and the size of the caches have no
 * effect, nor has the number of threads. Emulated kernels give the bits of the native ones. */
#include "backend/gemm_problem.h"
#include "base/tuning.h"
#include "sanitized.h"

enum { M = 37, N = 800, K = 2048 };

static wefti_pool **pools;
static float a[M * K], b[K * N], bias[N];
static char whole[4 * M * N], part[4 * M * N];

static void fill(void) {
    for (int i = 0; i < M * K; i++) a[i] = (float)random_value();
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
    if (s->accumulate) memcpy(c, b, (size_t)(M * N * 4));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_and_columns_are_alone),
                                       cmocka_unit_test(test_emulated_bits)};
    return cmocka_run_group_tests(tests, make_pools, destroy_pools);
}
