/* What a run measures: the times of some steps, kernel by kernel, on all ranks. */
#include <stdlib.h>
#include <string.h>

#include "train/record/record.h"
#include "train/record/rows.h"

/* The first steps touch memory for the first time and bind transfers; they do not count. */
enum { WARM_STEPS = 2 };

/* A new rank has not measured the steps before it came: a mended run has no measurement. */
void wefti_run_record_step(wefti_training *t, int64_t done, double seconds) {
    wefti_training_record *r = &t->record;
    r->done = done;
    if (!t->built->job->checkpoint.dir[0] || t->mended) return;
    if (r->measuring) {
        wefti_session_profile_end_step(t->built->session);
        if (r->steps < WEFTI_PROFILE_STEPS) r->seconds[r->steps] = seconds;
        r->steps++;
    }
    const bool measures = done >= WARM_STEPS && r->steps < WEFTI_PROFILE_STEPS;
    if (measures == r->measuring) return;
    r->measuring = wefti_session_profile(t->built->session, measures) >= 0 && measures;
}

/* ---- which steps count ---- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of the step at a quarter of the steps in order. */
static double quartile(const wefti_training_record *r, int quarter) {
    double sorted[WEFTI_PROFILE_STEPS];
    memcpy(sorted, r->seconds, (size_t)r->steps * sizeof *sorted);
    qsort(sorted, (size_t)r->steps, sizeof *sorted, compare);
    return sorted[(r->steps - 1) * quarter / 4];
}

/* The middle half of the steps: their mean is close to the median, and the times of kernels add up
 * to it, unlike medians of each. */
static uint64_t middle_steps(const wefti_training_record *r) {
    const double least = quartile(r, 1), most = quartile(r, 3);
    uint64_t steps = 0;
    for (int64_t i = 0; i < r->steps; i++)
        if (r->seconds[i] >= least && r->seconds[i] <= most) steps |= (uint64_t)1 << i;
    return steps;
}

/* ---- this process ---- */

static void add_parts(wefti_training *t, wefti_text *out) {
    double seconds[WEFT_TRAIN_PARTS];
    wefti_training_total(t, seconds);
    wefti_text_add(out, "\"time\": {");
    for (int p = 0, before = 0; p < WEFT_TRAIN_PARTS; p++) {
        if (!(seconds[p] > 0)) continue;
        wefti_text_add(out, "%s\"%s\": ", before++ ? ", " : "",
                       weft_train_part_text((weft_train_part)p));
        wefti_json_real(out, seconds[p]);
    }
    wefti_text_add(out, "}, ");
}

static weft_status add_rank(wefti_training *t, int32_t rank, uint64_t steps, wefti_text *out) {
    const wefti_profile *profile = wefti_session_profile_of(t->built->session, rank);
    wefti_run_record_rows rows = {0};
    if (!profile) return WEFT_OK;
    weft_status status = wefti_run_record_measured(profile, steps, &rows);
    wefti_text_add(out, "%s    {\"rank\": %d, \"peak_bytes\": %lld, ", out->used ? ",\n" : "", rank,
                   (long long)wefti_session_observed(t->built->session, rank));
    add_parts(t, out);
    wefti_text_add(out, "\"rows\": ");
    if (rank >= WEFTI_RUN_RECORD_RANKS) rows.count = 0;
    wefti_run_record_rows_print(&rows, out);
    wefti_text_add(out, "}");
    wefti_run_record_rows_free(&rows);
    return status;
}

static weft_status own_ranks(wefti_training *t, uint64_t steps, char **out) {
    wefti_text text = {0};
    weft_status status = WEFT_OK;
    for (int32_t r = 0; r < weft_session_devices(t->built->session) && status >= 0; r++)
        status = add_rank(t, r, steps, &text);
    if (status < 0) {
        wefti_text_free(&text);
        return status;
    }
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the measurement of a run");
    return WEFT_OK;
}

/* ---- all processes ---- */

static void add_seconds(const wefti_training_record *r, wefti_text *out) {
    static const char *const names[] = {"first_quartile", "step_seconds", "third_quartile"};
    for (int i = 0; i < 3; i++) {
        wefti_text_add(out, "  \"%s\": ", names[i]);
        wefti_json_real(out, quartile(r, i + 1));
        wefti_text_add(out, ",\n");
    }
}

/* Settings that advice is about. */
static void add_job(const wefti_training *t, wefti_text *out) {
    const weft_job *job = t->built->job;
    const weft_plan *plan = wefti_built_plan(t->built);
    wefti_text_add(out,
                   "  \"job\": {\"batch\": %lld, \"microbatches\": %lld, \"stages\": %d, "
                   "\"steps_made\": %lld, \"checkpoint_every\": %lld, \"checkpoint_seconds\": ",
                   (long long)job->train.batch, (long long)t->built->batch.microbatches,
                   plan ? plan->pipeline.stages : 1, (long long)t->record.done,
                   *job->checkpoint.dir ? (long long)job->checkpoint.every : 0);
    wefti_json_real(out, job->checkpoint.seconds);
    wefti_text_add(out, ", \"sliced\": %s, \"eval_every\": %lld, \"precision\": \"%s\"},\n",
                   job->checkpoint.sliced ? "true" : "false", (long long)job->train.eval_every,
                   weft_dtype_text(job->train.precision));
}

/* `parts`: the texts of all ranks, one after the other. */
static weft_status write(wefti_training *t, const char *parts, const int64_t *offsets, int count) {
    wefti_text text = {0};
    wefti_text_add(&text, "{\n  \"version\": 1,\n  \"steps\": %lld,\n", (long long)t->record.steps);
    add_seconds(&t->record, &text);
    add_job(t, &text);
    wefti_text_add(&text, "  \"ranks\": [\n");
    for (int r = 0; r < count; r++) {
        wefti_text_add(&text, "%s", r ? ",\n" : "");
        wefti_text_add_bytes(&text, parts + offsets[r], offsets[r + 1] - offsets[r]);
    }
    wefti_text_add(&text, "\n  ]\n}\n");
    char *data = wefti_text_take(&text);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory for the measurement of a run");
    weft_status status = wefti_run_record_write(t, "measured.json", data);
    wefti_free(data);
    return status;
}

static weft_status gather(wefti_training *t, const char *own) {
    char *all;
    int64_t *offsets;
    WEFT_TRY(
        wefti_agree_gather(t->setup.party.agreement, own, (int64_t)strlen(own), &all, &offsets));
    if (!t->setup.party.follows &&
        write(t, all, offsets, weft_world_size(t->setup.party.world)) < 0)
        wefti_run_record_unwritten(t);
    wefti_free(offsets);
    return WEFT_OK;
}

weft_status wefti_run_record_end(wefti_training *t) {
    char *own = NULL;
    if (!t->built->job->checkpoint.dir[0] || t->record.steps == 0 || t->mended) return WEFT_OK;
    uint64_t steps = middle_steps(&t->record); /* as rank 0 saw them */
    WEFT_TRY(wefti_party_broadcast(&t->setup.party, WEFT_OK, &steps, sizeof steps));
    weft_status status = own_ranks(t, steps, &own);
    if (t->setup.party.agreement) {
        status = wefti_party_agree(&t->setup.party, status);
        if (status >= 0) status = gather(t, own);
    } else if (status >= 0) {
        const int64_t offsets[] = {0, (int64_t)strlen(own)};
        if (write(t, own, offsets, 1) < 0) wefti_run_record_unwritten(t);
    }
    wefti_free(own);
    return status;
}
