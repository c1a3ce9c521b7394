/* The share of its time that a job computes for good, if devices fail.
 *
 * Failures come at random, one in M seconds on average: a device's time between failures divided by
 * the devices. A segment is n steps, T seconds, and a checkpoint of d seconds. After a failure the
 * job takes R seconds to start again, and repeats the segment. Then a segment takes
 *
 *     M exp(R / M) (exp((T + d) / M) - 1)
 *
 * seconds on average. Source: J. T. Daly, "A higher order estimate of the optimum checkpoint
 * interval for restart dumps", 2006, equation 13. The number of steps is the best one.
 *
 * What is not given has a value with a source: see `mtbf_assumed` and `restart_assumed`. A
 * checkpoint takes as long as the machine's disk needs for the states of a rank. */
#include "plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "weft/predict.h"

typedef struct failures {
    /* Seconds, NAN: not given. mtbf: of a device, host_mtbf: of a host besides its devices. */
    double mtbf, host_mtbf, checkpoint, restart;
} failures;

/* Llama Team, "The Llama 3 herd of models", 2024, section 3.3.4: 419 unexpected interruptions in 54
 * days on 16,384 GPUs, of every cause. */
static const double mtbf_assumed = 54 * 86400.0 * 16384 / 419;
/* Jiang et al., "MegaScale", NSDI 2024: detection and diagnosis take less than 10 minutes on
 * average. */
static const double restart_assumed = 600;

/* "50000h", "30s", "5min", "2d", "30": seconds. */
static bool read_seconds(const char *text, double *out) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    char *end;
    const double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (end == text || strcmp(end, units[i].unit) != 0) continue;
        *out = value * units[i].seconds;
        return isfinite(*out) && value >= 0 && *out <= 1e12;
    }
    return false;
}

/* NULL, or what is wrong with a word. */
static const char *read_word(const char *word, failures *out) {
    static const char *const names[] = {"mtbf", "host_mtbf", "checkpoint", "restart"};
    double *const places[] = {&out->mtbf, &out->host_mtbf, &out->checkpoint, &out->restart};
    const size_t length = strcspn(word, "=");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) != length || strncmp(word, names[i], length) != 0) continue;
        const bool is_between = places[i] == &out->mtbf || places[i] == &out->host_mtbf;
        if (!isnan(*places[i])) return "sets a key that another word has set";
        if (!word[length] || !read_seconds(word + length + 1, places[i]))
            return "needs a number behind '=', with s, min, h or d";
        return is_between && *places[i] <= 0 ? "must be more than 0" : NULL;
    }
    return "has an unknown key; known: mtbf, host_mtbf, checkpoint, restart";
}

/* NULL, or what is wrong with the word that *out_word and *out_length tell. */
static const char *read_failures(const char *text, failures *out, const char **out_word,
                                 int *out_length) {
    enum { WORD = 64 };
    *out = (failures){NAN, NAN, NAN, NAN};
    for (const char *at = text + strspn(text, " ,"); *at; at += strspn(at, " ,")) {
        char word[WORD];
        const size_t length = strcspn(at, " ,");
        *out_word = at;
        *out_length = length < WORD ? (int)length : WORD;
        if (length >= WORD) return "is too long";
        memcpy(word, at, length);
        word[length] = '\0';
        const char *wrong = read_word(word, out);
        if (wrong) return wrong;
        at += length;
    }
    return NULL;
}

int cli_goodput_check(const cli_verb *verb, const char *text) {
    failures f;
    const char *word;
    int length;
    const char *wrong = read_failures(text, &f, &word, &length);
    if (!wrong) return CLI_DONE;
    return cli_usage(verb,
                     "--failures: '%.*s' %s; write \"mtbf=50000h checkpoint=30s restart=5min\"; "
                     "mtbf is that of a device, host_mtbf that of a host",
                     length, word, wrong);
}

/* Of segments of n steps. */
static double share(const failures *f, double mean, double step, double n) {
    const double work = n * step;
    return work / (mean * exp(f->restart / mean) * expm1((work + f->checkpoint) / mean));
}

/* The share rises with the steps up to the best number, and falls behind it. */
static double best_steps(const failures *f, double mean, double step) {
    double low = 1, high = floor(fmin(20 * mean / step, 1e15)) + 2;
    while (high - low > 2) {
        const double a = floor(low + (high - low) / 3), b = ceil(high - (high - low) / 3);
        if (share(f, mean, step, a) < share(f, mean, step, b))
            low = a + 1;
        else
            high = b;
    }
    double best = low;
    for (double n = low; n <= high; n++)
        if (share(f, mean, step, n) > share(f, mean, step, best)) best = n;
    return best;
}

cli_goodput cli_goodput_of(const char *text, const weft_prediction *p) {
    failures f;
    cli_goodput g = {0};
    const char *word;
    int length;
    if (read_failures(text ? text : "", &f, &word, &length) || !(p->step_seconds > 0) ||
        p->ranks < 1)
        return g;
    g.mtbf_assumed = isnan(f.mtbf) && isnan(f.host_mtbf);
    g.checkpoint_assumed = isnan(f.checkpoint);
    g.restart_assumed = isnan(f.restart);
    if (g.mtbf_assumed) f.mtbf = mtbf_assumed;
    if (isnan(f.checkpoint)) f.checkpoint = p->checkpoint_seconds;
    if (g.restart_assumed) f.restart = restart_assumed;
    /* Nothing is known of failures, nor of checkpoints. */
    if (!text && !(f.checkpoint > 0)) return g;
    const double per_second =
        (isnan(f.mtbf) ? 0 : p->ranks / f.mtbf) + (isnan(f.host_mtbf) ? 0 : p->hosts / f.host_mtbf);
    g.known = true;
    g.checkpoint_seconds = f.checkpoint;
    g.restart_seconds = f.restart;
    g.failure_seconds = 1 / per_second;
    g.every = best_steps(&f, g.failure_seconds, p->step_seconds);
    g.share = share(&f, g.failure_seconds, p->step_seconds, g.every);
    if (!isfinite(g.share)) g.share = 0;
    return g;
}
