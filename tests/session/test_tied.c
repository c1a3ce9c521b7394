/* The first and the last stage of a pipeline read one parameter: gpt2's embedding, which is also
 * its head. This is tested under every schedule, with data and tensor parallelism. Its gradient
 * equals the gradient of one device. After twenty steps all copies have the same bytes. */
#include "session_models.h"

#include "sanitized.h"
#include "weft/plan.h"

enum { STEPS = SANITIZED ? 5 : 20, ROWS_OF_ONE = 2, RANKS_MOST = 8, MICROBATCHES_MOST = 8 };

typedef struct setting {
    weft_schedule kind;
    int stages, chunks, microbatches, data, tensor;
} setting;

typedef struct outcome {
    double losses[STEPS];
    double *gradient, *weight; /* of the embedding: of the first step; at the end */
    int64_t elements;
} outcome;

static weft_plan *plan_of(const setting *x) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(x->stages * x->data * x->tensor, &plan));
    ASSERT_OK(weft_plan_axis(plan, "dp", x->data));
    ASSERT_OK(weft_plan_axis(plan, "tp", x->tensor));
    ASSERT_OK(weft_plan_pipeline(plan, x->stages, x->microbatches, x->kind, x->chunks));
    if (x->tensor > 1) {
        ASSERT_OK(weft_plan_split_op(plan, "h.*.attn.c_attn", "n1=tp"));
        ASSERT_OK(weft_plan_split_op(plan, "h.*.mlp.c_fc", "n0=tp"));
        ASSERT_OK(weft_plan_split_tensor(plan, "wte.weight", "[tp, -]"));
    }
    return plan;
}

static double *read_doubles(weft_session *s, const char *name, int64_t *out_elements) {
    weft_tensor_info info;
    ASSERT_OK(weft_session_find(s, 0, name, &info));
    double *data = malloc((size_t)info.bytes);
    ASSERT_OK(weft_session_read(s, 0, name, data, (size_t)info.bytes));
    *out_elements = weft_desc_elems(&info.desc);
    return data;
}

static int find(const weft_session *s, const char *name) {
    weft_tensor_info info;
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        ASSERT_OK(weft_session_tensor(s, 0, t, &info));
        if (!strcmp(info.name, name)) return t;
    }
    fail_msg("no tensor %s", name);
    return -1;
}

static weft_status map_piece(const wefti_session_piece *piece, int64_t bytes, wefti_mapping *out) {
    return wefti_home_map(&piece->home, 0, bytes, WEFTI_ACCESS_READ, out);
}

/* Both stages have the embedding. Ranks with the same region of it have the same bytes. */
static void copies_are_equal(const char *what, weft_session *s, const setting *x) {
    wefti_session_piece pieces[RANKS_MOST];
    int32_t count, per_stage = x->data * x->tensor, others = 0;
    ASSERT_OK(wefti_session_pieces(s, 0, find(s, "wte.weight"), pieces, &count));
    assert_int_equal(count, 2 * per_stage);
    for (int32_t p = 0; p < count; p++)
        for (int32_t q = 0; q < p; q++) {
            size_t bytes = (size_t)wefti_region_elems(&pieces[p].box, 2) * sizeof(double);
            if (!wefti_regions_equal(&pieces[p].box, &pieces[q].box, 2)) continue;
            wefti_mapping a, b;
            ASSERT_OK(map_piece(&pieces[p], (int64_t)bytes, &a));
            ASSERT_OK(map_piece(&pieces[q], (int64_t)bytes, &b));
            if (memcmp(a.data, b.data, bytes) != 0)
                fail_msg("%s: ranks %d and %d differ", what, pieces[q].rank, pieces[p].rank);
            ASSERT_OK(wefti_home_unmap(&a, WEFT_OK));
            ASSERT_OK(wefti_home_unmap(&b, WEFT_OK));
            others += pieces[p].rank / per_stage != pieces[q].rank / per_stage;
        }
    assert_true(others >= per_stage);
    ASSERT_OK(weft_session_check_replicas(s));
}

static outcome run(const char *what, const setting *x, bool split) {
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, ROWS_OF_ONE, 0, WEFT_F64);
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = split ? plan_of(x) : NULL;
    outcome out = {.gradient = NULL};
    o.plan = plan;
    o.threads = 1;
    o.microbatches = x->microbatches;
    o.keep_gradients = true;
    weft_session *s = session_of(g, o);
    for (int step = 0; step < STEPS; step++) {
        double sum = 0, loss;
        int known = 0;
        for (int m = 0; m < x->microbatches; m++) {
            feed_rows(s, 0, (uint64_t)step, m * ROWS_OF_ONE);
            ASSERT_OK(weft_session_accumulate(s, &loss));
            if (isnan(loss)) continue; /* a pipeline knows it at the last one */
            sum += loss;
            known++;
        }
        out.losses[step] = sum / known;
        if (step == 0) out.gradient = read_doubles(s, "grad:wte.weight", &out.elements);
        ASSERT_OK(weft_session_update(s, 1e-3, NULL));
    }
    out.weight = read_doubles(s, "wte.weight", &out.elements);
    if (split) copies_are_equal(what, s, x);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    return out;
}

/* f64: numbers around 1. Each split sums them in another order through twenty steps: about ten
 * thousand roundings of 1e-16. */
static void are_near(const char *what, const char *of, const double *a, const double *b,
                     int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= 1e-11))
            fail_msg("%s: %s %d is %.17g, one device has %.17g", what, of, (int)i, b[i], a[i]);
}

static void copies_stay_equal(void **state) {
    (void)state;
    static const setting settings[] = {
        {WEFT_PIPELINE_GPIPE, 2, 1, 4, 1, 1},       {WEFT_PIPELINE_1F1B, 2, 1, 4, 1, 1},
        {WEFT_PIPELINE_1F1B, 2, 1, 8, 2, 1},        {WEFT_PIPELINE_1F1B, 2, 1, 4, 1, 2},
        {WEFT_PIPELINE_1F1B, 2, 1, 4, 2, 2},        {WEFT_PIPELINE_GPIPE, 4, 1, 8, 1, 2},
        {WEFT_PIPELINE_1F1B, 4, 1, 4, 2, 1},        {WEFT_PIPELINE_INTERLEAVED, 2, 2, 4, 1, 2},
        {WEFT_PIPELINE_ZERO_BUBBLE, 2, 1, 4, 2, 1}, {WEFT_PIPELINE_ZERO_BUBBLE, 4, 1, 8, 1, 1},
    };
    outcome ones[MICROBATCHES_MOST + 1] = {{.gradient = NULL}}; /* by the number of them */
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const setting *x = &settings[i];
        outcome *one = &ones[x->microbatches];
        char what[128];
        (void)snprintf(what, sizeof what,
                       "schedule %d, %d stages of %d, %d microbatches, dp %d, tp %d", x->kind,
                       x->stages, x->chunks, x->microbatches, x->data, x->tensor);
        if (!one->gradient) *one = run(what, x, false);
        outcome many = run(what, x, true);
        are_near(what, "loss", one->losses, many.losses, STEPS);
        are_near(what, "gradient", one->gradient, many.gradient, one->elements);
        are_near(what, "weight", one->weight, many.weight, one->elements);
        free(many.gradient);
        free(many.weight);
    }
    for (int m = 0; m <= MICROBATCHES_MOST; m++) {
        free(ones[m].gradient);
        free(ones[m].weight);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(copies_stay_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
