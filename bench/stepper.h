/* Shared parts of timing programs: options, clocks, the median, and the step protocol of
 * bench/peers/stepper.py ("ready"; "step" -> seconds; "quit" -> one JSON object). */
#ifndef WEFT_BENCH_STEPPER_H
#define WEFT_BENCH_STEPPER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "weft/weft.h"

enum { STEPPER_MAX = 4096 };

typedef struct stepper {
    double (*step)(void *context); /* one step; its seconds */
    void *context;
    int steps, warmup, done;
    bool interactive, json; /* json: print only the object at the end */
    const char *trace;      /* records the steps after the warm-up; NULL: nothing */
    weft_session *session;  /* the session to trace */
    double first;           /* seconds from the start of the process to the end of the first step */
    double seconds[STEPPER_MAX];
} stepper;

/* `--name value`; ends with a NULL name. */
typedef struct stepper_option {
    const char *name;
    enum { STEPPER_INT, STEPPER_LONG, STEPPER_TEXT, STEPPER_FLAG } kind;
    void *into; /* int, int64_t, const char * or bool */
} stepper_option;

static inline const stepper_option *stepper_option_named(const stepper_option *o,
                                                         const char *name) {
    while (o->name && strcmp(o->name, name)) o++;
    return o->name ? o : NULL;
}

/* Those of every such program, `of` and --interactive, --steps, --warmup, --json, --trace; false
 * after a message. */
static inline bool stepper_read(stepper *s, const stepper_option *of, int argc, char **argv) {
    const stepper_option all[] = {{"--interactive", STEPPER_FLAG, &s->interactive},
                                  {"--steps", STEPPER_INT, &s->steps},
                                  {"--warmup", STEPPER_INT, &s->warmup},
                                  {"--json", STEPPER_FLAG, &s->json},
                                  {"--trace", STEPPER_TEXT, &s->trace},
                                  {NULL, STEPPER_FLAG, NULL}};
    for (int i = 1; i < argc; i++) {
        const stepper_option *o = stepper_option_named(of, argv[i]);
        if (!o) o = stepper_option_named(all, argv[i]);
        if (!o || (o->kind != STEPPER_FLAG && ++i == argc)) {
            fprintf(stderr, "%s: %s %s\n", argv[0], o ? "no value for" : "unknown option",
                    argv[o ? i - 1 : i]);
            return false;
        }
        if (o->kind == STEPPER_INT) *(int *)o->into = atoi(argv[i]);
        if (o->kind == STEPPER_LONG) *(int64_t *)o->into = atoll(argv[i]);
        if (o->kind == STEPPER_TEXT) *(const char **)o->into = argv[i];
        if (o->kind == STEPPER_FLAG) *(bool *)o->into = true;
    }
    return true;
}

/* Ends the program where the library says no. */
static inline void stepper_check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "bench: %s\n", weft_error_message());
    exit(1);
}

static inline double stepper_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU seconds of this process. */
static inline double stepper_cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds since this process started: WEFT_T0, or the kernel's record, good to a tick. */
static inline double stepper_process_age(void) {
    const char *t0 = getenv("WEFT_T0");
    struct timespec t;
    if (t0) {
        clock_gettime(CLOCK_REALTIME, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 - atof(t0);
    }
    FILE *f = fopen("/proc/self/stat", "r");
    char text[2048];
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *at = strrchr(text, ')'); /* the name may hold spaces; field 3 follows */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    clock_gettime(CLOCK_BOOTTIME, &t);
    double started = at ? (double)strtoull(at, NULL, 10) / (double)sysconf(_SC_CLK_TCK) : 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 - started;
}

static inline double stepper_one(stepper *s) {
    if (s->trace && s->done == s->warmup) stepper_check(weft_session_trace(s->session, s->trace));
    double took = s->step(s->context);
    if (s->done == 0) s->first = stepper_process_age();
    if (s->done < STEPPER_MAX) s->seconds[s->done++] = took;
    return took;
}

static inline void stepper_drive(stepper *s) {
    if (!s->interactive) {
        for (int k = 0; k < s->steps + s->warmup; k++) {
            double took = stepper_one(s);
            if (s->json) continue;
            printf("step %d %.4f\n", k, took);
            fflush(stdout);
        }
        return;
    }
    char line[64];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strncmp(line, "quit", 4)) {
        printf("%.6f\n", stepper_one(s));
        fflush(stdout);
    }
}

static inline int stepper_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the numbers. 0 if there are none. */
static inline double stepper_median(double *x, int count) {
    qsort(x, (size_t)count, sizeof *x, stepper_compare);
    return count ? x[count / 2] : 0;
}

/* The JSON object: `facts` are further members, each followed by a comma. */
static inline void stepper_report(const stepper *s, const char *facts, const char *rate,
                                  double per_step, weft_session_memory m) {
    double sorted[STEPPER_MAX];
    int n = s->done > s->warmup ? s->done - s->warmup : s->done;
    memcpy(sorted, s->seconds + (s->done - n), (size_t)n * sizeof *sorted);
    double median = stepper_median(sorted, n), flops = m.forward_flops + m.backward_flops;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"program\": \"weft\", %s \"%s\": %.1f, \"median_seconds\": %.4f, \"min_seconds\": "
           "%.4f, \"first_step_seconds\": %.3f, \"flops_per_step\": %.6g, \"gflops_per_second\": "
           "%.1f, \"peak_rss_bytes\": %lld, \"predicted_peak_bytes\": %lld, "
           "\"observed_peak_bytes\": %lld}\n",
           facts, rate, median > 0 ? per_step / median : 0, median, n ? sorted[0] : 0, s->first,
           flops, median > 0 ? flops / median / 1e9 : 0, (long long)usage.ru_maxrss * 1024,
           (long long)m.predicted_peak_bytes, (long long)m.observed_peak_bytes);
    fflush(stdout);
}

#endif
