/* Choosing a token: softmax of logits / temperature over the tokens that top-k, top-p and min-p
 * leave, in double.
 *
 * Sources. Top-k: Fan, Lewis, Dauphin, "Hierarchical Neural Story Generation", ACL 2018, section
 * 5.3. Top-p: Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020. Min-p:
 * Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", ICLR
 * 2025. Penalty: Keskar et al., "CTRL", 2019, section 4.1. Order and details as in transformers. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/philox.h"
#include "base/status.h"
#include "base/text.h"
#include "infer/generate.h"

/* Larger logits first, lower tokens first among equals. */
static int before(const wefti_candidate *a, const wefti_candidate *b) {
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->token < b->token ? -1 : 1;
}
static int compare(const void *a, const void *b) {
    return before(a, b);
}

/* Move the k first of `all` (in the order of `before`) to its front, k < count: quickselect with
 * the middle element as pivot (Hoare, "Algorithm 65: Find", CACM 4(7), 1961). */
static void select_first(wefti_candidate *all, int64_t count, int64_t k) {
    int64_t low = 0, high = count - 1;
    while (low < high) {
        wefti_candidate pivot = all[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (all[i].token != pivot.token && before(&all[i], &pivot) < 0) i++;
            while (all[j].token != pivot.token && before(&pivot, &all[j]) < 0) j--;
            if (i > j) break;
            wefti_candidate swap = all[i];
            all[i++] = all[j];
            all[j--] = swap;
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            return;
    }
}

/* 53 random bits: a number in [0, 1). */
static double uniform(uint64_t seed, int64_t position) {
    uint64_t stream = wefti_stream_of("generate"), at = (uint64_t)position * 2;
    uint64_t high = wefti_philox_u32(seed, stream, at) >> 5;
    uint64_t low = wefti_philox_u32(seed, stream, at + 1) >> 6;
    return (double)(high << 26 | low) * 0x1p-53;
}

/* Divides a positive logit, multiplies another one; the result stays finite. */
static float penalised(float logit, double penalty) {
    double x = logit < 0 ? (double)logit * penalty : (double)logit / penalty;
    return (float)(x > (double)FLT_MAX    ? (double)FLT_MAX
                   : x < -(double)FLT_MAX ? -(double)FLT_MAX
                                          : x);
}

/* All tokens as candidates. Returns the number of the best. */
static weft_status list_all(const float *logits, int64_t count, const bool *seen, double penalty,
                            wefti_candidate *out, int64_t *out_best) {
    int64_t best = 0;
    for (int64_t t = 0; t < count; t++) {
        WEFT_REQUIRE(isfinite(logits[t]), WEFT_E_NUMERIC, "the logit of token %lld is %g",
                     (long long)t, wefti_printed((double)logits[t]));
        bool changed = seen && seen[t] && penalty > 0;
        out[t] = (wefti_candidate){changed ? penalised(logits[t], penalty) : logits[t], (int32_t)t};
        if (out[t].logit > out[best].logit) best = t;
    }
    *out_best = best;
    return WEFT_OK;
}

/* The candidates left, and how likely each is in parts of the most likely one. */
typedef struct choices {
    wefti_candidate *all;
    int64_t count;
    double largest, temperature;
} choices;

static double weight(const choices *c, int64_t i) {
    return exp(((double)c->all[i].logit - c->largest) / c->temperature);
}

static double sum_of(const choices *c) {
    double sum = 0;
    for (int64_t i = 0; i < c->count; i++) sum += weight(c, i);
    return sum;
}

/* Keeps candidates with a weight of at least `least`, in their order. The most likely has weight 1.
 */
static void keep_from(choices *c, double least) {
    int64_t kept = 0;
    for (int64_t i = 0; i < c->count; i++)
        if (weight(c, i) >= least) c->all[kept++] = c->all[i];
    c->count = kept;
}

static void sort(choices *c) {
    qsort(c->all, (size_t)c->count, sizeof *c->all, compare);
}

static void keep_k(choices *c, int64_t k) {
    if (k == 0 || k >= c->count) return;
    select_first(c->all, c->count, k);
    c->count = k;
    sort(c);
}

/* The fewest most likely candidates whose weights reach `share` of the sum. Candidates that
 * together weigh no more than the rest need not be sorted. */
static void keep_share(choices *c, double share) {
    if (share <= 0 || share >= 1) return;
    double sum = sum_of(c), before = 0;
    keep_from(c, (1 - share) * sum / (double)c->count * (1 - 1e-9));
    sort(c);
    int64_t kept = 0;
    while (kept < c->count && (kept == 0 || before < share * sum)) before += weight(c, kept++);
    c->count = kept;
}

weft_status wefti_choose_token(const float *logits, int64_t count, const bool *seen,
                               const weft_generate_options *options, int64_t position,
                               wefti_candidate *scratch, int32_t *out) {
    int64_t best;
    WEFT_TRY(list_all(logits, count, seen, options->repetition_penalty, scratch, &best));
    *out = (int32_t)best;
    if (options->temperature == 0) return WEFT_OK;
    choices c = {scratch, count, (double)scratch[best].logit, options->temperature};
    keep_k(&c, options->top_k);
    keep_share(&c, options->top_p);
    if (options->min_p > 0) keep_from(&c, options->min_p);
    double left = uniform(options->seed, position) * sum_of(&c);
    for (int64_t i = 0; i < c.count; i++) {
        double part = weight(&c, i);
        if (part > 0) *out = c.all[i].token;
        left -= part;
        if (left < 0) break;
    }
    return WEFT_OK;
}
