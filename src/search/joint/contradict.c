/* Which constraints leave no plan: one of them with the model, two with each other, or all
 * together. Constraints contradict each other if the space has no legal candidate that meets them
 * and no others. So what a message says holds by trial, also of dimensions to come. */
#include <stdio.h>
#include <string.h>

#include "search/joint/parts.h"

enum {
    TRIALS = 4096, /* of candidates; after so many illegal ones, some are taken to be legal */
    VALUES = 64,   /* that are tried in place of a value; larger ones by powers of two */
    MOST_NAMED = 6 /* values that a message names */
};

typedef struct trial {
    wefti_joint j;
    wefti_joint_problem problem; /* of j */
    int64_t tried;
    bool legal;
} trial;

static weft_status try_candidate(void *context, const wefti_degrees *d) {
    trial *t = context;
    const weft_model_config *c = t->problem.source.config;
    weft_plan *plan = NULL;
    if (t->legal) return WEFT_OK;
    const weft_status status = c ? wefti_degrees_plan(c, d, &plan) : WEFT_OK;
    weft_plan_destroy(plan);
    if (status == WEFT_E_NOMEM) return status;
    if (status < 0) wefti_error_clear();
    t->legal = status >= 0 || ++t->tried >= TRIALS;
    return WEFT_OK;
}

static weft_status try_split(void *context, const wefti_degrees *d) {
    trial *t = context;
    const wefti_joint_visit visit = {t, try_candidate};
    return t->legal ? WEFT_OK : wefti_joint_schedules(&t->j, d, &visit);
}

/* Whether some candidate meets these constraints. */
static weft_status holds(const wefti_joint *j, const wefti_joint_fix *fix, bool *out) {
    trial t = {.j = *j, .problem = *j->problem};
    const wefti_joint_visit visit = {&t, try_split};
    t.problem.fix = *fix;
    t.j.problem = &t.problem;
    WEFT_TRY(wefti_joint_splits(&t.j, &visit));
    *out = t.legal;
    return WEFT_OK;
}

/* ---- what would be right ---- */

static void constraint_text(int d, int32_t value, wefti_text *out) {
    wefti_joint_constraint_text((wefti_joint_dimension)d, value, out);
}

static int32_t largest_of(int d) {
    switch (d) {
    case WEFTI_JOINT_SEQUENCE:
        return 1;
    case WEFTI_JOINT_SCHEDULE:
        return WEFT_PIPELINE_ZERO_BUBBLE;
    case WEFTI_JOINT_RECOMPUTE:
        return (int32_t)WEFT_RECOMPUTE_FULL;
    case WEFTI_JOINT_LEVEL:
    case WEFTI_JOINT_INNER:
        return 3;
    default:
        return 1 << 20;
    }
}

static int32_t least_of(int d) {
    const bool from_zero = d == WEFTI_JOINT_SHARD || largest_of(d) <= 3;
    return from_zero ? 0 : 1;
}

/* "; with pp=4: microbatches=4, microbatches=8". `with` < 0: alone. */
static weft_status add_right_values(const wefti_joint *j, int with, int d, wefti_text *out) {
    wefti_joint_fix fix = wefti_joint_free();
    int found = 0;
    if (with >= 0) fix.value[with] = j->problem->fix.value[with];
    for (int32_t v = least_of(d); v <= largest_of(d) && found < MOST_NAMED;
         v += v < VALUES ? 1 : v) {
        bool right;
        fix.value[d] = v;
        WEFT_TRY(holds(j, &fix, &right));
        if (!right) continue;
        wefti_text_add(out, found ? ", " : "; right %s", with >= 0 ? "with " : "would be ");
        if (!found && with >= 0) {
            constraint_text(with, fix.value[with], out);
            wefti_text_add(out, ": ");
        }
        constraint_text(d, v, out);
        found++;
    }
    return WEFT_OK;
}

/* The reason, if the checks of a plan know one for these constraints alone. */
static void add_reason(const wefti_joint *j, int a, int b, wefti_text *out) {
    const int32_t *v = j->problem->fix.value;
    const weft_model_config *c = j->problem->source.config;
    wefti_degrees d = wefti_degrees_none();
    weft_plan *plan = NULL;
    int32_t *const places[WEFTI_JOINT_COUNT] = {
        [WEFTI_JOINT_DATA] = &d.data,       [WEFTI_JOINT_EXPERT] = &d.expert,
        [WEFTI_JOINT_CONTEXT] = &d.context, [WEFTI_JOINT_TENSOR] = &d.tensor,
        [WEFTI_JOINT_STAGES] = &d.stages,   [WEFTI_JOINT_CHUNKS] = &d.chunks,
        [WEFTI_JOINT_SHARD] = &d.shard,     [WEFTI_JOINT_MICROBATCHES] = &d.microbatches};
    for (int k = 0; k < 2; k++) {
        const int x = k ? b : a;
        if (x >= 0 && places[x]) *places[x] = v[x];
        if (x == WEFTI_JOINT_SCHEDULE) d.schedule = (weft_schedule)v[x];
        if (x == WEFTI_JOINT_LEVEL) d.level = v[x];
    }
    /* What is not fixed is as these constraints need it. */
    if (b != WEFTI_JOINT_MICROBATCHES && a != WEFTI_JOINT_MICROBATCHES) d.microbatches = d.stages;
    if (d.schedule == WEFT_PIPELINE_INTERLEAVED && b != WEFTI_JOINT_CHUNKS) d.chunks = 2;
    const int64_t others = (int64_t)d.expert * d.context * d.tensor * d.stages;
    if (a != WEFTI_JOINT_DATA && others < j->devices) d.data = (int32_t)(j->devices / others);
    if (!c || wefti_degrees_plan(c, &d, &plan) >= 0) {
        weft_plan_destroy(plan);
        return;
    }
    wefti_text_add(out, ": %s", weft_error_message());
    wefti_error_clear();
}

static weft_status refuse(wefti_text *text) {
    char *message = wefti_text_take(text);
    const weft_status status = message ? WEFT_RAISE(WEFT_E_ARG, "%s", message)
                                       : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a message");
    wefti_free(message);
    return status;
}

static weft_status refuse_one(const wefti_joint *j, int d) {
    wefti_text text = {0};
    wefti_text_add(&text, "contradicting constraints: ");
    constraint_text(d, j->problem->fix.value[d], &text);
    wefti_text_add(&text, " and this model on %d devices", j->devices);
    if (j->problem->source.batch)
        wefti_text_add(&text, " with %lld samples a step", (long long)j->problem->source.batch);
    add_reason(j, d, -1, &text);
    const weft_status status = add_right_values(j, -1, d, &text);
    if (status >= 0) return refuse(&text);
    wefti_text_free(&text);
    return status;
}

static weft_status refuse_two(const wefti_joint *j, int a, int b) {
    wefti_text text = {0};
    wefti_text_add(&text, "contradicting constraints: ");
    constraint_text(a, j->problem->fix.value[a], &text);
    wefti_text_add(&text, " and ");
    constraint_text(b, j->problem->fix.value[b], &text);
    wefti_text_add(&text, " on %d devices", j->devices);
    add_reason(j, a, b, &text);
    weft_status status = add_right_values(j, a, b, &text);
    if (status >= 0) status = add_right_values(j, b, a, &text);
    if (status >= 0) return refuse(&text);
    wefti_text_free(&text);
    return status;
}

/* Each two go together, all do not. */
static weft_status refuse_all(const wefti_joint *j) {
    const wefti_joint_fix *fix = &j->problem->fix;
    wefti_text text = {0};
    int found = 0;
    weft_status status = WEFT_OK;
    wefti_text_add(&text, "contradicting constraints: no plan for %d devices meets all of them",
                   j->devices);
    for (int d = 0; d < WEFTI_JOINT_COUNT && status >= 0; d++) {
        wefti_joint_fix rest = *fix;
        bool right = false;
        if (fix->value[d] < 0) continue;
        rest.value[d] = -1;
        status = holds(j, &rest, &right);
        if (!right) continue;
        wefti_text_add(&text, found++ ? " or " : "; there are plans without ");
        constraint_text(d, fix->value[d], &text);
    }
    if (status >= 0) return refuse(&text);
    wefti_text_free(&text);
    return status;
}

weft_status wefti_joint_contradiction(const wefti_joint *j) {
    const wefti_joint_fix *fix = &j->problem->fix;
    bool right;
    WEFT_TRY(holds(j, fix, &right));
    if (right) return WEFT_OK;
    for (int a = 0; a < WEFTI_JOINT_COUNT; a++) {
        wefti_joint_fix one = wefti_joint_free();
        if (fix->value[a] < 0) continue;
        one.value[a] = fix->value[a];
        WEFT_TRY(holds(j, &one, &right));
        if (!right) return refuse_one(j, a);
    }
    for (int a = 0; a < WEFTI_JOINT_COUNT; a++)
        for (int b = a + 1; b < WEFTI_JOINT_COUNT; b++) {
            wefti_joint_fix two = wefti_joint_free();
            if (fix->value[a] < 0 || fix->value[b] < 0) continue;
            two.value[a] = fix->value[a];
            two.value[b] = fix->value[b];
            WEFT_TRY(holds(j, &two, &right));
            if (!right) return refuse_two(j, a, b);
        }
    return refuse_all(j);
}
