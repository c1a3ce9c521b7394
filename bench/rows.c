/* Times training steps of one table of embeddings, as bench/peers/rows_torch.py does. For each
 * sample a step looks up `ids` rows and adds them. The loss is the mean square of the sums, and
 * lazy adam updates the touched rows. Ids follow Zipf's law with exponent 1.05. Row numbers are
 * shuffled, so hot rows lie far from each other.
 *
 *     bench/rows [--rows 10000000] [--dim 32] [--batch 2048] [--ids 26] [--steps 30] [--warmup 30]
 *                [--threads 1] [--disk DIR [--cache BYTES]] [--cpu] [--json] [--interactive]
 *
 * --disk: the table and its states lie in a file there. --cache: so many bytes of host memory keep
 * hot rows. --cpu: processor seconds of steps in place of their seconds. Drawing ids is not timed.
 * --interactive: the protocol of bench/peers/stepper.py. Without it the program prints each step
 * (not with --json) and, last, one JSON object.
 *
 * `cached_rows` is the part of the rows of all steps, each counted once a step for each tensor,
 * that the cache had. `cached_look_ups` is the part of look-ups that it served. `hot_look_ups` is
 * the part of look-ups that go to the hottest rows, as many as the cache has bytes for: what the
 * best fixed set of rows would serve. */
#include <math.h>

#include "stepper.h"
#include "weft/plan.h"

typedef struct bench {
    weft_session *session;
    double *share; /* [rows]: of look-ups, of this row and all hotter ones */
    int64_t rows, count;
    int32_t *ids; /* [count] */
    uint64_t state;
    bool cpu;
    int64_t looked_up, hot; /* look-ups, and those of the `slots` hottest rows */
    int64_t slots;          /* rows, with their two states, that the cache has bytes for */
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
    for (int64_t i = 0; i < b->count; i++) {
        const int64_t rank = rank_of(b, draw(b));
        b->hot += rank < b->slots;
        b->ids[i] = (int32_t)((uint64_t)rank * 2654435761u % (uint64_t)b->rows);
    }
    b->looked_up += b->count;
}

static double step(void *context) {
    bench *b = context;
    draw_ids(b);
    const double start = stepper_now(), cpu = stepper_cpu();
    stepper_check(weft_session_feed(b->session, 0, "ids", b->ids, (size_t)b->count * 4));
    stepper_check(weft_session_step(b->session, 0.01, NULL));
    return b->cpu ? stepper_cpu() - cpu : stepper_now() - start;
}

static void make_law(bench *b) {
    double all = 0;
    b->share = malloc((size_t)b->rows * sizeof *b->share);
    b->ids = malloc((size_t)b->count * sizeof *b->ids);
    if (!b->share || !b->ids) exit(1);
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

int main(int argc, char **argv) {
    int64_t dim = 32, batch = 2048, ids = 26, cache = 0;
    weft_session_options o = weft_session_defaults();
    static stepper s = {.step = step, .steps = 30, .warmup = 30};
    bench b = {.rows = 10000000, .state = 1};
    weft_plan *plan = NULL;
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
                                      {"--cpu", STEPPER_FLAG, &b.cpu},
                                      {NULL, STEPPER_FLAG, NULL}};
    if (!stepper_read(&s, options, argc, argv)) return 2;
    b.count = batch * ids;
    b.slots = cache / (3 * dim * 4);
    make_law(&b);
    weft_graph *g = graph_of(b.rows, dim, batch, ids);
    if (o.disk) o.plan = plan = plan_of(cache);
    stepper_check(weft_session_create(g, &o, &b.session));
    s.context = &b;
    s.session = b.session;
    stepper_drive(&s);
    const weft_session_memory m = weft_session_memory_of(b.session);
    const int64_t read = m.cache_hits + m.cache_misses;
    char facts[512];
    snprintf(facts, sizeof facts,
             "\"rows\": %lld, \"dim\": %lld, \"batch\": %lld, \"ids\": %lld, \"host_bytes\": %lld, "
             "\"disk_bytes\": %lld, \"rows_hit\": %lld, \"rows_missed\": %lld, \"rows_written\": "
             "%lld, \"cached_rows\": %.4f, \"cached_look_ups\": %.4f, \"hot_look_ups\": %.4f,",
             (long long)b.rows, (long long)dim, (long long)batch, (long long)ids,
             (long long)m.host_bytes, (long long)m.disk_bytes, (long long)m.cache_hits,
             (long long)m.cache_misses, (long long)m.cache_written,
             (double)m.cache_hits / (double)(read ? read : 1),
             (double)m.cache_look_ups_hit / (double)(m.cache_look_ups ? m.cache_look_ups : 1),
             (double)b.hot / (double)(b.looked_up ? b.looked_up : 1));
    stepper_report(&s, facts, "samples_per_second", (double)batch, m);
    weft_session_destroy(b.session);
    weft_graph_destroy(g);
    weft_plan_destroy(plan);
    free(b.share);
    free(b.ids);
    return 0;
}
