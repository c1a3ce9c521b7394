/* What a search says if no plan fits. */
#include <stdio.h>

#include "program/print.h"
#include "search/joint/branch.h"

/* Whether some plan fits the changed problem; WEFT_OK also if none does, or if none was found
 * `until` then; 0: no limit of time. */
static weft_status would_fit(const wefti_joint_problem *changed, double until, bool *out) {
    wefti_joint_problem p = *changed;
    wefti_joint_answer answer;
    *out = false;
    p.evaluations = 1;
    p.plain = true;
    if (until > 0) p.seconds = until - wefti_joint_now(&p);
    if (until > 0 && p.seconds <= 0) return WEFT_OK;
    /* The modes that need least memory are enough to show that something fits. */
    if (p.fix.value[WEFTI_JOINT_RECOMPUTE] < 0)
        p.fix.value[WEFTI_JOINT_RECOMPUTE] = (int32_t)WEFT_RECOMPUTE_FULL;
    if (p.fix.value[WEFTI_JOINT_LEVEL] < 0) p.fix.value[WEFTI_JOINT_LEVEL] = 3;
    if (p.fix.value[WEFTI_JOINT_CONTEXT] < 0) p.fix.value[WEFTI_JOINT_CONTEXT] = 1;
    const weft_status status = wefti_joint_search(&p, &answer);
    *out = status >= 0;
    if (*out) wefti_joint_answer_free(&answer);
    if (status != WEFT_E_NOMEM && status != WEFT_E_NOT_FOUND && !wefti_joint_refuses(status))
        return status;
    wefti_error_clear();
    return WEFT_OK;
}

static weft_status without_constraint(const wefti_joint_problem *p, double until, bool *found,
                                      char out[128]) {
    static const wefti_joint_dimension first[] = {WEFTI_JOINT_LEVEL, WEFTI_JOINT_RECOMPUTE,
                                                  WEFTI_JOINT_MICROBATCHES};
    for (int i = 0; i < 3 + WEFTI_JOINT_COUNT && !*found; i++) {
        const int d = i < 3 ? (int)first[i] : i - 3;
        wefti_joint_problem changed = *p;
        if (p->fix.value[d] < 0) continue;
        changed.fix.value[d] = -1;
        WEFT_TRY(would_fit(&changed, until, found));
        if (*found)
            snprintf(out, 128, "without the constraint of %s a plan fits",
                     wefti_joint_dimension_text((wefti_joint_dimension)d));
    }
    return WEFT_OK;
}

static weft_status with_more_devices(const wefti_joint_problem *p, double until, bool *found,
                                     char out[128]) {
    wefti_machine_model larger = *p->machine;
    weft_plan *settings;
    weft_status status = WEFT_OK;
    if (p->settings->mesh_given || p->settings->strategy_count) return WEFT_OK;
    for (int32_t times = 2; times <= 8 && !*found && status >= 0; times *= 2) {
        wefti_joint_problem changed = *p;
        if (p->settings->devices > (1 << 16) / times) break;
        if (p->machine->hosts) larger.hosts = p->machine->hosts * times;
        WEFT_TRY(weft_plan_create(p->settings->devices * times, &settings));
        changed.settings = settings;
        changed.machine = &larger;
        status = wefti_plan_take_offload(settings, p->settings);
        if (status >= 0) status = would_fit(&changed, until, found);
        weft_plan_destroy(settings);
        if (*found) snprintf(out, 128, "with %d devices a plan fits", p->settings->devices * times);
    }
    return status;
}

/* The smallest change with which a plan fits, as a sentence. */
static weft_status advise(const wefti_joint_branch *s, char out[128]) {
    const wefti_joint_problem *p = s->j.problem;
    const double until = p->seconds > 0 ? s->begin + p->seconds : 0;
    bool found = false;
    snprintf(out, 128, "the model needs more memory, or a smaller size");
    if (p->plain) return WEFT_OK;
    WEFT_TRY(without_constraint(p, until, &found, out));
    return found ? WEFT_OK : with_more_devices(p, until, &found, out);
}

/* The largest tensors at the peak of a candidate that has been walked, and the step of the peak.
 * NULL: its plan is not the one of its degrees. */
static weft_status build_instant(wefti_joint_branch *s, const wefti_joint_misfit *m, char **out) {
    const wefti_degrees *d = &m->degrees;
    const wefti_optimizer_plan *optimizer;
    wefti_program *program;
    int32_t *part_of;
    weft_plan *plan;
    weft_graph *graph;
    WEFT_TRY(wefti_joint_graph_of(s, d, &graph, &optimizer));
    WEFT_TRY(wefti_joint_parts_of(s, d, &part_of));
    weft_status status = wefti_joint_plan(&s->j, d, part_of, &plan);
    wefti_free(part_of);
    WEFT_TRY(status);
    const wefti_program_spec spec = {.graph = graph,
                                     .kind = wefti_kind_of(m->rank),
                                     .prepare = wefti_prepare_anywhere(),
                                     .optimizer = optimizer,
                                     .keep_gradients = !optimizer && graph->loss >= 0,
                                     .microbatches =
                                         d->microbatches * s->j.problem->settings->copies,
                                     .plan = wefti_plan_matters(plan) ? plan : NULL,
                                     .rank = m->rank,
                                     .routes = s->j.routes};
    status = wefti_program_build(&spec, &program);
    weft_plan_destroy(plan);
    WEFT_TRY(status);
    enum { NAMED = 3 };
    if ((double)program->peak_bytes == m->bytes)
        status = wefti_program_largest(program, NAMED, out);
    wefti_program_destroy(program);
    return status;
}

static weft_status find_instant(wefti_joint_branch *s, const wefti_joint_misfit *m, char **out) {
    *out = NULL;
    const weft_status status = build_instant(s, m, out);
    if (!wefti_joint_refuses(status)) return status;
    wefti_error_clear();
    return WEFT_OK;
}

/* ---- what needs least memory ---- */

typedef struct least_draft {
    wefti_joint_branch *s;
    bool any;
    double about;
    wefti_degrees degrees;
} least_draft;

static weft_status note_draft(void *context, const wefti_degrees *d) {
    least_draft *x = context;
    const wefti_joint_work *work;
    double bytes, about;
    WEFT_TRY(wefti_joint_work_find(&x->s->j, d, &work));
    if (!work->legal) return WEFT_OK;
    WEFT_TRY(wefti_joint_bytes_of_draft(x->s, d, work, &bytes, &about));
    if (x->any && x->about <= about) return WEFT_OK;
    x->any = true, x->about = about, x->degrees = *d;
    return WEFT_OK;
}

/* The open item that needs least memory, by programs of its own split, of those whose walks do not
 * take long; -1: none. */
static int64_t least_item(const wefti_joint_branch *s) {
    const double most = wefti_joint_effort_without_plan(s) / 4;
    int64_t least = -1;
    for (int64_t i = 0; i < s->numbered; i++) {
        const wefti_joint_item *x = &s->items[i];
        if (x->taken || x->kind == WEFTI_JOINT_COARSE ||
            wefti_joint_walk_effort(&x->degrees) > most)
            continue;
        if (least < 0 || x->about < s->items[least].about) least = i;
    }
    return least;
}

/* The effort may have ended before what needs least memory was walked. It may even fit. */
static weft_status walk_least(wefti_joint_branch *s) {
    enum { WALKS = 2 };
    for (int i = 0; i < WALKS; i++) {
        const int64_t number = least_item(s);
        if (number < 0) return WEFT_OK;
        const wefti_joint_item x = wefti_joint_take(s, number);
        least_draft least = {.s = s, .any = true, .degrees = x.degrees};
        if (x.kind == WEFTI_JOINT_DRAWN || x.kind == WEFTI_JOINT_SPLIT) {
            const wefti_joint_visit visit = {&least, note_draft};
            least.any = false;
            WEFT_TRY(wefti_joint_schedules(&s->j, &x.degrees, &visit));
        }
        if (least.any) WEFT_TRY(wefti_joint_walk_candidate(s, &least.degrees, NULL));
    }
    return WEFT_OK;
}

/* Candidates with the least bounds of bytes, those with less first, as far as the effort goes. */
static weft_status walk_bounded(wefti_joint_branch *s) {
    double left = wefti_joint_effort_without_plan(s) / 16;
    for (int i = 0; i < s->misfits; i++) {
        const double effort = wefti_joint_walk_effort(&s->bounded[i].degrees);
        if (effort > left) continue;
        left -= effort;
        WEFT_TRY(wefti_joint_walk_candidate(s, &s->bounded[i].degrees, NULL));
    }
    return WEFT_OK;
}

weft_status wefti_joint_no_plan(wefti_joint_branch *s) {
    const wefti_joint_misfit *m = &s->walked;
    char *instant = NULL;
    char needs[32], more[32], has[32], advice[128];
    const int64_t most = s->j.problem->host_bytes;
    WEFT_REQUIRE(
        !s->host_least, WEFT_E_NOMEM,
        "no plan fits: those that fit device memory need %s or more in tier host, but the "
        "limit (memory.host) is %s, which lacks %lld bytes. It would fit if memory.offload "
        "kept less on the host, or more on a disk",
        wefti_bytes_text(s->host_least, needs), wefti_bytes_text(most, has),
        (long long)(s->host_least - most));
    WEFT_REQUIRE(!s->out->cut, WEFT_E_NOT_FOUND,
                 "no plan found within %g s; the search was not finished: it compared %lld "
                 "candidates, and simulated %d plans, of which none fits; give it more seconds, or "
                 "constraints",
                 s->j.problem->seconds, (long long)s->out->candidates, s->out->evaluations);
    if (!s->misfits && s->any_large) s->bounded[s->misfits++] = s->large;
    if (!s->j.problem->plain) {
        WEFT_TRY(walk_bounded(s));
        WEFT_TRY(walk_least(s));
    }
    if (s->out->prediction) return WEFT_OK;
    if (!s->any_walked && s->misfits) s->walked = s->bounded[0];
    if (!s->any_walked && !s->misfits) WEFT_TRY(wefti_joint_contradiction(&s->j));
    WEFT_REQUIRE(s->any_walked || s->misfits, WEFT_E_ARG,
                 "no plan for %d devices meets the constraints: %lld candidates suit neither the "
                 "model nor its batch",
                 s->j.devices, (long long)s->numbered);
    WEFT_TRY(advise(s, advice));
    if (s->any_walked && !s->j.problem->plain && !wefti_joint_out_of_time(s))
        WEFT_TRY(find_instant(s, m, &instant));
    wefti_text text = {0};
    wefti_joint_degrees_text(&m->degrees, &text);
    if (instant) wefti_text_add(&text, ": %s", instant);
    wefti_free(instant);
    char *degrees = wefti_text_take(&text);
    WEFT_REQUIRE(degrees, WEFT_E_NOMEM, "no memory for a message");
    const weft_status status = WEFT_RAISE(
        WEFT_E_NOMEM,
        "no plan fits: the one that needs least memory (%s) needs %s on rank %d, %s (%lld bytes) "
        "more than a device's %s; %s",
        degrees, wefti_bytes_text((int64_t)m->bytes, needs), m->rank,
        wefti_bytes_text((int64_t)m->bytes - s->j.limit, more),
        (long long)((int64_t)m->bytes - s->j.limit), wefti_bytes_text(s->j.limit, has), advice);
    wefti_free(degrees);
    return status;
}
