/* Sessions over a world. Under every plan, as many processes as the plan has devices give the bits
 * of one process with that many devices. Every process knows the same results. Jobs that differ are
 * refused by name. If a rank fails, all ranks name it. */
#include "session_models.h"

#include "base/fault.h"
#include "session/agree.h"
#include "plan_cases.h"
#include "world_fixture.h"

enum { SEED = 21, BATCH = 8, STEPS = 3 };

/* ---- plans ---- */

static const plan_case cases[] = {
    {.name = "2 data", .devices = 2},
    {.name = "3 data, uneven", .devices = 3},
    {.name = "4 data, clipped", .devices = 4, .clip = 0.5},
    {.name = "2 data, accumulated", .devices = 2, .accumulate = 2, .sum = true},
    {.name = "4 data, states split", .devices = 4, .level = 1},
    {.name = "4 data, gradients split", .devices = 4, .level = 2, .clip = 0.5},
    {.name = "4 data, all split", .devices = 4, .level = 3},
    {.name = "2 tensor", .devices = 2, .axis = {{"tp", 2}}, .splits = {TENSOR_PARALLEL}},
    {.name = "2 data 2 tensor, states split",
     .devices = 4,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 1,
     .clip = 0.5},
    {.name = "2 stages", .devices = 2, .stages = 2, .microbatches = 4},
    {.name = "2 data 2 tensor 2 stages, states split",
     .devices = 8,
     .axis = {{"dp", 2}, {"tp", 2}},
     .splits = {TENSOR_PARALLEL},
     .level = 2,
     .stages = 2,
     .microbatches = 2,
     .clip = 0.5},
    {.name = "2 data 2 experts",
     .devices = 4,
     .axis = {{"dp", 2}, {"ep", 2}},
     .splits = {{"*moe.experts.*", "experts=ep"},
                {"*moe:moe_dispatch", "experts=ep"},
                {"*moe:moe_combine", "experts=ep"}},
     .experts = true},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- one rank's run, or the whole run in one process ---- */

enum { TAMPER_NONE, TAMPER_MODEL, TAMPER_SEED, TAMPER_PLAN, TAMPER_CLIP, TAMPER_DEVICES };

typedef enum feeding { FEED_WHOLE, FEED_LOCAL, FEED_ROWS } feeding;

typedef struct run {
    const plan_case *c;
    int tamper;
    bool evaluate, poison; /* poison: a parameter becomes infinite after one step */
    bool careless;         /* rank 1 makes calls that are wrong */
    feeding how;
    int rank;
    const float *start; /* parameters to begin with; NULL: own */
    double losses[STEPS], norms[STEPS], evaluation;
    int64_t predicted, observed;
    float *tensors; /* all parameters and optimizer states, one behind the other */
    int64_t elems;
} run;

static weft_model_config config_of(const plan_case *c, bool other) {
    return (weft_model_config){.family = c->experts ? WEFT_FAMILY_GPT2_MOE : WEFT_FAMILY_GPT2,
                               .layers = 2,
                               .hidden = other ? 16 : 32,
                               .heads = 4,
                               .ffn = 64,
                               .context = 16,
                               .vocab = 50,
                               .experts = c->experts ? 4 : 0,
                               .experts_per_token = c->experts ? 2 : 0,
                               .dropout = 0.2};
}

/* Tokens; the whole input, or this process's part of it in place or through a copy. */
static weft_status feed(weft_session *s, int program, uint64_t step, feeding how, int rank) {
    for (int t = 0; t < weft_session_tensors(s, program); t++) {
        weft_tensor_info info;
        int32_t data[BATCH * 16];
        WEFT_TRY(weft_session_tensor(s, program, t, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        uint64_t stream = wefti_stream_of(info.name);
        for (int64_t i = 0; i < info.bytes / 4; i++)
            data[i] = (int32_t)(wefti_philox_u32(step, stream, (uint64_t)i) % 50);
        if (how == FEED_ROWS) { /* some ranks have none */
            int64_t rows = info.desc.shape[0], row = info.bytes / rows, n = weft_session_devices(s);
            int64_t begin = rows * rank * rank / (n * n),
                    end = rows * (rank + 1) * (rank + 1) / (n * n);
            if (step & 1) { /* or the share that the session asks for */
                WEFT_TRY(weft_session_rows(s, program, info.name, &begin, &end));
                end += begin;
            }
            WEFT_TRY(weft_session_feed_rows(s, program, info.name, (char *)data + begin * row,
                                            (size_t)((end - begin) * row)));
            continue;
        }
        if (how == FEED_WHOLE) {
            WEFT_TRY(weft_session_feed(s, program, info.name, data, (size_t)info.bytes));
            continue;
        }
        weft_session_part part;
        WEFT_TRY(weft_session_local(s, program, info.name, &part));
        int32_t cut[BATCH * 16];
        for (int64_t i = 0; i < part.bytes / 4; i++) {
            int64_t row = part.begin[0] + i / part.size[1], at = part.begin[1] + i % part.size[1];
            cut[i] = data[row * info.desc.shape[1] + at];
        }
        if (step & 1)
            WEFT_TRY(weft_session_feed_local(s, program, info.name, cut, (size_t)part.bytes));
        else if (part.bytes)
            memcpy(part.data, cut, (size_t)part.bytes);
    }
    return WEFT_OK;
}

static weft_status read_all(weft_session *s, run *r) {
    for (int pass = 0; pass < 2; pass++) {
        r->elems = 0;
        for (int t = 0; t < weft_session_tensors(s, 0); t++) {
            weft_tensor_info info;
            WEFT_TRY(weft_session_tensor(s, 0, t, &info));
            if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OPTIMIZER) continue;
            if (pass)
                WEFT_TRY(
                    weft_session_read(s, 0, info.name, r->tensors + r->elems, (size_t)info.bytes));
            r->elems += info.bytes / 4;
        }
        if (!pass) r->tensors = calloc((size_t)r->elems, sizeof(float));
    }
    return WEFT_OK;
}

static weft_status write_all(weft_session *s, const float *from) {
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OPTIMIZER) continue;
        WEFT_TRY(weft_session_write(s, 0, info.name, from, (size_t)info.bytes));
        from += info.bytes / 4;
    }
    return WEFT_OK;
}

/* The rows that a rank asks for, in `part` of two uneven ways to divide them, are those of the
 * whole tensor. Replicas and overlapping rows: in the second way each rank asks for all but one
 * row. */
static weft_status compare_rows(weft_session *s, int program, const weft_tensor_info *info,
                                int rank, int way) {
    int64_t n = weft_session_devices(s), height = info->desc.shape[0], row = info->bytes / height;
    int64_t first = way ? rank % height : height * rank * rank / (n * n);
    int64_t end = way ? height : height * (rank + 1) * (rank + 1) / (n * n);
    size_t bytes = (size_t)((end - first) * row);
    char *whole = malloc((size_t)info->bytes), *mine = calloc(1, bytes + 1);
    weft_status status = weft_session_read(s, program, info->name, whole, (size_t)info->bytes);
    if (status >= 0)
        status = weft_session_read_rows(s, program, info->name, first, bytes ? mine : NULL, bytes);
    if (status >= 0 && (memcmp(mine, whole + first * row, bytes) != 0 || mine[bytes]))
        status = WEFT_E_BUG;
    free(whole);
    free(mine);
    return status;
}

static weft_status read_rows(weft_session *s, int program, int rank) {
    for (int t = 0; t < weft_session_tensors(s, program); t++) {
        weft_tensor_info info;
        WEFT_TRY(weft_session_tensor(s, program, t, &info));
        if (info.desc.rank == 0) continue;
        for (int way = 0; way < 2; way++) WEFT_TRY(compare_rows(s, program, &info, rank, way));
    }
    return WEFT_OK;
}

static weft_status one_step(weft_session *s, run *r, int step, int microbatches) {
    double sum = 0, loss;
    int known = 0;
    r->norms[step] = NAN;
    for (int m = 0; m < microbatches; m++) {
        WEFT_TRY(feed(s, 0, (uint64_t)(step * 10 + m), r->how, r->rank));
        WEFT_TRY(weft_session_set_row(s, m * BATCH / microbatches));
        if (microbatches == 1 && r->c->clip == 0)
            return weft_session_step(s, 0.01, &r->losses[step]);
        WEFT_TRY(weft_session_accumulate(s, &loss));
        if (isnan(loss)) continue;
        sum += loss;
        known++;
    }
    r->losses[step] = sum / known;
    return weft_session_update(s, 0.01, &r->norms[step]);
}

static weft_status poison(weft_session *s) {
    weft_tensor_info info;
    WEFT_TRY(weft_session_find(s, 0, "h.1.mlp.c_fc.weight", &info));
    float *values = calloc(1, (size_t)info.bytes);
    values[7] = INFINITY;
    weft_status status = weft_session_write(s, 0, info.name, values, (size_t)info.bytes);
    free(values);
    return status;
}

/* Rows that do not fit the input are refused on all ranks, and the session stays usable. */
static weft_status feed_wrong_rows(weft_session *s, const run *r) {
    weft_tensor_info info = {.role = WEFT_ROLE_PARAM};
    char byte[1] = {0};
    for (int t = 0; info.role != WEFT_ROLE_INPUT; t++)
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
    if (weft_session_feed_rows(s, 0, info.name, byte, 0) != WEFT_E_SHAPE ||
        !has_facts(weft_error_message(), "0"))
        return WEFT_E_BUG;
    if (weft_session_feed_rows(s, 0, info.name, byte, r->rank == 1) >= 0 ||
        !has_facts(weft_error_message(), "1 bytes"))
        return WEFT_E_BUG;
    return WEFT_OK;
}

static bool is_refused(const run *r, weft_status status, weft_status want, const char *why) {
    return status == want && has_facts(weft_error_message(), why) &&
           (r->rank == 1 || !strncmp(weft_error_message(), "rank 1: ", 8));
}

/* One rank alone makes wrong calls. If the others would wait for it in such a call, all ranks
 * refuse the call. The session stays usable. The first wrong call is the session's first call. */
static weft_status make_mistakes(weft_session *s, const run *r) {
    static const char unknown[] = "nothing";
    const char *name = "h.1.mlp.c_fc.weight", *input = NULL;
    weft_tensor_info info = {.role = WEFT_ROLE_PARAM};
    for (int t = 0; info.role != WEFT_ROLE_INPUT; t++)
        WEFT_TRY(weft_session_tensor(s, 0, t, &info));
    input = info.name;
    char *data = calloc(1, (size_t)info.bytes);
    bool wrong = r->rank == 1, good = true;
    weft_status status =
        weft_session_feed(s, 0, wrong ? "nothing" : input, data, (size_t)info.bytes);
    good &= status == (wrong ? WEFT_E_NOT_FOUND : WEFT_OK);
    free(data);
    WEFT_TRY(weft_session_find(s, 0, name, &info));
    size_t bytes = (size_t)info.bytes;
    data = calloc(1, bytes);
    status = weft_session_read(s, 0, wrong ? "nothing" : name, data, bytes);
    good &= is_refused(r, status, WEFT_E_NOT_FOUND, unknown);
    status = weft_session_read(s, 0, name, data, wrong ? bytes - 4 : bytes);
    good &= is_refused(r, status, WEFT_E_SHAPE, "bytes, not ");
    status = weft_session_write(s, wrong ? 7 : 0, name, data, bytes);
    good &= is_refused(r, status, WEFT_E_ARG, "program 7");
    status = weft_session_write(s, 0, name, wrong ? NULL : data, bytes);
    good &= is_refused(r, status, WEFT_E_ARG, "are NULL");
    status = weft_session_feed_rows(s, 0, wrong ? "nothing" : input, data, 0);
    good &= is_refused(r, status, WEFT_E_NOT_FOUND, unknown);
    int64_t row = (int64_t)bytes / info.desc.shape[0];
    status = weft_session_read_rows(s, 0, wrong ? "nothing" : name, 0, data, (size_t)row);
    good &= is_refused(r, status, WEFT_E_NOT_FOUND, unknown);
    status = weft_session_read_rows(s, 0, name, wrong ? -1 : 0, data, (size_t)row);
    good &= is_refused(r, status, WEFT_E_SHAPE, "rows -1 to -1");
    status = weft_session_read_rows(s, 0, name, wrong, data, bytes);
    good &= is_refused(r, status, WEFT_E_SHAPE, "rows 1 to ");
    status = weft_session_read_rows(s, 0, name, 0, data, (size_t)(wrong ? row - 1 : row));
    good &= is_refused(r, status, WEFT_E_SHAPE, "whole number");
    status = weft_session_read_rows(s, 0, name, 0, wrong ? NULL : data, (size_t)row);
    good &= is_refused(r, status, WEFT_E_ARG, "are NULL");
    free(data);
    return good ? WEFT_OK : WEFT_E_BUG;
}

static weft_status run_steps(weft_session *s, run *r, int microbatches, int evaluation) {
    if (r->careless) WEFT_TRY(make_mistakes(s, r));
    if (r->how == FEED_ROWS) WEFT_TRY(feed_wrong_rows(s, r));
    if (r->start) WEFT_TRY(write_all(s, r->start));
    for (int step = 0; step < STEPS; step++) {
        if (r->poison && step == 1) WEFT_TRY(poison(s));
        WEFT_TRY(one_step(s, r, step, microbatches));
    }
    if (r->how == FEED_ROWS) WEFT_TRY(read_rows(s, 0, r->rank));
    if (r->evaluate) {
        WEFT_TRY(feed(s, evaluation, 77, FEED_WHOLE, 0));
        WEFT_TRY(weft_session_forward(s, evaluation, &r->evaluation));
    }
    WEFT_TRY(read_all(s, r));
    return WEFT_OK;
}

/* If a failure is outside the session's calls, the program itself tells the other ranks. */
static weft_status told(weft_world *world, weft_status status) {
    if (status < 0 && world) weft_world_fail(world, weft_error_message());
    return status;
}

static weft_status run_session(run *r, weft_world *world) {
    int rank = world ? weft_world_rank(world) : 0, evaluation = 0;
    int tamper = rank == 1 ? r->tamper : TAMPER_NONE;
    plan_case c = *r->c;
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = NULL;
    weft_graph *graph = NULL, *second = NULL;
    weft_session *s = NULL;
    weft_model_config config = config_of(&c, tamper == TAMPER_MODEL);
    if (tamper == TAMPER_PLAN) c.level = 3;
    if (tamper == TAMPER_DEVICES) c.devices--;
    o.seed = SEED + (tamper == TAMPER_SEED);
    o.threads = 2;
    o.clip = tamper == TAMPER_CLIP ? 3 : c.clip;
    o.microbatches = microbatches_of(&c);
    o.keep_gradients = r->how == FEED_ROWS; /* on several stages a sum of terms */
    o.world = world;
    WEFT_TRY(told(world, make_plan(&c, &plan)));
    o.plan = plan;
    int64_t batch = BATCH / o.microbatches;
    weft_status status =
        told(world, weft_model_build(&config, WEFT_USE_TRAIN, batch, 0, WEFT_F32, &graph));
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    if (status >= 0 && r->evaluate) {
        status = told(world, weft_model_build(&config, WEFT_USE_EVAL, batch, 0, WEFT_F32, &second));
        if (status >= 0) status = weft_session_add(s, second, &evaluation);
    }
    if (status >= 0) status = run_steps(s, r, o.microbatches, evaluation);
    for (int d = 0; d < c.devices && status >= 0; d++) {
        int64_t predicted, observed;
        if (world && d != rank) continue;
        status = weft_session_device_memory(s, d, &predicted, &observed);
        if (observed != predicted) r->observed = -1;
    }
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    weft_graph_destroy(second);
    weft_plan_destroy(plan);
    return status;
}

static weft_status run_rank(void *context, weft_world *world) {
    return run_session(context, world);
}

static void free_run(run *r) {
    free(r->tensors);
    r->tensors = NULL;
}

static void assert_same_run(const run *a, const run *b, int rank) {
    for (int i = 0; i < STEPS; i++)
        if (memcmp(&a->losses[i], &b->losses[i], sizeof(double)) ||
            (!isnan(a->norms[i]) && memcmp(&a->norms[i], &b->norms[i], sizeof(double))))
            fail_msg("%s, rank %d: step %d came to %.17g, norm %.17g; in one process %.17g, %.17g",
                     a->c->name, rank, i, b->losses[i], b->norms[i], a->losses[i], a->norms[i]);
    if (a->evaluate) assert_memory_equal(&a->evaluation, &b->evaluation, sizeof(double));
    assert_int_equal(a->elems, b->elems);
    if (memcmp(a->tensors, b->tensors, (size_t)a->elems * sizeof(float)))
        fail_msg("%s: rank %d reads other parameters than one process has", a->c->name, rank);
    if (b->observed < 0)
        fail_msg("%s: rank %d uses other memory than was planned", a->c->name, rank);
}

static void compare_runs(const plan_case *c, bool evaluate, feeding how) {
    run one = {.c = c, .evaluate = evaluate}, many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    ASSERT_OK(run_session(&one, NULL));
    for (int r = 0; r < c->devices; r++)
        many[r] = (run){.c = c, .evaluate = evaluate, .how = how, .rank = r};
    run_world(c->devices, run_rank, many, sizeof *many, ranks);
    assert_all_ok(ranks, c->devices, c->name);
    for (int r = 0; r < c->devices; r++) assert_same_run(&one, &many[r], r);
    for (int r = 0; r < c->devices; r++) free_run(&many[r]);
    free_run(&one);
}

/* ---- tests ---- */

static void processes_come_to_the_bits_of_one(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) compare_runs(&cases[i], i % 2 == 0, FEED_WHOLE);
}

static void parts_are_fed_where_they_are(void **state) {
    (void)state;
    compare_runs(&cases[0], false, FEED_LOCAL);
    compare_runs(&cases[8], true, FEED_LOCAL);
    compare_runs(&cases[9], false, FEED_LOCAL);
    compare_runs(&cases[10], false, FEED_LOCAL);
}

static void rows_are_brought_to_where_they_are_wanted(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i += 2) compare_runs(&cases[i], false, FEED_ROWS);
}

/* Parameters and states of one run, written whole into a session that is split differently. */
static void what_is_read_can_be_written(void **state) {
    (void)state;
    static const int after[] = {6, 8, 9};
    run one = {.c = &cases[4]}, start = {.c = &cases[0]};
    rank_of_world ranks[MOST_RANKS];
    run many[MOST_RANKS];
    ASSERT_OK(run_session(&start, NULL));
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        const plan_case *c = &cases[after[i]];
        one = (run){.c = c, .start = start.tensors};
        ASSERT_OK(run_session(&one, NULL));
        for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .start = start.tensors};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        assert_all_ok(ranks, c->devices, c->name);
        for (int r = 0; r < c->devices; r++) assert_same_run(&one, &many[r], r);
        for (int r = 0; r < c->devices; r++) free_run(&many[r]);
        free_run(&one);
    }
    free_run(&start);
}

static void other_jobs_are_refused(void **state) {
    (void)state;
    static const struct {
        int tamper;
        const char *says;
    } changes[] = {{TAMPER_MODEL, "rank 1|rank 0"},
                   {TAMPER_PLAN, "rank 1|rank 0"},
                   {TAMPER_SEED, "seed"},
                   {TAMPER_CLIP, "optimizer"}};
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    const plan_case *c = &cases[2];
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .tamper = changes[i].tamper};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        for (int r = 0; r < c->devices; r++)
            assert_rank_fails(&ranks[r], r, WEFT_E_MISMATCH, changes[i].says);
    }
    for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .tamper = TAMPER_DEVICES};
    run_world(c->devices, run_rank, many, sizeof *many, ranks);
    for (int r = 0; r < c->devices; r++) assert_rank_fails(&ranks[r], r, WEFT_E_ARG, "3 devices|4");
    assert_non_null(strstr(ranks[0].message, "rank 1: "));
}

/* Each rank feeds its own rows to a session that has only a world and no plan. */
static weft_status run_without_plan(void *context, weft_world *world) {
    double *loss = context;
    weft_graph *graph = NULL;
    weft_session *s = NULL;
    weft_session_options o = weft_session_defaults();
    float mine[2] = {(float)weft_world_rank(world), 1};
    o.world = world;
    WEFT_TRY(weft_graph_create(&graph));
    weft_value x = weft_input(graph, "x", WEFT_DESC(WEFT_F32, weft_world_size(world), 2));
    x = weft_linear(
        graph, x,
        weft_param(graph, "weight", WEFT_DESC(WEFT_F32, 2, 1), (weft_init){WEFT_INIT_CONSTANT, 1}),
        WEFT_NO_VALUE, false);
    weft_loss(graph, weft_mean(graph, x, 0, NULL, false));
    weft_status status = weft_session_create(graph, &o, &s);
    if (status >= 0) status = weft_session_feed_rows(s, 0, "x", mine, sizeof mine);
    if (status >= 0) status = weft_session_step(s, 0, loss);
    if (status >= 0 && weft_session_devices(s) != weft_world_size(world)) *loss = -1;
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    return status;
}

static void without_a_plan_processes_share_the_batch(void **state) {
    (void)state;
    double loss[3];
    rank_of_world ranks[3];
    run_world(3, run_without_plan, loss, sizeof *loss, ranks);
    assert_all_ok(ranks, 3, "no plan");
    for (int r = 0; r < 3; r++) assert_float_equal(loss[r], 2, 1e-6); /* mean of 1, 2, 3 */
}

/* Tensor parallelism: ranks that hold the same rows feed and read rows of their own. The output is
 * split along its columns, or a sum of one term from each rank. */
typedef struct asked {
    const char *split;
    float mine[2]; /* the row that the rank has read */
} asked;

static weft_status read_own_row(void *context, weft_world *world) {
    asked *a = context;
    const int rank = weft_world_rank(world);
    weft_graph *graph = NULL;
    weft_plan *plan = NULL;
    weft_session *s = NULL;
    weft_session_options o = weft_session_defaults();
    float fed[6];
    int64_t first = -1, rows = -1;
    for (int k = 0; k < 6; k++) fed[k] = (float)(rank * 10 + k);
    o.world = world;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    WEFT_TRY(weft_graph_create(&graph));
    weft_value x = weft_input(graph, "x", WEFT_DESC(WEFT_F32, 4, 6));
    weft_cell_begin(graph, "c");
    weft_value w =
        weft_param(graph, "w", WEFT_DESC(WEFT_F32, 6, 2), (weft_init){WEFT_INIT_CONSTANT, 1});
    x = weft_cell_end(graph, weft_linear(graph, x, w, WEFT_NO_VALUE, false));
    weft_output(graph, "y", x);
    weft_status status = weft_plan_create(4, &plan);
    if (status >= 0) status = weft_plan_axis(plan, "dp", 2);
    if (status >= 0) status = weft_plan_axis(plan, "tp", 2);
    if (status >= 0) status = weft_op_split(plan, "c:linear", a->split);
    o.plan = plan;
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    if (status >= 0) status = weft_session_rows(s, 0, "x", &first, &rows);
    if (status >= 0 && (first != rank || rows != 1)) status = WEFT_E_BUG;
    if (status >= 0) status = weft_session_feed_rows(s, 0, "x", fed, sizeof fed);
    if (status >= 0) status = weft_session_forward(s, 0, NULL);
    if (status >= 0) status = weft_session_read_rows(s, 0, "y", first, a->mine, sizeof a->mine);
    weft_session_destroy(s);
    weft_plan_destroy(plan);
    weft_graph_destroy(graph);
    return status;
}

static void a_rank_reads_the_rows_that_it_fed(void **state) {
    (void)state;
    static const char *const splits[] = {"m0=dp n0=tp", "m0=dp k=tp", "m0=dp k=tp -> [dp, -]"};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        asked all[4];
        rank_of_world ranks[4];
        for (int r = 0; r < 4; r++) all[r] = (asked){splits[i], {-1, -1}};
        run_world(4, read_own_row, all, sizeof *all, ranks);
        assert_all_ok(ranks, 4, splits[i]);
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < 2; k++) assert_float_equal(all[r].mine[k], (float)(r * 60 + 15), 0);
    }
}

/* The parameter that is infinite lies on one stage, or on all ranks. */
static void a_loss_that_is_not_finite_stops_all(void **state) {
    (void)state;
    static const int which[] = {0, 2, 6, 7, 9, 10};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        const plan_case *c = &cases[which[i]];
        run many[MOST_RANKS];
        rank_of_world ranks[MOST_RANKS];
        for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .poison = true};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        for (int r = 0; r < c->devices; r++) {
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "finite");
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "cell 'h.1'");
            assert_rank_fails(&ranks[r], r, WEFT_E_NUMERIC, "rank ");
            assert_true(isfinite(many[r].losses[0]));
        }
    }
}

/* ---- a rank that fails alone ---- */

static weft_status fail_alone(void *context, weft_world *world) {
    run *r = context;
    weft_graph *graph = NULL;
    weft_session *s = NULL;
    weft_plan *plan = NULL;
    weft_session_options o = weft_session_defaults();
    weft_model_config config = config_of(r->c, false);
    o.world = world;
    o.threads = 1;
    o.memory_bytes = weft_world_rank(world) == 2 ? 1000 : 0;
    WEFT_TRY(make_plan(r->c, &plan));
    o.plan = plan;
    weft_status status = weft_model_build(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32, &graph);
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    weft_plan_destroy(plan);
    return status;
}

static void wrong_calls_of_one_rank_keep_nobody_waiting(void **state) {
    (void)state;
    static const int which[] = {0, 8, 9};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        const plan_case *c = &cases[which[i]];
        run one = {.c = c}, many[MOST_RANKS];
        rank_of_world ranks[MOST_RANKS];
        ASSERT_OK(run_session(&one, NULL));
        for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c, .careless = true, .rank = r};
        run_world(c->devices, run_rank, many, sizeof *many, ranks);
        assert_all_ok(ranks, c->devices, c->name);
        for (int r = 0; r < c->devices; r++) {
            assert_same_run(&one, &many[r], r);
            free_run(&many[r]);
        }
        free_run(&one);
    }
}

/* The rate may come from data that only one rank has. */
static weft_status step_with_no_rate(void *context, weft_world *world) {
    const run *r = context;
    weft_session_options o = weft_session_defaults();
    weft_model_config config = config_of(r->c, false);
    weft_graph *graph = NULL;
    weft_session *s = NULL;
    o.threads = 1;
    o.world = world;
    weft_status status =
        told(world, weft_model_build(&config, WEFT_USE_TRAIN, BATCH, 0, WEFT_F32, &graph));
    if (status >= 0) status = weft_session_create(graph, &o, &s);
    if (status >= 0) status = feed(s, 0, 1, FEED_WHOLE, r->rank);
    if (status >= 0) status = weft_session_step(s, r->rank == 1 ? NAN : 0.1, NULL);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    return status;
}

static void a_rate_that_is_no_number_on_one_rank(void **state) {
    (void)state;
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    for (int r = 0; r < 2; r++) many[r] = (run){.c = &cases[0], .rank = r};
    run_world(2, step_with_no_rate, many, sizeof *many, ranks);
    assert_rank_fails(&ranks[0], 0, WEFT_E_PEER, "rank 1|nan");
    assert_rank_fails(&ranks[1], 1, WEFT_E_ARG, "nan");
}

static void a_rank_without_memory_is_named(void **state) {
    (void)state;
    const plan_case *c = &cases[4];
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c};
    run_world(c->devices, fail_alone, many, sizeof *many, ranks);
    for (int r = 0; r < c->devices; r++) {
        assert_rank_fails(&ranks[r], r, WEFT_E_NOMEM, "step");
        if (r != 2) assert_rank_fails(&ranks[r], r, WEFT_E_NOMEM, "rank 2: ");
    }
}

/* Leaves in the middle of a run, like a process that cannot read its data. */
static weft_status leave_early(void *context, weft_world *world) {
    run *r = context;
    if (weft_world_rank(world) != 1) return run_session(r, world);
    weft_world_fail(world, "the disk is on fire");
    return WEFT_OK;
}

static void a_rank_that_gives_up_is_named(void **state) {
    (void)state;
    const plan_case *c = &cases[4];
    run many[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    for (int r = 0; r < c->devices; r++) many[r] = (run){.c = c};
    run_world(c->devices, leave_early, many, sizeof *many, ranks);
    for (int r = 0; r < c->devices; r++)
        if (r != 1) assert_rank_fails(&ranks[r], r, WEFT_E_PEER, "rank 1");
}

/* ---- a rank that lacks memory somewhere ---- */

typedef struct starving {
    run run;
    pthread_barrier_t *barrier;
    int64_t nth; /* allocation of all ranks together that fails; none if it is beyond the last */
} starving;

static weft_status run_starving(void *context, weft_world *world) {
    starving *x = context;
    (void)pthread_barrier_wait(x->barrier);
    if (weft_world_rank(world) == 0) wefti_fault_arm(WEFTI_FAULT_ALLOC, x->nth, false, 0);
    (void)pthread_barrier_wait(x->barrier);
    WEFT_TRY(run_session(&x->run, world));
    wefti_agreement *a;
    WEFT_TRY(wefti_agreement_of(world, &a));
    return wefti_agree(a, WEFT_OK); /* the last read may have needed no other rank */
}

/* Returns how many allocations there were. */
static int64_t starve(const plan_case *c, int64_t nth, bool *out_failed) {
    starving each[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    pthread_barrier_t barrier;
    int failed = 0, lacking = 0;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, (unsigned)c->devices), 0);
    for (int r = 0; r < c->devices; r++)
        each[r] = (starving){{.c = c, .evaluate = true}, &barrier, nth};
    run_world(c->devices, run_starving, each, sizeof *each, ranks);
    int64_t count = wefti_fault_count(WEFTI_FAULT_ALLOC);
    wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
    pthread_barrier_destroy(&barrier);
    for (int r = 0; r < c->devices; r++) {
        failed += ranks[r].status < 0;
        lacking += ranks[r].status == WEFT_E_NOMEM;
        free_run(&each[r].run);
    }
    if (failed > 0 && (failed < c->devices || lacking == 0))
        fail_msg("%s, allocation %lld: %d ranks failed, %d of them for lack of memory; rank 0: %s",
                 c->name, (long long)nth, failed, lacking, ranks[0].message);
    *out_failed = failed > 0;
    return count;
}

/* One rank fails alone, within a joint decision of all ranks or between two. The others do not wait
 * for it. */
static void memory_that_one_rank_lacks_ends_all(void **state) {
    (void)state;
    enum { TRIES = 120 };
    static const int which[] = {1, 9};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        bool failed;
        int fails = 0;
        int64_t all = starve(&cases[which[i]], INT64_MAX, &failed);
        assert_false(failed);
        for (int k = 0; k < TRIES; k++) {
            /* Try more of the late allocations: building comes first and makes most of them. */
            int64_t left = all * (TRIES - k) * (TRIES - k) / TRIES / TRIES;
            (void)starve(&cases[which[i]], all - left, &failed);
            fails += failed;
        }
        assert_true(fails > TRIES / 2);
    }
}

/* A world of one rank needs no communication. */
static void one_process_needs_no_other(void **state) {
    (void)state;
    static const plan_case alone = {.name = "alone", .devices = 1};
    weft_world *world;
    run r = {.c = &alone}, without = r;
    ASSERT_OK(wefti_world_create(NULL, 0, 1, NULL, &world));
    ASSERT_OK(run_session(&r, world));
    ASSERT_OK(run_session(&without, NULL));
    assert_same_run(&without, &r, 0);
    free_run(&r);
    free_run(&without);
    weft_world_leave(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_come_to_the_bits_of_one),
        cmocka_unit_test(parts_are_fed_where_they_are),
        cmocka_unit_test(rows_are_brought_to_where_they_are_wanted),
        cmocka_unit_test(what_is_read_can_be_written),
        cmocka_unit_test(other_jobs_are_refused),
        cmocka_unit_test(without_a_plan_processes_share_the_batch),
        cmocka_unit_test(a_rank_reads_the_rows_that_it_fed),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_all),
        cmocka_unit_test(wrong_calls_of_one_rank_keep_nobody_waiting),
        cmocka_unit_test(a_rate_that_is_no_number_on_one_rank),
        cmocka_unit_test(a_rank_without_memory_is_named),
        cmocka_unit_test(a_rank_that_gives_up_is_named),
        cmocka_unit_test(memory_that_one_rank_lacks_ends_all),
        cmocka_unit_test(one_process_needs_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
