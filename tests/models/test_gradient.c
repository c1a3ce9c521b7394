/* Whole models against finite differences, in f64: every family with blocks, llama also with tied
 * embeddings and all options; lenet, mlp, resnet18. Elements of every parameter are moved by +-h.
 * The central difference of the loss must equal the gradient of the backward pass. */
#include "model_fixture.h"

#include <math.h>

typedef struct subject {
    weft_model_config config;
    int per_parameter; /* elements looked at */
    int stride;        /* every stride-th parameter */
    double h;          /* how far an element is moved */
    double relative, absolute;
    uint64_t data; /* seed of the fed data */
} subject;

static double loss_at(weft_session *s, int program, const subject *m) {
    double loss;
    feed_all(s, program, &m->config, m->data);
    ASSERT_OK(weft_session_forward(s, program, &loss));
    return loss;
}

static void check_element(weft_session *s, int program, const subject *m, const char *name,
                          double *values, size_t bytes, int64_t k, double gradient) {
    double kept = values[k], side[2];
    for (int i = 0; i < 2; i++) {
        values[k] = i ? kept - m->h : kept + m->h;
        ASSERT_OK(weft_session_write(s, 0, name, values, bytes));
        side[i] = loss_at(s, program, m);
    }
    values[k] = kept;
    ASSERT_OK(weft_session_write(s, 0, name, values, bytes));
    double difference = (side[0] - side[1]) / (2 * m->h);
    double allowed = m->relative * (fabs(difference) + fabs(gradient)) + m->absolute;
    if (!(fabs(difference - gradient) <= allowed))
        fail_msg("%s[%lld]: gradient %.12g, difference %.12g", name, (long long)k, gradient,
                 difference);
}

static void check_parameter(weft_session *s, int program, const subject *m,
                            const weft_tensor_info *t, uint64_t *random, double *seen) {
    char name[160];
    (void)snprintf(name, sizeof name, "grad:%s", t->name);
    double *values = malloc((size_t)t->bytes), *gradient = malloc((size_t)t->bytes);
    assert_true(values && gradient && t->desc.dtype == WEFT_F64);
    ASSERT_OK(weft_session_read(s, 0, t->name, values, (size_t)t->bytes));
    ASSERT_OK(weft_session_read(s, 0, name, gradient, (size_t)t->bytes));
    int64_t elems = weft_desc_elems(&t->desc);
    for (int i = 0; i < m->per_parameter; i++) {
        int64_t k = (int64_t)(uniform(random) * (double)elems);
        check_element(s, program, m, t->name, values, (size_t)t->bytes, k, gradient[k]);
        *seen += fabs(gradient[k]);
    }
    free(values);
    free(gradient);
}

/* Values of ordinary size: norms of the start values (0.02) divide by numbers so small that the
 * loss is all curvature. */
static void widen(weft_session *s, uint64_t *random) {
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        double *values = malloc((size_t)t.bytes);
        assert_non_null(values);
        for (int64_t k = 0; k < weft_desc_elems(&t.desc); k++)
            values[k] = (t.desc.rank == 1 ? 0.8 : 0.0) + 1.2 * uniform(random) - 0.6;
        ASSERT_OK(weft_session_write(s, 0, t.name, values, (size_t)t.bytes));
        free(values);
    }
}

static void check_model(subject *m, uint64_t seed) {
    const weft_model_config *c = &m->config;
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
    bool start_values = m->config.family == WEFT_FAMILY_RESNET18; /* scaled by their fan-out */
    if (!start_values) widen(s, &seed);
    m->data = seed;
    feed_all(s, 0, c, m->data);
    ASSERT_OK(weft_session_accumulate(s, &loss));
    assert_true(fabs(loss_at(s, program, m) - loss) <= 1e-12 * loss);
    int parameters = 0;
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM || parameters++ % m->stride) continue;
        check_parameter(s, program, m, &t, &seed, &seen);
    }
    assert_true(parameters > 4 && seen > 1e-4);
    weft_session_destroy(s);
    weft_graph_destroy(train);
    weft_graph_destroy(again);
}

/* Rounding makes an error of about 1e-15 loss / h, truncation one of h^2 times the third
 * derivative. */
static subject smooth(weft_family family) {
    return (subject){tiny(family), 3, 1, 1e-5, 1e-7, 1e-8, 0};
}

/* Every family with blocks. Those with experts have a test of their own: a token must not change
 * its expert. */
static void families(void **state) {
    (void)state;
    for (int f = 0; f < (int)WEFT_FAMILIES; f++) {
        subject family = smooth((weft_family)f);
        if (!wefti_family_has((weft_family)f, WEFTI_HEADS)) continue;
        if (wefti_family_has((weft_family)f, WEFTI_EXPERTS)) continue;
        print_message("%s\n", weft_family_text((weft_family)f));
        check_model(&family, 101);
    }
}

static void options_of_language_models(void **state) {
    (void)state;
    subject gpt2 = smooth(WEFT_FAMILY_GPT2), llama = smooth(WEFT_FAMILY_LLAMA),
            bert = smooth(WEFT_FAMILY_BERT);
    llama.config.tied = true;
    check_model(&llama, 103);
    llama.config = tiny_full();
    check_model(&llama, 112);
    gpt2.config.untied = bert.config.untied = true;
    check_model(&gpt2, 114);
    check_model(&bert, 115);
}

/* The gradient of `name` in a step of the model; free() it. */
static double *gradient_of(const weft_model_config *c, const char *name, size_t bytes) {
    char full[160];
    (void)snprintf(full, sizeof full, "grad:%s", name);
    weft_graph *g = built(c, WEFT_USE_TRAIN, 2, 0, WEFT_F64);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_SGD;
    o.keep_gradients = true;
    weft_session *s;
    double loss, *gradient = malloc(bytes);
    assert_non_null(gradient);
    ASSERT_OK(weft_session_create(g, &o, &s));
    feed_all(s, 0, c, 7);
    ASSERT_OK(weft_session_accumulate(s, &loss));
    ASSERT_OK(weft_session_read(s, 0, full, gradient, bytes));
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return gradient;
}

/* The look-up of the padding token gives its row no gradient; all else is as without padding. A
 * tied embedding keeps the gradient of the output. gpt2 has no padding, as in transformers. */
static void padding_has_no_gradient(void **state) {
    (void)state;
    static const struct {
        weft_family family;
        bool untied, zero; /* zero: the row of the padding token has no gradient at all */
        const char *table;
    } cases[] = {{WEFT_FAMILY_LLAMA, true, true, "embed_tokens.weight"},
                 {WEFT_FAMILY_LLAMA, false, false, "embed_tokens.weight"},
                 {WEFT_FAMILY_QWEN2, true, true, "embed_tokens.weight"},
                 {WEFT_FAMILY_MIXTRAL, true, true, "embed_tokens.weight"},
                 {WEFT_FAMILY_BERT, true, true, "embeddings.word_embeddings.weight"},
                 {WEFT_FAMILY_BERT, false, false, "embeddings.word_embeddings.weight"},
                 {WEFT_FAMILY_GPT2, false, false, "wte.weight"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_model_config c = tiny(cases[i].family);
        c.tied = !cases[i].untied;
        c.untied = cases[i].untied;
        const size_t bytes = (size_t)(c.vocab * c.hidden) * sizeof(double);
        double *whole = gradient_of(&c, cases[i].table, bytes), most = 0;
        int64_t pad = 0; /* the token with the largest gradient was fed */
        for (int64_t k = 0; k < c.vocab * c.hidden; k++)
            if (fabs(whole[k]) > most) most = fabs(whole[k]), pad = k / c.hidden;
        c.has_pad = true;
        c.pad = (int32_t)pad;
        double *padded = gradient_of(&c, cases[i].table, bytes), changed = 0;
        for (int64_t k = 0; k < c.vocab * c.hidden; k++) {
            const bool here = k / c.hidden == pad;
            if (!here && whole[k] != padded[k])
                fail_msg("case %zu: element %lld is %.17g, not %.17g", i, (long long)k, padded[k],
                         whole[k]);
            if (here && cases[i].zero) assert_true(padded[k] == 0);
            if (here) changed += fabs(whole[k] - padded[k]);
        }
        assert_true(cases[i].family == WEFT_FAMILY_GPT2 ? changed == 0 : changed > 1e-6);
        free(whole);
        free(padded);
    }
}

/* No token changes its expert within so small a step. The balancing loss and full buffers take
 * part. */
static void models_with_experts(void **state) {
    (void)state;
    subject gpt2 = smooth(WEFT_FAMILY_GPT2_MOE), mixtral = smooth(WEFT_FAMILY_MIXTRAL);
    gpt2.config.aux_loss = mixtral.config.aux_loss = 0.3;
    check_model(&gpt2, 108);
    check_model(&mixtral, 109);
    gpt2.config.capacity_factor = mixtral.config.capacity_factor = 0.6;
    gpt2.config.experts_per_token = 3;
    check_model(&gpt2, 110);
    check_model(&mixtral, 111);
}

static void image_models(void **state) {
    (void)state;
    subject lenet = smooth(WEFT_FAMILY_LENET), mlp = smooth(WEFT_FAMILY_MLP);
    check_model(&lenet, 106);
    check_model(&mlp, 107);
}

/* Thousands of relus, and a few of them change sides within any step: the tolerance is wider. The
 * image is large enough that the last norms see several values. */
static void residual_network(void **state) {
    (void)state;
    subject resnet = {tiny(WEFT_FAMILY_RESNET18), 1, 1, 1e-6, 1e-5, 1e-7, 0};
    resnet.config.image[1] = resnet.config.image[2] = 16;
    check_model(&resnet, 108);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(options_of_language_models),
        cmocka_unit_test(padding_has_no_gradient),
        cmocka_unit_test(models_with_experts),
        cmocka_unit_test(image_models),
        cmocka_unit_test(residual_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
