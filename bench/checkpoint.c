/* The cost of a checkpoint for a training run: the trainer's wait, the slowdown of steps beside the
 * write, and the rate of the bytes, plain and encrypted. The program also measures checksums and
 * verified reading.
 *
 * Usage: bench/checkpoint [DIR [NICE [THREADS]]]. DIR defaults to a fresh folder under the current
 * one.
 *
 * The workload has the size of GPT-2 124M: 148 parameters with two tensors of AdamW state each (1.5
 * GB). A step is a compute phase of arithmetic on all threads, then an update that streams over
 * every tensor in order. It takes about 2 s. Steps with and without a checkpoint alternate. Figures
 * are medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/pool.h"
#include "checkpoint/checkpoint.h"

enum { PARAMETERS = 148, STATES = 3, TENSORS = PARAMETERS * STATES, ROUNDS = 5, BLOCK = 1 << 14 };

typedef struct workload {
    wefti_pool *pool;
    wefti_checkpoint_tensor tensors[TENSORS];
    char names[TENSORS][32];
    float *values[TENSORS];
    int64_t elements[PARAMETERS];
    int64_t tasks; /* of the compute phase */
    int64_t bytes;
} workload;

/* Sizes as in GPT-2 small: two embeddings, then per block four matrices and eight vectors, then the
 * last norm. */
static int64_t elements_of(int parameter) {
    static const int64_t block[12] = {768, 768, 768 * 2304, 2304, 768 * 768,  768,
                                      768, 768, 768 * 3072, 3072, 3072 * 768, 768};
    if (parameter == 0) return 50257 * 768;
    if (parameter == 1) return 1024 * 768;
    return parameter < 146 ? block[(parameter - 2) % 12] : 768;
}

static void must(weft_status status, const char *what) {
    if (status >= 0) return;
    fprintf(stderr, "%s: %s\n", what, weft_error_message());
    exit(1);
}

static void compute_task(void *context, int64_t task, int thread) {
    (void)context, (void)thread;
    enum { LANES = 256 };
    float x[LANES];
    for (int i = 0; i < LANES; i++) x[i] = (float)(task % 7 + i);
    for (int round = 0; round < 20000; round++)
        for (int i = 0; i < LANES; i++) x[i] = x[i] * 0.999f + 0.5f;
    volatile float sink = x[task % LANES];
    (void)sink;
}

typedef struct update {
    float *value, *m, *v;
    int64_t elements;
} update;

static void update_task(void *context, int64_t task, int thread) {
    (void)thread;
    const update *u = context;
    int64_t end = (task + 1) * BLOCK < u->elements ? (task + 1) * BLOCK : u->elements;
    for (int64_t i = task * BLOCK; i < end; i++) {
        u->m[i] = 0.9f * u->m[i] + 0.001f;
        u->v[i] = 0.99f * u->v[i] + 0.0001f;
        u->value[i] -= 0.001f * u->m[i] + 0.0001f * u->v[i];
    }
}

/* One step; `job` may be NULL. Returns seconds. */
static double run_step(workload *w, wefti_checkpoint_job *job) {
    double start = wefti_now_s();
    wefti_pool_run(w->pool, w->tasks, compute_task, NULL);
    for (int p = 0; p < PARAMETERS; p++) {
        for (int s = 0; s < STATES; s++) wefti_checkpoint_wait_tensor(job, p * STATES + s);
        update u = {w->values[p * STATES], w->values[p * STATES + 1], w->values[p * STATES + 2],
                    w->elements[p]};
        wefti_pool_run(w->pool, (u.elements + BLOCK - 1) / BLOCK, update_task, &u);
    }
    return wefti_now_s() - start;
}

static void prepare(workload *w, int threads) {
    memset(w, 0, sizeof *w);
    must(wefti_pool_create(threads, &w->pool), "pool");
    for (int t = 0; t < TENSORS; t++) {
        int p = t / STATES;
        w->elements[p] = elements_of(p);
        w->values[t] = malloc((size_t)w->elements[p] * sizeof(float));
        if (!w->values[t]) exit(1);
        for (int64_t i = 0; i < w->elements[p]; i++) w->values[t][i] = (float)i * 1e-6f;
        snprintf(w->names[t], sizeof w->names[t], "parameter.%d.%d", p, t % STATES);
        w->tensors[t] = (wefti_checkpoint_tensor){.name = w->names[t],
                                                  .role = t % STATES ? WEFTI_CHECKPOINT_OPTIMIZER
                                                                     : WEFTI_CHECKPOINT_MODEL,
                                                  .desc = {WEFT_F32, 1, {w->elements[p]}},
                                                  .data = w->values[t]};
        w->bytes += w->elements[p] * (int64_t)sizeof(float);
    }
    double start = wefti_now_s();
    wefti_pool_run(w->pool, 20 * threads, compute_task, NULL);
    w->tasks = (int64_t)(1.8 / ((wefti_now_s() - start) / (20 * threads)));
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, compare_doubles);
    return values[ROUNDS / 2];
}

static void measure_checksum(const workload *w) {
    double start = wefti_now_s();
    uint32_t crc = 0;
    for (int t = 0; t < TENSORS; t++)
        crc ^= wefti_crc32c(0, w->values[t], (size_t)w->elements[t / STATES] * sizeof(float));
    double seconds = wefti_now_s() - start;
    printf("checksum of all tensors      %7.3f s   %8.0f MB/s   (%08x)\n", seconds,
           (double)w->bytes * 1e-6 / seconds, crc);
}

/* Seconds of each round. */
typedef struct rounds {
    double plain[ROUNDS];  /* a step without a checkpoint */
    double beside[ROUNDS]; /* one beside it */
    double after[ROUNDS];  /* the next one: the disk is busy yet, and the older step is deleted */
    double waited[ROUNDS], started[ROUNDS], committed[ROUNDS], opened[ROUNDS];
} rounds;

static void run_round(workload *w, const char *dir, const wefti_checkpoint_options *options,
                      int64_t step, rounds *out, int r) {
    out->plain[r] = run_step(w, NULL);
    wefti_checkpoint_meta meta = {.step = step, .optimizer = "adamw"};
    wefti_checkpoint_job *job = NULL;
    double start = wefti_now_s();
    must(wefti_checkpoint_begin(dir, &meta, w->tensors, TENSORS, options, &job), "begin");
    out->started[r] = wefti_now_s() - start;
    out->beside[r] = run_step(w, job) + out->started[r];
    out->waited[r] = (double)wefti_checkpoint_waited_ns(job) * 1e-9;
    out->after[r] = run_step(w, NULL);
    must(wefti_checkpoint_finish(job, NULL), "finish");
    out->committed[r] = wefti_now_s() - start;
    start = wefti_now_s();
    wefti_checkpoint *c = NULL;
    must(wefti_checkpoint_open(dir, WEFTI_CHECKPOINT_LATEST, &c, NULL), "open");
    out->opened[r] = wefti_now_s() - start;
    wefti_checkpoint_close(c);
}

static void print_rounds(const workload *w, const char *what, rounds *x) {
    double step = median(x->plain), with = median(x->beside), next = median(x->after);
    double stall = median(x->waited) + median(x->started), whole = median(x->committed);
    double opening = median(x->opened), extra = with + next - 2 * step;
    double megabytes = (double)w->bytes * 1e-6;
    printf("%s\n", what);
    printf("  step without a checkpoint  %7.3f s\n", step);
    printf("  step beside a checkpoint   %7.3f s   %+7.2f %%\n", with, 100 * (with / step - 1));
    printf("  step after it              %7.3f s   %+7.2f %%\n", next, 100 * (next / step - 1));
    printf("  trainer waits              %7.3f s   %7.2f %% of a step\n", stall,
           100 * stall / step);
    printf("  until committed and pruned %7.3f s   %8.0f MB/s\n", whole, megabytes / whole);
    printf("  open with verification     %7.3f s   %8.0f MB/s\n", opening, megabytes / opening);
    printf("  cost at one in 20 steps                %7.2f %%\n", 100 * extra / (20 * step));
}

/* False: this build encrypts nothing. */
static bool make_key(wefti_key *out) {
    char digits[2 * WEFTI_KEY_BYTES + 1];
    memset(digits, '5', sizeof digits - 1);
    digits[sizeof digits - 1] = 0;
    if (setenv("BENCH_CHECKPOINT_KEY", digits, 1)) exit(1);
    weft_status status = wefti_key_read("env:BENCH_CHECKPOINT_KEY", out);
    if (status == WEFT_E_NO_IMPL) return false;
    must(status, "key");
    must(wefti_key_keep(out), "key");
    return true;
}

/* Plain and encrypted checkpoints, in turns. */
static void measure_steps(workload *w, const char *dir, int nice) {
    static rounds plain, encrypted;
    wefti_key key;
    const bool has_key = make_key(&key);
    const wefti_checkpoint_options in_plain = {.keep = 1, .nice = nice},
                                   in_cipher = {.keep = 1, .nice = nice, .key = &key};
    (void)run_step(w, NULL);
    for (int r = 0; r < ROUNDS; r++) {
        run_round(w, dir, &in_plain, 2 * r, &plain, r);
        if (has_key) run_round(w, dir, &in_cipher, 2 * r + 1, &encrypted, r);
    }
    print_rounds(w, "plain files", &plain);
    if (has_key) print_rounds(w, "encrypted files", &encrypted);
}

int main(int argc, char **argv) {
    int nice = argc > 2 ? atoi(argv[2]) : 0;
    int threads = argc > 3 ? atoi(argv[3]) : wefti_cores();
    char fresh[64];
    snprintf(fresh, sizeof fresh, "bench-checkpoint.%ld", (long)getpid());
    const char *dir = argc > 1 ? argv[1] : fresh;
    workload *w = malloc(sizeof *w);
    if (!w) return 1;
    wefti_checkpoint_lock *lock = NULL;
    must(wefti_checkpoint_lock_open(dir, &lock), "lock");
    prepare(w, threads);
    printf("%d tensors, %.0f MB, %d threads, nice %d\n", TENSORS, (double)w->bytes * 1e-6, threads,
           nice);
    measure_checksum(w);
    measure_steps(w, dir, nice);
    wefti_checkpoint_lock_close(lock);
    if (argc < 2) must(wefti_remove_tree(dir), "clean");
    for (int t = 0; t < TENSORS; t++) free(w->values[t]);
    wefti_pool_destroy(w->pool);
    free(w);
    return 0;
}
