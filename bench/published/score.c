/* Scores: predictions against what was measured. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "published.h"

typedef struct scored {
    const wefti_json *row;
    const pub_prediction *p;
    char key[24];    /* of the source: the id without its number */
    char table[240]; /* equal for rows that differ in their strategy only */
    char strategy[160];
    char trust;
    bool fitted, failed;   /* failed: did not fit */
    double seconds, bytes; /* measured; 0: not printed */
} scored;

static double figure(const wefti_json *row, const char *key) {
    const wefti_json *v = wefti_json_get(row, key);
    if (!v) return 0;
    return v->kind == WEFTI_JSON_INT    ? (double)v->as.integer
           : v->kind == WEFTI_JSON_REAL ? v->as.real
                                        : 0;
}

static const char *words(const wefti_json *row, const char *key) {
    const wefti_json *v = wefti_json_get(row, key);
    return v && v->kind == WEFTI_JSON_TEXT ? v->as.text : "";
}

static void fill(const wefti_json *row, const pub_prediction *p, const wefti_json *fitted,
                 scored *s) {
    const char *id = words(row, "id"), *dash = strrchr(id, '-');
    const char *source = words(row, "source");
    *s = (scored){.row = row, .p = p, .trust = *words(row, "trust")};
    snprintf(s->key, sizeof s->key, "%.*s", dash ? (int)(dash - id) : (int)strlen(id), id);
    snprintf(s->table, sizeof s->table, "%s|%.40s|%.20s|%.20s|%.10s|%g|%g|%g|%g|%g|%g|%.24s",
             s->key, words(row, "model"), words(row, "gpu"), words(row, "framework"),
             words(row, "precision"), figure(row, "num_gpus"), figure(row, "global_batch"),
             figure(row, "seq_len"), figure(row, "layers"), figure(row, "hidden"),
             figure(row, "heads"), words(row, "recompute"));
    snprintf(s->strategy, sizeof s->strategy, "%g|%g|%g|%g|%g|%g|%g|%g|%g|%.20s", figure(row, "tp"),
             figure(row, "pp"), figure(row, "vp"), figure(row, "dp"), figure(row, "cp"),
             figure(row, "ep"), figure(row, "micro_batch"), figure(row, "zero_stage"),
             figure(row, "fsdp"), words(row, "recompute"));
    s->seconds = figure(row, "iteration_time_s");
    if (s->seconds <= 0) s->seconds = figure(row, "iteration_time_s_derived");
    if (!strcmp(words(row, "category"), "memory-only")) s->seconds = 0;
    s->bytes = figure(row, "memory_gib") * 1073741824.0;
    s->failed = strstr(words(row, "status"), "oom") != NULL;
    WEFTI_JSON_EACH(rule, fitted)
    if (wefti_glob_match(rule->as.text, source) || wefti_glob_match(rule->as.text, id))
        s->fitted = true;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, int count, double part) {
    if (!count) return NAN;
    qsort(values, (size_t)count, sizeof *values, ascending);
    const double at = part * (count - 1);
    const int below = (int)at;
    const double next = below + 1 < count ? values[below + 1] : values[below];
    return values[below] + (at - below) * (next - values[below]);
}

typedef enum quantity { SECONDS, BYTES } quantity;

/* One line: rows of a key (NULL: all) and trust (0: all), fitted or not (-1: both). */
static void line(const scored *rows, int count, const char *name, const char *key, char trust,
                 int fitted, quantity what, double *errors, double *signs) {
    int n = 0;
    double mean = 0;
    for (int i = 0; i < count; i++) {
        const scored *s = &rows[i];
        const double measured = what == SECONDS ? s->seconds : s->bytes;
        const double predicted = what == SECONDS ? s->p->seconds : s->p->memory_bytes;
        if (measured <= 0 || predicted <= 0 || (key && strcmp(key, s->key) != 0) ||
            (trust && s->trust != trust) || (fitted >= 0 && s->fitted != (fitted == 1)))
            continue;
        signs[n] = predicted / measured - 1;
        errors[n] = fabs(signs[n]);
        mean += errors[n++];
    }
    if (!n) return;
    printf("%-8s %-22s %c %-8s %5d  median %6.1f %%  p90 %6.1f %%  mean %6.1f %%  bias %+6.1f %%\n",
           what == SECONDS ? "time" : "memory", name, trust ? trust : '*',
           fitted < 0 ? "all"
           : fitted   ? "fitted"
                      : "held out",
           n, 100 * quantile(errors, n, 0.5), 100 * quantile(errors, n, 0.9), 100 * mean / n,
           100 * quantile(signs, n, 0.5));
}

/* ---- tables of strategies ---- */

static double rank_of(const double *values, int count, int i) {
    double rank = 0;
    for (int j = 0; j < count; j++)
        rank += (values[j] < values[i]) + 0.5 * (j != i && values[j] == values[i]);
    return rank;
}

static double correlation(const double *a, const double *b, int count) {
    double top = 0, left = 0, right = 0;
    for (int i = 0; i < count; i++) {
        const double x = rank_of(a, count, i) - (count - 1) / 2.0;
        const double y = rank_of(b, count, i) - (count - 1) / 2.0;
        top += x * y;
        left += x * x;
        right += y * y;
    }
    return left > 0 && right > 0 ? top / sqrt(left * right) : 0;
}

static void tables(const scored *rows, int count, double *a, double *b, double *all,
                   double *regrets) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        int members = 0, best = 0;
        double fastest = INFINITY;
        bool first = true;
        for (int j = 0; j < i && first; j++)
            first = strcmp(rows[i].table, rows[j].table) != 0 || rows[j].seconds <= 0 ||
                    rows[j].p->seconds <= 0;
        if (!first) continue;
        for (int j = i; j < count; j++) {
            if (strcmp(rows[i].table, rows[j].table) != 0 || rows[j].seconds <= 0 ||
                rows[j].p->seconds <= 0)
                continue;
            /* A strategy that was measured again counts once. */
            bool again = false;
            for (int k = i; k < j && !again; k++)
                again = !strcmp(rows[k].table, rows[j].table) && rows[k].seconds > 0 &&
                        !strcmp(rows[k].strategy, rows[j].strategy);
            if (again) continue;
            a[members] = rows[j].p->seconds;
            b[members] = rows[j].seconds;
            if (a[members] < a[best]) best = members;
            if (b[members] < fastest) fastest = b[members];
            members++;
        }
        if (members < 5) continue;
        all[n] = correlation(a, b, members);
        regrets[n] = b[best] / fastest - 1;
        printf("table    %-100.100s %3d strategies  rank correlation %5.2f  regret %5.1f %%\n",
               rows[i].table, members, all[n], 100 * regrets[n]);
        n++;
    }
    if (n)
        printf("tables   %d: rank correlation, median %.2f; regret, median %.1f %%\n", n,
               quantile(all, n, 0.5), 100 * quantile(regrets, n, 0.5));
}

static void feasibility(const scored *rows, int count) {
    int failed = 0, seen = 0, ran = 0, refused = 0;
    for (int i = 0; i < count; i++) {
        if (rows[i].p->seconds <= 0) continue;
        if (rows[i].failed)
            failed++, seen += !rows[i].p->fits;
        else if (rows[i].seconds > 0)
            ran++, refused += !rows[i].p->fits;
    }
    printf("fits     %d of %d that failed are refused; %d of %d that ran are refused (%.1f %%)\n",
           seen, failed, refused, ran, ran ? 100.0 * refused / ran : 0);
}

static void report(const scored *rows, int count, double *scratch) {
    double *errors = scratch, *signs = scratch + count;
    for (int fitted = 0; fitted <= 1; fitted++)
        for (const char *trust = "ABC"; *trust; trust++)
            line(rows, count, "all", NULL, *trust, fitted, SECONDS, errors, signs);
    line(rows, count, "all", NULL, 0, -1, SECONDS, errors, signs);
    for (quantity what = SECONDS; what <= BYTES; what++)
        for (int i = 0; i < count; i++) {
            bool first = true;
            for (int j = 0; j < i && first; j++) first = strcmp(rows[i].key, rows[j].key) != 0;
            if (!first) continue;
            for (const char *trust = "ABC"; *trust; trust++)
                for (int fitted = 0; fitted <= 1; fitted++)
                    line(rows, count, rows[i].key, rows[i].key, *trust, fitted, what, errors,
                         signs);
        }
    line(rows, count, "all", NULL, 0, -1, BYTES, errors, signs);
    tables(rows, count, errors, signs, scratch + 2 * count, scratch + 3 * count);
    feasibility(rows, count);
}

weft_status pub_score(const wefti_json *rows, const wefti_json *fitted,
                      const pub_prediction *predictions) {
    const int count = rows->count;
    scored *all = wefti_calloc((size_t)count + 1, sizeof *all);
    double *scratch = wefti_calloc(4 * (size_t)count + 4, sizeof *scratch);
    weft_status status = WEFT_OK;
    int i = 0;
    if (all && scratch) {
        WEFTI_JSON_EACH(row, rows) {
            fill(row, &predictions[i], fitted, &all[i]);
            i++;
        }
        report(all, count, scratch);
    } else {
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to score %d rows", count);
    }
    wefti_free(all);
    wefti_free(scratch);
    return status;
}
