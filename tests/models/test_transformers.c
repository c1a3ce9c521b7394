/* Models against numbers from Hugging Face's transformers (transformers.h, made by
 * make_transformers.py). Its config.json is read. The logits, loss and gradients of the same
 * weights are the same. A config.json written by weft has the same content. */
#include "model_fixture.h"

#include <math.h>

enum { SEQ = 7, VOCAB = 13, MAX_PARAMETERS = 64 };

/* In the order of the parameters' names in files. */
typedef struct reference {
    const char *title, *config;
    double logits[SEQ * VOCAB], loss;
    int parameters;
    double gradients[MAX_PARAMETERS]; /* the norms of theirs; -1: of a frozen one */
} reference;

#include "transformers.h"

typedef struct parameter {
    char file_name[160];
    weft_tensor_info info;
} parameter;

static int by_name(const void *a, const void *b) {
    return strcmp(((const parameter *)a)->file_name, ((const parameter *)b)->file_name);
}

static int parameters_of(const reference *r, const weft_model_config *c, weft_session *s,
                         parameter out[MAX_PARAMETERS]) {
    int count = 0;
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        weft_desc desc;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        assert_true(count < r->parameters);
        out[count].info = t;
        ASSERT_OK(weft_model_file_name(c, t.name, &t.desc, 0, out[count].file_name,
                                       sizeof out[count].file_name, &desc));
        count++;
    }
    assert_int_equal(count, r->parameters);
    qsort(out, (size_t)count, sizeof *out, by_name);
    return count;
}

/* As make_transformers.py fills them. */
static void fill(weft_session *s, const parameter *p, int i) {
    size_t length = strlen(p->file_name);
    bool bias = length > 5 && !strcmp(p->file_name + length - 5, ".bias");
    double middle = p->info.desc.rank == 1 && !bias ? 1 : 0;
    float *values = malloc((size_t)p->info.bytes);
    assert_non_null(values);
    for (int64_t k = 0; k < p->info.bytes / 4; k++) {
        double e = (double)k;
        values[k] = (float)(middle + 0.4 * sin(0.7 * (e + 1) + 1.3 * i + 0.37 * e * e));
    }
    ASSERT_OK(weft_session_write(s, 0, p->info.name, values, (size_t)p->info.bytes));
    free(values);
}

static void assert_near(const reference *r, const char *what, double is, double want) {
    if (!(fabs(is - want) <= 2e-5 * (1 + fabs(want))))
        fail_msg("%s: %s is %.9g, not %.9g", r->title, what, is, want);
}

static double norm_of_gradient(weft_session *s, const parameter *p) {
    char name[168];
    double sum = 0;
    float *values = malloc((size_t)p->info.bytes);
    assert_non_null(values);
    (void)snprintf(name, sizeof name, "grad:%s", p->info.name);
    weft_status status = weft_session_read(s, 0, name, values, (size_t)p->info.bytes);
    if (status == WEFT_E_NOT_FOUND) {
        free(values);
        return -1;
    }
    ASSERT_OK(status);
    for (int64_t k = 0; k < p->info.bytes / 4; k++) sum += (double)values[k] * (double)values[k];
    free(values);
    return sqrt(sum);
}

static void check(const reference *r) {
    weft_model_config c, back;
    char *text;
    if (weft_model_config_read(r->config, &c) < 0)
        fail_msg("%s: %s", r->title, weft_error_message());
    ASSERT_OK(weft_model_config_write(&c, &text));
    ASSERT_OK(weft_model_config_read(text, &back));
    weft_text_free(text);
    assert_memory_equal(&back, &c, sizeof c);
    weft_graph *train = built(&c, WEFT_USE_TRAIN, 1, SEQ, WEFT_F32),
               *plain = built(&c, WEFT_USE_LOGITS, 1, SEQ, WEFT_F32);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_SGD;
    o.keep_gradients = true;
    weft_session *s;
    int program;
    ASSERT_OK(weft_session_create(train, &o, &s));
    ASSERT_OK(weft_session_add(s, plain, &program));
    parameter parameters[MAX_PARAMETERS];
    int count = parameters_of(r, &c, s, parameters);
    for (int i = 0; i < count; i++) fill(s, &parameters[i], i);
    int32_t ids[SEQ + 1];
    for (int k = 0; k <= SEQ; k++) ids[k] = (5 * k * k + 3 * k + 1) % VOCAB;
    float logits[SEQ * VOCAB];
    double loss;
    ASSERT_OK(weft_session_feed(s, program, "tokens", ids, SEQ * sizeof *ids));
    ASSERT_OK(weft_session_forward(s, program, NULL));
    ASSERT_OK(weft_session_read(s, program, "logits", logits, sizeof logits));
    for (int k = 0; k < SEQ * VOCAB; k++)
        assert_near(r, "a logit", (double)logits[k], r->logits[k]);
    ASSERT_OK(weft_session_feed(s, 0, "tokens", ids, SEQ * sizeof *ids));
    ASSERT_OK(weft_session_feed(s, 0, "targets", ids + 1, SEQ * sizeof *ids));
    ASSERT_OK(weft_session_accumulate(s, &loss));
    assert_near(r, "the loss", loss, r->loss);
    for (int i = 0; i < count; i++)
        assert_near(r, parameters[i].file_name, norm_of_gradient(s, &parameters[i]),
                    r->gradients[i]);
    weft_session_destroy(s);
    weft_graph_destroy(train);
    weft_graph_destroy(plain);
}

static void the_same_as_there(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof references / sizeof *references; i++) check(&references[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_as_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
