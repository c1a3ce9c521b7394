/* Steps that can be made again. With recovery a session computes the bits that it computes without,
 * on random networks under random plans, and its memory is as predicted. Steps are given up at
 * random places and made again. In the end all bits equal those of an undisturbed run.
 * WEFT_TEST_SEED sets the first seed, WEFT_CASES the number of seeds. */
#include "random_plan.h"

#include "sanitized.h"
#include "world_fixture.h"

enum { STEPS = 3 };

/* ---- trials ---- */

static weft_status step(const trial *t, weft_session *s, int64_t number, double *out_loss) {
    double loss;
    *out_loss = 0;
    if (t->microbatches == 1 && t->clip == 0) {
        TRY(feed(s, (uint64_t)number));
        TRY(weft_session_set_row(s, number * t->batch));
        return weft_session_step(s, 1e-2, out_loss);
    }
    for (int m = 0; m < t->microbatches; m++) {
        TRY(feed(s, (uint64_t)(number * t->microbatches + m)));
        TRY(weft_session_set_row(s, (number * t->microbatches + m) * t->batch));
        TRY(weft_session_accumulate(s, &loss));
        if (!isnan(loss)) *out_loss += loss; /* a pipeline knows it at the last one */
    }
    return weft_session_update(s, 1e-2, NULL);
}

static weft_graph *graph_of(const trial *t) {
    weft_graph *g = random_network(t->seed, t->cells, t->batch, t->dtype);
    if (weft_graph_status(g) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_graph_message(g));
    name_results(t, g);
    return g;
}

/* A random plan for a random network. Destroy the plan. */
static trial make_trial(uint64_t seed, int most) {
    trial t = trial_of(seed, false, most);
    weft_graph *g = graph_of(&t);
    ASSERT_OK(wefti_graph_wrap(g));
    weft_parallel_mode other = roll(&t.dice, 2) ? WEFT_PARALLEL_MANUAL : WEFT_PARALLEL_DATA;
    weft_parallel_mode mode = roll(&t.dice, 6) ? WEFT_PARALLEL_SEMI : other;
    ASSERT_OK(weft_plan_mode(t.plan, mode));
    if (mode == WEFT_PARALLEL_MANUAL) ASSERT_OK(weft_plan_optimizer(t.plan, 0, 0, 0));
    if (mode == WEFT_PARALLEL_SEMI) {
        split_ops(&t, g);
        split_tensors(&t, g);
    }
    weft_graph_destroy(g);
    return t;
}

static weft_session_options options_of(const trial *t, bool recovery) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = t->optimizer;
    o.optimizer.eps = 1e-3;
    o.clip = t->clip;
    o.microbatches = t->microbatches;
    o.threads = 2;
    o.seed = t->seed;
    o.plan = t->plan;
    o.recovery = recovery;
    return o;
}

/* NULL: the plan is refused. */
static weft_session *open_session(const trial *t, bool recovery, weft_graph **graph) {
    weft_session *s;
    const weft_session_options o = options_of(t, recovery);
    *graph = graph_of(t);
    weft_status status = weft_session_create(*graph, &o, &s);
    if (status >= 0) return s;
    if (status != WEFT_E_LAYOUT)
        fail_msg("seed %llu: %s", (unsigned long long)t->seed, weft_error_message());
    weft_graph_destroy(*graph);
    return NULL;
}

static bool is_kept(const weft_tensor_info *info) {
    return info->role == WEFT_ROLE_PARAM || info->role == WEFT_ROLE_STATE ||
           info->role == WEFT_ROLE_OPTIMIZER;
}

/* All kept tensors of a session, one behind the other. */
static weft_status read_all(weft_session *s, char **out, size_t *out_bytes) {
    size_t bytes = 0, room = 0;
    char *data = NULL;
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        TRY(weft_session_tensor(s, 0, k, &info));
        if (!is_kept(&info)) continue;
        room = bytes + (size_t)info.bytes;
        data = realloc(data, room + 1);
        TRY(weft_session_read(s, 0, info.name, data + bytes, (size_t)info.bytes));
        bytes = room;
    }
    *out = data;
    *out_bytes = bytes;
    return WEFT_OK;
}

static void assert_same(const trial *t, weft_session *a, weft_session *b) {
    char *x, *y;
    size_t n, m;
    ASSERT_OK(read_all(a, &x, &n));
    ASSERT_OK(read_all(b, &y, &m));
    if (n != m || memcmp(x, y, n))
        fail_msg("seed %llu: the tensors differ", (unsigned long long)t->seed);
    free(x);
    free(y);
}

static void assert_memory(const trial *t, weft_session *s) {
    for (int r = 0; r < weft_session_devices(s); r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        if (predicted != observed)
            fail_msg("seed %llu: device %d uses %lld bytes, not %lld", (unsigned long long)t->seed,
                     r, (long long)observed, (long long)predicted);
    }
}

/* ---- giving up ---- */

/* A rank gives up when it has been asked `at` times. */
typedef struct halting {
    int32_t rank;
    int64_t at, asked; /* at < 0: never */
    wefti_comm *comm;  /* broken then; NULL: none */
    bool halted;
} halting;

static bool halts(void *context, int32_t rank) {
    halting *h = context;
    if (rank != h->rank) return false;
    if (h->asked++ != h->at) return false;
    h->halted = true;
    if (h->comm) wefti_comm_break(h->comm, -1, "the world is halted");
    return true;
}

/* ---- one process ---- */

static bool same_bits_with_recovery(uint64_t seed) {
    trial t = make_trial(seed, 8);
    weft_graph *g[2];
    weft_session *plain = open_session(&t, false, &g[0]);
    if (!plain) {
        weft_plan_destroy(t.plan);
        return false;
    }
    weft_session *s = open_session(&t, true, &g[1]);
    dice d = {seed, 1u << 27};
    assert_non_null(s);
    int64_t asked = 0; /* in a step */
    for (int n = 0; n < STEPS; n++) {
        double want, is;
        halting h = {.rank = (int32_t)roll(&d, weft_session_devices(s)), .at = -1};
        if (step(&t, plain, n, &want) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        wefti_session_halt_when(s, halts, &h);
        for (int again = 0; n && again < 2; again++) { /* the first step counts */
            h.at = roll(&d, asked);
            h.asked = 0;
            h.halted = false;
            weft_status status = step(&t, s, n, &is);
            if (!h.halted) break; /* this device asks less often */
            if (status != WEFT_E_PEER)
                fail_msg("seed %llu: %d, %s", (unsigned long long)seed, status,
                         weft_error_message());
            assert_int_equal(wefti_session_stands(s).step, n);
            assert_false(wefti_session_stands(s).ready);
            ASSERT_OK(wefti_session_abandon(s));
        }
        h.at = -1;
        h.asked = 0;
        if (weft_session_step_number(s) == n && step(&t, s, n, &is) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
        if (n == 0) asked = h.asked;
        if (memcmp(&want, &is, sizeof is))
            fail_msg("seed %llu: loss %d is %.17g, not %.17g", (unsigned long long)seed, n, is,
                     want);
        assert_same(&t, plain, s);
    }
    assert_memory(&t, s);
    weft_session_destroy(plain);
    weft_session_destroy(s);
    weft_graph_destroy(g[0]);
    weft_graph_destroy(g[1]);
    weft_plan_destroy(t.plan);
    return true;
}

static uint64_t cases_of(uint64_t otherwise) {
    const char *text = getenv("WEFT_CASES");
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void devices_make_steps_again(void **state) {
    (void)state;
    const uint64_t first = test_seed(20261126), cases = cases_of(SANITIZED ? 6 : 16);
    uint64_t ran = 0;
    print_message("seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + cases - 1));
    for (uint64_t k = 0; k < cases; k++) ran += same_bits_with_recovery(first + k);
    print_message("%llu cases ran\n", (unsigned long long)ran);
    assert_true(ran * 4 >= cases * 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_make_steps_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
