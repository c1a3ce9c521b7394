/* Rates of the tiers below device memory by size: host memory by the device's copies, the disk by
 * streams (device/disk.h). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/disk.h"
#include "device/device.h"
#include "measure/machine.h"
#include "session/party.h"

enum {
    BLOCK_LEAST = 4 << 10,
    BLOCK_MOST = 4 << 20,
    BLOCK_FACTOR = 4,        /* from a size to the next */
    REGION_BYTES = 32 << 20, /* more than most caches */
    RUN_BYTES = 1 << 20,     /* copies of one run */
    DISK_FILE_BYTES = 64 << 20,
    DISK_TRIALS = 3
};

/* Whether copy or transfer number i goes towards the device. */
static bool is_read(wefti_tier_way way, int64_t i) {
    return way == WEFTI_TIER_BOTH ? i % 2 == 0 : way == WEFTI_TIER_READ;
}

/* ---- host memory ---- */

typedef struct copying {
    wefti_device *device;
    wefti_stream *stream;
    unsigned char *memory[WEFTI_SPACES];
    wefti_tier_way way;
    int64_t block, at; /* at: the next block, so that blocks come from memory, not from caches */
    double cpu_seconds;
    int64_t cpu_bytes;
} copying;

static double cpu_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t copies_of(const copying *c) {
    return c->block < RUN_BYTES ? RUN_BYTES / c->block : 1;
}

static weft_status copy_blocks(void *context) {
    copying *c = context;
    const int64_t count = copies_of(c);
    const double begin = cpu_now();
    for (int64_t i = 0; i < count; i++, c->at = (c->at + c->block) % REGION_BYTES) {
        const wefti_space to =
            is_read(c->way, c->at / c->block) ? WEFTI_SPACE_DEVICE : WEFTI_SPACE_HOST;
        const wefti_space from = to == WEFTI_SPACE_HOST ? WEFTI_SPACE_DEVICE : WEFTI_SPACE_HOST;
        WEFT_TRY(wefti_stream_copy(c->stream, c->memory[to] + c->at, to, c->memory[from] + c->at,
                                   from, c->block));
    }
    WEFT_TRY(wefti_stream_finish(c->stream));
    c->cpu_seconds += cpu_now() - begin;
    c->cpu_bytes += count * c->block;
    return WEFT_OK;
}

/* Cores do the copies if these take about as much time of cores as memcpy. Only times of cores are
 * compared, so other programs do not matter. */
static weft_status find_cores(const copying *c, bool *out) {
    enum { COPIES = 4 };
    unsigned char *a = wefti_alloc(2 * (size_t)BLOCK_MOST);
    WEFT_REQUIRE(a, WEFT_E_NOMEM, "no memory for copies");
    memset(a, 1, 2 * (size_t)BLOCK_MOST);
    const double begin = cpu_now();
    for (int i = 0; i < COPIES; i++) {
        memcpy(a + (i % 2) * BLOCK_MOST, a + (1 - i % 2) * BLOCK_MOST, BLOCK_MOST);
        __asm__ volatile("" ::: "memory"); /* the copy is not left out */
    }
    const double seconds = (cpu_now() - begin) / COPIES / BLOCK_MOST;
    wefti_free(a);
    *out = c->cpu_seconds / (double)c->cpu_bytes > 0.5 * seconds;
    return WEFT_OK;
}

static weft_status measure_copies(const wefti_measuring *m, copying *c) {
    static const char *const names[] = {
        [WEFTI_TIER_READ] = "host_bytes_per_second.read",
        [WEFTI_TIER_WRITE] = "host_bytes_per_second.write",
        [WEFTI_TIER_BOTH] = "host_bytes_per_second.both",
    };
    wefti_measured_tier *out = &m->out->host;
    double seconds;
    for (int way = 0; way < WEFTI_TIER_WAYS; way++) {
        c->way = (wefti_tier_way)way;
        for (c->block = BLOCK_LEAST; c->block <= BLOCK_MOST; c->block *= BLOCK_FACTOR) {
            c->at = c->cpu_bytes = 0;
            c->cpu_seconds = 0;
            WEFT_TRY(wefti_measured_seconds(m, copy_blocks, c, &seconds));
            wefti_measured_point(m, &out->way[way], names[way], (double)c->block,
                                 (double)(copies_of(c) * c->block) / seconds);
        }
    }
    WEFT_TRY(find_cores(c, &out->spends_cores));
    int32_t spends = out->spends_cores; /* of rank 0 on all */
    WEFT_TRY(weft_broadcast(m->world, NULL, &spends, 1, WEFT_I32, 0));
    out->spends_cores = spends;
    if (spends) wefti_measured_figure(m, "host_bytes_per_second.spends_cores", 1);
    return WEFT_OK;
}

static weft_status open_copies(const wefti_measuring *m, copying *c) {
    const wefti_device_table *table;
    WEFT_TRY(wefti_device_choose(weft_world_rank(m->world), &table));
    WEFT_TRY(wefti_device_open(table, &c->device));
    WEFT_TRY(wefti_stream_create(c->device, m->pool, &c->stream));
    for (int space = 0; space < WEFTI_SPACES; space++) {
        void *memory;
        WEFT_TRY(table->allocate(c->device, (wefti_space)space, REGION_BYTES, &memory));
        c->memory[space] = memory;
        WEFT_TRY(wefti_stream_fill(c->stream, memory, (wefti_space)space, 1, REGION_BYTES));
    }
    return WEFT_OK;
}

static weft_status measure_host(const wefti_measuring *m) {
    copying c = {0};
    weft_status status = open_copies(m, &c);
    if (status >= 0) status = measure_copies(m, &c);
    for (int space = 0; space < WEFTI_SPACES; space++)
        if (c.memory[space])
            c.device->table->free(c.device, (wefti_space)space, c.memory[space], REGION_BYTES);
    wefti_stream_destroy(c.stream);
    wefti_device_close(c.device);
    return status;
}

/* ---- the disk ---- */

typedef struct disk_trial {
    wefti_disk_stream *stream;
    unsigned char *memory; /* REGION_BYTES */
    double seconds;        /* for all trials of a rate */
    wefti_tier_way way;
    int64_t block;
    int32_t depth;
} disk_trial;

/* Block number i of an order that visits all blocks of the file, and is far from sequential. */
static int64_t place_of(const disk_trial *t, int64_t i) {
    enum { STRIDE = 40503 };
    const int64_t blocks = DISK_FILE_BYTES / t->block; /* a power of two */
    return i * STRIDE % blocks * t->block;
}

static weft_status begin_block(const disk_trial *t, int64_t i, wefti_disk_ticket **out) {
    unsigned char *memory = t->memory + i % t->depth * t->block;
    return is_read(t->way, i)
               ? wefti_disk_stream_read(t->stream, place_of(t, i), t->block, memory, out)
               : wefti_disk_stream_write(t->stream, place_of(t, i), t->block, memory, out);
}

/* *out: bytes/s with `depth` blocks under way. */
static weft_status disk_rate(disk_trial *t, double *out) {
    wefti_disk_ticket *tickets[WEFTI_DISK_DEPTH_MAX];
    int64_t begun = 0, ended = 0;
    const double begin = wefti_now_s();
    double now = begin;
    while (begun < t->depth || now - begin < t->seconds / DISK_TRIALS) {
        if (begun - ended == t->depth)
            WEFT_TRY(wefti_disk_stream_wait(t->stream, tickets[ended++ % t->depth]));
        WEFT_TRY(begin_block(t, begun, &tickets[begun % t->depth]));
        begun++;
        now = wefti_now_s();
    }
    while (ended < begun) WEFT_TRY(wefti_disk_stream_wait(t->stream, tickets[ended++ % t->depth]));
    now = wefti_now_s();
    *out = (double)(begun * t->block) / (now - begin > 1e-9 ? now - begin : 1e-9);
    return WEFT_OK;
}

/* A disk so slow that one trial takes the time of all has one. */
static weft_status best_rate(disk_trial *t, double *out) {
    const double end = wefti_now_s() + t->seconds;
    int trials = 0;
    *out = 0;
    do {
        double rate;
        WEFT_TRY(disk_rate(t, &rate));
        if (rate > *out) *out = rate;
    } while (++trials < DISK_TRIALS && wefti_now_s() < end);
    return WEFT_OK;
}

/* The least depth that reads the smallest blocks within a tenth of the fastest one. */
static weft_status find_depth(disk_trial *t, int32_t *out) {
    double rates[WEFTI_DISK_DEPTH_MAX + 1], best = 0;
    t->block = BLOCK_LEAST;
    t->way = WEFTI_TIER_READ;
    for (t->depth = 1; t->depth <= WEFTI_DISK_DEPTH_MAX; t->depth *= 2) {
        WEFT_TRY(best_rate(t, &rates[t->depth]));
        if (rates[t->depth] > best) best = rates[t->depth];
    }
    *out = 1;
    while (1.1 * rates[*out] < best) *out *= 2;
    return WEFT_OK;
}

/* All of the file is written once, since blocks that were never written are not read from the disk.
 */
static weft_status fill_file(disk_trial *t) {
    t->way = WEFTI_TIER_WRITE;
    t->block = BLOCK_MOST;
    t->depth = 1;
    for (int64_t i = 0; i < DISK_FILE_BYTES / BLOCK_MOST; i++) {
        wefti_disk_ticket *ticket;
        WEFT_TRY(begin_block(t, i, &ticket));
        WEFT_TRY(wefti_disk_stream_wait(t->stream, ticket));
    }
    return WEFT_OK;
}

static weft_status measure_stream(const wefti_measuring *m, disk_trial *t) {
    static const char *const names[] = {
        [WEFTI_TIER_READ] = "disk_bytes_per_second.read",
        [WEFTI_TIER_WRITE] = "disk_bytes_per_second.write",
        [WEFTI_TIER_BOTH] = "disk_bytes_per_second.both",
    };
    wefti_measured_tier *out = &m->out->disk;
    WEFT_TRY(fill_file(t));
    WEFT_TRY(find_depth(t, &out->depth));
    wefti_measured_figure(m, "disk_bytes_per_second.depth", out->depth);
    for (int way = 0; way < WEFTI_TIER_WAYS; way++)
        for (t->block = BLOCK_LEAST; t->block <= BLOCK_MOST; t->block *= BLOCK_FACTOR) {
            double rate;
            const int64_t room = REGION_BYTES / t->block;
            t->way = (wefti_tier_way)way;
            t->depth = out->depth < room ? out->depth : (int32_t)room;
            WEFT_TRY(best_rate(t, &rate));
            wefti_measured_point(m, &out->way[way], names[way], (double)t->block, rate);
        }
    return WEFT_OK;
}

/* The stream's text says whether transfers passed the page cache. */
static weft_status measure_directory(const wefti_measuring *m) {
    disk_trial t = {.seconds = m->seconds};
    const wefti_disk_options o = {.directory = m->options->disk,
                                  .bytes = DISK_FILE_BYTES,
                                  .block = BLOCK_MOST,
                                  .depth = WEFTI_DISK_DEPTH_MAX};
    void *memory = wefti_alloc(REGION_BYTES + WEFTI_DISK_ALIGNMENT);
    WEFT_REQUIRE(memory, WEFT_E_NOMEM, "no memory for blocks of %d MiB", REGION_BYTES >> 20);
    t.memory = wefti_disk_align(memory);
    memset(t.memory, 0x5a, REGION_BYTES);
    weft_status status = wefti_disk_stream_open(&o, &t.stream);
    if (status >= 0) status = measure_stream(m, &t);
    if (status >= 0)
        (void)snprintf(m->out->disk.how, sizeof m->out->disk.how, " in %.160s, %.80s%s",
                       o.directory, wefti_disk_stream_text(t.stream),
                       wefti_disk_stream_direct(t.stream) ? "" : ": no O_DIRECT here");
    wefti_disk_stream_close(t.stream);
    wefti_free(memory);
    return status < 0 ? wefti_prefix(status, "the disk") : WEFT_OK;
}

/* Rank 0 measures the disk, which the ranks of a host share. All ranks learn whether it could. */
static weft_status measure_disk(const wefti_measuring *m) {
    wefti_party party = {0};
    if (!m->options->disk) return WEFT_OK;
    WEFT_TRY(wefti_party_join(&party, m->world));
    const weft_status status = party.follows ? WEFT_OK : measure_directory(m);
    return wefti_party_broadcast(&party, status, &m->out->disk, sizeof m->out->disk);
}

weft_status wefti_measure_tiers(const wefti_measuring *m) {
    WEFT_TRY(measure_disk(m));
    return measure_host(m);
}
