/* What a token is chosen from, against a second computation of what transformers defines: its steps
 * one by one, with masks and sorts over all tokens. Stop texts against a search of the whole text.
 */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "infer/generate.h"

enum { TOKENS = 40, DRAWS = 4000 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Softmax over the scores that are not masked (-inf). */
static void softmax(const double *scores, double *out) {
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < TOKENS; i++) largest = fmax(largest, scores[i]);
    for (int i = 0; i < TOKENS; i++) sum += out[i] = exp(scores[i] - largest);
    for (int i = 0; i < TOKENS; i++) out[i] /= sum;
}

/* RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper and
 * MinPLogitsWarper of transformers, in the order of its _get_logits_processor. */
static void as_transformers(const float *logits, const bool *seen, const weft_generate_options *o,
                            double *probability) {
    double scores[TOKENS], sorted[TOKENS], p[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        scores[i] = (double)logits[i];
        if (o->repetition_penalty > 0 && seen[i])
            scores[i] = scores[i] < 0 ? scores[i] * o->repetition_penalty
                                      : scores[i] / o->repetition_penalty;
        scores[i] /= o->temperature;
    }
    if (o->top_k > 0 && o->top_k < TOKENS) {
        memcpy(sorted, scores, sizeof sorted);
        qsort(sorted, TOKENS, sizeof *sorted, ascending);
        for (int i = 0; i < TOKENS; i++)
            if (scores[i] < sorted[TOKENS - o->top_k]) scores[i] = -INFINITY;
    }
    if (o->top_p > 0 && o->top_p < 1) {
        softmax(scores, p);
        for (int i = 0; i < TOKENS; i++) {
            double cumulative = 0; /* of all tokens up to this one, least likely first */
            bool is_last = true;
            for (int j = 0; j < TOKENS; j++) {
                if (p[j] <= p[i]) cumulative += p[j];
                if (p[j] > p[i]) is_last = false;
            }
            sorted[i] = cumulative <= 1 - o->top_p && !is_last ? -INFINITY : scores[i];
        }
        memcpy(scores, sorted, sizeof scores);
    }
    if (o->min_p > 0) {
        softmax(scores, p);
        double top = 0;
        for (int i = 0; i < TOKENS; i++) top = fmax(top, p[i]);
        for (int i = 0; i < TOKENS; i++)
            if (p[i] < o->min_p * top) scores[i] = -INFINITY;
    }
    softmax(scores, probability);
}

static void check_frequencies(const float *logits, const bool *seen, const weft_generate_options *o,
                              uint64_t round) {
    double p[TOKENS];
    int count[TOKENS] = {0};
    wefti_candidate scratch[TOKENS];
    as_transformers(logits, seen, o, p);
    for (int64_t d = 0; d < DRAWS; d++) {
        int32_t token = -1;
        ASSERT_OK(wefti_choose_token(logits, TOKENS, seen, o, d, scratch, &token));
        count[token]++;
    }
    for (int i = 0; i < TOKENS; i++) {
        double deviation = sqrt(p[i] * (1 - p[i]) * DRAWS);
        if (fabs(count[i] - p[i] * DRAWS) > 6 * deviation + 1e-6)
            fail_msg("round %d: temperature %g, top-k %d, top-p %g, min-p %g, penalty %g: token %d "
                     "was drawn %d times, not about %g",
                     (int)round, o->temperature, (int)o->top_k, o->top_p, o->min_p,
                     o->repetition_penalty, i, count[i], p[i] * DRAWS);
    }
}

static void frequencies_are_those_of_transformers(void **state) {
    (void)state;
    const double shares[] = {0, 0.05, 0.3, 0.9, 0.999, 1}, least[] = {0, 0.02, 0.3, 1},
                 penalties[] = {0, 1, 1.3, 0.7, 20}, heats[] = {0.3, 1, 2.5};
    for (uint64_t round = 0; round < 360; round++) {
        float logits[TOKENS];
        bool seen[TOKENS];
        for (int i = 0; i < TOKENS; i++) {
            logits[i] = (float)(wefti_philox_u32(round, 1, (uint64_t)i) % 1000000) * 1e-5F - 4 +
                        (float)i * 1e-4F;
            seen[i] = wefti_philox_u32(round, 2, (uint64_t)i) % 3 == 0;
        }
        weft_generate_options o = WEFT_STRUCT(
            weft_generate_options, .temperature = heats[round % 3],
            .top_k = round % 4 == 0   ? 7
                     : round % 4 == 1 ? 25
                                      : 0,
            .top_p = shares[wefti_philox_u32(round, 3, 0) % 6],
            .min_p = least[wefti_philox_u32(round, 3, 1) % 4],
            .repetition_penalty = penalties[wefti_philox_u32(round, 3, 2) % 5], .seed = round);
        check_frequencies(logits, seen, &o, round);
    }
}

/* The penalty counts for the most likely token too, and results stay finite. */
static void penalty_without_chance(void **state) {
    (void)state;
    const float logits[] = {1, 3, 2, -1};
    const bool seen[] = {false, true, false, true};
    wefti_candidate scratch[4];
    int32_t token;
    weft_generate_options o = WEFT_STRUCT(weft_generate_options, .repetition_penalty = 2);
    ASSERT_OK(wefti_choose_token(logits, 4, seen, &o, 0, scratch, &token));
    assert_int_equal(token, 2);
    const float large[] = {3e38F, -3e38F};
    const bool both[] = {true, true};
    for (int i = 0; i < 2; i++) {
        o = WEFT_STRUCT(weft_generate_options, .repetition_penalty = i ? 1e6 : 1e-6,
                        .temperature = 1);
        ASSERT_OK(wefti_choose_token(large, 2, both, &o, 0, scratch, &token));
        assert_int_equal(token, 0);
    }
}

/* Random texts of three letters, in tokens of any length: the first token in which a stop text
 * ends. */
static void stop_texts_are_found_where_they_end(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 2000; round++) {
        char text[64], stops[3][8];
        const char *const list[] = {stops[0], stops[1], stops[2]};
        int prompt = (int)(wefti_philox_u32(round, 1, 0) % 10);
        for (int i = 0; i < 64; i++)
            text[i] = (char)('a' + wefti_philox_u32(round, 2, (uint64_t)i) % 3);
        for (uint64_t s = 0; s < 3; s++) {
            uint32_t length = 1 + wefti_philox_u32(round, 3, s) % 7;
            for (uint64_t i = 0; i < length; i++)
                stops[s][i] = (char)('a' + wefti_philox_u32(round, 4, s * 8 + i) % 3);
            stops[s][length] = '\0';
        }
        wefti_stops st = {0};
        ASSERT_OK(wefti_stops_open(&st, list, 3, text, prompt));
        int64_t found = -1;
        for (int at = prompt, n = 0; at < 64 && found < 0; n++) {
            int bytes = (int)(wefti_philox_u32(round, 5, (uint64_t)n) % 6), next = at + bytes;
            if (next > 64) next = 64;
            int64_t expected = -1;
            for (int s = 2; s >= 0; s--) /* all that end in (at, next] */
                for (int end = at + 1; end <= next; end++) {
                    int length = (int)strlen(stops[s]);
                    if (end >= length && !memcmp(text + end - length, stops[s], (size_t)length))
                        expected = s;
                }
            ASSERT_OK(wefti_stops_add(&st, text + at, next - at, &found));
            if (found != expected)
                fail_msg("round %d, byte %d: stop text %d, not %d", (int)round, at, (int)found,
                         (int)expected);
            at = next;
        }
        wefti_stops_close(&st);
    }
    wefti_stops st = {0};
    const char *const empty[] = {"a", ""};
    ASSERT_FAILS(WEFT_E_ARG, "stop text 1", wefti_stops_open(&st, empty, 2, NULL, 0));
    wefti_stops_close(&st);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_those_of_transformers),
        cmocka_unit_test(penalty_without_chance),
        cmocka_unit_test(stop_texts_are_found_where_they_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
