/* memory.offload: auto in a training: the step, by the simulator's clock, is within 2 % of the best
 * of all choices of buffers that fit.
 * weft-test: no threads */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "weft/predict.h"
#include "weft/train.h"

enum { BUFFERS = 9, CHOICES = 1 << BUFFERS, PARTS = 6, WORDS = 24 };

/* The buffers of the model that a tier takes. */
static const struct {
    const char *match, *what;
} buffers[BUFFERS] = {{"wte.*", "optimizer"}, {"wte.*", "parameters"}, {"wte.*", "gradients"},
                      {"h.0.*", "optimizer"}, {"h.0.*", "parameters"}, {"h.0.*", "gradients"},
                      {"h.0", "saved"},       {"wte.*", "copies"},     {"h.0.*", "copies"}};

typedef struct setting {
    const char *machine, *tier, *words;
    int buffers; /* bits of those that are tried */
} setting;

/* A job of the words "a=1\nb=2" without data. */
static weft_prediction *predict(const setting *s, const char *more) {
    char text[4096], *words[WORDS], *rest = text;
    int count = 0;
    weft_job *job;
    weft_prediction *p;
    (void)snprintf(text, sizeof text,
                   "model.family=gpt2\nmodel.layers=1\nmodel.hidden=128\nmodel.heads=2\n"
                   "model.context=32\nmodel.vocab=1500\ntrain.batch=16\nmemory.disk.path=/tmp\n"
                   "parallel.mode=semi\nmachine=%s\n%s\n%s",
                   s->machine, s->words, more);
    for (char *word; (word = strsep(&rest, "\n"));) words[count++] = word;
    ASSERT_OK(weft_job_load(NULL, (const char *const *)words, count, &job));
    ASSERT_OK(weft_job_predict(job, NULL, &p));
    weft_job_free(job);
    return p;
}

static weft_prediction *predict_choice(const setting *s, int choice) {
    char more[1024] = "memory.offload=[{match: nothing, what: optimizer, to: disk}";
    for (int b = 0; b < BUFFERS; b++)
        if (choice >> b & 1)
            (void)snprintf(more + strlen(more), sizeof more - strlen(more),
                           ", {match: \"%s\", what: %s, to: %s}", buffers[b].match, buffers[b].what,
                           s->tier);
    (void)snprintf(more + strlen(more), sizeof more - strlen(more), "]");
    return predict(s, more);
}

static void compare(const setting *s) {
    static double seconds[CHOICES];
    static int64_t peak[CHOICES];
    int64_t least = INT64_MAX;
    for (int c = 0; c < CHOICES; c++) {
        if (c & ~s->buffers) continue;
        weft_prediction *p = predict_choice(s, c);
        seconds[c] = p->step_seconds;
        peak[c] = p->peak_bytes;
        if (peak[c] < least) least = peak[c];
        weft_prediction_free(p);
    }
    for (int part = 0; part <= PARTS; part++) {
        const int64_t limit = peak[0] - (peak[0] - least) * part / PARTS;
        char more[200];
        int best = -1;
        for (int c = 0; c < CHOICES; c++)
            if (!(c & ~s->buffers) && peak[c] <= limit && (best < 0 || seconds[c] < seconds[best]))
                best = c;
        (void)snprintf(more, sizeof more, "memory.offload=auto\nmemory.device=%lld",
                       (long long)limit);
        weft_prediction *p = predict(s, more);
        print_message("%s, %s: limit %lld: %.4g s, %.4g s by the best choice (%x)\n", s->machine,
                      s->words, (long long)limit, p->step_seconds, seconds[best], best);
        assert_true(p->peak_bytes <= limit);
        assert_true(p->step_seconds <= 1.02 * seconds[best]);
        weft_prediction_free(p);
    }
}

static void auto_is_near_the_best_choice(void **state) {
    (void)state;
    static const setting settings[] = {
        {"a100-80g", "host", "train.accumulate=2", 0x7F},
        {"cpu-epyc-9654", "disk", "train.accumulate=4", 0x7F},
        {"a100-80g", "host", "train.clip=0", 0x7F},
        {"2 hosts of 1 a100-80g", "host",
         "parallel.devices=2\nparallel.optimizer.level=1\nrecovery.buddy=1", 0x1AD},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) compare(&settings[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(auto_is_near_the_best_choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
