/* Measures a machine file: weft_machine_measure (weft/bench.h). */
#include "measure/machine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"
#include "comm/world.h"
#include "session/party.h"
#include "weft/info.h"

enum { BATCHES = 5 };
static const char measured[] = "measured (weft machine measure)";

void wefti_measured_report(const wefti_measuring *m, const weft_machine_figure *figure) {
    if (m->options->figure && weft_world_rank(m->world) == 0)
        m->options->figure(m->options->context, figure);
}

void wefti_measured_figure(const wefti_measuring *m, const char *name, double value) {
    const weft_machine_figure figure = {name, 0, value, {-1, -1}};
    wefti_measured_report(m, &figure);
}

void wefti_measured_point(const wefti_measuring *m, wefti_measured_curve *curve, const char *name,
                          double work, double rate) {
    const weft_machine_figure figure = {name, work, rate, {-1, -1}};
    wefti_measured_report(m, &figure);
    if (curve->count == WEFTI_MEASURED_POINTS) return;
    curve->work[curve->count] = work;
    curve->rate[curve->count++] = rate;
}

/* ---- time ---- */

static weft_status slowest(const wefti_measuring *m, double *value) {
    return weft_all_reduce(m->world, NULL, value, value, 1, WEFT_F64, WEFT_REDUCE_MAX);
}

void wefti_measured_rest(double seconds) {
    const double most = seconds < 60 ? seconds : 60;
    const struct timespec time = {(time_t)most, (long)(1e9 * (most - (double)(time_t)most))};
    (void)nanosleep(&time, NULL);
}

/* `about`: seconds of one run, for ranks that rest meanwhile: `run` is NULL. */
static weft_status time_batch(const wefti_measuring *m, wefti_measured_run *run, void *context,
                              int64_t repeats, double about, double *out) {
    WEFT_TRY(weft_barrier(m->world, NULL));
    const double begin = wefti_now_s();
    *out = 0;
    if (!run) wefti_measured_rest((double)repeats * about);
    if (!run) return WEFT_OK;
    for (int64_t i = 0; i < repeats; i++) WEFT_TRY(run(context));
    *out = (wefti_now_s() - begin) / (double)repeats;
    return WEFT_OK;
}

weft_status wefti_measured_seconds(const wefti_measuring *m, wefti_measured_run *run, void *context,
                                   double *out) {
    double once;
    WEFT_TRY(time_batch(m, run, context, 1, 0, &once)); /* warms up */
    WEFT_TRY(time_batch(m, run, context, 1, 0, &once));
    WEFT_TRY(slowest(m, &once));
    const double fit = m->seconds / BATCHES / (once > 1e-9 ? once : 1e-9);
    const int64_t repeats = fit < 1 ? 1 : fit > 1e6 ? 1000000 : (int64_t)fit;
    const int batches = once > m->seconds ? 2 : BATCHES;
    double best = once;
    for (int i = 0; i < batches; i++) {
        double batch;
        WEFT_TRY(time_batch(m, run, context, repeats, once, &batch));
        if (batch < best) best = batch;
    }
    *out = best > 1e-10 ? best : 1e-10;
    return slowest(m, out);
}

bool wefti_measured_enough(const wefti_measuring *m, const wefti_measured_curve *curve,
                           double seconds) {
    enum { FEWEST_POINTS = 4, LONGEST = 20 };
    return curve->count >= FEWEST_POINTS && seconds > LONGEST * m->seconds;
}

/* ---- memory ---- */

static weft_status measure_memory(const wefti_measuring *m) {
    weft_info info;
    weft_info_get(&info);
    double least = -(double)info.memory_bytes / m->out->per_host;
    WEFT_TRY(slowest(m, &least));
    m->out->memory_bytes = -least;
    wefti_measured_figure(m, "memory_bytes", m->out->memory_bytes);
    return WEFT_OK;
}

/* ---- one rank ---- */

static weft_status count_hosts(const wefti_measuring *m) {
    const int hosts = weft_world_hosts(m->world), size = weft_world_size(m->world);
    m->out->hosts = hosts;
    m->out->per_host = size / hosts;
    for (int r = 0; r < size; r++)
        WEFT_REQUIRE(weft_world_host_of(m->world, r) == r / m->out->per_host, WEFT_E_ARG,
                     "rank %d is on host %d; a machine file needs hosts with equally many "
                     "consecutive ranks, %d ranks on each of %d hosts",
                     r, weft_world_host_of(m->world, r), m->out->per_host, hosts);
    return WEFT_OK;
}

static weft_status measure_all(const wefti_measuring *m) {
    WEFT_TRY(count_hosts(m));
    WEFT_TRY(measure_memory(m));
    WEFT_TRY(wefti_measure_tiers(m)); /* first, since a disk may be full */
    WEFT_TRY(wefti_measure_kernels(m));
    return wefti_measure_levels(m);
}

typedef struct machine_rank {
    const weft_machine_options *options;
    int devices; /* that share the cores of this host */
    wefti_measured measured;
} machine_rank;

static weft_status measure_rank(weft_world *world, void *context) {
    machine_rank *r = context;
    const double seconds = r->options->seconds;
    const int threads = wefti_cores() / r->devices;
    wefti_measuring m = {.world = world,
                         .threads = threads > 1 ? threads : 1,
                         .seconds = seconds > 0 ? seconds : 0.05,
                         .options = r->options,
                         .out = &r->measured};
    WEFT_TRY(wefti_pool_create(m.threads, &m.pool));
    weft_status status = measure_all(&m);
    wefti_pool_destroy(m.pool);
    return status;
}

/* ---- the model ---- */

/* A kernel's time is its launch and the longer one of arithmetic and memory. So the launch is taken
 * off, or most of the time if it is about that long. */
static double net_rate(double work, double rate, double launch) {
    const double seconds = work / rate, net = seconds - launch;
    return work / (net > 0.2 * seconds ? net : 0.2 * seconds);
}

static weft_status fill_curve(wefti_machine_model *m, const wefti_measured_curve *from,
                              double launch, wefti_curve *out) {
    if (!from->count) return WEFT_OK;
    double *points = wefti_arena_alloc(m->arena, 2 * (size_t)from->count * sizeof *points);
    WEFT_REQUIRE(points, WEFT_E_NOMEM, "no memory for a machine");
    for (int32_t i = 0; i < from->count; i++) {
        points[i] = from->work[i];
        points[from->count + i] = net_rate(from->work[i], from->rate[i], launch);
    }
    *out = (wefti_curve){measured, points, points + from->count, from->count};
    return WEFT_OK;
}

static weft_status fill_tier(wefti_machine_model *m, const wefti_measured_tier *from,
                             wefti_tier_rates *out) {
    if (!from->way[0].count) return WEFT_OK;
    *out = (wefti_tier_rates){.source = wefti_arena_join(m->arena, measured, from->how),
                              .depth = from->depth,
                              .spends_cores = from->spends_cores};
    WEFT_REQUIRE(out->source, WEFT_E_NOMEM, "no memory for a machine");
    for (int w = 0; w < WEFTI_TIER_WAYS; w++)
        WEFT_TRY(fill_curve(m, &from->way[w], 0, &out->way[w]));
    return WEFT_OK;
}

static double largest(const wefti_measured_curve *curve) {
    return curve->rate[curve->count - 1];
}

static weft_status fill_device(wefti_machine_model *m, const wefti_measured *from) {
    wefti_device_model *d = &m->device;
    const double launch = from->launch_seconds;
    *d = (wefti_device_model){.memory_bytes = {from->memory_bytes, "measured: the system's memory, "
                                                                   "divided by its devices"},
                              .memory_bytes_per_second = {largest(&from->memory), measured},
                              .vector_flops = {from->vector_flops, measured},
                              .launch_seconds = {launch, measured}};
    if (from->at_once) d->devices_at_once = (wefti_figure){from->at_once, measured};
    if (from->hosts_at_once) d->hosts_at_once = (wefti_figure){from->hosts_at_once, measured};
    WEFT_TRY(fill_tier(m, &from->host, &d->host_bytes_per_second));
    WEFT_TRY(fill_tier(m, &from->disk, &d->disk_bytes_per_second));
    WEFT_TRY(fill_curve(m, &from->memory, launch, &d->memory));
    for (int a = 0; a < WEFTI_ARITHMETICS; a++) {
        if (!from->product[a].count) continue;
        d->peak_flops[a] = (wefti_figure){largest(&from->product[a]), measured};
        WEFT_TRY(fill_curve(m, &from->product[a], launch, &d->product[a]));
    }
    return WEFT_OK;
}

static weft_status fill_level(wefti_machine_model *m, const wefti_measured_level *from,
                              wefti_level *out) {
    const bool any = from->bytes_per_second > 0;
    const char *source = any ? measured : "assumed: no other device to measure with";
    out->latency_seconds = (wefti_figure){from->latency_seconds, source};
    out->bytes_per_second = (wefti_figure){
        any ? from->bytes_per_second : m->device.memory_bytes_per_second.value, source};
    if (from->uplink > 0) out->uplink_bytes_per_second = (wefti_figure){from->uplink, measured};
    return fill_curve(m, &from->all_reduce, 0, &out->all_reduce);
}

static weft_status fill_model(wefti_machine_model *m, const wefti_measured *from,
                              const char *name) {
    m->name = name;
    m->description = wefti_arena_format(
        m->arena, "%d host%s of %d device%s with %d threads each", from->hosts,
        from->hosts == 1 ? "" : "s", from->per_host, from->per_host == 1 ? "" : "s",
        wefti_cores() / from->per_host > 1 ? wefti_cores() / from->per_host : 1);
    WEFT_REQUIRE(m->description, WEFT_E_NOMEM, "no memory for a machine");
    m->hosts = from->hosts;
    WEFT_TRY(fill_device(m, from));
    /* ranks of a host read each other's memory, in their waits (comm/shm) */
    m->level[0] = (wefti_level){.name = "host", .devices = from->per_host, .moved_in_waits = true};
    m->level_count = 1;
    WEFT_TRY(fill_level(m, &from->level[0], &m->level[0]));
    if (from->hosts > 1) {
        m->level[1] = (wefti_level){.name = "network"};
        m->level_count = 2;
        WEFT_TRY(fill_level(m, &from->level[1], &m->level[1]));
    }
    return wefti_model_check(m);
}

static weft_status print(const wefti_measured *from, const char *name, char **out) {
    wefti_text text = {0};
    wefti_arena *arena;
    WEFT_TRY(wefti_arena_create(&arena));
    wefti_machine_model model = {.arena = arena};
    weft_status status = fill_model(&model, from, name ? name : "this-machine");
    if (status >= 0) {
        wefti_model_print(&model, &text);
        *out = wefti_text_take(&text);
        if (!*out) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a machine file");
    }
    wefti_arena_destroy(arena);
    return status;
}

/* ---- the calls ---- */

static weft_status check(const weft_world *world, const weft_machine_options *o) {
    WEFT_REQUIRE(o->devices >= 0 && o->devices <= WEFTI_BENCH_THREADS, WEFT_E_ARG,
                 "a machine of %d devices in one process; possible are 1 to %d", o->devices,
                 WEFTI_BENCH_THREADS);
    WEFT_REQUIRE(!world || o->devices == 0, WEFT_E_ARG,
                 "each of the %d processes is a device; devices = %d is for one process",
                 weft_world_size(world), o->devices);
    WEFT_REQUIRE(o->seconds == 0 || (o->seconds >= 1e-4 && o->seconds <= 60), WEFT_E_ARG,
                 "%g s for each figure; possible are 0.0001 to 60", o->seconds);
    return WEFT_OK;
}

static weft_status measure_threads(const weft_machine_options *options, wefti_measured *out) {
    const int devices = options->devices ? options->devices : 1;
    machine_rank *ranks;
    WEFT_NEW_ARRAY(ranks, machine_rank, devices);
    for (int r = 0; r < devices; r++)
        ranks[r] = (machine_rank){.options = options, .devices = devices};
    weft_status status = wefti_bench_threads(devices, measure_rank, ranks, sizeof *ranks);
    *out = ranks[0].measured;
    wefti_free(ranks);
    return status;
}

static weft_status agree_on_options(const wefti_party *party, weft_status status,
                                    const weft_machine_options *o) {
    wefti_job_fact same = {
        .name = "machine", .verb = "measures", .advice = "all ranks measure alike"};
    (void)snprintf(same.text, sizeof same.text, "%g s a figure%s", o->seconds,
                   o->disk ? ", and a disk" : "");
    return wefti_party_same(party, status, &same, 1);
}

weft_status weft_machine_measure(weft_world *world, const weft_machine_options *options,
                                 char **out) {
    weft_machine_options own = weft_machine_defaults();
    wefti_party party = {0};
    weft_status status = out ? wefti_struct_take("weft_machine_options", options, &own)
                             : WEFT_RAISE(WEFT_E_ARG, "there is no place for what is measured");
    if (status >= 0) status = check(world, &own);
    WEFT_TRY(wefti_party_join(&party, world));
    WEFT_TRY(agree_on_options(&party, status, &own));
    machine_rank rank = {.options = &own, .devices = world ? weft_world_local_size(world) : 0};
    status = world ? measure_rank(world, &rank) : measure_threads(&own, &rank.measured);
    if (status >= 0) status = print(&rank.measured, own.name, out);
    return wefti_party_tell(&party, status);
}

weft_status weft_machine_path(char **out) {
    WEFT_REQUIRE(out, WEFT_E_ARG, "weft_machine_path needs a place");
    return wefti_model_this_machine(out);
}

weft_status weft_machine_write(const char *text, const char *path) {
    wefti_machine_model *model;
    char *place = NULL;
    WEFT_REQUIRE(text, WEFT_E_ARG, "weft_machine_write needs a machine file");
    WEFT_TRY(wefti_model_parse("the machine", text, (int64_t)strlen(text), &model));
    wefti_model_destroy(model);
    if (!path) {
        WEFT_TRY(wefti_model_this_machine(&place));
        char *end = strrchr(place, '/');
        weft_status made = WEFT_OK;
        if (end && end != place) {
            *end = '\0';
            made = wefti_dir_make(place);
            *end = '/';
        }
        if (made < 0) {
            wefti_free(place);
            return made;
        }
    }
    weft_status status = wefti_file_write(place ? place : path, text, strlen(text));
    wefti_free(place);
    return status;
}
