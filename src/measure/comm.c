/* Measures collectives: weft/bench.h. Every rank times an equal number of calls, chosen from a
 * first short measurement. The slowest rank's time counts. The results can be compared with lines
 * of nccl-tests (see performance.md there). */
#include "measure/comm.h"

#include <string.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "weft/collective.h"

typedef enum comm_shape {              /* the buffers, and the part of their bytes that crosses a
                                          link */
                          WHOLE_TWICE, /* 2 (n - 1) / n: reduce, then gather */
                          PARTS,       /* (n - 1) / n: a rank's own part stays */
                          WHOLE        /* all bytes */
} comm_shape;

#define BENCH_LIST(X)                                                                              \
    X(ALL_REDUCE, "all_reduce", WHOLE_TWICE)                                                       \
    X(ALL_GATHER, "all_gather", PARTS)                                                             \
    X(REDUCE_SCATTER, "reduce_scatter", PARTS)                                                     \
    X(ALL_TO_ALL, "all_to_all", PARTS)                                                             \
    X(BROADCAST, "broadcast", WHOLE)                                                               \
    X(REDUCE, "reduce", WHOLE)                                                                     \
    X(GATHER, "gather", PARTS)                                                                     \
    X(SCATTER, "scatter", PARTS)                                                                   \
    X(SEND, "send", WHOLE)

typedef enum bench_kind {
#define BENCH_ROW(name, text, shape) BENCH_##name,
    BENCH_LIST(BENCH_ROW)
#undef BENCH_ROW
        BENCH_KINDS
} bench_kind;

static const struct {
    const char *name;
    comm_shape shape;
} kinds[] = {
#define BENCH_ROW(name, text, shape) {text, shape},
    BENCH_LIST(BENCH_ROW)
#undef BENCH_ROW
};

const char *weft_bench_collective(int index) {
    return index >= 0 && index < BENCH_KINDS ? kinds[index].name : NULL;
}

/* ---- one collective ---- */

/* The number of f32 elements in the unit that the call counts in, at least one. */
static int64_t count_of(const wefti_bench_run *b, bench_kind kind, int64_t bytes) {
    int64_t n = bytes / 4 / (kinds[kind].shape == PARTS ? b->size : 1);
    return n > 0 ? n : 1;
}

/* Messages travel round a ring: each rank sends and receives. */
static weft_status call_ring(wefti_bench_run *b, int64_t n) {
    weft_request *sent = NULL;
    int to = (b->rank + 1) % b->size, from = (b->rank + b->size - 1) % b->size;
    if (b->size == 1) return WEFT_OK;
    WEFT_TRY(weft_send_start(b->world, b->group, b->source, n, WEFT_F32, to, 0, &sent));
    weft_status status = weft_recv(b->world, b->group, b->destination, n, WEFT_F32, from, 0);
    weft_status other = weft_request_wait(sent);
    return status < 0 ? status : other;
}

static weft_status call(wefti_bench_run *b, bench_kind kind, int64_t n) {
    weft_world *w = b->world;
    switch (kind) {
    case BENCH_ALL_REDUCE:
        return weft_all_reduce(w, b->group, b->source, b->destination, n, WEFT_F32,
                               WEFT_REDUCE_SUM);
    case BENCH_ALL_GATHER:
        return weft_all_gather(w, b->group, b->source, b->destination, n, WEFT_F32);
    case BENCH_REDUCE_SCATTER:
        return weft_reduce_scatter(w, b->group, b->source, b->destination, n, WEFT_F32,
                                   WEFT_REDUCE_SUM);
    case BENCH_ALL_TO_ALL:
        return weft_all_to_all(w, b->group, b->source, b->destination, n, WEFT_F32);
    case BENCH_BROADCAST:
        return weft_broadcast(w, b->group, b->source, n, WEFT_F32, 0);
    case BENCH_REDUCE:
        return weft_reduce(w, b->group, b->source, b->destination, n, WEFT_F32, WEFT_REDUCE_SUM, 0);
    case BENCH_GATHER:
        return weft_gather(w, b->group, b->source, b->destination, n, WEFT_F32, 0);
    case BENCH_SCATTER:
        return weft_scatter(w, b->group, b->source, b->destination, n, WEFT_F32, 0);
    default:
        return call_ring(b, n);
    }
}

static weft_status time_calls(wefti_bench_run *b, bench_kind kind, int64_t n, int64_t repeats,
                              double *out) {
    WEFT_TRY(weft_barrier(b->world, b->group));
    double begin = wefti_now_s(), took;
    for (int64_t i = 0; i < repeats; i++) WEFT_TRY(call(b, kind, n));
    took = (wefti_now_s() - begin) / (double)repeats;
    return weft_all_reduce(b->world, b->group, &took, out, 1, WEFT_F64, WEFT_REDUCE_MAX);
}

/* The number of calls that fit into the time, given the time of one. It is equal on all ranks,
 * since all know the slowest rank's time. */
static int64_t repeats_for(double budget, double seconds) {
    double fit = seconds > 0 ? budget / seconds : 10000;
    return fit < 3 ? 3 : fit > 10000 ? 10000 : (int64_t)fit;
}

static weft_status measure_row(wefti_bench_run *b, bench_kind kind, int64_t bytes,
                               weft_bench_row *out) {
    int64_t n = count_of(b, kind, bytes);
    double seconds, size = (double)b->size;
    WEFT_TRY(time_calls(b, kind, n, 2, &seconds)); /* binds and warms up */
    WEFT_TRY(time_calls(b, kind, n, 3, &seconds));
    int64_t repeats = repeats_for(b->seconds, seconds);
    WEFT_TRY(time_calls(b, kind, n, repeats, &seconds));
    double moved = (double)(n * 4) * (kinds[kind].shape == PARTS ? size : 1);
    double part = kinds[kind].shape == WHOLE ? 1 : (size - 1) / size;
    double algorithm = seconds > 0 ? moved / seconds : 0;
    *out = (weft_bench_row){.collective = kinds[kind].name,
                            .bytes = (int64_t)moved,
                            .repeats = repeats,
                            .seconds = seconds,
                            .algorithm = algorithm,
                            .bus = algorithm * part * (kinds[kind].shape == WHOLE_TWICE ? 2 : 1)};
    return WEFT_OK;
}

weft_status wefti_bench_row(wefti_bench_run *run, const char *collective, int64_t bytes,
                            weft_bench_row *out) {
    int kind = 0;
    while (kind < BENCH_KINDS && strcmp(collective, kinds[kind].name) != 0) kind++;
    WEFT_REQUIRE(kind < BENCH_KINDS, WEFT_E_BUG, "there is no collective '%s'", collective);
    return measure_row(run, (bench_kind)kind, bytes, out);
}

/* ---- links ---- */

/* Half the time of a ping-pong between two ranks. */
static weft_status ping_pong(wefti_bench_run *b, const int pair[2], int64_t n, int64_t repeats,
                             double *out) {
    const int me = weft_world_rank(b->world);
    const bool takes_part = me == pair[0] || me == pair[1];
    double begin = wefti_now_s();
    int partner = me == pair[0] ? pair[1] : pair[0];
    for (int64_t i = 0; i < repeats && takes_part; i++)
        for (int turn = 0; turn < 2; turn++) {
            bool sends = (me == pair[0]) == (turn == 0);
            WEFT_TRY(sends ? weft_send(b->world, NULL, b->source, n, WEFT_F32, partner, 1)
                           : weft_recv(b->world, NULL, b->destination, n, WEFT_F32, partner, 1));
        }
    *out = (wefti_now_s() - begin) / (2 * (double)repeats);
    return weft_broadcast(b->world, NULL, out, 1, WEFT_F64, pair[0]);
}

weft_status wefti_bench_pair(wefti_bench_run *b, int one, int other, weft_bench_link *out) {
    enum { LARGE = 16 << 20 };
    const int pair[] = {one, other};
    int64_t n = (int64_t)(b->room < LARGE ? b->room : LARGE) / 4;
    double seconds;
    WEFT_TRY(weft_barrier(b->world, NULL));
    WEFT_TRY(ping_pong(b, pair, 2, 20, &seconds));
    WEFT_TRY(ping_pong(b, pair, 2, repeats_for(b->seconds, 2 * seconds), &out->latency_seconds));
    WEFT_TRY(ping_pong(b, pair, n, 2, &seconds));
    WEFT_TRY(ping_pong(b, pair, n, repeats_for(b->seconds, 2 * seconds), &seconds));
    double moving = seconds - out->latency_seconds;
    out->bytes_per_second = (double)(n * 4) / (moving > 0 ? moving : seconds);
    out->measured = true;
    return WEFT_OK;
}

/* Measures rank 0 with the first other rank of its host, and with the first rank of another
 * host. */
static weft_status measure_links(wefti_bench_run *b, weft_bench *out) {
    int near = -1, far = -1, here = weft_world_host_of(b->world, 0);
    for (int r = b->size - 1; r > 0; r--)
        *(weft_world_host_of(b->world, r) == here ? &near : &far) = r;
    if (near > 0) WEFT_TRY(wefti_bench_pair(b, 0, near, &out->same_host));
    if (far > 0) WEFT_TRY(wefti_bench_pair(b, 0, far, &out->between_hosts));
    return WEFT_OK;
}

weft_status weft_bench_write_links(const weft_bench *bench, const char *path) {
    wefti_text text = {0};
    const weft_bench_link *links[] = {&bench->same_host, &bench->between_hosts};
    const char *const names[] = {"same_host", "between_hosts"};
    wefti_text_add(&text, "{\n  \"version\": 1,\n  \"communicator\": \"%s\",\n  \"ranks\": %d,\n",
                   bench->communicator, bench->ranks);
    wefti_text_add(&text, "  \"hosts\": %d,\n  \"links\": {\n", bench->hosts);
    for (int i = 0; i < 2; i++) {
        const weft_bench_link *l = links[i];
        char latency[32], rate[32];
        if (l->measured)
            wefti_text_add(&text, "    \"%s\": {\"latency_seconds\": %s, \"bytes_per_second\": %s}",
                           names[i], wefti_real_text(l->latency_seconds, 9, 9, latency),
                           wefti_real_text(l->bytes_per_second, 9, 9, rate));
        else
            wefti_text_add(&text, "    \"%s\": null", names[i]);
        wefti_text_add(&text, i == 0 ? ",\n" : "\n  }\n}\n");
    }
    char *data = wefti_text_take(&text);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for the text of %s", path);
    weft_status status = wefti_file_write(path, data, strlen(data));
    wefti_free(data);
    return status;
}

/* ---- all of it ---- */

static weft_status check(const weft_bench_options *o) {
    bool known = !o->collective || !strcmp(o->collective, "all");
    for (int k = 0; k < BENCH_KINDS; k++)
        known |= o->collective && !strcmp(o->collective, kinds[k].name);
    WEFT_REQUIRE(known, WEFT_E_ARG, "there is no collective '%s' to measure", o->collective);
    WEFT_REQUIRE(o->min_bytes >= 4 && o->max_bytes >= o->min_bytes &&
                     o->max_bytes <= (int64_t)1 << 40,
                 WEFT_E_ARG, "sizes from %lld to %lld bytes; possible are 4 to 2^40",
                 (long long)o->min_bytes, (long long)o->max_bytes);
    return WEFT_OK;
}

static weft_status measure(wefti_bench_run *b, const weft_bench_options *o, weft_bench *bench) {
    int64_t capacity = 0;
    for (int k = 0; k < BENCH_KINDS; k++) {
        bool wanted = !o->collective || !strcmp(o->collective, "all") ||
                      !strcmp(o->collective, kinds[k].name);
        for (int64_t bytes = o->min_bytes; wanted && bytes <= o->max_bytes; bytes *= 4) {
            WEFT_TRY(WEFT_GROW(bench->rows, bench->row_count, capacity));
            weft_status status =
                measure_row(b, (bench_kind)k, bytes, &bench->rows[bench->row_count]);
            if (status < 0)
                return wefti_prefix(status, "%s of %lld bytes", kinds[k].name, (long long)bytes);
            bench->row_count++;
        }
    }
    return measure_links(b, bench);
}

weft_status wefti_bench_open(wefti_bench_run *run, size_t room) {
    run->room = room;
    WEFT_TRY(weft_world_alloc(run->world, room, &run->source));
    WEFT_TRY(weft_world_alloc(run->world, room, &run->destination));
    memset(run->source, 0, room);
    memset(run->destination, 0, room);
    return WEFT_OK;
}

void wefti_bench_close(wefti_bench_run *run) {
    weft_world_free(run->world, run->source, run->room);
    weft_world_free(run->world, run->destination, run->room);
}

weft_status wefti_bench_world(weft_world *world, const weft_bench_options *o, weft_bench **out) {
    WEFT_TRY(check(o));
    weft_bench *bench;
    WEFT_NEW(bench, weft_bench);
    bench->ranks = weft_world_size(world);
    bench->hosts = weft_world_hosts(world);
    strncpy(bench->communicator, weft_world_communicator(world), sizeof bench->communicator - 1);
    wefti_bench_run b = {.world = world,
                         .rank = weft_world_rank(world),
                         .size = bench->ranks,
                         .seconds = o->seconds};
    weft_status status = wefti_bench_open(&b, (size_t)o->max_bytes + 4 * (size_t)bench->ranks);
    if (status >= 0) status = measure(&b, o, bench);
    wefti_bench_close(&b);
    if (status < 0) {
        weft_bench_free(bench);
        return status;
    }
    *out = bench;
    return WEFT_OK;
}

void weft_bench_free(weft_bench *bench) {
    if (!bench) return;
    wefti_free(bench->rows);
    wefti_free(bench);
}
