/* The verdict on a run: a pure function of what was measured. Each sentence has the figure that it
 * follows from. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "train/record/compare.h"

const char *weft_audit_cause_text(weft_audit_cause cause) {
    static const char *const names[WEFT_AUDIT_CAUSES] = {[WEFT_AUDIT_COMPUTE] = "compute",
                                                         [WEFT_AUDIT_OVERHEAD] =
                                                             "outside of kernels",
                                                         [WEFT_AUDIT_TRANSFERS] = "transfers",
                                                         [WEFT_AUDIT_PIPELINE] = "pipeline bubble",
                                                         [WEFT_AUDIT_COPIES] = "copies",
                                                         [WEFT_AUDIT_DATA] = "data",
                                                         [WEFT_AUDIT_CHECKPOINTS] = "checkpoints",
                                                         [WEFT_AUDIT_VALIDATION] = "validation",
                                                         [WEFT_AUDIT_START] = "start",
                                                         [WEFT_AUDIT_OTHER] = "other"};
    return cause >= 0 && cause < WEFT_AUDIT_CAUSES ? names[cause] : "?";
}

/* A rank counts as slow from this on: kernels differ by less between equal cores. */
static const double slow_from = 1.1, slow_part_of_step = 0.02;
/* A cause gets advice from this share on; the dominant one always does. */
static const double advice_from = 0.1;
enum { ADVICE_MOST = 4 };

typedef struct judgement {
    const wefti_run_record_side *m;
    wefti_arena *arena;
    weft_audit_verdict *out;
    weft_audit_advice *advice;
} judgement;

/* ---- where the time goes ---- */

static const weft_audit_cause cause_of[WEFT_TRAIN_PARTS] = {
    [WEFT_TRAIN_PART_START] = WEFT_AUDIT_START,
    [WEFT_TRAIN_PART_JOINING] = WEFT_AUDIT_START,
    [WEFT_TRAIN_PART_OPENING] = WEFT_AUDIT_START,
    [WEFT_TRAIN_PART_BUILDING] = WEFT_AUDIT_START,
    [WEFT_TRAIN_PART_LOADING] = WEFT_AUDIT_START,
    [WEFT_TRAIN_PART_DATA] = WEFT_AUDIT_DATA,
    [WEFT_TRAIN_PART_STEPS] = WEFT_AUDIT_COMPUTE,
    [WEFT_TRAIN_PART_WAITING] = WEFT_AUDIT_TRANSFERS,
    [WEFT_TRAIN_PART_VALIDATION] = WEFT_AUDIT_VALIDATION,
    [WEFT_TRAIN_PART_CHECKPOINTS] = WEFT_AUDIT_CHECKPOINTS,
    [WEFT_TRAIN_PART_RECOVERY] = WEFT_AUDIT_OTHER,
    [WEFT_TRAIN_PART_SAVING] = WEFT_AUDIT_CHECKPOINTS,
    [WEFT_TRAIN_PART_OTHER] = WEFT_AUDIT_OTHER};

static double sends_of(const wefti_run_record_rows *rows) {
    double sum = 0;
    for (int64_t i = 0; i < rows->count; i++)
        if (rows->items[i].kind == WEFTI_RUN_RECORD_TRANSFER &&
            !strcmp(rows->items[i].name, "send"))
            sum += rows->items[i].seconds;
    return sum;
}

/* Seconds of a rank by cause. What the clock of a run calls steps and waits, the rows of kernels
 * and transfers divide. */
static void add_rank(const wefti_run_record_side *m, const wefti_run_record_rank *r,
                     double sum[WEFT_AUDIT_CAUSES]) {
    const double kernels = wefti_run_record_seconds(&r->rows, WEFTI_RUN_RECORD_KERNEL),
                 waits = wefti_run_record_seconds(&r->rows, WEFTI_RUN_RECORD_TRANSFER),
                 copies = wefti_run_record_seconds(&r->rows, WEFTI_RUN_RECORD_COPY);
    double own[WEFT_AUDIT_CAUSES] = {0}, all = 0, steps = m->step_seconds - waits;
    for (int p = 0; p < WEFT_TRAIN_PARTS; p++) {
        own[cause_of[p]] += r->parts[p];
        all += r->parts[p];
    }
    if (all > 0 && m->facts.steps_made > 0) {
        steps = r->parts[WEFT_TRAIN_PART_STEPS] / (double)m->facts.steps_made;
    } else if (!(all > 0)) { /* an older record */
        own[WEFT_AUDIT_COMPUTE] = steps > 0 ? steps : 0;
        own[WEFT_AUDIT_TRANSFERS] = waits;
    }
    if (kernels > 0 && steps > kernels) {
        const double outside = own[WEFT_AUDIT_COMPUTE] * (1 - kernels / steps);
        const double copying = own[WEFT_AUDIT_COMPUTE] * (copies / steps);
        own[WEFT_AUDIT_COPIES] += copying < outside ? copying : outside;
        own[WEFT_AUDIT_OVERHEAD] += copying < outside ? outside - copying : 0;
        own[WEFT_AUDIT_COMPUTE] -= outside;
    }
    if (waits > 0) {
        const double between = own[WEFT_AUDIT_TRANSFERS] * (sends_of(&r->rows) / waits);
        own[WEFT_AUDIT_PIPELINE] += between;
        own[WEFT_AUDIT_TRANSFERS] -= between;
    }
    for (int c = 0; c < WEFT_AUDIT_CAUSES; c++) sum[c] += own[c];
}

/* Ranks from number 64 on have no rows, and do not count. */
static void find_shares(judgement *j) {
    double sum[WEFT_AUDIT_CAUSES] = {0}, all = 0, known = 0;
    int32_t ranks = 0;
    for (int32_t i = 0; i < j->m->count; i++) {
        const wefti_run_record_rank *r = &j->m->ranks[i];
        if (r->rows.count == 0) continue;
        add_rank(j->m, r, sum);
        for (int p = 0; p < WEFT_TRAIN_PARTS; p++) known += r->parts[p];
        ranks++;
    }
    for (int c = 0; c < WEFT_AUDIT_CAUSES; c++) all += sum[c];
    if (ranks > 0) j->out->run_seconds = known / ranks;
    for (int c = 0; c < WEFT_AUDIT_CAUSES && all > 0; c++) {
        j->out->share[c] = sum[c] / all;
        if (sum[c] > sum[j->out->dominant]) j->out->dominant = (weft_audit_cause)c;
    }
}

/* ---- a slow rank ---- */

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of a call of the row's kernel: the lower median of all ranks that have it. */
static double usual(const wefti_run_record_side *m, const wefti_run_record_row *row) {
    double of[WEFTI_RUN_RECORD_RANKS];
    int32_t count = 0;
    for (int32_t i = 0; i < m->count && count < WEFTI_RUN_RECORD_RANKS; i++)
        for (int64_t k = 0; k < m->ranks[i].rows.count; k++) {
            const wefti_run_record_row *x = &m->ranks[i].rows.items[k];
            if (!(x->calls > 0) || !wefti_run_record_same(x, row)) continue;
            of[count++] = x->seconds / x->calls;
            break;
        }
    qsort(of, (size_t)count, sizeof *of, compare);
    return count ? of[(count - 1) / 2] : 0;
}

/* Ranks are compared by equal kernels only, so stages of a pipeline may differ in their work. */
static void find_slow(judgement *j) {
    j->out->slow_rank = -1;
    for (int32_t i = 0; i < j->m->count; i++) {
        const wefti_run_record_rank *r = &j->m->ranks[i];
        double own = 0, others = 0;
        for (int64_t k = 0; k < r->rows.count; k++) {
            const wefti_run_record_row *row = &r->rows.items[k];
            if (row->kind != WEFTI_RUN_RECORD_KERNEL) continue;
            own += row->seconds;
            others += row->calls * usual(j->m, row);
        }
        if (!(others > 0) || own < slow_from * others || own / others <= j->out->slowness) continue;
        if (own - others < slow_part_of_step * j->m->step_seconds) continue;
        j->out->slow_rank = r->rank;
        j->out->slowness = own / others;
        j->out->slow_seconds = own - others;
    }
}

/* ---- advice ---- */

static weft_status advise(judgement *j, weft_audit_cause cause, double at_most, char *setting,
                          char *reason) {
    WEFT_REQUIRE(setting && reason, WEFT_E_NOMEM, "no memory for a verdict");
    j->advice[j->out->advice_count++] = (weft_audit_advice){cause, setting, reason, at_most};
    return WEFT_OK;
}

#define SAY(...) wefti_arena_format(j->arena, __VA_ARGS__)
static double percent(const judgement *j, weft_audit_cause c) {
    return 100 * j->out->share[c];
}

/* The op, or the kind of transfers or copies, that takes most of its kind, over all ranks. */
static const char *largest(const wefti_run_record_side *m, wefti_run_record_kind kind,
                           double *out_part) {
    const char *name = "";
    double all = 0, most = 0;
    for (int32_t i = 0; i < m->count; i++)
        for (int64_t k = 0; k < m->ranks[i].rows.count; k++) {
            const wefti_run_record_row *row = &m->ranks[i].rows.items[k];
            double sum = 0;
            if (row->kind != kind) continue;
            all += row->seconds;
            for (int32_t n = 0; n < m->count; n++)
                for (int64_t l = 0; l < m->ranks[n].rows.count; l++)
                    if (m->ranks[n].rows.items[l].kind == kind &&
                        !strcmp(m->ranks[n].rows.items[l].name, row->name))
                        sum += m->ranks[n].rows.items[l].seconds;
            if (sum <= most) continue;
            most = sum;
            name = row->name;
        }
    *out_part = all > 0 ? 100 * most / all : 0;
    return name;
}

static weft_status on_compute(judgement *j) {
    double part;
    const char *op = largest(j->m, WEFTI_RUN_RECORD_KERNEL, &part);
    const double share = j->out->share[WEFT_AUDIT_COMPUTE];
    const bool bf16 = j->m->facts.bf16;
    return advise(
        j, WEFT_AUDIT_COMPUTE, share / 2,
        bf16 ? SAY("parallel.devices=%d", 2 * (int)j->m->count) : SAY("train.precision=bf16"),
        SAY("Kernels take %.0f %% of the time, and %s %.0f %% of that. %s", 100 * share, op, part,
            bf16 ? "Twice the devices compute at most twice as fast."
                 : "Products of bf16 are faster where the processor has them "
                   "(`weft info`); more devices are the other way."));
}

static weft_status on_overhead(judgement *j) {
    return advise(j, WEFT_AUDIT_OVERHEAD, j->out->share[WEFT_AUDIT_OVERHEAD] / 2,
                  SAY("train.batch=%lld", 2 * (long long)j->m->facts.batch),
                  SAY("A step of %.3g ms is short: %.0f %% of the time is outside of kernels and "
                      "transfers. A step of twice the samples needs that once.",
                      j->m->step_seconds * 1e3, percent(j, WEFT_AUDIT_OVERHEAD)));
}

/* Twice the samples of a step, in microbatches of the same size. */
static weft_status advise_accumulation(judgement *j, weft_audit_cause cause, char *reason) {
    const wefti_run_facts *f = &j->m->facts;
    return advise(j, cause, j->out->share[cause] / 2,
                  SAY("train.batch=%lld train.accumulate=%lld", 2 * (long long)f->batch,
                      2 * (long long)(f->microbatches > 0 ? f->microbatches : 1)),
                  reason);
}

static weft_status on_copies(judgement *j) {
    double part;
    const char *copy = largest(j->m, WEFTI_RUN_RECORD_COPY, &part);
    return advise_accumulation(
        j, WEFT_AUDIT_COPIES,
        SAY("Ranks wait %.0f %% of the time for copies to and from lower tiers, of that "
            "%.0f %% to %s. Optimizer states are moved once a step, however many "
            "microbatches it has. memory.offload can also name less.",
            percent(j, WEFT_AUDIT_COPIES), part, copy));
}

static weft_status on_transfers(judgement *j) {
    double part;
    const char *kind = largest(j->m, WEFTI_RUN_RECORD_TRANSFER, &part);
    return advise_accumulation(
        j, WEFT_AUDIT_TRANSFERS,
        SAY("Ranks wait for each other for %.0f %% of the time%s%s. Gradients that are "
            "reduced once for twice the samples wait half as often. A plan for the "
            "measured links may need fewer transfers: parallel.mode=auto.",
            percent(j, WEFT_AUDIT_TRANSFERS), *kind ? ", most of it in " : "", kind));
}

static weft_status on_pipeline(judgement *j) {
    const wefti_run_facts *f = &j->m->facts;
    const double s = (double)f->stages, m = (double)f->microbatches;
    const double now = (s - 1) / (m + s - 1), then = (s - 1) / (2 * m + s - 1);
    const double gain = now > 0 ? j->out->share[WEFT_AUDIT_PIPELINE] * (1 - then / now) : 0;
    const long long twice = 2 * (long long)f->microbatches, batch = 2 * (long long)f->batch;
    const bool divides = twice > 0 && f->batch % twice == 0;
    return advise(j, WEFT_AUDIT_PIPELINE, gain,
                  divides
                      ? SAY("parallel.pipeline.microbatches=%lld", twice)
                      : SAY("parallel.pipeline.microbatches=%lld train.batch=%lld", twice, batch),
                  SAY("Stages wait for each other for %.0f %% of the time. %lld stages with %lld "
                      "microbatches idle for %.0f %% of a step in theory, with twice as many for "
                      "%.0f %%.",
                      percent(j, WEFT_AUDIT_PIPELINE), (long long)f->stages,
                      (long long)f->microbatches, 100 * now, 100 * then));
}

static weft_status on_data(judgement *j) {
    const wefti_run_record_rank *worst = &j->m->ranks[0];
    for (int32_t i = 1; i < j->m->count; i++)
        if (j->m->ranks[i].parts[WEFT_TRAIN_PART_DATA] > worst->parts[WEFT_TRAIN_PART_DATA])
            worst = &j->m->ranks[i];
    return advise(j, WEFT_AUDIT_DATA, j->out->share[WEFT_AUDIT_DATA], SAY("data.path=LOCAL_COPY"),
                  SAY("Samples come more slowly than steps take them: %.0f %% of the time, rank %d "
                      "most, with %.3g s. Copy the data to a disk of the host itself.",
                      percent(j, WEFT_AUDIT_DATA), worst->rank,
                      worst->parts[WEFT_TRAIN_PART_DATA]));
}

static weft_status on_checkpoints(judgement *j) {
    const wefti_run_facts *f = &j->m->facts;
    const double share = j->out->share[WEFT_AUDIT_CHECKPOINTS];
    char *setting = !f->sliced && j->m->count > 1 ? SAY("checkpoint.sliced=true")
                    : f->checkpoint_every > 0
                        ? SAY("checkpoint.every=%lld", 2 * (long long)f->checkpoint_every)
                        : SAY("checkpoint.seconds=%g", 2 * f->checkpoint_seconds);
    return advise(
        j, WEFT_AUDIT_CHECKPOINTS, share / 2, setting,
        SAY("Saving stops the run for %.0f %% of its time. Saving half as often costs "
            "half of that, and a failure then repeats twice as many steps%s.",
            100 * share,
            !f->sliced && j->m->count > 1 ? "; slices are written by all ranks at once" : ""));
}

static weft_status on_validation(judgement *j) {
    const wefti_run_facts *f = &j->m->facts;
    const double share = j->out->share[WEFT_AUDIT_VALIDATION];
    return advise(j, WEFT_AUDIT_VALIDATION, share / 2,
                  f->eval_every > 0 ? SAY("train.eval_every=%lld", 2 * (long long)f->eval_every)
                                    : SAY("train.eval_batches=1"),
                  SAY("Validation takes %.0f %% of the time. Half as often, or with fewer "
                      "train.eval_batches, it takes half.",
                      100 * share));
}

static weft_status on_start(judgement *j) {
    return advise(j, WEFT_AUDIT_START, 0, SAY("%s", ""),
                  SAY("The start takes %.0f %% of the time, %.3g s: a longer run has it once, too.",
                      percent(j, WEFT_AUDIT_START),
                      j->out->share[WEFT_AUDIT_START] * j->out->run_seconds));
}

static weft_status on_slow_rank(judgement *j) {
    return advise(j, WEFT_AUDIT_COMPUTE,
                  j->out->slow_seconds / j->m->step_seconds * (1 - j->out->share[WEFT_AUDIT_START]),
                  SAY("%s", ""),
                  SAY("Rank %d needs %.3g ms more for its kernels in each step. Look at its host "
                      "for other load, fewer cores or a lower clock, or leave that host out.",
                      j->out->slow_rank, j->out->slow_seconds * 1e3));
}

static int by_promise(const void *a, const void *b) {
    const weft_audit_advice *x = a, *y = b;
    return x->at_most > y->at_most ? -1 : x->at_most < y->at_most;
}

static weft_status find_advice(judgement *j) {
    weft_status (*const of[WEFT_AUDIT_CAUSES])(judgement *) = {
        [WEFT_AUDIT_COMPUTE] = on_compute,
        [WEFT_AUDIT_OVERHEAD] = on_overhead,
        [WEFT_AUDIT_TRANSFERS] = on_transfers,
        [WEFT_AUDIT_PIPELINE] = on_pipeline,
        [WEFT_AUDIT_COPIES] = on_copies,
        [WEFT_AUDIT_DATA] = on_data,
        [WEFT_AUDIT_CHECKPOINTS] = on_checkpoints,
        [WEFT_AUDIT_VALIDATION] = on_validation,
        [WEFT_AUDIT_START] = on_start};
    j->advice = wefti_arena_alloc(j->arena, (WEFT_AUDIT_CAUSES + 1) * sizeof *j->advice);
    WEFT_REQUIRE(j->advice, WEFT_E_NOMEM, "no memory for a verdict");
    j->out->advice = j->advice;
    if (j->out->slow_rank >= 0) WEFT_TRY(on_slow_rank(j));
    for (int c = 0; c < WEFT_AUDIT_CAUSES; c++)
        if (of[c] && (c == (int)j->out->dominant ||
                      (c != WEFT_AUDIT_START && j->out->share[c] >= advice_from)))
            WEFT_TRY(of[c](j));
    qsort(j->advice, (size_t)j->out->advice_count, sizeof *j->advice, by_promise);
    if (j->out->advice_count > ADVICE_MOST) j->out->advice_count = ADVICE_MOST;
    return WEFT_OK;
}

/* ---- sentences ---- */

static void add_shares(const judgement *j, wefti_text *text) {
    const weft_audit_verdict *v = j->out;
    if (v->run_seconds > 0)
        wefti_text_add(text, "Of %.3g s up to the last step, mean of the ranks:", v->run_seconds);
    else
        wefti_text_add(text, "Of a step of %.3g ms:", j->m->step_seconds * 1e3);
    const char *before = " ";
    for (int c = 0; c < WEFT_AUDIT_CAUSES; c++) {
        if (v->share[c] < 0.005) continue;
        wefti_text_add(text, "%s%s %.0f %%", before, weft_audit_cause_text((weft_audit_cause)c),
                       100 * v->share[c]);
        before = ", ";
    }
    wefti_text_add(text, ".\nMost time goes into: %s.\n", weft_audit_cause_text(v->dominant));
}

static void add_slow(const judgement *j, wefti_text *text) {
    const weft_audit_verdict *v = j->out;
    const double spread = (j->m->third_quartile - j->m->first_quartile) / j->m->step_seconds;
    if (v->slow_rank >= 0) {
        wefti_text_add(text,
                       "Rank %d is the slowest: it takes %.0f %% longer than the others for the "
                       "same kernels, and they wait for it.",
                       v->slow_rank, 100 * (v->slowness - 1));
        if (spread > v->slowness - 1)
            wefti_text_add(text, " Steps differ by %.0f %%, so this may be chance.", 100 * spread);
        wefti_text_add(text, "\n");
    } else if (j->m->count > 1)
        wefti_text_add(text,
                       "No rank is slow: equal kernels take equally long on all, within %.0f %%.\n",
                       100 * (slow_from - 1));
}

static weft_status compose(judgement *j) {
    wefti_text text = {0};
    add_shares(j, &text);
    add_slow(j, &text);
    for (int i = 0; i < j->out->advice_count; i++) {
        const weft_audit_advice *a = &j->out->advice[i];
        wefti_text_add(&text, "Try%s%s: %s", *a->setting ? " " : "", a->setting, a->reason);
        if (a->at_most >= 0.005) wefti_text_add(&text, " Saves at most %.0f %%.", 100 * a->at_most);
        wefti_text_add(&text, "\n");
    }
    char *all = wefti_text_take(&text);
    j->out->text = all ? wefti_arena_strdup(j->arena, all) : NULL;
    wefti_free(all);
    WEFT_REQUIRE(j->out->text, WEFT_E_NOMEM, "no memory for a verdict");
    return WEFT_OK;
}

weft_status wefti_run_judge(const wefti_run_record_side *measured, wefti_arena *arena,
                            weft_audit_verdict *out) {
    judgement j = {.m = measured, .arena = arena, .out = out};
    *out = (weft_audit_verdict){.slow_rank = -1};
    find_shares(&j);
    find_slow(&j);
    WEFT_TRY(find_advice(&j));
    return compose(&j);
}
