/* weft_session_save and weft_session_load: a step of a run's directory from a session of any plan,
 * and into a session of any other plan, to the bit. */
#include "world_run.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/io.h"
#include "weft/checkpoint.h"

static char folder[256];
static int64_t at_step = 1;
static bool together; /* start and wait, with a training step between them */
static bool sliced;   /* each rank writes files of its own */

/* A tensor of the saved session. Plans list tensors in orders of their own. */
typedef struct kept {
    char name[128];
    float *data;
    int64_t bytes;
} kept;
enum { MOST_TENSORS = 256 };
static kept saved[MOST_TENSORS]; /* what the session had when it was saved, on rank 0 */
static int saved_count;

static void drop_saved(void) {
    for (int i = 0; i < saved_count; i++) free(saved[i].data);
    saved_count = 0;
}

static int make_folder(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/weft-steps-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    drop_saved();
    return wefti_remove_tree(folder) < 0 ? -1 : 0;
}

/* ---- to the bit, from every plan into every plan ---- */

static bool is_kept(const weft_tensor_info *info) {
    return info->role <= WEFT_ROLE_OPTIMIZER;
}

/* Keeps all tensors on rank 0, or compares them with the kept ones. Collective. */
static weft_status each_tensor(weft_session *s, int rank, bool compare) {
    int seen = 0;
    if (!compare && rank == 0) drop_saved();
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
        if (!is_kept(&info)) continue;
        float *data = malloc((size_t)info.bytes);
        weft_status status = weft_session_read(s, 0, info.name, data, (size_t)info.bytes);
        if (status >= 0 && !compare && rank == 0 && saved_count < MOST_TENSORS) {
            kept *k = &saved[saved_count++];
            (void)snprintf(k->name, sizeof k->name, "%s", info.name);
            k->data = data;
            k->bytes = info.bytes;
            continue;
        }
        bool same = !compare;
        for (int i = 0; compare && i < saved_count && status >= 0; i++)
            same |= !strcmp(saved[i].name, info.name) && saved[i].bytes == info.bytes &&
                    !memcmp(saved[i].data, data, (size_t)info.bytes);
        free(data);
        WEFT_TRY(status);
        WEFT_REQUIRE(same, WEFT_E_BUG, "%s differs from the saved one", info.name);
        seen++;
    }
    WEFT_REQUIRE(!compare || seen == saved_count, WEFT_E_BUG, "%d tensors, not %d", seen,
                 saved_count);
    return WEFT_OK;
}

/* At the begin of step 1 the session is saved; the last steps overlap with it if `together`. */
static weft_status save_at(weft_session *s, const run *r, int step) {
    const weft_session_save_options options =
        WEFT_STRUCT(weft_session_save_options, .position = 40 + step, .keep = 2, .sliced = sliced);
    if (step == STEPS) return weft_session_save_wait(s);
    if (step != at_step) return WEFT_OK;
    WEFT_TRY(each_tensor(s, r->rank, false));
    return together ? weft_session_save_start(s, folder, &options)
                    : weft_session_save(s, folder, &options);
}

/* One rank begins a call that has to wait for the end of the save; the other waits for that end. */
static bool loads;
static weft_status overtake(weft_session *s, const run *r, int step) {
    if (step != 1) return WEFT_OK;
    WEFT_TRY(weft_session_save_start(s, folder, NULL));
    if (r->rank == 0) return weft_session_save_wait(s);
    return loads ? weft_session_load(s, folder, -1, NULL)
                 : weft_session_save_start(s, folder, NULL);
}

static void calls_under_way_keep_nobody_waiting(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        run two[2];
        rank_of_world ranks[2];
        loads = k == 1;
        for (int r = 0; r < 2; r++) two[r] = (run){.c = &cases[0], .at = overtake, .rank = r};
        run_world(2, run_rank, two, sizeof *two, ranks);
        assert_int_equal(ranks[0].status, WEFT_E_PEER);
        assert_int_equal(ranks[1].status, WEFT_E_ARG);
    }
}

/* The session is other than the saved one, and the same after it was loaded. */
static weft_status load_at(weft_session *s, const run *r, int step) {
    int64_t position = -1;
    if (step != at_step) return WEFT_OK;
    WEFT_TRY(weft_session_load(s, folder, -1, &position));
    WEFT_REQUIRE(position == 40 + at_step && weft_session_step_number(s) == at_step, WEFT_E_BUG,
                 "position %lld, step %lld", (long long)position,
                 (long long)weft_session_step_number(s));
    return each_tensor(s, r->rank, true);
}

static weft_status expect_step_1(weft_session *s, const run *r, int step) {
    (void)r;
    if (step != 0) return WEFT_OK;
    WEFT_TRY(weft_session_load(s, folder, -1, NULL));
    WEFT_REQUIRE(weft_session_step_number(s) == 1, WEFT_E_BUG, "step %lld",
                 (long long)weft_session_step_number(s));
    return WEFT_OK;
}

static void run_plan(const plan_case *c, weft_status (*at)(weft_session *, const run *, int),
                     bool in_world, run *out) {
    run *runs = calloc((size_t)c->devices, sizeof *runs);
    rank_of_world ranks[MOST_RANKS];
    for (int r = 0; r < c->devices; r++) runs[r] = (run){.c = c, .rank = r, .at = at};
    if (in_world) {
        run_world(c->devices, run_rank, runs, sizeof *runs, ranks);
        assert_all_ok(ranks, c->devices, c->name);
    } else {
        ASSERT_OK(run_session(&runs[0], NULL));
    }
    for (int r = 1; r < c->devices; r++) free_run(&runs[r]);
    if (out)
        *out = runs[0];
    else
        free_run(&runs[0]);
    free(runs);
}

static const plan_case *plan_named(const char *name) {
    for (int i = 0; i < CASES; i++)
        if (!strcmp(cases[i].name, name)) return &cases[i];
    fail_msg("no plan %s", name);
    return NULL;
}

static const char *const plans[] = {"2 data",   "3 data, uneven", "4 data, all split",
                                    "2 tensor", "2 stages",       "2 data 2 tensor, states split"};
enum { PLANS = sizeof plans / sizeof *plans };

static void expect_verified(void) {
    char *text = NULL;
    if (weft_checkpoint_verify(folder, 0, &text) < 0) fail_msg("%s", weft_error_message());
    weft_checkpoint_text_free(text);
}

static void each_to_each(void) {
    const plan_case one = {.name = "one device", .devices = 1};
    for (int i = -1; i < PLANS; i++) {
        const plan_case *from = i < 0 ? &one : plan_named(plans[i]);
        together = i & 1;
        run_plan(from, save_at, i >= 0, NULL);
        expect_verified();
        run_plan(&one, load_at, false, NULL);
        run_plan(plan_named(plans[(i + 1) % PLANS]), load_at, true, NULL);
        run_plan(plan_named(plans[(i + 2) % PLANS]), load_at, i & 2, NULL);
    }
}

static void from_plan_to_plan(void **state) {
    (void)state;
    sliced = false;
    each_to_each();
}

static void slices_to_every_plan(void **state) {
    (void)state;
    sliced = true;
    each_to_each();
}

/* A run that was saved at step 1, and goes on from there, ends with the bits of the whole run. */
static void goes_on(void **state) {
    (void)state;
    const plan_case *c = plan_named("4 data, all split");
    run whole, rest;
    together = true;
    run_plan(c, save_at, true, &whole);
    run_plan(c, load_at, true, &rest);
    assert_int_equal(whole.elems, rest.elems);
    assert_memory_equal(whole.tensors, rest.tensors, (size_t)whole.elems * sizeof(float));
    free_run(&whole);
    free_run(&rest);
}

/* ---- slices ---- */

/* Bytes of tensors in the folder of a rank: those of its regions, far fewer than the whole. */
static int64_t bytes_of(int rank) {
    char path[300], line[512];
    int64_t bytes = 0;
    (void)snprintf(path, sizeof path, "du -b --apparent-size %s/rank_%d/step-*/*.safetensors",
                   folder, rank);
    FILE *list = popen(path, "r");
    while (list && fgets(line, sizeof line, list)) bytes += strtoll(line, NULL, 10);
    if (list) (void)pclose(list);
    return bytes;
}

static void slices_hold_parts(void **state) {
    (void)state;
    sliced = together = true;
    run_plan(plan_named("4 data, all split"), save_at, true, NULL);
    int64_t whole = 0;
    for (int i = 0; i < saved_count; i++) whole += saved[i].bytes;
    for (int r = 0; r < 4; r++) {
        assert_true(bytes_of(r) > whole / 8);
        assert_true(bytes_of(r) < whole / 2);
    }
}

/* All ranks find the damage of the newest step while they read it, and take the one before. */
static void steps_back_from_damage(void **state) {
    (void)state;
    char command[400];
    sliced = together = false;
    for (at_step = 1; at_step < STEPS; at_step++)
        run_plan(plan_named("3 data, uneven"), save_at, true, NULL);
    at_step = 1;
    (void)snprintf(command, sizeof command,
                   "f=$(ls %s/step-*2/model*.safetensors | head -1) && "
                   "printf XXXX | dd of=$f bs=1 conv=notrunc status=none "
                   "seek=$(($(stat -c %%s $f) - 64))",
                   folder);
    assert_int_equal(system(command), 0); /* NOLINT(concurrency-mt-unsafe) */
    run_plan(plan_named("4 data, all split"), expect_step_1, true, NULL);
}

/* ---- refusals; what is kept ---- */

static weft_graph *small_graph(int64_t width) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    const weft_init init = {WEFT_INIT_NORMAL, 0.4};
    weft_value x = weft_input(g, "x", matrix(4, width));
    weft_value w = weft_param(g, "w", matrix(width, width), init);
    weft_loss(g, weft_mse(g, weft_linear(g, x, w, WEFT_NO_VALUE, false), x));
    return g;
}

static weft_session *small_session(weft_graph *g, int microbatches) {
    weft_session *s;
    weft_session_options o = weft_session_defaults();
    o.threads = 1;
    o.microbatches = microbatches;
    ASSERT_OK(weft_session_create(g, &o, &s));
    return s;
}

static void train_small(weft_session *s) {
    float x[4 * 64];
    for (int i = 0; i < 4 * 64; i++) x[i] = (float)(i % 7);
    ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
    ASSERT_OK(weft_session_step(s, 0.01, NULL));
}

static void read_small(weft_session *s, float out[64 * 64]) {
    ASSERT_OK(weft_session_read(s, 0, "w", out, 64 * 64 * sizeof *out));
}

static void keeps_and_refuses(void **state) {
    (void)state;
    weft_graph *g = small_graph(64), *other = small_graph(32);
    weft_session *s = small_session(g, 1), *t = small_session(other, 1);
    const weft_session_save_options two = WEFT_STRUCT(weft_session_save_options, .keep = 2),
                                    bad = WEFT_STRUCT(weft_session_save_options, .keep = -1);
    int64_t position = 7;
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "/nowhere/at/all",
                 weft_session_load(s, "/nowhere/at/all", -1, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "-2", weft_session_load(s, folder, -2, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "directory", weft_session_save(s, "", NULL));
    ASSERT_FAILS(WEFT_E_ARG, "keep|-1", weft_session_save(s, folder, &bad));
    for (int i = 0; i < 4; i++) {
        train_small(s);
        ASSERT_OK(weft_session_save(s, folder, &two));
    }
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "2", weft_session_load(s, folder, 2, NULL));
    ASSERT_OK(weft_session_load(s, folder, 3, &position));
    assert_int_equal(weft_session_step_number(s), 3);
    assert_int_equal(position, 0);
    ASSERT_FAILS(WEFT_E_SHAPE, "w|64|32", weft_session_load(t, folder, -1, NULL));
    assert_int_equal(weft_session_step_number(t), 0);
    ASSERT_OK(weft_session_save_start(s, folder, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "weft_session_save_wait", weft_session_save_start(s, folder, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "weft_session_save_wait", weft_session_load(s, folder, -1, NULL));
    ASSERT_OK(weft_session_save_wait(s));
    ASSERT_OK(weft_session_save_wait(s)); /* nothing is under way */
    assert_int_equal(weft_session_save_test(s), WEFT_OK);
    weft_session_destroy(s);
    weft_session_destroy(t);
    weft_graph_destroy(g);
    weft_graph_destroy(other);
}

/* A write that changes tensors during a save waits for them; destroying gives the step up. */
static void changes_under_way(void **state) {
    (void)state;
    weft_graph *g = small_graph(64);
    weft_session *s = small_session(g, 1);
    static float before[64 * 64], after[64 * 64], zero[64 * 64];
    train_small(s);
    read_small(s, before);
    ASSERT_OK(weft_session_save_start(s, folder, NULL));
    ASSERT_OK(weft_session_write(s, 0, "w", zero, sizeof zero));
    while (weft_session_save_test(s) == WEFT_PENDING) usleep(1000);
    ASSERT_OK(weft_session_save_wait(s));
    ASSERT_OK(weft_session_load(s, folder, -1, NULL));
    read_small(s, after);
    assert_memory_equal(before, after, sizeof before);
    train_small(s);
    ASSERT_OK(weft_session_save_start(s, folder, NULL));
    weft_session_destroy(s);
    expect_verified();
    s = small_session(g, 2);
    float x[4 * 64] = {1};
    ASSERT_OK(weft_session_feed(s, 0, "x", x, sizeof x));
    ASSERT_OK(weft_session_accumulate(s, NULL));
    ASSERT_FAILS(WEFT_E_ARG, "1 microbatches|between", weft_session_save(s, folder, NULL));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* A full disk (a limit on the size of files acts like one) fails the save; the step of before and
 * the session are as they were. */
static void full_disk(void **state) {
    (void)state;
    weft_graph *g = small_graph(64);
    weft_session *s = small_session(g, 1);
    struct rlimit all, few;
    static float before[64 * 64], after[64 * 64];
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    few = all;
    few.rlim_cur = 8192;
    train_small(s);
    ASSERT_OK(weft_session_save(s, folder, NULL));
    read_small(s, before);
    train_small(s);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
        weft_status status =
            i ? weft_session_save_start(s, folder, NULL) : weft_session_save(s, folder, NULL);
        if (i && status >= 0) status = weft_session_save_wait(s);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
        assert_int_equal(status, WEFT_E_IO);
        ASSERT_MESSAGE("step 2");
        expect_verified();
    }
    train_small(s);
    ASSERT_OK(weft_session_load(s, folder, -1, NULL));
    assert_int_equal(weft_session_step_number(s), 1);
    read_small(s, after);
    assert_memory_equal(before, after, sizeof before);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(from_plan_to_plan, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(slices_to_every_plan, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(goes_on, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(slices_hold_parts, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(steps_back_from_damage, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(keeps_and_refuses, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(changes_under_way, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(calls_under_way_keep_nobody_waiting, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(full_disk, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
