/* Times training steps of one table of embeddings, as bench/peers/rows_torch.py does. For each
 * sample a step looks up `ids` rows and adds them. The loss is the mean square of the sums, and
 * lazy adam updates the touched rows. Ids follow Zipf's law with exponent 1.05. Row numbers are
 * shuffled, so hot rows lie far from each other.
 *
 *     bench/rows [--rows 10000000] [--dim 32] [--batch 2048] [--ids 26] [--steps 30] [--warmup 30]
 *                [--threads 1] [--disk DIR [--cache BYTES] [--ahead] [--rate]] [--cpu]
 *                [--json] [--interactive]
 *
 * --disk         the table and its states lie in a file in DIR
 * --cache        bytes of host memory that keep hot rows
 * --ahead        each step is told the ids of the next one
 * --rate         measures the disk behind the steps: a loop of nothing else reads and writes
 *                blocks of 4 KiB of another file of the same size there
 * --cpu          processor seconds of steps in place of seconds
 * --interactive  the protocol of bench/peers/stepper.py
 *
 * Drawing ids is not timed. The program prints each step (not with --json or --interactive) and,
 * last, one JSON object. With --rate, `disk_seconds` is the time in which the loop would move the
 * rows of a step, and `over_disk` the median of the steps over it.
 *
 * Figures are those of the steps after the warm-up. `cached_rows` is the part of their rows, each
 * counted once for each copy of it, that were in memory. `cached_look_ups` is the part of look-ups
 * that it served. `hot_look_ups` is the part of look-ups that go to the hottest rows, as many as
 * the cache has bytes for: what the best fixed set of rows would serve. */
#include <math.h>

#include "device/disk_parts.h"
#include "stepper.h"
#include "weft/plan.h"

typedef struct bench {
    weft_session *session;
    double *share; /* [rows]: of look-ups, of this row and all hotter ones */
    int64_t rows, count;
    int32_t *ids, *next; /* [count] */
    uint64_t state;
    bool cpu, ahead;
    int64_t looked_up, hot; /* look-ups, and those of the `slots` hottest rows */
    int64_t slots;          /* rows, with their two states, that the cache has bytes for */
    stepper *stepper;
    weft_session_memory warm; /* behind the warm-up */
    wefti_disk_stream *file;  /* for the rate of the disk; NULL: it is not measured */
    unsigned char *memory;    /* [RATE_STRETCH] */
} bench;

/* A number in [0, 1), by splitmix64 (Steele, Lea, Flood 2014). */
static double draw(bench *b) {
    uint64_t z = (b->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static int64_t rank_of(const bench *b, double x) {
    int64_t low = 0, high = b->rows - 1;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (b->share[middle] > x)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Multiplication by a prime that does not divide the number of rows permutes them. */
static void draw_ids(bench *b) {
    int32_t *drawn = b->ids;
    b->ids = b->next;
    b->next = drawn;
    for (int64_t i = 0; i < b->count; i++) {
        const int64_t rank = rank_of(b, draw(b));
        b->hot += rank < b->slots;
        drawn[i] = (int32_t)((uint64_t)rank * 2654435761u % (uint64_t)b->rows);
    }
    b->looked_up += b->count;
}

static double step(void *context) {
    bench *b = context;
    if (b->stepper->done == b->stepper->warmup) {
        b->warm = weft_session_memory_of(b->session);
        b->looked_up = b->hot = 0;
    }
    draw_ids(b);
    const size_t bytes = (size_t)b->count * sizeof *b->ids;
    const double start = stepper_now(), cpu = stepper_cpu();
    stepper_check(weft_session_feed(b->session, 0, "ids", b->ids, bytes));
    if (b->ahead) stepper_check(weft_session_feed_ahead(b->session, 0, "ids", b->next, bytes));
    stepper_check(weft_session_step(b->session, 0.01, NULL));
    return b->cpu ? stepper_cpu() - cpu : stepper_now() - start;
}

static void make_law(bench *b) {
    double all = 0;
    b->share = malloc((size_t)b->rows * sizeof *b->share);
    b->ids = malloc((size_t)b->count * sizeof *b->ids);
    b->next = malloc((size_t)b->count * sizeof *b->next);
    if (!b->share || !b->ids || !b->next) exit(1);
    for (int64_t i = 0; i < b->rows; i++) b->share[i] = all += pow((double)i + 1, -1.05);
    for (int64_t i = 0; i < b->rows; i++) b->share[i] /= all;
}

static weft_graph *graph_of(int64_t rows, int64_t dim, int64_t batch, int64_t ids) {
    static const int middle = 1;
    weft_graph *g;
    stepper_check(weft_graph_create(&g));
    const weft_value table = weft_param(g, "table", WEFT_DESC(WEFT_F32, rows, dim),
                                        (weft_init){WEFT_INIT_NORMAL, 0.01}),
                     in = weft_input(g, "ids", WEFT_DESC(WEFT_I32, batch, ids));
    const weft_value x = weft_embedding(g, table, in, WEFT_F32);
    const weft_value sums = weft_sum(g, x, 1, &middle, false);
    weft_loss(g, weft_mean(g, weft_mul(g, sums, sums), 0, NULL, false));
    stepper_check(weft_graph_status(g));
    return g;
}

static weft_plan *plan_of(int64_t cache) {
    weft_plan *plan;
    stepper_check(weft_plan_create(1, &plan));
    stepper_check(weft_plan_offload(plan, "*", WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_DISK));
    stepper_check(weft_plan_offload(plan, "*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_DISK));
    if (cache) stepper_check(weft_plan_cache(plan, "*", WEFT_OFFLOAD_PARAMETERS, cache));
    return plan;
}

/* ---- the rate of the disk ---- */

enum { RATE_BLOCKS = 4000, RATE_ROUNDS = 10, RATE_STRETCH = RATE_BLOCKS * WEFTI_DISK_ALIGNMENT };

/* Reads or writes blocks in random places, in rising order. Returns the seconds. */
static double random_blocks(bench *b, wefti_disk_stream *d, int64_t bytes, bool writes,
                            unsigned char *memory) {
    static wefti_disk_piece pieces[RATE_BLOCKS];
    wefti_disk_ticket *ticket;
    const int64_t each = bytes / WEFTI_DISK_ALIGNMENT / RATE_BLOCKS;
    for (int64_t i = 0; i < RATE_BLOCKS; i++) {
        const int64_t block = each * i + (int64_t)(draw(b) * (double)each);
        pieces[i] = (wefti_disk_piece){block * WEFTI_DISK_ALIGNMENT, WEFTI_DISK_ALIGNMENT,
                                       memory + i * WEFTI_DISK_ALIGNMENT};
    }
    const double start = stepper_now();
    stepper_check(wefti_disk_stream_begin_all(d, writes, pieces, RATE_BLOCKS, &ticket));
    stepper_check(wefti_disk_stream_wait(d, ticket));
    return stepper_now() - start;
}

/* Makes the file, of the bytes that the session keeps on the disk, and writes it whole: bytes that
 * were never written would not be read from the disk. This is before the steps, so that no cache
 * behind the disk has more of this file than of theirs. */
static wefti_disk_stream *make_file(const char *directory, int64_t bytes, unsigned char *memory) {
    const wefti_disk_options o = {.directory = directory, .bytes = bytes};
    wefti_disk_stream *d;
    wefti_disk_ticket *ticket;
    stepper_check(wefti_disk_stream_open(&o, &d));
    for (int64_t at = 0; at < bytes; at += RATE_STRETCH) {
        const int64_t part = bytes - at < RATE_STRETCH ? bytes - at : RATE_STRETCH;
        stepper_check(wefti_disk_stream_write(d, at, part, memory, &ticket));
        stepper_check(wefti_disk_stream_wait(d, ticket));
    }
    return d;
}

/* Blocks a second: read, and written. */
static void measure_rate(bench *b, int64_t bytes, double out[2]) {
    double seconds[2] = {0, 0};
    for (int i = 0; i < 2 * RATE_ROUNDS; i++)
        seconds[i % 2] += random_blocks(b, b->file, bytes, i % 2, b->memory);
    for (int i = 0; i < 2; i++) out[i] = RATE_ROUNDS * RATE_BLOCKS / seconds[i];
}

/* ---- figures ---- */

static double median_of(const stepper *s) {
    static double sorted[STEPPER_MAX];
    const int n = s->done - s->warmup;
    if (n <= 0) return 0;
    memcpy(sorted, s->seconds + s->warmup, (size_t)n * sizeof *sorted);
    return stepper_median(sorted, n);
}

static double part(int64_t some, int64_t all) {
    return (double)some / (double)(all ? all : 1);
}

/* Members of the JSON object, of the steps after the warm-up. */
static void write_facts(bench *b, char *out, size_t room) {
    const weft_session_memory m = weft_session_memory_of(b->session), *w = &b->warm;
    const int64_t hits = m.cache_hits - w->cache_hits, misses = m.cache_misses - w->cache_misses,
                  written = m.cache_written - w->cache_written,
                  ahead = m.cache_ahead - w->cache_ahead,
                  steps = b->stepper->done - b->stepper->warmup;
    int length = snprintf(
        out, room,
        "\"rows\": %lld, \"host_bytes\": %lld, \"disk_bytes\": %lld, \"rows_hit\": %lld, "
        "\"rows_missed\": %lld, \"rows_ahead\": %lld, \"rows_written\": %lld, "
        "\"cached_rows\": %.4f, \"cached_look_ups\": %.4f, \"hot_look_ups\": %.4f,",
        (long long)b->rows, (long long)m.host_bytes, (long long)m.disk_bytes, (long long)hits,
        (long long)misses, (long long)ahead, (long long)written, part(hits, hits + misses),
        part(m.cache_look_ups_hit - w->cache_look_ups_hit, m.cache_look_ups - w->cache_look_ups),
        part(b->hot, b->looked_up));
    if (!b->file || steps <= 0) return;
    double rate[2];
    measure_rate(b, m.disk_bytes, rate);
    const double seconds =
        ((double)(misses + ahead) / rate[0] + (double)written / rate[1]) / (double)steps;
    snprintf(out + length, room - (size_t)length,
             " \"blocks_read_per_second\": %.0f, \"blocks_written_per_second\": %.0f, "
             "\"disk_seconds\": %.4f, \"over_disk\": %.3f,",
             rate[0], rate[1], seconds, seconds > 0 ? median_of(b->stepper) / seconds : 0);
}

int main(int argc, char **argv) {
    int64_t dim = 32, batch = 2048, ids = 26, cache = 0;
    weft_session_options o = weft_session_defaults();
    static stepper s = {.step = step, .steps = 30, .warmup = 30};
    bench b = {.rows = 10000000, .state = 1};
    weft_plan *plan = NULL;
    bool rate = false;
    o.threads = 1;
    o.rows = WEFT_ROWS_AUTO;
    o.optimizer = weft_optimizer_defaults(WEFT_ADAM);
    const stepper_option options[] = {{"--rows", STEPPER_LONG, &b.rows},
                                      {"--dim", STEPPER_LONG, &dim},
                                      {"--batch", STEPPER_LONG, &batch},
                                      {"--ids", STEPPER_LONG, &ids},
                                      {"--threads", STEPPER_INT, &o.threads},
                                      {"--disk", STEPPER_TEXT, &o.disk},
                                      {"--cache", STEPPER_LONG, &cache},
                                      {"--rate", STEPPER_FLAG, &rate},
                                      {"--cpu", STEPPER_FLAG, &b.cpu},
                                      {"--ahead", STEPPER_FLAG, &b.ahead},
                                      {NULL, STEPPER_FLAG, NULL}};
    if (!stepper_read(&s, options, argc, argv)) return 2;
    b.count = batch * ids;
    b.slots = cache / (3 * dim * 4);
    make_law(&b);
    draw_ids(&b);
    weft_graph *g = graph_of(b.rows, dim, batch, ids);
    if (o.disk) o.plan = plan = plan_of(cache);
    stepper_check(weft_session_create(g, &o, &b.session));
    unsigned char *room = o.disk && rate ? calloc(1, RATE_STRETCH + WEFTI_DISK_ALIGNMENT) : NULL;
    if (room) {
        b.memory = wefti_disk_align(room);
        b.file = make_file(o.disk, weft_session_memory_of(b.session).disk_bytes, b.memory);
    }
    s.context = &b;
    b.stepper = &s;
    s.session = b.session;
    stepper_drive(&s);
    char facts[1024];
    write_facts(&b, facts, sizeof facts);
    stepper_report(&s, facts, "samples_per_second", (double)batch,
                   weft_session_memory_of(b.session));
    wefti_disk_stream_close(b.file);
    free(room);
    weft_session_destroy(b.session);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    free(b.share);
    free(b.ids);
    free(b.next);
    return 0;
}
