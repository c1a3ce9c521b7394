/* weft_health_ask: finds the scheduler, asks it, and judges. */
#include "launch/health/health.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "launch/member/member.h"

static const double timeout_seconds = 5, least_limit_seconds = 60, limit_steps = 10;

const char *weft_health_state_name(weft_health_state state) {
    static const char *const names[] = {
        [WEFT_HEALTH_JOINING] = "joining", [WEFT_HEALTH_STEPPING] = "stepping",
        [WEFT_HEALTH_HALTED] = "halted",   [WEFT_HEALTH_MENDING] = "mending",
        [WEFT_HEALTH_LOST] = "lost",       [WEFT_HEALTH_LEAVING] = "leaving",
    };
    const size_t at = (size_t)state;
    return at < sizeof names / sizeof *names ? names[at] : "unknown";
}

/* --- judging --- */

static double seconds_of(int64_t ns) {
    return (double)ns * 1e-9;
}

static void take_ranks(const wefti_job_health *job, const wefti_rank_health *rank,
                       weft_health *out) {
    for (int32_t r = 0; r < job->ranks; r++) {
        const wefti_rank_health *from = &rank[r];
        weft_health_rank *to = &out->rank[r];
        *to = (weft_health_rank){.state = from->state,
                                 .host = from->host,
                                 .step = from->step,
                                 .heartbeat_seconds = seconds_of(from->heard_ns),
                                 .step_seconds = seconds_of(from->step_ns),
                                 .steps_per_second =
                                     from->pace_ns > 0 ? 1 / seconds_of(from->pace_ns) : 0};
        if (r == 0 || to->step < out->step) out->step = to->step;
        if (to->step_seconds > out->step_seconds) out->step_seconds = to->step_seconds;
        if (r == 0 || to->steps_per_second < out->steps_per_second)
            out->steps_per_second = to->steps_per_second;
    }
}

/* The rank that keeps the job from making steps: the one with the least lucky state; -1: none. */
static int32_t find_idle(const weft_health *h) {
    static const weft_health_state worst[] = {WEFT_HEALTH_LOST, WEFT_HEALTH_HALTED,
                                              WEFT_HEALTH_MENDING, WEFT_HEALTH_LEAVING,
                                              WEFT_HEALTH_JOINING};
    for (size_t i = 0; i < sizeof worst / sizeof *worst; i++)
        for (int32_t r = 0; r < h->ranks; r++)
            if (h->rank[r].state == worst[i]) return r;
    return -1;
}

static int32_t find_oldest(const weft_health *h) {
    for (int32_t r = 0; r < h->ranks; r++)
        if (h->rank[r].step_seconds >= h->step_seconds) return r;
    return 0;
}

static void say_idle(const weft_health *h, int32_t rank, wefti_text *text) {
    static const char *const why[] = {
        [WEFT_HEALTH_JOINING] = "has begun no step yet",
        [WEFT_HEALTH_HALTED] = "is halted, because a rank was lost",
        [WEFT_HEALTH_MENDING] = "is being mended, after a rank was lost",
        [WEFT_HEALTH_LOST] = "is lost, and no process has its place",
        [WEFT_HEALTH_LEAVING] = "has ended its training",
        [WEFT_HEALTH_STEPPING] = "makes steps",
    };
    int32_t alike = 0;
    for (int32_t r = 0; r < h->ranks; r++) alike += h->rank[r].state == h->rank[rank].state;
    wefti_text_add(text, "no steps: rank %d %s", (int)rank, why[h->rank[rank].state]);
    if (alike > 1) wefti_text_add(text, ", and %d more like it", (int)alike - 1);
}

static void say_of_ranks(weft_health *h, wefti_text *text) {
    const int32_t idle = find_idle(h);
    h->makes_steps = idle < 0 && h->step_seconds <= h->limit_seconds;
    if (idle >= 0) {
        say_idle(h, idle, text);
        return;
    }
    const int32_t oldest = find_oldest(h);
    wefti_text_add(text, "%s: %d ranks, step %lld", h->makes_steps ? "steps" : "no steps", h->ranks,
                   (long long)h->step);
    if (h->steps_per_second > 0) wefti_text_add(text, ", %.3g a second", h->steps_per_second);
    wefti_text_add(text, "; rank %d began its step %.1f s ago (limit %.4g s)", (int)oldest,
                   h->rank[oldest].step_seconds, h->limit_seconds);
}

weft_status wefti_health_judge(const wefti_job_health *job, const wefti_rank_health *rank,
                               double limit_seconds, weft_health *out) {
    wefti_text text = {0};
    *out = (weft_health){.generation = job->generation,
                         .size = job->size,
                         .here = job->here,
                         .ranks = job->ranks,
                         .restarts = job->restarts};
    if (job->ranks > 0) WEFT_NEW_ARRAY(out->rank, weft_health_rank, job->ranks);
    take_ranks(job, rank, out);
    const double steps =
        out->steps_per_second > 0 ? limit_steps / out->steps_per_second : least_limit_seconds;
    out->limit_seconds = limit_seconds > 0             ? limit_seconds
                         : steps > least_limit_seconds ? steps
                                                       : least_limit_seconds;
    if (job->state == WEFTI_JOB_FAILED)
        wefti_text_add(&text, "no steps: the job has failed: %.300s", job->text);
    else if (job->state == WEFTI_JOB_LEFT)
        wefti_text_add(&text, "no steps: all ranks have ended their training");
    else if (job->state == WEFTI_JOB_FORMING || job->ranks == 0)
        wefti_text_add(&text, "no steps: %d of %d processes have come", (int)job->here,
                       (int)job->size);
    else
        say_of_ranks(out, &text);
    if (out->restarts > 0)
        wefti_text_add(&text, "; %d restart%s", out->restarts, out->restarts == 1 ? "" : "s");
    out->text = wefti_text_take(&text);
    if (out->text) return WEFT_OK;
    weft_health_free(out);
    WEFT_FAIL(WEFT_E_NOMEM, "no memory for the health of a job");
}

void weft_health_free(weft_health *health) {
    wefti_free(health->text);
    wefti_free(health->scheduler);
    wefti_free(health->rank);
    *health = (weft_health){0};
}

/* --- asking --- */

static weft_status take_standby(const char *standby, wefti_job_place *out) {
    if (!standby) return WEFT_OK;
    WEFT_TRY(
        wefti_standby_address_check("the standby scheduler's address", standby, out->scheduler));
    (void)snprintf(out->standby, sizeof out->standby, "%s", standby);
    return WEFT_OK;
}

/* Whoever names a scheduler of this host need not name its secret. */
static void take_secret(wefti_job_place *out) {
    wefti_job_place *jobs;
    int64_t count;
    if (wefti_jobs_find("/proc", &jobs, &count) < 0) return;
    for (int64_t i = 0; i < count && !*out->secret_file; i++) {
        if (jobs[i].elsewhere || strcmp(jobs[i].scheduler, out->scheduler) != 0) continue;
        memcpy(out->secret_file, jobs[i].secret_file, sizeof out->secret_file);
        out->tls = jobs[i].tls;
    }
    wefti_free(jobs);
}

weft_status wefti_job_place_of(const char *name, const char *scheduler, const char *standby,
                               wefti_job_place *out) {
    char host[WEFTI_HOST_TEXT];
    int port;
    *out = (wefti_job_place){0};
    if (name) return wefti_job_find("/proc", name, out);
    if (scheduler) {
        WEFT_REQUIRE(strlen(scheduler) < sizeof out->scheduler, WEFT_E_ARG,
                     "the scheduler's address %.40s... is too long", scheduler);
        (void)snprintf(out->scheduler, sizeof out->scheduler, "%s", scheduler);
    } else {
        WEFT_TRY(wefti_scheduler_named(out->scheduler));
        if (*out->scheduler) WEFT_TRY(wefti_standby_named(out->standby));
    }
    if (*out->scheduler) {
        WEFT_TRY(wefti_address_parse("the scheduler's address", out->scheduler, host, &port));
        take_secret(out);
    } else {
        WEFT_TRY(wefti_job_find("/proc", NULL, out));
    }
    return take_standby(standby, out);
}

/* One question, of those that are asked at once. */
typedef struct asked {
    weft_health_options options;
    wefti_job_place place;
    wefti_question *question; /* NULL: it could not be asked */
} asked;

static weft_status begin(const void *given, asked *to) {
    wefti_settings set;
    const weft_health_options *o = &to->options;
    const wefti_job_place *place = &to->place;
    to->options = weft_health_defaults();
    WEFT_TRY(wefti_struct_take("weft_health_options", given, &to->options));
    WEFT_TRY(wefti_job_place_of(o->job, o->scheduler, o->standby, &to->place));
    WEFT_TRY(wefti_settings_find(&set));
    const char *secret = o->secret_file        ? o->secret_file
                         : *place->secret_file ? place->secret_file
                                               : set.secret_file;
    const double seconds = o->timeout_seconds > 0 ? o->timeout_seconds : timeout_seconds;
    wefti_member_options options = {.scheduler = place->scheduler,
                                    .standby = place->standby,
                                    .interface = set.interface,
                                    .rank = -1,
                                    .size = -1,
                                    .tls = o->tls || place->tls || set.tls,
                                    .join_seconds = seconds};
    WEFT_TRY(wefti_secret_find(secret, set.home, &options.secret, NULL));
    weft_status status = wefti_question_begin(&options, seconds, &to->question);
    explicit_bzero(&options.secret, sizeof options.secret);
    return status;
}

static weft_status end(asked *from, weft_health *out) {
    wefti_job_health job;
    wefti_rank_health *rank;
    bool by_standby;
    WEFT_TRY(wefti_question_end(from->question, &job, &rank, &by_standby));
    weft_status status = wefti_health_judge(&job, rank, from->options.limit_seconds, out);
    wefti_free(rank);
    WEFT_TRY(status);
    out->scheduler = wefti_strdup(by_standby ? from->place.standby : from->place.scheduler);
    if (out->scheduler) return WEFT_OK;
    weft_health_free(out);
    WEFT_FAIL(WEFT_E_NOMEM, "no memory for an address");
}

weft_status weft_health_ask(const weft_health_options *options, weft_health *out) {
    asked one;
    *out = (weft_health){0};
    WEFT_TRY(begin(options, &one));
    return end(&one, out);
}

static void note_failure(weft_health_answer *of, weft_status status) {
    of->status = status;
    if (status < 0) of->error = wefti_strdup(weft_error_message());
}

weft_status weft_health_ask_all(const weft_health_options *options, int count,
                                weft_health_answer *out) {
    asked *all;
    weft_health_options first = weft_health_defaults();
    const char *at = (const char *)options;
    for (int i = 0; i < count; i++) out[i] = (weft_health_answer){0};
    if (count <= 0) return WEFT_OK;
    WEFT_REQUIRE(options, WEFT_E_ARG, "no options: each job needs its own");
    WEFT_TRY(wefti_struct_take("weft_health_options", options, &first));
    WEFT_NEW_ARRAY(all, asked, count);
    for (int i = 0; i < count; i++, at += options->struct_bytes) /* of the caller's headers */
        note_failure(&out[i], begin(at, &all[i]));
    for (int i = 0; i < count; i++)
        if (all[i].question) note_failure(&out[i], end(&all[i], &out[i].health));
    wefti_free(all);
    for (int i = 0; i < count; i++) {
        if (out[i].status >= 0 || out[i].error) continue;
        weft_health_answers_free(out, count);
        WEFT_FAIL(WEFT_E_NOMEM, "no memory for what schedulers have answered");
    }
    return WEFT_OK;
}

void weft_health_answers_free(weft_health_answer *answers, int count) {
    for (int i = 0; i < count; i++) {
        weft_health_free(&answers[i].health);
        wefti_free(answers[i].error);
        answers[i].error = NULL;
    }
}
