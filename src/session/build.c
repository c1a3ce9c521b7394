/* Creates and destroys sessions: graphs become programs, one for each device, within the memory
 * limit. */
#include "session/parts.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "checkpoint/seal/seal.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "program/limit.h"
#include "program/match.h"
#include "program/print.h"
#include "session/mend/mend.h"

void weft_session_fill_defaults(weft_session_options *out, size_t struct_bytes) {
    const weft_session_options defaults = {
        .struct_bytes = sizeof defaults,
        .optimizer = {.kind = WEFT_ADAMW,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .momentum = 0.9,
                      .weight_decay = 0.1},
        .microbatches = 1,
    };
    wefti_struct_fill(&defaults, out, struct_bytes);
}

wefti_bf16_compute wefti_choose_bf16(int32_t rank, weft_bf16_compute wanted) {
    if (wanted == WEFT_BF16_AS_F32) return WEFTI_BF16_AS_F32;
    if (wanted == WEFT_BF16_NATIVE) return WEFTI_BF16_NATIVE;
    return wefti_kind_choose_bf16(wefti_kind_of(rank));
}

static bool uses_bf16(const weft_graph *g) {
    for (int64_t c = -1; c < g->cell_count; c++) {
        const weft_body *b = c < 0 ? g->root : g->cells[c];
        for (int64_t v = 0; v < b->value_count; v++)
            if (b->values[v].desc.dtype == WEFT_BF16) return true;
    }
    return false;
}

wefti_bf16_compute wefti_session_choose_bf16(const weft_graph *graph, weft_bf16_compute wanted) {
    return uses_bf16(graph) ? wefti_choose_bf16(0, wanted) : WEFTI_BF16_AS_F32;
}

/* The memory that all programs of p's device take themselves, p included. */
static int64_t programs_bytes(const weft_session *s, const wefti_program *p) {
    int64_t bytes = p->program_bytes;
    for (int64_t i = 0; i < s->view_count; i++)
        bytes += s->views[i]->programs[p->rank]->program_bytes;
    return bytes;
}

wefti_footprint wefti_session_footprint(const weft_session *s, int32_t rank, int64_t programs) {
    wefti_footprint all = {0};
    for (int64_t i = 0; i < programs; i++)
        wefti_footprint_join(&all, s->views[i]->sites[rank].facts.arenas);
    return all;
}

/* Of p's device, whose programs share the arenas, p included. */
static wefti_needs needs_of(const weft_session *s, const wefti_program *p) {
    wefti_needs needs = {.arenas = wefti_session_footprint(s, p->rank, s->view_count),
                         .programs = programs_bytes(s, p)};
    wefti_footprint_join(&needs.arenas, wefti_program_footprint(p));
    return needs;
}

static int64_t device_bytes(const weft_session *s, const wefti_program *p) {
    const wefti_needs needs = needs_of(s, p);
    return wefti_footprint_bytes(needs.arenas, WEFTI_SPACE_DEVICE) + needs.programs;
}

/* Of the devices in this process: the program of the one that needs most. */
static const wefti_program *largest_program(const weft_session *s, wefti_program *const *programs) {
    const wefti_program *p = NULL;
    for (int32_t r = 0; r < s->devices; r++)
        if (programs[r] && (!p || device_bytes(s, programs[r]) > device_bytes(s, p)))
            p = programs[r];
    return p;
}

/* What a device keeps on the disk needs a directory, and the session's leave. */
static weft_status check_disk(const weft_session *s, const wefti_program *p) {
    const int64_t bytes = wefti_footprint_bytes(wefti_program_footprint(p), WEFTI_SPACE_DISK),
                  limit = s->options.disk_bytes;
    char need[32];
    WEFT_REQUIRE(!bytes || s->options.disk, WEFT_E_ARG,
                 "the plan keeps %s of device %d on the disk, but the option disk "
                 "(memory.disk.path) names no directory",
                 wefti_bytes_text(bytes, need), (int)p->rank);
    /* without an optimizer, files may lend tensors (wefti_session_start_with) */
    WEFT_REQUIRE(!limit || bytes <= limit || !s->optimizer, WEFT_E_NOMEM,
                 "device %d needs %lld bytes on the disk, but the limit (memory.disk.size) is %lld",
                 (int)p->rank, (long long)bytes, (long long)limit);
    return WEFT_OK;
}

static weft_status check_memory(const weft_session *s, const wefti_program *p) {
    const weft_session_options *o = &s->options;
    const wefti_needs needs = needs_of(s, p);
    const wefti_limits limits = {.memory = o->memory_bytes,
                                 .device = o->device_bytes,
                                 .host = o->host_bytes,
                                 .held = o->held_bytes};
    return wefti_program_within(p, &needs, &limits, s->optimizer != NULL, s->devices);
}

/* Compares the devices of this process with the limits, the largest one first. */
static weft_status check_limit(const weft_session *s, wefti_program *const *programs) {
    for (int32_t r = 0; r < s->devices; r++)
        if (programs[r]) WEFT_TRY(check_disk(s, programs[r]));
    WEFT_TRY(check_memory(s, largest_program(s, programs)));
    for (int32_t r = 0; r < s->devices; r++)
        if (programs[r]) WEFT_TRY(check_memory(s, programs[r]));
    return WEFT_OK;
}

/* ---- building ---- */

/* A plan for one device matters only for settings other than splits. */
static const weft_plan *plan_of(const weft_session *s) {
    return s->plan && wefti_plan_matters(s->plan) ? s->plan : NULL;
}

static weft_status build_rank(const weft_session *s, const weft_graph *graph, int32_t rank,
                              wefti_program **out) {
    bool train = s->view_count == 0;
    wefti_program_spec spec = {
        .graph = graph,
        .kind = wefti_kind_of(rank),
        .prepare = {.threads = s->threads,
                    .bf16 = s->bf16 == WEFTI_BF16_AUTO ? WEFTI_BF16_AS_F32 : s->bf16},
        .optimizer = train && s->optimizer ? wefti_optimizer_plan_of(s->optimizer) : NULL,
        .microbatches = train ? s->options.microbatches : 1,
        .keep_gradients = train && s->options.keep_gradients,
        .recompute = s->options.recompute ? 1 : 0,
        .plan = plan_of(s),
        .rank = rank,
        .host = s->world ? s->world->host : NULL,
        .routes = s->routes,
        .shared = train ? NULL : s->views[0]->programs[rank],
        .before = wefti_session_footprint(s, rank, s->view_count),
    };
    return wefti_program_build(&spec, out);
}

static weft_status build_ranks(const weft_session *s, const weft_graph *graph,
                               wefti_program **programs) {
    for (int32_t r = 0; r < s->devices; r++)
        if (wefti_session_has(s, r)) WEFT_TRY(build_rank(s, graph, r, &programs[r]));
    if (s->devices > 1 && !s->world)
        WEFT_TRY(wefti_programs_match((const wefti_program *const *)programs, s->devices));
    return check_limit(s, programs);
}

static weft_status build_view(weft_session *s, weft_graph *graph, wefti_view **out) {
    wefti_program **programs = wefti_calloc((size_t)s->devices, sizeof *programs);
    weft_status status = programs
                             ? WEFT_GROW(s->views, s->view_count, s->view_cap)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d programs", s->devices);
    if (status >= 0) status = build_ranks(s, graph, programs);
    if (s->world) status = wefti_agree(s->agreement, status);
    if (status < 0) {
        for (int32_t r = 0; r < s->devices && programs; r++) wefti_program_destroy(programs[r]);
        wefti_free(programs);
        return status;
    }
    return wefti_view_create(s, graph, programs, out);
}

/* Whether this process is new among ranks that go on with their sessions. In a world of another
 * size, all have new sessions. */
static bool meets_sessions(const weft_session *s) {
    const wefti_mend *given = s->world ? wefti_world_newcomer(s->world) : NULL;
    return given && !given->resized;
}

static weft_status build_together(weft_session *s, weft_graph *graph, uint64_t model,
                                  weft_status status, wefti_view **out) {
    const bool bf16 = status >= 0 && uses_bf16(graph);
    if (meets_sessions(s)) WEFT_TRY(wefti_session_same_graph(s, (int32_t)s->view_count));
    if (s->world) status = wefti_session_same_job(s, model, bf16, status);
    WEFT_TRY(status);
    if (!s->world && bf16 && s->bf16 == WEFTI_BF16_AUTO)
        s->bf16 = wefti_choose_bf16(s->me, s->options.bf16);
    return build_view(s, graph, out);
}

/* `status`: of the steps before, which the other processes do not know yet. */
static weft_status build(weft_session *s, weft_graph *graph, weft_status status) {
    wefti_view *view;
    uint64_t model = 0;
    /* A search has wrapped the graph of the rank that ran it, so digests are of wrapped graphs. */
    if (status >= 0) status = wefti_graph_wrap(graph);
    if (s->world && status >= 0) status = wefti_session_digest_graph(graph, &model);
    weft_status built;
    do built = build_together(s, graph, model, status, &view);
    while (wefti_session_meets_again(s, &built));
    WEFT_TRY(built);
    view->model = model;
    s->views[s->view_count++] = view;
    return WEFT_OK;
}

enum { MOST_MICROBATCHES = 1 << 20, MOST_THREADS = 4096 };

static weft_status check_microbatches(int64_t microbatches) {
    WEFT_REQUIRE(microbatches >= 1 && microbatches <= MOST_MICROBATCHES, WEFT_E_ARG,
                 "a step has 1 to %d microbatches, copies counted, not %lld", MOST_MICROBATCHES,
                 (long long)microbatches);
    return WEFT_OK;
}

/* Interleaved micro-batches count as microbatches. If the plan has only their number, the session
 * decides how many microbatches there are. */
weft_status wefti_session_take_plan(const weft_session_options *options, int32_t *microbatches,
                                    weft_plan **out) {
    const weft_plan *plan = options->plan;
    const int own = options->microbatches;
    const bool forward =
        options->optimizer.kind == WEFT_NO_OPTIMIZER && !options->keep_gradients && own == 1;
    WEFT_TRY(weft_plan_check(plan));
    WEFT_TRY(wefti_plan_copy(plan, out));
    WEFT_TRY(wefti_plan_refine(*out));
    bool pipeline = plan->pipeline.stages > 1;
    int32_t parts = pipeline ? plan->pipeline.microbatches : plan->accumulate;
    const int64_t all = (int64_t)(parts > 1 ? parts : 1) * plan->copies;
    WEFT_REQUIRE(own == 1 || own == all || (parts <= 1 && own % plan->copies == 0), WEFT_E_ARG,
                 "the plan has %lld microbatches%s, the session %d", (long long)all,
                 plan->copies > 1 ? ", its copies counted" : "", own);
    WEFT_TRY(check_microbatches(all));
    *microbatches = own == 1 && !forward ? (int32_t)all : own;
    if (forward) (*out)->optimizer.master = WEFT_TIER_DEVICE;
    return WEFT_OK;
}

static weft_status take_plan(weft_session *s, const weft_plan *plan) {
    weft_session_options o = s->options;
    o.plan = plan;
    WEFT_TRY(wefti_session_take_plan(&o, &s->options.microbatches, &s->plan));
    s->devices = plan->devices;
    return wefti_route_cache_create(&s->routes);
}

/* Processes without a plan share the batch (data parallelism). */
static weft_status take_data_parallel(weft_session *s) {
    weft_plan *plan;
    WEFT_TRY(weft_plan_create(s->world->size, &plan));
    weft_status status = take_plan(s, plan);
    weft_plan_destroy(plan);
    return status;
}

/* Chooses where the session runs: in this process, or as one rank of a world. `program`: its calls
 * mend the world. */
static weft_status take_world(weft_session *s, weft_world *world, bool program) {
    if (world) s->servers = world->servers;
    if (!world || world->size == 1) return WEFT_OK;
    s->world = world;
    s->me = world->rank;
    if (program) WEFT_TRY(wefti_session_enter(s));
    if (s->joining) return WEFT_OK;
    return wefti_agreement_of(world, &s->agreement);
}

static weft_status check_options(const weft_session_options *options) {
    WEFT_TRY(check_microbatches(options->microbatches));
    WEFT_REQUIRE(options->clip >= 0, WEFT_E_ARG, "clip must not be negative, but is %g",
                 options->clip);
    WEFT_REQUIRE(options->threads >= 0 && options->threads <= MOST_THREADS, WEFT_E_ARG,
                 "threads must be 0 (all cores) to %d, but is %d", MOST_THREADS, options->threads);
    const struct {
        const char *name;
        int64_t bytes;
    } limits[] = {{"memory_bytes", options->memory_bytes},
                  {"disk_bytes", options->disk_bytes},
                  {"device_bytes", options->device_bytes},
                  {"host_bytes", options->host_bytes}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        WEFT_REQUIRE(limits[i].bytes >= 0, WEFT_E_ARG,
                     "%s must be a limit, or 0 for none, but is %lld", limits[i].name,
                     (long long)limits[i].bytes);
    WEFT_REQUIRE(options->held_bytes >= 0, WEFT_E_ARG,
                 "held_bytes must be a number of bytes, but is %lld",
                 (long long)options->held_bytes);
    WEFT_REQUIRE(!options->memory_bytes || !options->device_bytes, WEFT_E_ARG,
                 "memory_bytes and device_bytes are both set: set device_bytes to limit a device's "
                 "arenas, or memory_bytes to count its programs too");
    WEFT_REQUIRE(options->recovery || !options->buddy, WEFT_E_ARG,
                 "buddy needs recovery: without it no rank is replaced");
    WEFT_REQUIRE((unsigned)options->bf16 <= WEFT_BF16_NATIVE, WEFT_E_ARG,
                 "unknown way %d to compute bf16 products", (int)options->bf16);
    return WEFT_OK;
}

static weft_status prepare(weft_session *s, const weft_graph *graph,
                           const weft_session_options *options) {
    WEFT_TRY(check_options(options));
    WEFT_TRY(wefti_kind_check(wefti_kind_of(0))); /* before anything is built */
    if (options->disk) {
        s->options.disk = wefti_strdup(options->disk); /* files are made with the first step */
        WEFT_REQUIRE(s->options.disk, WEFT_E_NOMEM, "no memory for a session");
    }
    if (options->plan)
        WEFT_TRY(take_plan(s, options->plan));
    else if (s->world)
        WEFT_TRY(take_data_parallel(s));
    WEFT_REQUIRE(!s->world || s->devices == s->world->size, WEFT_E_ARG,
                 "the plan is for %d device%s, but the world has %d processes, one device each",
                 s->devices, s->devices == 1 ? "" : "s", s->world->size);
    int share = s->world ? weft_world_local_size(s->world) : s->devices;
    s->threads = options->threads ? options->threads / s->devices : wefti_cores() / share;
    if (s->threads < 1) s->threads = 1;
    s->rows = wefti_calloc((size_t)s->options.microbatches, sizeof *s->rows);
    s->pieces = wefti_calloc((size_t)s->devices, sizeof *s->pieces);
    s->of_ranks = wefti_calloc((size_t)s->devices, sizeof *s->of_ranks);
    WEFT_REQUIRE(s->rows && s->pieces && s->of_ranks, WEFT_E_NOMEM, "no memory for a session");
    if (options->optimizer.kind == WEFT_NO_OPTIMIZER) return WEFT_OK;
    return wefti_optimizer_for(options, graph, &s->optimizer);
}

/* A split that matches nothing would leave its op or tensor whole in silence. A plan completed for
 * this model also names ops of its training graph, which a graph for forward passes may lack. */
static weft_status check_splits(weft_graph *graph, const weft_session_options *options) {
    const weft_plan *plan = options->plan;
    if (!plan || (plan->model_hash && options->optimizer.kind == WEFT_NO_OPTIMIZER)) return WEFT_OK;
    return wefti_plan_check_splits(plan, graph);
}

/* `strict`: of a program. Refuses splits that match nothing, and mends its world. */
static weft_status create(weft_graph *graph, const weft_session_options *options, bool strict,
                          weft_session **out) {
    weft_session_options own = weft_session_defaults();
    const weft_status taken = wefti_struct_take("weft_session_options", options, &own);
    options = &own;
    WEFT_TRY(wefti_fail_world(options->world, taken));
    if (!graph || !out)
        return wefti_fail_world(options->world, WEFT_RAISE(WEFT_E_ARG, "a session needs a graph"));
    weft_session *s = wefti_calloc(1, sizeof *s);
    if (!s)
        return wefti_fail_world(options->world,
                                WEFT_RAISE(WEFT_E_NOMEM, "no memory for a session"));
    s->options = *options;
    s->options.plan = NULL;
    s->options.optimizer.decay = NULL;
    s->options.disk = NULL;
    s->devices = 1;
    s->survivor = wefti_survivor_begin(0);
    weft_status status = take_world(s, options->world, strict);
    s->graph = graph;
    if (status >= 0) {
        weft_status prepared = prepare(s, graph, options);
        if (prepared >= 0 && strict) prepared = check_splits(graph, options);
        status = build(s, graph, prepared);
    }
    if (status < 0) {
        weft_session_destroy(s);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    *out = s;
    return WEFT_OK;
}

weft_status weft_session_create(weft_graph *graph, const weft_session_options *options,
                                weft_session **out) {
    return create(graph, options, true, out);
}

weft_status wefti_session_create(weft_graph *graph, const weft_session_options *options,
                                 weft_session **out) {
    return create(graph, options, false, out);
}

void weft_session_destroy(weft_session *s) {
    if (!s) return;
    weft_status unwritten = wefti_trace_close(s->trace); /* without a caller to report to */
    (void)unwritten;
    wefti_session_saving_end(s);
    wefti_session_leave(s);
    wefti_host_copies_destroy(s);
    wefti_workers_destroy(s->workers);
    wefti_session_profiles_destroy(s);
    for (int64_t i = 0; i < s->view_count; i++) wefti_view_destroy(s->views[i]);
    wefti_free(s->views);
    wefti_free(s->rows);
    wefti_free(s->pieces);
    wefti_free(s->of_ranks);
    wefti_optimizer_destroy(s->optimizer);
    wefti_route_cache_destroy(s->routes);
    weft_plan_destroy(s->plan);
    wefti_free((char *)(uintptr_t)s->options.disk);
    wefti_free(s);
}

/* ---- starting ---- */

static void set_trace(const weft_session *s, wefti_trace *trace) {
    for (int32_t r = 0; s->workers && r < s->devices; r++)
        if (wefti_session_has(s, r))
            wefti_rank_device_trace(wefti_workers_device(s->workers, r), trace);
}

/* The persistent tensors that program i does not share with earlier ones. */
static weft_status init_program(const weft_session *s, wefti_rank_device *device, int32_t rank,
                                int64_t i) {
    return wefti_rank_device_init(device, s->views[i]->programs[rank],
                                  wefti_session_footprint(s, rank, i), s->options.seed, s->values);
}

weft_status wefti_session_init_device(const weft_session *s, wefti_rank_device *device,
                                      int32_t rank) {
    for (int64_t i = 0; i < s->view_count; i++) WEFT_TRY(init_program(s, device, rank, i));
    return WEFT_OK;
}

static weft_status start_device(void *context, wefti_rank_device *device, int32_t rank) {
    const weft_session *s = context;
    for (int64_t i = 0; i < s->view_count; i++)
        WEFT_TRY(wefti_rank_device_bind(device, s->views[i]->programs[rank]));
    return wefti_session_init_device(s, device, rank);
}

weft_status wefti_session_create_workers(const weft_session *s, wefti_workers **out) {
    wefti_footprint *need;
    WEFT_NEW_ARRAY(need, wefti_footprint, s->devices);
    /* Nobody without a key of checkpoints may read their tensors from the disk, either. */
    const wefti_disk_place disk = {s->options.disk, wefti_key_is_kept(), s->options.disk_bytes};
    for (int32_t r = 0; r < s->devices; r++) need[r] = wefti_session_footprint(s, r, s->view_count);
    weft_status status =
        s->world ? wefti_workers_join(s->world->comm, s->threads, need[s->me], &disk, out)
                 : wefti_workers_create(s->devices, s->threads, need, &disk, out);
    wefti_free(need);
    return status < 0 ? status : wefti_session_serve(s, *out);
}

static weft_status start_workers(weft_session *s) {
    wefti_workers *workers = NULL;
    if (meets_sessions(s)) WEFT_TRY(wefti_session_same_graph(s, WEFTI_NO_GRAPH));
    WEFT_TRY(wefti_session_name_shards(s));
    weft_status status = wefti_session_create_workers(s, &workers);
    if (status >= 0)
        status = wefti_workers_name(workers, wefti_workers_run(workers, start_device, s));
    if (s->world) status = wefti_agree(s->agreement, status);
    if (status < 0) {
        wefti_workers_destroy(workers);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    wefti_host_copies_move(s, workers); /* a newcomer may have stopped others */
    s->workers = workers;
    s->copied = false;
    wefti_session_observe_devices(s);
    return WEFT_OK;
}

weft_status wefti_session_start(weft_session *s) {
    if (!s->workers && s->joining) return wefti_session_take_seat(s);
    if (!s->workers) WEFT_TRY(start_workers(s));
    if (s->state >= WEFTI_SESSION_SEATED) return WEFT_OK;
    WEFT_TRY(wefti_session_began(s));
    s->state = WEFTI_SESSION_BEGAN;
    return WEFT_OK;
}

weft_status wefti_session_start_with(weft_session *s, const wefti_values *values) {
    s->values = values;
    const weft_status status = wefti_session_start(s);
    s->values = NULL;
    return status;
}

void wefti_session_observe_devices(const weft_session *s) {
    set_trace(s, s->trace);
    wefti_session_set_profiles(s);
}

/* ---- adding programs ---- */

/* What the newest program adds to a device: memory, endpoints and start values. The devices are
 * between two passes. */
static weft_status extend_device(void *context, wefti_rank_device *device, int32_t rank) {
    const weft_session *s = context;
    const int64_t newest = s->view_count - 1;
    WEFT_TRY(wefti_rank_device_reserve(device, wefti_session_footprint(s, rank, newest + 1)));
    WEFT_TRY(wefti_rank_device_bind(device, s->views[newest]->programs[rank]));
    return init_program(s, device, rank, newest);
}

static weft_status reduce_device(void *context, wefti_rank_device *device, int32_t rank) {
    const weft_session *s = context;
    const int64_t newest = s->view_count - 1;
    wefti_rank_device_forget(device, s->views[newest]->programs[rank],
                             wefti_session_footprint(s, rank, newest));
    return WEFT_OK;
}

/* The newest program comes to devices that run already. If that fails, it goes. */
static weft_status extend(weft_session *s) {
    wefti_session_saving_captured(s); /* it reads the arenas that now grow */
    weft_status status =
        wefti_workers_name(s->workers, wefti_workers_run(s->workers, extend_device, s));
    if (s->world) status = wefti_agree(s->agreement, status);
    if (status >= 0) return WEFT_OK;
    wefti_failure kept;
    wefti_failure_keep(status, &kept);
    weft_status reduced = wefti_workers_run(s->workers, reduce_device, s);
    (void)reduced; /* it cannot fail */
    wefti_view_destroy(s->views[--s->view_count]);
    return wefti_failure_tell(&kept);
}

/* Inputs and outputs lie in transient memory, which may be another one now. */
static void forget_transient(weft_session *s) {
    for (int64_t i = 0; i < s->view_count; i++)
        for (int64_t t = 0; t < s->views[i]->count; t++)
            memset(s->views[i]->tensors[t].fed, WEFTI_INPUT_UNFED,
                   (size_t)s->views[i]->microbatches);
}

static weft_status check_add(const weft_session *s, const weft_graph *graph,
                             const int *out_program) {
    WEFT_REQUIRE(graph && out_program, WEFT_E_ARG,
                 "a graph is added with a place for the number of its program");
    if (!s->workers) return WEFT_OK;
    WEFT_REQUIRE(
        !s->mends, WEFT_E_ARG,
        "a session with recovery gets all its graphs before its first step: a process that "
        "takes the place of another begins with them");
    WEFT_REQUIRE(!s->accumulated, WEFT_E_ARG,
                 "a graph is added between two steps, but %d of %d microbatches are accumulated: "
                 "update first",
                 s->accumulated, s->options.microbatches);
    return WEFT_OK;
}

weft_status weft_session_add(weft_session *s, weft_graph *graph, int *out_program) {
    WEFT_TRY(build(s, graph, check_add(s, graph, out_program)));
    if (s->workers) {
        const weft_status status = extend(s);
        wefti_survivor_forget(&s->survivor);
        s->copied = false;
        forget_transient(s); /* also after a failure: some devices have taken other memory */
        WEFT_TRY(status);
    }
    *out_program = (int)s->view_count - 1;
    return WEFT_OK;
}

weft_status wefti_session_view(const weft_session *s, int program, wefti_view **out) {
    WEFT_REQUIRE(program >= 0 && program < s->view_count, WEFT_E_ARG,
                 "program %d does not exist: the session has %lld", program,
                 (long long)s->view_count);
    *out = s->views[program];
    return WEFT_OK;
}

weft_status weft_session_trace(weft_session *s, const char *path) {
    wefti_trace *old = s->trace;
    s->trace = NULL;
    set_trace(s, NULL);
    WEFT_TRY(wefti_trace_close(old));
    if (!path) return WEFT_OK;
    WEFT_TRY(wefti_trace_open(path, s->devices, WEFTI_TRACE_OF_HOST, &s->trace));
    set_trace(s, s->trace);
    return WEFT_OK;
}
