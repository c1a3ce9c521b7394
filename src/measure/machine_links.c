/* Links between devices: pair by pair, and all together in collectives.
 *
 * A level of the file has one latency and one bandwidth. Both are the best that pairs or
 * collectives reach, so that no formula of the cost model is slower than the measurement; the curve
 * of all-reduces then bounds collectives from below. */
#include "measure/machine.h"

#include <stdlib.h>

#include "base/memory.h"

enum {
    PAIRS_MOST = 36,
    REDUCE_LEAST = 1 << 10,
    REDUCE_MOST = 64 << 20,
    GATHER_SMALL = 1 << 10,
    GATHER_LARGE = 16 << 20
};

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

/* ---- pairs ---- */

typedef struct pair_list {
    double latency[PAIRS_MOST], rate[PAIRS_MOST];
    int count;
} pair_list;

static weft_status add_pair(const wefti_measuring *m, wefti_bench_run *b, pair_list *list, int one,
                            int other) {
    weft_bench_link link = {.measured = false};
    if (list->count == PAIRS_MOST) return WEFT_OK;
    WEFT_TRY(wefti_bench_pair(b, one, other, &link));
    wefti_measured_report(
        m, &(weft_machine_figure){"pair.latency_seconds", 0, link.latency_seconds, {one, other}});
    wefti_measured_report(
        m, &(weft_machine_figure){"pair.bytes_per_second", 0, link.bytes_per_second, {one, other}});
    list->latency[list->count] = link.latency_seconds;
    list->rate[list->count++] = link.bytes_per_second;
    return WEFT_OK;
}

static void take_pairs(pair_list *list, wefti_measured_level *out) {
    if (!list->count) return;
    out->latency_seconds = median(list->latency, list->count);
    out->bytes_per_second = median(list->rate, list->count);
}

/* All pairs of the first host. */
static weft_status pairs_of_host(const wefti_measuring *m, wefti_bench_run *b) {
    pair_list list = {.count = 0};
    for (int one = 0; one < m->out->per_host; one++)
        for (int other = one + 1; other < m->out->per_host; other++)
            WEFT_TRY(add_pair(m, b, &list, one, other));
    take_pairs(&list, &m->out->level[0]);
    return WEFT_OK;
}

/* The first device of each host with those of all others. */
static weft_status pairs_of_hosts(const wefti_measuring *m, wefti_bench_run *b) {
    pair_list list = {.count = 0};
    const int step = m->out->per_host, size = weft_world_size(m->world);
    for (int one = 0; one < size; one += step)
        for (int other = one + step; other < size; other += step)
            WEFT_TRY(add_pair(m, b, &list, one, other));
    take_pairs(&list, &m->out->level[1]);
    return WEFT_OK;
}

/* ---- collectives ---- */

static double rounds_of(int members) {
    double rounds = 0;
    for (int reach = 1; reach < members; reach *= 2) rounds++;
    return rounds;
}

/* `b`: the group of one level. */
static weft_status collectives(const wefti_measuring *m, wefti_bench_run *b, int level,
                               const char *name) {
    wefti_measured_level *out = &m->out->level[level];
    weft_bench_row row;
    WEFT_TRY(wefti_bench_row(b, "all_gather", GATHER_SMALL, &row));
    const double latency = row.seconds / rounds_of(b->size);
    if (latency < out->latency_seconds) out->latency_seconds = latency;
    WEFT_TRY(wefti_bench_row(b, "all_gather", GATHER_LARGE, &row));
    if (row.bus > out->bytes_per_second) out->bytes_per_second = row.bus;
    for (int64_t bytes = REDUCE_LEAST; bytes <= REDUCE_MOST; bytes *= 4) {
        WEFT_TRY(wefti_bench_row(b, "all_reduce", bytes, &row));
        wefti_measured_point(m, &out->all_reduce, name, (double)row.bytes, row.bus);
        double seconds = row.seconds;
        WEFT_TRY(weft_all_reduce(m->world, NULL, &seconds, &seconds, 1, WEFT_F64, WEFT_REDUCE_MAX));
        if (wefti_measured_enough(m, &out->all_reduce, seconds)) break;
    }
    /* groups of several hosts have measured apart */
    double both[] = {out->latency_seconds, -out->bytes_per_second};
    WEFT_TRY(weft_all_reduce(m->world, NULL, both, both, 2, WEFT_F64, WEFT_REDUCE_MAX));
    out->latency_seconds = both[0];
    out->bytes_per_second = -both[1];
    double *rates = out->all_reduce.rate;
    return weft_all_reduce(m->world, NULL, rates, rates, out->all_reduce.count, WEFT_F64,
                           WEFT_REDUCE_MIN);
}

static weft_status within_host(const wefti_measuring *m, wefti_bench_run *b) {
    const int per_host = m->out->per_host;
    int ranks[1 << 12];
    wefti_bench_run group = *b;
    if (per_host == 1) return WEFT_OK;
    WEFT_TRY(pairs_of_host(m, b));
    if (m->out->hosts == 1) return collectives(m, b, 0, "host.all_reduce_curve");
    const int first = b->rank / per_host * per_host;
    for (int i = 0; i < per_host; i++) ranks[i] = first + i;
    WEFT_TRY(weft_group_create(m->world, ranks, per_host, &group.group));
    group.size = per_host;
    group.rank = b->rank - first;
    weft_status status = collectives(m, &group, 0, "host.all_reduce_curve");
    weft_group_destroy(group.group);
    return status;
}

/* ---- between hosts ---- */

/* Each device sends to its counterpart on the next host. */
static weft_status run_uplink(void *context) {
    wefti_bench_run *b = context;
    const int step = weft_world_local_size(b->world), n = GATHER_LARGE / 4;
    weft_request *sent;
    WEFT_TRY(weft_send_start(b->world, NULL, b->source, n, WEFT_F32, (b->rank + step) % b->size, 2,
                             &sent));
    weft_status status = weft_recv(b->world, NULL, b->destination, n, WEFT_F32,
                                   (b->rank + b->size - step) % b->size, 2);
    weft_status other = weft_request_wait(sent);
    return status < 0 ? status : other;
}

static weft_status between_hosts(const wefti_measuring *m, wefti_bench_run *b) {
    wefti_measured_level *out = &m->out->level[1];
    double seconds;
    if (m->out->hosts == 1) return WEFT_OK;
    WEFT_TRY(pairs_of_hosts(m, b));
    if (m->out->per_host == 1) return collectives(m, b, 1, "network.all_reduce_curve");
    WEFT_TRY(wefti_measured_seconds(m, run_uplink, b, &seconds));
    const double all = m->out->per_host * (double)GATHER_LARGE / seconds;
    wefti_measured_figure(m, "network.uplink_bytes_per_second", all);
    if (all < 0.9 * m->out->per_host * out->bytes_per_second) out->uplink = all;
    return WEFT_OK;
}

weft_status wefti_measure_levels(const wefti_measuring *m) {
    wefti_bench_run b = {.world = m->world,
                         .rank = weft_world_rank(m->world),
                         .size = weft_world_size(m->world),
                         .seconds = m->seconds};
    if (b.size == 1) return WEFT_OK;
    WEFT_REQUIRE(m->out->per_host <= 1 << 12, WEFT_E_ARG, "a host of %d devices; at most %d",
                 m->out->per_host, 1 << 12);
    weft_status status = wefti_bench_open(&b, REDUCE_MOST + 4 * (size_t)b.size);
    if (status >= 0) status = within_host(m, &b);
    if (status >= 0) status = between_hosts(m, &b);
    wefti_bench_close(&b);
    return status;
}
