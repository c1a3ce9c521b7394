/* Attention under masks that hide keys, or all keys of a query, by -inf, by the lowest number or by
 * -1e9. The result of a query and its gradients equal the values of one device, for every split of
 * keys and queries. */
#include "session_models.h"

#include <float.h>

#include "sanitized.h"
#include "weft/ops.h"
#include "weft/plan.h"

enum { BATCH = 2, HEADS = 4, DIM = 3, ROUNDS = SANITIZED ? 4 : 16, DEVICES = 4, RESULTS = 5 };

typedef struct trial {
    uint64_t seed;
    weft_dtype dtype;
    int64_t queries, keys, key_heads, mask_batch, mask_heads;
    bool causal;
    const char *split; /* factor */
} trial;

static const char *const results[RESULTS] = {"o", "grad:q", "grad:k", "grad:v", "grad:mask"};

typedef struct outcome {
    double *value[RESULTS];
    int64_t count[RESULTS];
} outcome;

/* If the numbers of queries and keys are equal, both are split together, and the mask is fed. */
static bool learns_mask(const trial *t) {
    return t->queries != t->keys;
}

static weft_graph *make_graph(const trial *t) {
    weft_graph *g;
    weft_init init = {WEFT_INIT_NORMAL, 1.0};
    weft_attention_options options = weft_attention_defaults();
    ASSERT_OK(weft_graph_create(&g));
    weft_desc of_mask = WEFT_DESC(t->dtype, t->mask_batch, t->mask_heads, t->queries, t->keys);
    weft_desc of_q = WEFT_DESC(t->dtype, BATCH, t->queries, HEADS, DIM);
    weft_desc of_k = WEFT_DESC(t->dtype, BATCH, t->keys, t->key_heads, DIM);
    weft_value target = weft_input(g, "target", of_q);
    weft_value q = weft_param(g, "q", of_q, init), k = weft_param(g, "k", of_k, init);
    weft_value v = weft_param(g, "v", of_k, init);
    options.causal = t->causal;
    options.mask =
        learns_mask(t) ? weft_param(g, "mask", of_mask, init) : weft_input(g, "mask", of_mask);
    weft_cell_begin(g, "attn");
    weft_value o = weft_cell_end(g, weft_attention(g, q, k, v, &options));
    weft_output(g, "o", o);
    weft_loss(g, weft_mse(g, o, target));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

/* Rows are hidden as a whole in one way, or key by key, or not at all. */
static void fill_mask(const trial *t, double *mask, int64_t rows) {
    dice d = {t->seed, 1};
    enum { WAYS = 5 };
    const double ways[WAYS] = {-INFINITY, -(double)FLT_MAX, -1e9,
                               t->dtype == WEFT_F64 ? -DBL_MAX : -1e4, -4e3};
    for (int64_t i = 0; i < rows; i++) {
        int64_t way = roll(&d, WAYS + 2), most = roll(&d, 4);
        for (int64_t j = 0; j < t->keys; j++) {
            double plain = (double)roll(&d, 64) / 32 - 1;
            double hidden = ways[way < WAYS ? way : roll(&d, WAYS)];
            mask[i * t->keys + j] =
                way > WAYS || (way == WAYS && roll(&d, 4) < most) ? plain : hidden;
        }
    }
}

static void give_mask(weft_session *s, const trial *t) {
    int64_t rows = t->mask_batch * t->mask_heads * t->queries, count = rows * t->keys;
    double *mask = malloc((size_t)count * sizeof *mask);
    size_t bytes = (size_t)count * weft_dtype_bytes(t->dtype);
    fill_mask(t, mask, rows);
    if (t->dtype == WEFT_F32)
        for (int64_t e = 0; e < count; e++) ((float *)(void *)mask)[e] = (float)mask[e];
    ASSERT_OK(learns_mask(t) ? weft_session_write(s, 0, "mask", mask, bytes)
                             : weft_session_feed(s, 0, "mask", mask, bytes));
    free(mask);
}

static void read_results(weft_session *s, const trial *t, outcome *out) {
    for (int r = 0; r < RESULTS; r++) {
        weft_tensor_info info;
        out->value[r] = NULL;
        if (r == RESULTS - 1 && !learns_mask(t)) continue;
        ASSERT_OK(weft_session_find(s, 0, results[r], &info));
        int64_t count = out->count[r] = weft_desc_elems(&info.desc);
        void *data = malloc((size_t)info.bytes);
        double *value = out->value[r] = malloc((size_t)count * sizeof *value);
        ASSERT_OK(weft_session_read(s, 0, results[r], data, (size_t)info.bytes));
        for (int64_t e = 0; e < count; e++)
            value[e] = t->dtype == WEFT_F64 ? ((double *)data)[e] : (double)((float *)data)[e];
        free(data);
    }
}

static void run(const trial *t, int devices, outcome *out) {
    weft_graph *g = make_graph(t);
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = NULL;
    char split[32];
    (void)snprintf(split, sizeof split, "%s=sp", t->split);
    if (devices > 1) {
        ASSERT_OK(weft_plan_create(devices, &plan));
        ASSERT_OK(weft_plan_axis(plan, "sp", devices));
        ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
        ASSERT_OK(weft_plan_split_op(plan, "attn", split));
    }
    o.plan = plan;
    o.seed = t->seed;
    o.threads = 1;
    o.keep_gradients = true;
    weft_session *s = session_of(g, o);
    weft_plan_destroy(plan);
    feed_rows(s, 0, t->seed, 0);
    give_mask(s, t);
    ASSERT_OK(weft_session_accumulate(s, NULL));
    read_results(s, t, out);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void forget(outcome *x) {
    for (int r = 0; r < RESULTS; r++) free(x->value[r]);
}

/* Outputs are of size 1 to 3, gradients are smaller. Each is a sum of some tens of terms in another
 * order: a few units of 2^-24 apart, 2^-53 in f64. The margins are far above that. They are below
 * the loss of an lse in one number: 2^-13 at 4e3, and 2^-24 at 1e9 in f64. */
static void compare(const trial *t, int devices, const outcome *one, const outcome *many) {
    double margin = t->dtype == WEFT_F64 ? 1e-11 : 2e-5;
    for (int r = 0; r < RESULTS; r++)
        for (int64_t e = 0; one->value[r] && e < one->count[r]; e++)
            if (!(fabs(one->value[r][e] - many->value[r][e]) <= margin))
                fail_msg("seed %d, %s, %s over %d: %s[%d] is %.9g, one device has %.9g",
                         (int)t->seed, weft_dtype_text(t->dtype), t->split, devices, results[r],
                         (int)e, many->value[r][e], one->value[r][e]);
}

static void check(uint64_t seed, weft_dtype dtype) {
    static const char *const splits[] = {"seq", "keys", "queries"};
    dice d = {seed, 0};
    trial t = {.seed = seed, .dtype = dtype, .queries = 4 + roll(&d, 9)};
    t.keys = t.queries;
    t.split = splits[roll(&d, 3)];
    if (strcmp(t.split, "seq") != 0) t.keys += 1 + roll(&d, 5);
    t.key_heads = roll(&d, 2) ? HEADS : HEADS / 2;
    t.mask_batch = roll(&d, 2) ? BATCH : 1;
    t.mask_heads = roll(&d, 2) ? HEADS : 1;
    t.causal = roll(&d, 2);
    outcome one, many;
    run(&t, 1, &one);
    for (int devices = 2; devices <= DEVICES; devices++) {
        run(&t, devices, &many);
        compare(&t, devices, &one, &many);
        forget(&many);
    }
    forget(&one);
}

static void hidden_rows_are_those_of_one_device(void **state) {
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        if (reference) assert_int_equal(setenv("WEFT_BACKEND", "reference", 1), 0);
        TEST_SEEDS(seed, 1, ROUNDS) {
            check(seed, WEFT_F32);
            check(seed, WEFT_F64);
        }
        assert_int_equal(unsetenv("WEFT_BACKEND"), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(hidden_rows_are_those_of_one_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
