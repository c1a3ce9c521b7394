/* Parameters, optimizer states and saved blocks in tiers below device memory do not change what a
 * session computes. Random programs keep some of them in host memory, others on a disk, and update
 * parameters in slices, on the device or on the host. Losses and all tensors equal those of the
 * plain programs to the bit (tiers_trial.h). WEFT_TEST_SEED sets the first seed. */
#include "tiers_trial.h"

#include <errno.h>

#include "backend/cpu/emulated.h"
#include "base/fault.h"
#include "base/gcm/gcm.h"
#include "checkpoint/seal/seal.h"

/* ---- runs ---- */

static void add_rules(const trial *t, const weft_graph *g, weft_plan *plan) {
    dice d = {t->seed, 1u << 28};
    for (int64_t i = 0; i < g->root->in_count; i++) {
        const wefti_value_info *v = &g->root->values[g->root->in[i]];
        if (v->kind != WEFTI_VALUE_PARAM) continue;
        const bool on_host = roll(&d, 3) == 0;
        if (on_host) {
            char update[256];
            (void)snprintf(update, sizeof update, "%s:update", v->name);
            ASSERT_OK(weft_op_place(plan, update, "host"));
        } else {
            ASSERT_OK(weft_plan_offload(plan, v->name, WEFT_OFFLOAD_OPTIMIZER,
                                        (weft_tier)roll(&d, WEFT_TIERS)));
        }
        ASSERT_OK(weft_plan_offload(plan, v->name, WEFT_OFFLOAD_PARAMETERS,
                                    (weft_tier)roll(&d, on_host ? WEFT_TIER_DISK : WEFT_TIERS)));
        ASSERT_OK(weft_plan_offload(plan, v->name, WEFT_OFFLOAD_GRADIENTS,
                                    (weft_tier)roll(&d, on_host ? WEFT_TIER_DISK : WEFT_TIERS)));
    }
    for (int64_t k = 0; k < g->root->node_count; k++)
        if (g->root->nodes[k].op == &wefti_op_call)
            ASSERT_OK(weft_plan_offload(plan, g->root->nodes[k].scope, WEFT_OFFLOAD_SAVED,
                                        (weft_tier)roll(&d, WEFT_TIERS)));
    plan->offload.least = 1;
    plan->offload.slice = 16 << roll(&d, 8);
    plan->offload.ahead = roll(&d, 3) ? 16 << roll(&d, 12) : 0;
}

/* Adds what the programs have, which is nothing if no split fits. */
static void run(uint64_t seed, totals *out) {
    trial t = trial_of(seed, false, 4);
    weft_session *plain, *tiers;
    weft_graph *g[2];
    for (int k = 0; k < 2; k++) {
        g[k] = random_network(t.seed, t.cells, t.batch, t.dtype);
        ASSERT_OK(weft_graph_status(g[k]));
        ASSERT_OK(wefti_graph_wrap(g[k]));
    }
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    split_ops(&t, g[0]);
    if (create(&t, g[0], seed % 4 == 0, &plain) >= 0) {
        add_rules(&t, g[1], t.plan);
        ASSERT_OK(create(&t, g[1], seed % 4 == 0, &tiers));
        check_programs(&t, tiers, out);
        check_loops(seed, plain, tiers);
        for (int n = 0; n < STEPS; n++) {
            const double one = step_of(&t, plain, n), other = step_of(&t, tiers, n);
            if (one != other && !(isnan(one) && isnan(other)))
                fail_msg("seed %llu, step %d: losses %g and %g", (unsigned long long)seed, n, one,
                         other);
            compare(seed, plain, tiers);
        }
        check_observed(tiers);
        weft_session_destroy(plain);
        weft_session_destroy(tiers);
    }
    for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
    weft_plan_destroy(t.plan);
}

static void tiers_change_nothing(void **state) {
    (void)state;
    totals all = {0};
    TEST_SEEDS(seed, 1, SANITIZED ? 16 : 40) run(seed, &all);
    print_message("%d copies, %d of them to transient memory; %d updates on the host\n", all.copies,
                  all.stores, all.host_calls);
    if (!test_one_seed()) assert_true(all.copies > 100 && all.stores > 20 && all.host_calls > 50);
}

/* ---- masters on the host ---- */

/* The copies of masters are those of their present values. Returns their number. */
static int check_copies(uint64_t seed, const weft_session *s) {
    int copies = 0;
    for (int32_t r = 0; r < s->devices; r++) {
        const wefti_program *p = s->views[0]->programs[r];
        const wefti_rank_device *d = wefti_workers_device(s->workers, r);
        for (int32_t i = 0; i < p->tensor_count; i++) {
            const wefti_tensor *x = &p->tensors[i];
            const int64_t elems = weft_desc_elems(&x->desc);
            if (!wefti_location_exists(x->copy)) continue;
            assert_int_equal(wefti_location_space(x->home), WEFTI_SPACE_HOST);
            assert_int_equal(wefti_location_space(x->copy), WEFTI_SPACE_DEVICE);
            const wefti_home master = wefti_rank_device_home(d, x->home, 4 * elems),
                             copy = wefti_rank_device_home(d, x->copy, 2 * elems);
            float *wide = malloc((size_t)elems * 4 + 1);
            uint16_t *narrow = malloc((size_t)elems * 2 + 1);
            ASSERT_OK(wefti_home_read(&master, 0, 4 * elems, wide));
            ASSERT_OK(wefti_home_read(&copy, 0, 2 * elems, narrow));
            for (int64_t e = 0; e < elems; e++)
                if (!isnan(wide[e]) && narrow[e] != wefti_f32_to_bf16(wide[e]))
                    fail_msg("seed %llu, rank %d: the copy of '%s' is not that of element %lld",
                             (unsigned long long)seed, r, x->name, (long long)e);
            free(wide);
            free(narrow);
            copies++;
        }
    }
    return copies;
}

/* Doubles a parameter. */
static void write_one(weft_session *s) {
    weft_tensor_info info;
    int k = 0;
    do ASSERT_OK(weft_session_tensor(s, 0, k++, &info));
    while (info.role != WEFT_ROLE_PARAM || strcmp(info.name, "stem.table") != 0);
    float *x = malloc((size_t)info.bytes + 1);
    ASSERT_OK(weft_session_read(s, 0, info.name, x, (size_t)info.bytes));
    for (int64_t e = 0; e < weft_desc_elems(&info.desc); e++) x[e] *= 2;
    ASSERT_OK(weft_session_write(s, 0, info.name, x, (size_t)info.bytes));
    free(x);
}

/* A session trains a network in mixed precision, with parameters in f32 or with masters on the
 * host. Both have an evaluation. */
typedef struct mixed {
    weft_graph *graphs[2];
    weft_session *session;
} mixed;

static bool open_mixed(const trial *t, bool recovery, bool masters, mixed *out) {
    int program;
    *out = (mixed){.session = NULL};
    for (int k = 0; k < 2; k++) {
        out->graphs[k] = random_network_of(t->seed, t->cells, t->batch, WEFT_BF16, WEFT_F32,
                                           masters ? WEFT_BF16 : WEFT_F32);
        ASSERT_OK(weft_graph_status(out->graphs[k]));
    }
    if (create(t, out->graphs[0], recovery, &out->session) < 0) return false;
    ASSERT_OK(weft_session_add(out->session, out->graphs[1], &program));
    assert_int_equal(program, 1);
    return true;
}
static void close_mixed(mixed *x) {
    if (x->session) weft_session_destroy(x->session);
    for (int k = 0; k < 2; k++) weft_graph_destroy(x->graphs[k]);
}

/* The loss of the evaluation. */
static double evaluate(mixed *x) {
    double loss;
    for (int k = 0; k < weft_session_tensors(x->session, 1); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(x->session, 1, k, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        void *zeros = calloc(1, (size_t)info.bytes + 1);
        ASSERT_OK(weft_session_feed(x->session, 1, info.name, zeros, (size_t)info.bytes));
        free(zeros);
    }
    return weft_session_forward(x->session, 1, &loss) < 0 ? NAN : loss;
}

static void same_loss(uint64_t seed, int step, double one, double other) {
    if (one != other && !(isnan(one) && isnan(other)))
        fail_msg("seed %llu, step %d: losses %.9g and %.9g", (unsigned long long)seed, step, one,
                 other);
}

static void run_masters(uint64_t seed, totals *all, int *copies) {
    trial t = trial_of(seed, false, 4);
    dice d = {seed, 1u << 27};
    mixed plain, masters;
    t.dtype = WEFT_BF16;
    t.batch =
        96; /* products of at most 8 rows do not round weights, and devices divide the batch */
    const bool recovery = roll(&d, 4) == 0;
    t.optimizer = (weft_optimizer_kind)roll(&d, WEFT_OPTIMIZERS);
    ASSERT_OK(weft_plan_mode(t.plan, WEFT_PARALLEL_SEMI));
    weft_graph *g = random_network_of(t.seed, t.cells, t.batch, WEFT_BF16, WEFT_F32, WEFT_F32);
    ASSERT_OK(wefti_graph_wrap(g));
    split_ops(&t, g);
    weft_graph_destroy(g);
    if (open_mixed(&t, recovery, false, &plain)) {
        ASSERT_OK(weft_plan_master(t.plan, WEFT_TIER_HOST));
        ASSERT_OK(weft_plan_offload(t.plan, "*", WEFT_OFFLOAD_GRADIENTS,
                                    (weft_tier)roll(&d, WEFT_TIER_DISK)));
        ASSERT_OK(
            weft_plan_offload(t.plan, "*", WEFT_OFFLOAD_SAVED, (weft_tier)roll(&d, WEFT_TIERS)));
        t.plan->offload.least = 1;
        t.plan->offload.slice = 16 << roll(&d, 8);
        t.plan->offload.ahead = 16 << roll(&d, 12);
        assert_true(open_mixed(&t, recovery, true, &masters));
        check_programs(&t, masters.session, all);
        check_loops(seed, plain.session, masters.session);
        for (int n = 0; n < STEPS; n++) {
            same_loss(seed, n, step_of(&t, plain.session, n), step_of(&t, masters.session, n));
            compare(seed, plain.session, masters.session);
            *copies += check_copies(seed, masters.session);
            same_loss(seed, n, evaluate(&plain), evaluate(&masters));
            if (n == 0) write_one(plain.session);
            if (n == 0) write_one(masters.session);
        }
        check_observed(masters.session);
        close_mixed(&masters);
    }
    close_mixed(&plain);
    weft_plan_destroy(t.plan);
}

/* Where products multiply bf16, masters on the host change no bit. */
static void masters_change_nothing(void **state) {
    (void)state;
    totals all = {0};
    int copies = 0;
    wefti_cpu_tune(&wefti_cpu_emulated);
    assert_int_equal(setenv("WEFT_ISA", "amx", 1), 0);
    TEST_SEEDS(seed, 301, SANITIZED ? 3 : 8) run_masters(seed, &all, &copies);
    wefti_cpu_tune(NULL);
    (void)unsetenv("WEFT_ISA");
    print_message("%d copies of masters; %d updates on the host\n", copies, all.host_calls);
    if (!test_one_seed()) assert_true(copies > 50 && all.host_calls > 50);
}

/* ---- what goes wrong ---- */

/* A small session whose parameters, optimizer states and saved blocks all lie on the disk. */
typedef struct small {
    trial trial;
    weft_graph *graph;
} small;

static small small_session(void) {
    small x = {.trial = {.seed = 7, .batch = 4, .microbatches = 1, .optimizer = WEFT_ADAM}};
    x.graph = random_network(7, 2, 4, WEFT_F32);
    ASSERT_OK(weft_graph_status(x.graph));
    ASSERT_OK(weft_plan_create(1, &x.trial.plan));
    for (int what = 0; what < WEFT_OFFLOADS; what++)
        ASSERT_OK(weft_plan_offload(x.trial.plan, "*", (weft_offload)what, WEFT_TIER_DISK));
    x.trial.plan->offload.least = 1;
    return x;
}
static void free_small(small *x) {
    weft_graph_destroy(x->graph);
    weft_plan_destroy(x->trial.plan);
}

/* Builds a session, makes two steps and reads a tensor. */
static weft_status two_steps(small *x) {
    weft_session *s;
    weft_tensor_info info;
    double loss;
    weft_status status = create(&x->trial, x->graph, false, &s);
    for (int n = 0; n < 2 && status >= 0; n++) {
        status = feed(s, (uint64_t)n);
        if (status >= 0) status = weft_session_step(s, 1e-2, &loss);
    }
    for (int k = 0; status >= 0 && k < weft_session_tensors(s, 0); k++) {
        ASSERT_OK(weft_session_tensor(s, 0, k, &info));
        if (info.role != WEFT_ROLE_OPTIMIZER) continue;
        char *bytes = malloc((size_t)info.bytes + 1);
        status = weft_session_read(s, 0, info.name, bytes, (size_t)info.bytes);
        free(bytes);
    }
    if (s) weft_session_destroy(s);
    return status;
}

/* Each call to the system fails in turn. The folder has no file afterwards, which rmdir proves. */
static void each_call_fails_in_turn(void **state) {
    (void)state;
    small x = small_session();
    wefti_fault_arm(WEFTI_FAULT_IO, INT64_MAX, false, 0);
    ASSERT_OK(two_steps(&x));
    const int64_t calls = wefti_fault_count(WEFTI_FAULT_IO);
    print_message("%lld calls\n", (long long)calls);
    assert_true(calls > 20);
    int named = 0;
    for (int64_t nth = 0; nth < calls; nth++) {
        wefti_fault_arm(WEFTI_FAULT_IO, nth, true, EIO);
        ASSERT_FAILS(WEFT_E_IO, folder, two_steps(&x));
        named += strstr(weft_error_message(), "weight.m") != NULL;
    }
    assert_true(named > 0); /* the tensor */
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    ASSERT_OK(two_steps(&x));
    free_small(&x);
}

static void limits_are_told(void **state) {
    (void)state;
    small x = small_session();
    weft_session *s;
    weft_session_part part;
    weft_session_options o = weft_session_defaults();
    o.plan = x.trial.plan;
    ASSERT_FAILS(WEFT_E_ARG, "memory.disk.path", weft_session_create(x.graph, &o, &s));
    o.disk = folder;
    o.disk_bytes = 1;
    ASSERT_FAILS(WEFT_E_NOMEM, "memory.disk.size", weft_session_create(x.graph, &o, &s));
    o.disk_bytes = 1 << 20;
    ASSERT_OK(weft_session_create(x.graph, &o, &s));
    const weft_session_memory m = weft_session_memory_of(s);
    assert_int_equal(m.host_bytes, 0);
    assert_true(m.disk_bytes >= m.optimizer_bytes + m.parameter_bytes && m.optimizer_bytes > 0);
    for (int k = 0; k < weft_session_tensors(s, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, k, &info));
        if (info.role == WEFT_ROLE_OPTIMIZER || info.role == WEFT_ROLE_PARAM)
            ASSERT_FAILS(WEFT_E_ARG, "weft_session_read_rows",
                         weft_session_local(s, 0, info.name, &part));
    }
    weft_session_destroy(s);
    o.disk = "/no/such/folder";
    ASSERT_OK(weft_session_create(x.graph, &o, &s));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "/no/such/folder", feed(s, 0)); /* devices begin here */
    weft_session_destroy(s);
    free_small(&x);
}

/* ---- encryption ---- */

/* The first parameter with some bytes. */
static void first_parameter(weft_session *s, weft_tensor_info *out) {
    int k = 0;
    do ASSERT_OK(weft_session_tensor(s, 0, k++, out));
    while (out->role != WEFT_ROLE_PARAM || out->bytes < 64);
}

/* Whether the file of a session has the bytes of a parameter. Then all of its blocks change, and a
 * step reads them: *out_status. */
static bool shows_parameters(small *x, weft_status *out_status) {
    weft_session *s;
    weft_tensor_info info;
    double loss;
    ASSERT_OK(create(&x->trial, x->graph, false, &s));
    ASSERT_OK(feed(s, 0));
    ASSERT_OK(weft_session_step(s, 1e-2, &loss));
    first_parameter(s, &info);
    const int64_t bytes = weft_session_memory_of(s).disk_bytes;
    unsigned char *file = malloc((size_t)bytes), *tensor = malloc((size_t)info.bytes);
    ASSERT_OK(weft_session_read(s, 0, info.name, tensor, (size_t)info.bytes));
    const int fd = open_unnamed(folder);
    assert_int_equal(pread(fd, file, (size_t)bytes, 0), bytes);
    const bool shown = memmem(file, (size_t)bytes, tensor, 64) != NULL;
    for (int64_t i = 0; i < bytes; i += 4096) file[i] ^= 1;
    assert_int_equal(pwrite(fd, file, (size_t)bytes, 0), bytes);
    ASSERT_OK(feed(s, 1));
    *out_status = weft_session_step(s, 1e-2, &loss);
    if (*out_status < 0) ASSERT_FACTS(weft_error_message(), folder);
    (void)close(fd);
    free(file);
    free(tensor);
    weft_session_destroy(s);
    return shown;
}

/* A process with a key of checkpoints encrypts files of tensors. Last: the key stays. */
static void keys_encrypt_the_file(void **state) {
    (void)state;
    small x = small_session();
    weft_status status;
    const wefti_key key = {.bytes = {1}, .number = 1};
    /* one file */
    ASSERT_OK(weft_plan_offload(x.trial.plan, "*", WEFT_OFFLOAD_SAVED, WEFT_TIER_DEVICE));
    ASSERT_OK(weft_plan_offload(x.trial.plan, "*", WEFT_OFFLOAD_GRADIENTS, WEFT_TIER_DEVICE));
    assert_true(shows_parameters(&x, &status));
    assert_int_equal(status, WEFT_OK); /* a wrong bit is a wrong number */
    if (!wefti_gcm_is_built()) SKIP("no OpenSSL");
    ASSERT_OK(wefti_key_keep(&key));
    assert_false(shows_parameters(&x, &status));
    assert_int_equal(status, WEFT_E_CORRUPT);
    free_small(&x);
    totals unused = {0};
    TEST_SEEDS(seed, 101, SANITIZED ? 2 : 6) run(seed, &unused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_change_nothing), cmocka_unit_test(masters_change_nothing),
        cmocka_unit_test(each_call_fails_in_turn), cmocka_unit_test(limits_are_told),
        cmocka_unit_test(keys_encrypt_the_file)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
