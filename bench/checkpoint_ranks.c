/* Checkpoints of several processes: the rates of saving and restoring, divided by the disk's own
 * rates, and the memory that a rank needs beside its share.
 *
 * Usage: bench/checkpoint_ranks [RANKS [DIR [rows]]]. 4 ranks and a fresh folder under the current
 * one are the defaults.
 *
 * The state has the size of GPT-2 124M with AdamW (1.5 GB). Half of the tensors are split by rows,
 * half by columns, as tensor parallelism does; with `rows` all but short ones by rows. The disk's
 * rates are those of processes that do nothing but write files of the same total size with
 * O_DIRECT, and read them with an empty page cache. Both take turns with the checkpoints. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bulk.h"
#include "base/clock.h"
#include "base/digest/digest.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/step_dir.h"
#include "layout/runs.h"

enum { LAYERS = 12, MOST_TENSORS = 3 * (2 + 12 * LAYERS + 2), MOST_BENCH_RANKS = 16, ROUNDS = 5 };

typedef struct state {
    int count, ranks, me;
    bool rows; /* no columns */
    char names[MOST_TENSORS][40];
    weft_desc descs[MOST_TENSORS];
    wefti_checkpoint_piece pieces[MOST_TENSORS];
    wefti_checkpoint_tensor tensors[MOST_TENSORS];
    float *memory;           /* this rank's pieces */
    wefti_arena_block block; /* and where their homes find them */
    wefti_device_arena arena;
    int64_t bytes, own_bytes;
} state;

/* What the processes share. */
typedef struct shared {
    pthread_barrier_t barrier;
    uint64_t number;
    int64_t bytes[MOST_BENCH_RANKS], rss[MOST_BENCH_RANKS];
    uint32_t sums[MOST_BENCH_RANKS][MOST_TENSORS];
} shared;

static void must(weft_status status, const char *what) {
    if (status >= 0) return;
    fprintf(stderr, "%s: %s\n", what, weft_error_message());
    exit(1);
}

static void meet(shared *x) {
    (void)pthread_barrier_wait(&x->barrier);
}

static void add(state *s, const char *name, int64_t rows, int64_t columns) {
    static const char *const words[] = {"", ".m", ".v"};
    for (int k = 0; k < 3; k++) {
        int i = s->count++;
        snprintf(s->names[i], sizeof s->names[i], "%s%s", name, words[k]);
        s->descs[i] = (weft_desc){WEFT_F32, 2, {rows, columns}};
        s->bytes += weft_desc_bytes(&s->descs[i]);
    }
}

static void list_tensors(state *s) {
    static const int64_t shapes[12][2] = {{1, 768},    {1, 768},  {768, 2304}, {1, 2304},
                                          {768, 768},  {1, 768},  {1, 768},    {1, 768},
                                          {768, 3072}, {1, 3072}, {3072, 768}, {1, 768}};
    char name[40];
    add(s, "wte", 50257, 768);
    add(s, "wpe", 1024, 768);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 12; i++) {
            snprintf(name, sizeof name, "h.%d.%d", l, i);
            add(s, name, shapes[i][0], shapes[i][1]);
        }
    add(s, "ln_f", 1, 768);
    add(s, "ln_b", 1, 768);
}

/* This rank's piece of each tensor: rows, but columns of every other matrix and of short tensors.
 */
static void cut(state *s) {
    int64_t used = 0;
    for (int pass = 0; pass < 2; pass++) {
        int matrices = 0;
        for (int i = 0; i < s->count; i++) {
            weft_desc *d = &s->descs[i];
            wefti_region box = {{0, 0}, {d->shape[0], d->shape[1]}};
            if (i % 3 == 0) matrices += d->shape[0] > 1;
            int split = d->shape[0] < s->ranks || (matrices % 2 == 0 && !s->rows);
            wefti_part(d->shape[split], 1, s->ranks, s->me, &box.begin[split], &box.size[split]);
            if (pass == 1) {
                const int64_t bytes = wefti_region_elems(&box, 2) * (int64_t)sizeof(float);
                s->pieces[i] = (wefti_checkpoint_piece){
                    box, {NULL, WEFTI_SPACE_HOST, &s->arena, used * (int64_t)sizeof(float), bytes}};
                s->tensors[i] = (wefti_checkpoint_tensor){.name = s->names[i],
                                                          .role = i % 3 ? WEFTI_CHECKPOINT_OPTIMIZER
                                                                        : WEFTI_CHECKPOINT_MODEL,
                                                          .desc = *d,
                                                          .pieces = &s->pieces[i],
                                                          .piece_count = 1,
                                                          .whole = *d};
            }
            used += wefti_region_elems(&box, 2);
        }
        if (pass == 1) break;
        s->own_bytes = used * (int64_t)sizeof(float);
        s->memory = malloc((size_t)s->own_bytes);
        if (!s->memory) exit(1);
        s->block =
            (wefti_arena_block){.memory = (unsigned char *)s->memory, .mapped = s->own_bytes};
        s->arena = (wefti_device_arena){.blocks = &s->block, .count = 1, .bytes = s->own_bytes};
        for (int64_t k = 0; k < used; k++) s->memory[k] = (float)(k % 1000003) * 1e-6f;
        used = 0;
    }
}

/* ---- a checkpoint ---- */

static double save(state *s, shared *x, const char *dir, int64_t step) {
    wefti_checkpoint_meta meta = {.step = step, .optimizer = "adamw"};
    wefti_checkpoint_options options = {
        .keep = 1, .duty = s->me ? WEFTI_CHECKPOINT_JOINS : WEFTI_CHECKPOINT_LEADS};
    wefti_checkpoint_job *job;
    uint32_t sums[MOST_TENSORS] = {0};
    int64_t bytes = 0;
    meet(x);
    double start = wefti_now_s();
    if (s->me == 0) {
        must(wefti_checkpoint_prepare(dir, step, &x->number), "prepare");
        must(wefti_checkpoint_begin(dir, &meta, s->tensors, s->count, &options, &job), "begin");
    }
    meet(x);
    if (s->me && !wefti_checkpoint_sees(dir, step, x->number)) exit(1);
    if (s->me)
        must(wefti_checkpoint_begin(dir, &meta, s->tensors, s->count, &options, &job), "begin");
    wefti_checkpoint_wait_written(job);
    must(wefti_checkpoint_written(job), "write");
    const uint32_t *own = wefti_checkpoint_sums(job, &x->bytes[s->me]);
    memcpy(x->sums[s->me], own, (size_t)s->count * sizeof *own);
    meet(x);
    for (int r = 0; r < s->ranks; r++) {
        bytes += x->bytes[r];
        for (int i = 0; i < s->count; i++) sums[i] ^= x->sums[r][i];
    }
    if (s->me == 0) wefti_checkpoint_complete(job, sums, bytes);
    must(wefti_checkpoint_finish(job, NULL), "finish");
    meet(x);
    return wefti_now_s() - start;
}

enum { HINT_BYTES = 32 << 20 };

static void read_piece(wefti_checkpoint_part *part, const weft_desc *whole,
                       const wefti_checkpoint_piece *piece) {
    char *to = wefti_home_memory(&piece->home);
    wefti_piece_blocks b =
        wefti_piece_blocks_of(whole, &piece->box, 0, weft_desc_elems(whole), 1 << 18);
    while (wefti_piece_blocks_next(&b)) {
        wefti_region_runs run = wefti_region_runs_of(whole, &b.block);
        while (wefti_region_runs_next(&run))
            must(wefti_checkpoint_part_read(part, run.at, run.count, to + (b.here + run.here) * 4),
                 "read");
    }
}

static double restore(state *s, shared *x, const char *dir) {
    wefti_checkpoint_part *part;
    wefti_checkpoint *c;
    int64_t ahead = 0;
    meet(x);
    double start = wefti_now_s();
    must(wefti_checkpoint_open_unread(dir, INT64_MAX, &c, NULL), "open");
    must(wefti_checkpoint_part_create(&part), "read");
    for (int i = 0, h = 0; i < s->count; i++) {
        const wefti_checkpoint_entry *e = wefti_checkpoint_find(c, s->tensors[i].role, s->names[i]);
        for (; h < s->count && ahead < HINT_BYTES; h++) {
            const wefti_checkpoint_entry *n =
                wefti_checkpoint_find(c, s->tensors[h].role, s->names[h]);
            wefti_checkpoint_soon(n, &n->desc, 0, &s->pieces[h].box);
            ahead += n->bytes;
        }
        wefti_checkpoint_part_begin(part, e);
        read_piece(part, &s->descs[i], &s->pieces[i]);
        x->sums[s->me][i] = wefti_checkpoint_part_sum(part);
        ahead -= e->bytes;
    }
    wefti_checkpoint_part_destroy(part);
    meet(x);
    for (int i = 0; i < s->count; i++) {
        uint32_t sum = 0;
        const wefti_checkpoint_entry *e = wefti_checkpoint_find(c, s->tensors[i].role, s->names[i]);
        for (int r = 0; r < s->ranks; r++) sum ^= x->sums[r][i];
        if (wefti_crc32c_of_sums(sum, e->bytes) != e->crc32c) {
            fprintf(stderr, "%s is damaged\n", s->names[i]);
            exit(1);
        }
    }
    wefti_checkpoint_close(c);
    meet(x);
    return wefti_now_s() - start;
}

/* ---- the disk alone ---- */

static double write_plain(state *s, shared *x, const char *dir) {
    char path[300];
    wefti_bulk *file;
    snprintf(path, sizeof path, "%s/plain.%d", dir, s->me);
    (void)unlink(path);
    meet(x);
    double start = wefti_now_s();
    must(wefti_bulk_open(path, s->own_bytes, &file), "open");
    must(wefti_bulk_write(file, s->memory, (size_t)s->own_bytes), "write");
    must(wefti_bulk_commit(file), "sync");
    meet(x);
    return wefti_now_s() - start;
}

static void forget(const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) return;
    (void)fsync(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static double read_plain(state *s, shared *x, const char *dir) {
    char path[300];
    snprintf(path, sizeof path, "%s/plain.%d", dir, s->me);
    forget(path);
    int fd = open(path, O_RDONLY);
    if (fd < 0) exit(1);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    meet(x);
    double start = wefti_now_s();
    for (int64_t at = 0; at < s->own_bytes;) {
        int64_t left = s->own_bytes - at;
        ssize_t n =
            pread(fd, (char *)s->memory + at, left < 1 << 20 ? (size_t)left : 1 << 20, (off_t)at);
        if (n <= 0) exit(1);
        at += n;
    }
    meet(x);
    double seconds = wefti_now_s() - start;
    close(fd);
    return seconds;
}

/* Empties the page cache of a step's files. */
static void forget_step(const char *dir, int64_t step) {
    char **names, *step_path;
    int64_t count;
    must(wefti_step_path(dir, WEFTI_STEP_COMMITTED, step, &step_path), "path");
    must(wefti_dir_list(step_path, &names, &count), "list");
    for (int64_t i = 0; i < count; i++) {
        char *path = wefti_format("%s/%s", step_path, names[i]);
        forget(path);
        wefti_free(path);
    }
    wefti_free(names);
    wefti_free(step_path);
}

/* ---- rounds ---- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *values) {
    double sorted[ROUNDS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof *sorted, compare_doubles);
    return sorted[ROUNDS / 2];
}

/* The disk's rate may drift, so the ratio is the median of the rounds' own ratios. */
static void print_rates(const char *what, double mb, const double *seconds, const double *disk) {
    double ratios[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) ratios[k] = disk[k] / seconds[k];
    printf("%-8s %7.3f s %6.0f MB/s   the disk alone %7.3f s %6.0f MB/s   ratio %.2f (", what,
           median(seconds), mb / median(seconds), median(disk), mb / median(disk), median(ratios));
    for (int k = 0; k < ROUNDS; k++) printf("%s%.2f", k ? " " : "", ratios[k]);
    printf(")\n");
}

static void run_rank(int me, int ranks, bool rows, shared *x, const char *dir) {
    state *s = calloc(1, sizeof *s);
    double saves[ROUNDS], restores[ROUNDS], writes[ROUNDS], reads[ROUNDS];
    struct rusage usage;
    if (!s) exit(1);
    s->me = me;
    s->ranks = ranks;
    s->rows = rows;
    list_tensors(s);
    cut(s);
    for (int r = 0; r < ROUNDS; r++) {
        writes[r] = write_plain(s, x, dir);
        saves[r] = save(s, x, dir, r);
        reads[r] = read_plain(s, x, dir);
        if (me == 0) forget_step(dir, r);
        restores[r] = restore(s, x, dir);
    }
    getrusage(RUSAGE_SELF, &usage);
    x->rss[me] = usage.ru_maxrss * 1024 - s->own_bytes;
    meet(x);
    if (me == 0) {
        double mb = (double)s->bytes * 1e-6;
        int64_t most = 0;
        for (int k = 0; k < ranks; k++) most = x->rss[k] > most ? x->rss[k] : most;
        printf("%d ranks, %d tensors, %.0f MB\n", ranks, s->count, mb);
        print_rates("save", mb, saves, writes);
        print_rates("restore", mb, restores, reads);
        printf("a rank needs at most %.1f MiB beside its share\n", (double)most / 1048576);
    }
    free(s->memory);
    free(s);
}

int main(int argc, char **argv) {
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    char fresh[64];
    snprintf(fresh, sizeof fresh, "bench-checkpoint.%ld", (long)getpid());
    const char *dir = argc > 2 ? argv[2] : fresh;
    shared *x = mmap(NULL, sizeof *x, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    wefti_checkpoint_lock *lock = NULL;
    if (ranks < 1 || ranks > MOST_BENCH_RANKS || x == MAP_FAILED) return 2;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&x->barrier, &attributes, (unsigned)ranks);
    must(wefti_checkpoint_lock_open(dir, &lock), "lock");
    for (int r = 0; r < ranks; r++)
        if (fork() == 0) {
            run_rank(r, ranks, argc > 3 && !strcmp(argv[3], "rows"), x, dir);
            fflush(stdout);
            _exit(0);
        }
    int failed = 0, status;
    for (int r = 0; r < ranks; r++) failed |= wait(&status) < 0 || status != 0;
    wefti_checkpoint_lock_close(lock);
    if (argc < 3) must(wefti_remove_tree(dir), "clean");
    return failed;
}
