/* Choosing a token: softmax of logits / temperature over the k most likely, in double.
 *
 * Source of top-k: Fan, Lewis, Dauphin, "Hierarchical Neural Story Generation", ACL 2018,
 * section 5.3. */
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

weft_status wefti_choose_token(const float *logits, int64_t count,
                               const weft_generate_options *options, int64_t position,
                               wefti_candidate *scratch, int32_t *out) {
    int64_t best = 0;
    for (int64_t t = 0; t < count; t++) {
        WEFT_REQUIRE(isfinite(logits[t]), WEFT_E_NUMERIC, "the logit of token %lld is %g",
                     (long long)t, wefti_printed((double)logits[t]));
        if (logits[t] > logits[best]) best = t;
        scratch[t] = (wefti_candidate){logits[t], (int32_t)t};
    }
    *out = (int32_t)best;
    if (options->temperature == 0) return WEFT_OK;
    double largest = (double)logits[best], sum = 0;
    if (options->top_k > 0 && options->top_k < count) {
        select_first(scratch, count, options->top_k);
        count = options->top_k;
        qsort(scratch, (size_t)count, sizeof *scratch, compare);
    }
    for (int64_t i = 0; i < count; i++)
        sum += exp(((double)scratch[i].logit - largest) / options->temperature);
    double left = uniform(options->seed, position) * sum;
    for (int64_t i = 0; i < count; i++) {
        double weight = exp(((double)scratch[i].logit - largest) / options->temperature);
        if (weight > 0) *out = scratch[i].token;
        left -= weight;
        if (left < 0) break;
    }
    return WEFT_OK;
}
