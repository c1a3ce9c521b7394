/* oneDNN's matrix products against the naive product, with the same problems as our own; and the
 * choice between them. Without oneDNN: that everything says so. */
#include "backend/gemm_problem.h"

#include "backend/cpu/onednn_matmul.h"

/* True if oneDNN takes the problem. */
static bool run_problem(problem *p, wefti_pool *pools[3]) {
    const wefti_gemm_spec *s = &p->spec;
    buffer first_c = {0}, first_pre = {0};
    for (int threads = 1; threads <= 3; threads++) {
        wefti_onednn_matmul *matmul;
        weft_status status = wefti_onednn_matmul_create(s, wefti_isa_best(), threads, &matmul);
        if (status == WEFT_E_NO_IMPL) return false;
        assert_int_equal(status, WEFT_OK);
        buffer workspace = buffer_new(wefti_onednn_matmul_workspace_bytes(matmul));
        buffer c = buffer_new(p->c.bytes), pre = buffer_new(p->c.bytes), packed = {0};
        memcpy(buffer_data(&c), buffer_data(&p->c), (size_t)p->c.bytes);
        memcpy(buffer_data(&pre), buffer_data(&p->c), (size_t)p->c.bytes);
        wefti_gemm_args args = problem_args(p, &c, &pre);
        wefti_pool *pool = pools[threads - 1];
        if (s->b_packed) {
            packed = buffer_new(wefti_onednn_matmul_packed_bytes(matmul));
            assert_int_equal(wefti_onednn_matmul_pack_b(matmul, args.b, buffer_data(&packed),
                                                        buffer_data(&workspace), pool),
                             WEFT_OK);
            buffer_check(&packed);
            args.b = buffer_data(&packed);
        }
        for (int run = 0; run < 2 - s->accumulate; run++) /* prepared once, run many times */
            assert_int_equal(wefti_onednn_matmul_run(matmul, &args, buffer_data(&workspace), pool),
                             WEFT_OK);
        buffer_check(&workspace);
        buffer_check(&c);
        buffer_check(&pre);
        if (threads == 1) {
            compare(p, &c, p->want, p->want_bound);
            if (s->has_pre) compare(p, &pre, p->want_pre, p->want_pre_bound);
            first_c = c;
            first_pre = pre;
        } else {
            assert_memory_equal(buffer_data(&c), buffer_data(&first_c), (size_t)p->c.bytes);
            assert_memory_equal(buffer_data(&pre), buffer_data(&first_pre), (size_t)p->c.bytes);
            free(c.base);
            free(pre.base);
        }
        free(packed.base);
        free(workspace.base);
        wefti_onednn_matmul_destroy(matmul);
    }
    free(first_c.base);
    free(first_pre.base);
    return true;
}

static void test_products(void **state) {
    static const int64_t shapes[][3] = {{300, 700, 100}, {256, 512, 64},  {600, 40, 257},
                                        {20, 1100, 33},  {513, 513, 300}, {1, 600, 70}};
    if (!wefti_onednn_matmul_available()) skip();
    int given[2] = {0}, taken[2] = {0}; /* operands in f32, in bf16 */
    for (int round = 0; round < 120; round++) {
        wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F32, 1 + random_below(70), 1 + random_below(70),
                                               1 + random_below(70));
        if (round % 6 == 0) {
            const int64_t *shape = shapes[round / 6 % 6];
            s = wefti_gemm_spec_of(WEFT_F32, shape[0], shape[1], shape[2]);
        }
        s.a.dtype = s.b.dtype = random_below(3) ? WEFT_BF16 : WEFT_F32;
        s.c.dtype = random_below(2) ? WEFT_F32 : WEFT_BF16;
        random_epilogue(&s);
        s.b_packed = random_below(2) == 0;
        problem p = problem_new(s);
        given[s.a.dtype == WEFT_BF16]++;
        taken[s.a.dtype == WEFT_BF16] += run_problem(&p, *state);
        problem_free(&p);
    }
    print_message("oneDNN took %d of %d products of f32, %d of %d of bf16\n", taken[0], given[0],
                  taken[1], given[1]);
    assert_true(2 * taken[0] > given[0]);
    assert_true(taken[1] == 0 || 4 * taken[1] > given[1]); /* 0: not without AVX-512 */
}

static void test_refusals(void **state) {
    (void)state;
    wefti_onednn_matmul *matmul = NULL;
    wefti_gemm_spec s = wefti_gemm_spec_of(WEFT_F64, 4, 4, 4);
    assert_int_equal(wefti_onednn_matmul_create(&s, WEFTI_ISA_PLAIN, 1, &matmul), WEFT_E_NO_IMPL);
    s = wefti_gemm_spec_of(WEFT_F32, 4, 4, 0);
    assert_int_equal(wefti_onednn_matmul_create(&s, WEFTI_ISA_PLAIN, 1, &matmul), WEFT_E_NO_IMPL);
    s = wefti_gemm_spec_of(WEFT_F32, 4, 4, 4);
    s.batch[0] = 2;
    assert_int_equal(wefti_onednn_matmul_create(&s, WEFTI_ISA_PLAIN, 1, &matmul), WEFT_E_NO_IMPL);
    assert_null(matmul);
    wefti_onednn_matmul_destroy(NULL);
}

static void test_choice(void **state) {
    (void)state;
    wefti_bf16_matmul choice;
    assert_int_equal(wefti_matmul_bf16_choice(WEFTI_ISA_PLAIN, &choice), WEFT_OK);
    assert_int_equal(choice, WEFTI_BF16_OWN);
    assert_int_equal(wefti_matmul_bf16_choice(wefti_isa_best(), &choice), WEFT_OK);
    assert_true(choice != WEFTI_BF16_ONEDNN || wefti_onednn_matmul_available());
    assert_true(choice != WEFTI_BF16_OWN_AMX || wefti_isa_has(WEFTI_ISA_AMX));
    print_message("bf16 products here: %s\n", wefti_bf16_matmul_text(choice));
    if (wefti_isa_has(WEFTI_ISA_AVX512))
        assert_int_equal(wefti_matmul_bf16_choice(WEFTI_ISA_AVX512, &choice), WEFT_OK);
    else
        choice = WEFTI_BF16_OWN;
    assert_int_not_equal(choice, WEFTI_BF16_OWN_AMX);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests(tests, make_pools, destroy_pools);
}
