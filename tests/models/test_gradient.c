/* Whole models against finite differences, in f64: gpt2, llama (with and without tied embeddings),
 * bert, vit, lenet, resnet18. Elements of every parameter are moved by +-h; the loss's central
 * difference must be the gradient that the backward pass gives. */
#include "model_fixture.h"

#include <math.h>

typedef struct subject {
    weft_model_config config;
    int per_parameter; /* elements looked at */
    int stride;        /* every stride-th parameter */
} subject;

static double loss_at(weft_session *s, int program) {
    double loss;
    ASSERT_OK(weft_session_forward(s, program, &loss));
    return loss;
}

static void check_element(weft_session *s, int program, const char *name, double *values,
                          size_t bytes, int64_t k, double gradient) {
    const double h = 1e-5;
    double kept = values[k], side[2];
    for (int i = 0; i < 2; i++) {
        values[k] = i ? kept - h : kept + h;
        ASSERT_OK(weft_session_write(s, 0, name, values, bytes));
        side[i] = loss_at(s, program);
    }
    values[k] = kept;
    ASSERT_OK(weft_session_write(s, 0, name, values, bytes));
    double difference = (side[0] - side[1]) / (2 * h);
    /* rounding: eps * loss / h is 1e-10; truncation: h^2 times a third derivative */
    double allowed = 1e-7 * (fabs(difference) + fabs(gradient)) + 3e-9;
    if (!(fabs(difference - gradient) <= allowed))
        fail_msg("%s[%lld]: gradient %.12g, difference %.12g", name, (long long)k, gradient,
                 difference);
}

static void check_parameter(weft_session *s, int program, const weft_tensor_info *t, int count,
                            uint64_t *random, double *seen) {
    char name[160];
    (void)snprintf(name, sizeof name, "grad:%s", t->name);
    double *values = malloc((size_t)t->bytes), *gradient = malloc((size_t)t->bytes);
    assert_true(values && gradient && t->desc.dtype == WEFT_F64);
    ASSERT_OK(weft_session_read(s, 0, t->name, values, (size_t)t->bytes));
    ASSERT_OK(weft_session_read(s, 0, name, gradient, (size_t)t->bytes));
    int64_t elems = weft_desc_elems(&t->desc);
    for (int i = 0; i < count; i++) {
        int64_t k = (int64_t)(uniform(random) * (double)elems);
        check_element(s, program, t->name, values, (size_t)t->bytes, k, gradient[k]);
        *seen += fabs(gradient[k]);
    }
    free(values);
    free(gradient);
}

static void check_model(const subject *subject, uint64_t seed) {
    const weft_model_config *c = &subject->config;
    weft_graph *train = built(c, WEFT_USE_TRAIN, 2, 0, WEFT_F64);
    weft_graph *again = built(c, WEFT_USE_TRAIN, 2, 0, WEFT_F64);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_SGD;
    o.keep_gradients = true;
    o.seed = seed;
    weft_session *s;
    int program;
    ASSERT_OK(weft_session_create(train, &o, &s));
    ASSERT_OK(weft_session_add(s, again, &program));
    double loss, seen = 0;
    feed_all(s, program, c, seed);
    feed_all(s, 0, c, seed);
    ASSERT_OK(weft_session_accumulate(s, &loss));
    feed_all(s, program, c, seed);
    assert_true(fabs(loss_at(s, program) - loss) <= 1e-12 * loss);
    int parameters = 0;
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM || parameters++ % subject->stride) continue;
        check_parameter(s, program, &t, subject->per_parameter, &seed, &seen);
    }
    assert_true(parameters > 4 && seen > 1e-4);
    weft_session_destroy(s);
    weft_graph_destroy(train);
    weft_graph_destroy(again);
}

static void language_models(void **state) {
    (void)state;
    subject gpt2 = {tiny(WEFT_FAMILY_GPT2), 3, 1}, llama = {tiny(WEFT_FAMILY_LLAMA), 3, 1},
            bert = {tiny(WEFT_FAMILY_BERT), 2, 1};
    check_model(&gpt2, 101);
    check_model(&llama, 102);
    llama.config.tied = true;
    check_model(&llama, 103);
    check_model(&bert, 104);
}

static void image_models(void **state) {
    (void)state;
    subject vit = {tiny(WEFT_FAMILY_VIT), 2, 1}, lenet = {tiny(WEFT_FAMILY_LENET), 2, 1},
            mlp = {tiny(WEFT_FAMILY_MLP), 3, 1};
    check_model(&vit, 105);
    check_model(&lenet, 106);
    check_model(&mlp, 107);
}

static void residual_network(void **state) {
    (void)state;
    subject resnet = {tiny(WEFT_FAMILY_RESNET18), 1, 9};
    check_model(&resnet, 108);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(language_models),
        cmocka_unit_test(image_models),
        cmocka_unit_test(residual_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
