/* Times of kernels and transfers: see profile.h. */
#include "exec/profile.h"

#include <time.h>

#include "base/clock.h"
#include "exec/rank_device.h"

/* Sums of the step that is running. */
typedef struct profile_sum {
    int64_t ns, processor, under_way, calls;
} profile_sum;

struct wefti_profile {
    const wefti_program *program;
    int32_t *base[WEFTI_SECTIONS];  /* [steps of the section]: entry of the step's routine; -1: no
                                       call */
    const wefti_instruction **code; /* [kernels] */
    const wefti_step **copies;      /* [moves]: a step that posts it; NULL: it is a transfer */
    int32_t kernels, transfers, moves; /* entries of each, in this order */
    profile_sum *now;                  /* [entries] */
    float *ring;                       /* [WEFTI_PROFILE_STEPS][entries]: seconds */
    float *processor;                  /* alike: of these, on a processor */
    float *under_way;                  /* [WEFTI_PROFILE_STEPS][transfers] */
    bool one_thread;                   /* the device computes in the thread that reads the clocks */
    int64_t *calls;                    /* [entries], of all steps */
    int64_t steps;                     /* that have ended */
};

void wefti_profile_destroy(wefti_profile *p) {
    if (!p) return;
    for (int s = 0; s < WEFTI_SECTIONS; s++) wefti_free(p->base[s]);
    wefti_free(p->code);
    wefti_free(p->copies);
    wefti_free(p->now);
    wefti_free(p->ring);
    wefti_free(p->processor);
    wefti_free(p->under_way);
    wefti_free(p->calls);
    wefti_free(p);
}

static int32_t find_routine(const wefti_program *program, const wefti_routine *routine) {
    int32_t at = 0;
    while (at < program->routine_count && program->routines[at] != routine) at++;
    return at;
}

static weft_status find_bases(wefti_profile *p) {
    const wefti_program *program = p->program;
    int32_t *first;
    weft_status status = WEFT_OK;
    WEFT_NEW_ARRAY(first, int32_t, program->routine_count + 1);
    for (int32_t r = 0; r < program->routine_count; r++)
        first[r + 1] = first[r] + program->routines[r]->code_count;
    for (int s = 0; s < WEFTI_SECTIONS && status >= 0; s++) {
        p->base[s] = wefti_calloc((size_t)program->step_count[s] + 1, sizeof *p->base[s]);
        if (!p->base[s]) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to measure steps");
        for (int32_t i = 0; i < program->step_count[s] && status >= 0; i++) {
            const wefti_step *step = &program->steps[s][i];
            const int32_t r = step->kind == WEFTI_STEP_CALL ? find_routine(program, step->routine)
                                                            : program->routine_count;
            p->base[s][i] = r < program->routine_count ? first[r] : -1;
        }
    }
    wefti_free(first);
    return status;
}

static void find_copies(wefti_profile *p) {
    const wefti_program *program = p->program;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t i = 0; i < program->step_count[s]; i++) {
            const wefti_step *step = &program->steps[s][i];
            if (step->kind == WEFTI_STEP_POST && wefti_step_copy(program, step))
                p->copies[step->move] = step;
        }
}

static int32_t entries_of(const wefti_profile *p) {
    return p->kernels + p->transfers + p->moves;
}

static weft_status fill(wefti_profile *p) {
    const wefti_program *program = p->program;
    for (int32_t r = 0; r < program->routine_count; r++)
        p->kernels += program->routines[r]->code_count;
    p->transfers = program->partition ? wefti_partition_transfers(program->partition) : 0;
    p->moves = program->move_count;
    const size_t entries = (size_t)entries_of(p) + 1;
    p->copies = wefti_calloc((size_t)p->moves + 1, sizeof *p->copies);
    p->code = wefti_calloc((size_t)p->kernels + 1, sizeof *p->code);
    p->now = wefti_calloc(entries, sizeof *p->now);
    p->ring = wefti_calloc(entries * WEFTI_PROFILE_STEPS, sizeof *p->ring);
    p->processor = wefti_calloc(entries * WEFTI_PROFILE_STEPS, sizeof *p->processor);
    p->under_way =
        wefti_calloc(((size_t)p->transfers + 1) * WEFTI_PROFILE_STEPS, sizeof *p->under_way);
    p->calls = wefti_calloc(entries, sizeof *p->calls);
    WEFT_REQUIRE(p->code && p->copies && p->now && p->ring && p->processor && p->under_way &&
                     p->calls,
                 WEFT_E_NOMEM, "no memory to measure steps of %d kernels", p->kernels);
    int32_t at = 0;
    for (int32_t r = 0; r < program->routine_count; r++)
        for (int32_t k = 0; k < program->routines[r]->code_count; k++)
            p->code[at++] = &program->routines[r]->code[k];
    find_copies(p);
    return find_bases(p);
}

weft_status wefti_profile_create(const wefti_program *program, wefti_profile **out) {
    wefti_profile *p;
    WEFT_NEW(p, wefti_profile);
    p->program = program;
    weft_status status = fill(p);
    if (status < 0) {
        wefti_profile_destroy(p);
        return status;
    }
    *out = p;
    return WEFT_OK;
}

void wefti_rank_device_profile(wefti_rank_device *device, wefti_profile *profile) {
    device->profile = profile;
    if (profile) profile->one_thread = wefti_pool_threads(device->pool) == 1;
}

/* ---- adding ---- */

bool wefti_profile_is_of(const wefti_profile *p, const wefti_program *program) {
    return p && p->program == program;
}

int32_t wefti_profile_routine(const wefti_profile *p, wefti_section section, int32_t step) {
    return p->base[section][step];
}

wefti_profile_moment wefti_profile_now(const wefti_profile *p) {
    struct timespec t = {0, 0};
    if (p->one_thread) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (wefti_profile_moment){wefti_now_ns(), (int64_t)t.tv_sec * 1000000000 + t.tv_nsec};
}

/* Returns when the part ended. */
static int64_t add_part(const wefti_profile *p, profile_sum *sum, wefti_profile_moment begin) {
    const wefti_profile_moment end = wefti_profile_now(p);
    sum->ns += end.ns - begin.ns;
    sum->processor += end.processor - begin.processor;
    return end.ns;
}

void wefti_profile_add(wefti_profile *p, int32_t entry, wefti_profile_moment begin) {
    (void)add_part(p, &p->now[entry], begin);
    p->now[entry].calls++;
}

void wefti_profile_add_transfer(wefti_profile *p, int32_t transfer, wefti_profile_moment begin,
                                int64_t posted) {
    profile_sum *sum = &p->now[p->kernels + transfer];
    const int64_t end = add_part(p, sum, begin);
    if (posted == 0) return;
    sum->under_way += end - posted;
    sum->calls++;
}

void wefti_profile_add_copy(wefti_profile *p, int32_t move, wefti_profile_moment begin, bool ends) {
    profile_sum *sum = &p->now[p->kernels + p->transfers + move];
    (void)add_part(p, sum, begin);
    sum->calls += ends;
}

void wefti_profile_end_step(wefti_profile *p) {
    const int32_t entries = entries_of(p);
    const int64_t row = p->steps;
    if (row == WEFTI_PROFILE_STEPS) return;
    for (int32_t i = 0; i < entries; i++) {
        p->ring[row * entries + i] = (float)((double)p->now[i].ns * 1e-9);
        p->processor[row * entries + i] = (float)((double)p->now[i].processor * 1e-9);
        if (i >= p->kernels && i < p->kernels + p->transfers)
            p->under_way[row * p->transfers + i - p->kernels] =
                (float)((double)p->now[i].under_way * 1e-9);
        p->calls[i] += p->now[i].calls;
        p->now[i] = (profile_sum){0};
    }
    p->steps++;
}

/* ---- reading ---- */

const wefti_program *wefti_profile_program(const wefti_profile *p) {
    return p->program;
}

int64_t wefti_profile_steps(const wefti_profile *p) {
    return p->steps;
}

int32_t wefti_profile_entries(const wefti_profile *p) {
    return entries_of(p);
}

/* The mean of a column over chosen rows. */
static double mean(const float *rows, int32_t width, int32_t column, uint64_t steps,
                   int64_t count) {
    double sum = 0;
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!(steps >> i & 1)) continue;
        sum += rows[i * width + column];
        used++;
    }
    return used ? sum / (double)used : 0;
}

void wefti_profile_entry(const wefti_profile *p, uint64_t steps, int32_t index,
                         wefti_profile_time *out) {
    const int64_t count = wefti_profile_steps(p);
    const int32_t transfer = index - p->kernels;
    const int32_t width = entries_of(p);
    *out = (wefti_profile_time){.seconds = mean(p->ring, width, index, steps, count),
                                .processor = mean(p->processor, width, index, steps, count),
                                .calls = p->steps ? (double)p->calls[index] / (double)p->steps : 0};
    if (transfer < 0) {
        out->x = p->code[index];
        return;
    }
    if (transfer >= p->transfers) {
        out->copy = p->copies[transfer - p->transfers];
        return;
    }
    out->transfer = wefti_partition_transfer(p->program->partition, transfer);
    out->under_way = mean(p->under_way, p->transfers, transfer, steps, count);
}
