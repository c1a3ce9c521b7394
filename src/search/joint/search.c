/* Branch and bound over the space of the joint search: see joint.h. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "schedule/schedule.h"
#include "search/joint/branch.h"

static const double tolerance = 0.002;
enum { FRUITLESS = 6 };

/* ---- branching ---- */

static bool is_last_mode(const wefti_joint_branch *s, const wefti_degrees *d) {
    return s->j.problem->fix.value[WEFTI_JOINT_RECOMPUTE] >= 0 ||
           d->recompute == WEFT_RECOMPUTE_FULL;
}

static void note_large(wefti_joint_branch *s, const wefti_degrees *d, double bytes) {
    if (!s->any_large || bytes < s->large.bytes) s->large = (wefti_joint_misfit){bytes, 0, *d};
    s->any_large = true;
}

/* They come in the order of bounds. */
bool wefti_joint_is_large(const wefti_degrees *d) {
    const double part = (double)d->expert * d->context * d->tensor;
    return d->context > 16 || part > 512 || part * d->data > 2048;
}

/* The least guess of the levels that fit, or of those that may fit; infinite: of none, or it is
 * large. */
static weft_status guess_of_split(const wefti_joint_branch *s, const wefti_degrees *d,
                                  const wefti_joint_line_bound *b, wefti_joint_fitting fitting,
                                  double *out) {
    const double work = b->about.work + b->about.further;
    const int32_t fixed = s->j.problem->fix.value[WEFTI_JOINT_LEVEL];
    double least = INFINITY, stages[2]; /* at level 0, and where replicas share gradients */
    *out = INFINITY;
    if (wefti_joint_is_large(d) || fitting == WEFTI_JOINT_TOO_LARGE) return WEFT_OK;
    for (int shared = 0; shared < 2; shared++) {
        wefti_degrees at = *d;
        at.level = shared;
        WEFT_TRY(wefti_joint_guess_least_stages(s, &at, &b->about, &stages[shared]));
    }
    for (int level = 0; level <= 3; level++) {
        if (wefti_joint_fitting_of(s, b->guess_bytes[level]) > fitting ||
            (fixed >= 0 && fixed != level))
            continue;
        const double exposed = wefti_joint_guess_exposed(s, d, work, level) + stages[level > 0];
        if (exposed < least) least = exposed;
    }
    /* Other orders of axes are seldom better. */
    *out = (work + least) * (wefti_joint_outermost(d) ? 1 : WEFTI_GUESS_INNER);
    return WEFT_OK;
}

weft_status wefti_joint_is_alike(wefti_joint_branch *s, const wefti_degrees *degrees, bool *out) {
    wefti_degrees d = wefti_degrees_none();
    const wefti_joint_line *line;
    *out = false;
    if (s->j.problem->fix.value[WEFTI_JOINT_RECOMPUTE] >= 0 || !s->j.scalable ||
        degrees->recompute == WEFT_RECOMPUTE_NONE)
        return WEFT_OK;
    d.recompute = (weft_recompute)((int)degrees->recompute - 1);
    WEFT_TRY(wefti_joint_line_find(&s->j, &d, &line));
    const double kept = line->kept_each;
    d.recompute = degrees->recompute;
    WEFT_TRY(wefti_joint_line_find(&s->j, &d, &line));
    *out = line->legal && line->kept_each >= 0.999 * kept;
    return WEFT_OK;
}

/* Goes on to the next mode of recomputation; false: there is none. Modes that are alike on one
 * device differ if a replica moves values between devices: without recomputation, the backward pass
 * may repeat transfers. */
static weft_status next_mode(wefti_joint_branch *s, wefti_degrees *d, bool with_alike, bool *out) {
    bool skipped = true;
    while (skipped && !is_last_mode(s, d)) {
        d->recompute = (weft_recompute)((int)d->recompute + 1);
        WEFT_TRY(wefti_joint_is_alike(s, d, &skipped));
        skipped = skipped && !with_alike;
    }
    *out = !skipped;
    return WEFT_OK;
}

/* `spare`: less recomputation is likely to fit. Then, and if the mode is like another one, it is
 * seldom better: it waits for its bound. */
static weft_status push_mode(wefti_joint_branch *s, const wefti_degrees *d, bool spare,
                             wefti_joint_fitting *out_fitting) {
    wefti_joint_line_bound b;
    bool alike;
    WEFT_TRY(wefti_joint_coarse_bound(s, d, &b));
    WEFT_TRY(wefti_joint_is_alike(s, d, &alike));
    const double about = wefti_joint_least_of_levels(s, &b);
    const bool fits = b.bytes <= (double)s->j.limit;
    double guess = INFINITY;
    *out_fitting = fits ? wefti_joint_fitting_of(s, about) : WEFTI_JOINT_TOO_LARGE;
    if (fits && !spare && !alike) WEFT_TRY(guess_of_split(s, d, &b, *out_fitting, &guess));
    if (fits)
        return wefti_joint_push_item(s,
                                     (wefti_joint_item){.kind = WEFTI_JOINT_COARSE,
                                                        .bound = b.seconds,
                                                        .guess = guess,
                                                        .about = about,
                                                        .tight = *out_fitting == WEFTI_JOINT_TIGHT,
                                                        .degrees = *d});
    note_large(s, d, b.bytes);
    return WEFT_OK;
}

/* All modes of recomputation with which the split may fit. A mode that recomputes more may be
 * faster: if it divides stages better, hides transfers, or gives gradients other layouts. */
static weft_status push_split(void *context, const wefti_degrees *degrees) {
    const bool moves = degrees->expert * degrees->context * degrees->tensor > 1;
    wefti_joint_branch *s = context;
    wefti_degrees d = *degrees;
    bool spare = false;
    /* An answer with a plan needs the bounds of all splits. */
    if (!s->out->prediction && wefti_joint_out_of_time(s)) return WEFT_OK;
    for (bool more = true; more;) {
        wefti_joint_fitting fitting;
        WEFT_TRY(push_mode(s, &d, spare, &fitting));
        spare = spare || fitting == WEFTI_JOINT_FITS;
        WEFT_TRY(next_mode(s, &d, moves, &more));
    }
    return WEFT_OK;
}

/* A candidate does not fit: with more recomputation it may, and is likely to be good. Its split is
 * open as well. */
static weft_status retry(wefti_joint_branch *s, const wefti_joint_item *x) {
    wefti_degrees d = x->degrees;
    wefti_joint_line_bound b;
    bool more;
    WEFT_TRY(next_mode(s, &d, false, &more));
    if (!more) return WEFT_OK;
    WEFT_TRY(wefti_joint_coarse_bound(s, &d, &b));
    return wefti_joint_push_item(s, (wefti_joint_item){.kind = WEFTI_JOINT_RETRY,
                                                       .bound = b.seconds,
                                                       .guess = x->guess,
                                                       .about = WEFTI_GUESS_RETRY * x->about,
                                                       .degrees = d});
}

static weft_status push_candidate(wefti_joint_branch *s, const wefti_degrees *d, double least) {
    const wefti_joint_work *work;
    wefti_joint_bound b;
    double bytes, about;
    WEFT_TRY(wefti_joint_work_find(&s->j, d, &work));
    if (!work->legal) return WEFT_OK;
    WEFT_TRY(wefti_joint_bound_of(&s->j, d, work, NULL, &b));
    if (!isfinite(b.seconds)) return WEFT_OK;
    double between; /* with transfers between replicas */
    WEFT_TRY(wefti_joint_step_of_draft(s, d, work, &between));
    const double bound = wefti_larger(wefti_larger(b.seconds, between), least);
    s->out->candidates++;
    WEFT_TRY(wefti_joint_bytes_of_draft(s, d, work, &bytes, &about));
    /* The candidate's own bound tells its schedule from others; that of its split does not. */
    const double exposed =
        wefti_joint_guess_exposed(s, d, b.seconds, d->level) + wefti_joint_guess_tied(s, d);
    const int32_t copies = s->j.problem->settings->copies; /* the bound has one of them */
    /* With weights' gradients apart, what has been recomputed stays. */
    const bool stays = wefti_schedule_splits(d->schedule) && d->recompute == WEFT_RECOMPUTE_FULL;
    bool alike;
    WEFT_TRY(wefti_joint_is_alike(s, d, &alike));
    const double guess = stays || alike
                             ? INFINITY
                             : (b.seconds * copies + exposed) * (d->shard ? WEFTI_GUESS_SHARD : 1);
    const wefti_joint_fitting fitting = wefti_joint_fitting_of(s, about);
    const bool fits = bytes <= (double)s->j.limit;
    const double certain =
        wefti_joint_is_certain(&s->j, d) ? 0 : wefti_larger(wefti_larger(between, least), DBL_MIN);
    const wefti_joint_item x = {.bound = bound,
                                .certain = certain,
                                .guess = fitting == WEFTI_JOINT_TOO_LARGE ? INFINITY : guess,
                                .about = about,
                                .kind = WEFTI_JOINT_DRAFT,
                                .tight = fitting == WEFTI_JOINT_TIGHT,
                                .degrees = *d,
                                .retried = fitting != WEFTI_JOINT_FITS};
    if (fits)
        WEFT_TRY(wefti_joint_push_item(s, x));
    else
        wefti_joint_note_bounded(s, d, bytes);
    if (fits && fitting == WEFTI_JOINT_FITS) return WEFT_OK;
    wefti_joint_item more = x;
    more.guess = guess;
    return retry(s, &more);
}

static weft_status push_draft(void *context, const wefti_degrees *d) {
    wefti_joint_branch *s = context;
    return push_candidate(s, d, s->split_bound);
}

static weft_status expand(wefti_joint_branch *s, const wefti_joint_item *x) {
    const wefti_joint_work *work;
    WEFT_TRY(wefti_joint_work_find(&s->j, &x->degrees, &work));
    if (!work->legal) return WEFT_OK;
    const wefti_joint_visit visit = {s, push_draft};
    s->split_bound = x->bound;
    return wefti_joint_schedules(&s->j, &x->degrees, &visit);
}

static weft_status refine(wefti_joint_branch *s, const wefti_joint_item *x) {
    const wefti_joint_work *work;
    const wefti_joint_state *state;
    wefti_joint_bound b;
    WEFT_TRY(wefti_joint_work_find(&s->j, &x->degrees, &work));
    WEFT_TRY(wefti_joint_state_find(&s->j, &x->degrees, &state));
    if (!state->legal) return WEFT_OK;
    WEFT_TRY(wefti_joint_bound_of(&s->j, &x->degrees, work, state, &b));
    s->out->bounded++;
    wefti_joint_item bounded = *x;
    bounded.bound = wefti_larger(b.seconds, x->bound);
    bounded.bytes = b.bytes, bounded.kind = WEFTI_JOINT_BOUNDED;
    bounded.taken = false;
    if (b.bytes > (double)s->j.limit) {
        wefti_joint_note_bounded(s, &x->degrees, b.bytes);
        bounded.about = b.bytes;
        return x->retried ? WEFT_OK : retry(s, &bounded);
    }
    return wefti_joint_push_item(s, bounded);
}

static weft_status draw(wefti_joint_branch *s, const wefti_joint_item *x) {
    wefti_joint_line_bound b;
    WEFT_TRY(wefti_joint_bound_drawn(s, &x->degrees, &b));
    const double bound = b.seconds > x->bound ? b.seconds : x->bound;
    if (!b.legal) return WEFT_OK;
    const bool fits = b.bytes <= (double)s->j.limit;
    const double about = wefti_joint_least_of_levels(s, &b);
    const wefti_joint_fitting fitting = wefti_joint_fitting_of(s, about);
    wefti_joint_item drawn = *x;
    if (about > 0) drawn.about = about, drawn.sized = false;
    drawn.kind = WEFTI_JOINT_DRAWN, drawn.bound = bound, drawn.taken = false;
    drawn.guess = fitting == WEFTI_JOINT_TOO_LARGE ? INFINITY : x->guess;
    drawn.tight = fitting == WEFTI_JOINT_TIGHT;
    if (fits)
        WEFT_TRY(wefti_joint_push_item(s, drawn));
    else
        note_large(s, &x->degrees, b.bytes);
    return WEFT_OK;
}

static weft_status find_work(wefti_joint_branch *s, const wefti_joint_item *x) {
    const wefti_joint_work *work;
    WEFT_TRY(wefti_joint_work_find(&s->j, &x->degrees, &work));
    if (!work->legal) return WEFT_OK;
    wefti_joint_item split = *x;
    split.kind = WEFTI_JOINT_SPLIT, split.taken = false;
    split.bound = wefti_larger(wefti_joint_bound_of_work(s, &x->degrees, work), x->bound);
    return wefti_joint_push_item(s, split);
}

static weft_status take(wefti_joint_branch *s, const wefti_joint_item *x) {
    switch (x->kind) {
    case WEFTI_JOINT_COARSE:
        return draw(s, x);
    case WEFTI_JOINT_DRAWN:
        return find_work(s, x);
    case WEFTI_JOINT_SPLIT:
        return expand(s, x);
    case WEFTI_JOINT_RETRY:
        return push_candidate(s, &x->degrees, x->bound);
    case WEFTI_JOINT_DRAFT:
        if (!s->guessing) return refine(s, x);
        break;
    default:
        break;
    }
    s->fits = true;
    WEFT_TRY(wefti_joint_walk_candidate(s, &x->degrees, x));
    if (!s->fits && x->tight) s->tight_misfits++;
    return s->fits || x->retried ? WEFT_OK : retry(s, x);
}

/* Of this phase. */
static bool over_budget(const wefti_joint_branch *s) {
    const int32_t budget = wefti_joint_budget(s), walks = s->out->evaluations - s->phase_walks;
    if (walks >= budget && s->out->prediction) return true;
    const double most = s->out->prediction ? s->share * wefti_joint_effort_budget(s)
                                           : wefti_joint_effort_without_plan(s);
    /* Candidates that do not fit count too, but the first plan that fits may take longer. */
    return wefti_joint_spent(s) >= most || walks >= 4 * budget;
}

/* Enough tight candidates have not fitted, or their programs have taken their part of the budget.
 */
static bool is_hopeless(const wefti_joint_branch *s, const wefti_joint_item *x) {
    enum { PART = 6 };
    return x->tight &&
           (s->tight_misfits >= WEFTI_JOINT_TIGHT_MISFITS ||
            (!wefti_joint_is_walked(x) && s->tight_effort > wefti_joint_effort_budget(s) / PART));
}

/* The open item with the least guess, -1: none may be better than the best plan. */
static weft_status least_guess(wefti_joint_branch *s, int64_t *out) {
    wefti_joint_heap *h = &s->heaps[WEFTI_JOINT_BY_GUESS];
    *out = -1;
    while (h->count) {
        wefti_joint_item *x = &s->items[h->at[0]];
        if (!x->taken && wefti_joint_guess_of(x) > WEFTI_GUESS_FAR * wefti_joint_best(s)) break;
        const bool open = !x->taken && x->bound * s->ratio < wefti_joint_best(s) &&
                          !wefti_joint_is_costly(s, x) && !is_hopeless(s, x);
        const double factor = open && wefti_joint_is_walked(x) && !x->corrected
                                  ? wefti_joint_correction_for(s, x)
                                  : 1;
        if (open && factor == 1) {
            *out = x->number;
            return WEFT_OK;
        }
        wefti_joint_remove_first(s, WEFTI_JOINT_BY_GUESS);
        if (!open) continue;
        x->guess *= factor;
        x->corrected = true;
        WEFT_TRY(wefti_joint_insert(s, WEFTI_JOINT_BY_GUESS, x->number));
    }
    return WEFT_OK;
}

/* The open item that needs least memory, as plans that did not fit tell of their mesh; -1: none. */
static weft_status least_of_bytes(wefti_joint_branch *s, int64_t *out) {
    for (;;) {
        *out = wefti_joint_first_of(s, WEFTI_JOINT_BY_BYTES);
        if (*out < 0) return WEFT_OK;
        wefti_joint_item *x = &s->items[*out];
        const double larger = wefti_joint_size_for(s, x);
        if (larger == 1) return WEFT_OK;
        wefti_joint_remove_first(s, WEFTI_JOINT_BY_BYTES);
        x->about *= larger;
        x->sized = true;
        WEFT_TRY(wefti_joint_insert(s, WEFTI_JOINT_BY_BYTES, x->number));
    }
}

/* A plain plan first, or what needs least memory if nothing is likely to fit. By guess until a few
 * walks in turn have found no better plan; then by bound. */
static weft_status next_of(wefti_joint_branch *s, int64_t *out) {
    *out = -1;
    if (s->out->prediction && s->out->evaluations - s->found >= FRUITLESS) s->guessing = false;
    if (s->guessing && !s->out->prediction) *out = wefti_joint_first_of(s, WEFTI_JOINT_FIRST_PLAN);
    if (s->guessing && *out < 0) WEFT_TRY(least_guess(s, out));
    if (s->guessing && *out < 0 && !s->out->prediction) WEFT_TRY(least_of_bytes(s, out));
    s->guessing = *out >= 0;
    if (*out < 0) *out = wefti_joint_first_of(s, WEFTI_JOINT_BY_BOUND);
    return WEFT_OK;
}

/* Whether the walk of an item goes beyond this effort, or will only show that it does not fit. */
static bool is_beyond(const wefti_joint_branch *s, const wefti_joint_item *x, double effort) {
    return wefti_joint_spent(s) + wefti_joint_walk_effort(&x->degrees) > effort ||
           wefti_joint_fitting_of(s, x->about) == WEFTI_JOINT_TOO_LARGE;
}

/* Raises the lower bound: what has the least bound is bounded better, and walked at last if the
 * budget admits it. */
static weft_status prove(wefti_joint_branch *s) {
    /* No walk follows any more: a small budget takes little time for its bound too. */
    const int32_t asked = s->j.problem->evaluations;
    const bool few = asked && asked < s->round && wefti_joint_is_over(s);
    const double part = few ? (double)asked / s->round : 1;
    const double most = part * wefti_joint_effort_budget(s);
    s->guessing = false;
    while (s->count && s->out->prediction && wefti_joint_spent(s) < most &&
           !wefti_joint_out_of_time(s)) {
        const int64_t first = wefti_joint_first_of(s, WEFTI_JOINT_BY_BOUND);
        if (s->items[first].bound * s->ratio >= wefti_joint_best(s)) break;
        if (s->items[first].kind == WEFTI_JOINT_BOUNDED &&
            !wefti_joint_is_past(s, &s->items[first].degrees) &&
            (wefti_joint_is_over(s) || over_budget(s) || is_beyond(s, &s->items[first], most)))
            break;
        const wefti_joint_item x = wefti_joint_take(s, first);
        WEFT_TRY(take(s, &x));
    }
    return WEFT_OK;
}

/* Takes what is open, until nothing open may be better or the budget of the phase is used up.
 * `first`: until there is a plan. */
static weft_status branch(wefti_joint_branch *s, bool first) {
    s->guessing = !s->j.problem->by_bound;
    while (s->count && !(first && s->out->prediction)) {
        const double least = s->items[wefti_joint_first_of(s, WEFTI_JOINT_BY_BOUND)].bound;
        if (least * s->ratio >= wefti_joint_best(s)) break;
        if (over_budget(s) || wefti_joint_is_over(s)) break;
        /* What waits for its bound is no more likely to fit. */
        if (!s->out->prediction && wefti_joint_first_of(s, WEFTI_JOINT_BY_BYTES) < 0) break;
        int64_t next;
        WEFT_TRY(next_of(s, &next));
        const wefti_joint_item x = wefti_joint_take(s, next);
        const double before = wefti_joint_spent(s);
        WEFT_TRY(take(s, &x));
        if (x.tight && !wefti_joint_is_walked(&x)) s->tight_effort += wefti_joint_spent(s) - before;
    }
    return WEFT_OK;
}

/* The open item with the least bound, NULL: none is open. */
static const wefti_joint_item *least_bound(const wefti_joint_branch *s, double *out) {
    const wefti_joint_item *least = NULL;
    *out = INFINITY;
    for (int64_t i = 0; i < s->numbered; i++) {
        const wefti_joint_item *x = &s->items[i];
        const double bound = x->certain > 0 ? x->certain : x->bound;
        if (x->taken || bound >= *out) continue;
        *out = bound;
        least = x;
    }
    return least;
}

static double bound_of_walked(const wefti_joint_branch *s) {
    double least = INFINITY;
    for (int64_t i = 0; i < s->numbered; i++) {
        const wefti_joint_item *x = &s->items[i];
        if (x->taken && wefti_joint_is_walked(x))
            least = wefti_smaller(least, x->certain > 0 ? x->certain : x->bound);
    }
    return least;
}

static void note_bound(wefti_joint_branch *s) {
    double least;
    (void)least_bound(s, &least);
    s->out->exhausted = least * s->ratio >= wefti_joint_best(s);
    if (s->j.problem->moves_less) least = wefti_smaller(least, bound_of_walked(s));
    s->out->lower_bound_seconds = wefti_smaller(least, wefti_joint_best(s));
}

/* Walks for few devices are short, so there may be many of them: as a part of the effort. */
static double more_on_few(const wefti_joint_branch *s) {
    const double times = s->j.devices / WEFTI_GUESS_FEW;
    return 1 / (1 + times * times);
}

/* Walks on larger machines take longer, so there are fewer of them. */
static weft_status walk_neighbours(wefti_joint_branch *s) {
    wefti_joint_begin_phase(s, more_on_few(s) +
                                   WEFTI_GUESS_NEIGHBOURS / wefti_joint_larger_machine(s));
    return wefti_joint_walk_neighbours(s);
}

/* The phases of a round have its budget each. They do not depend on the walks or the time that the
 * caller asks for, which only end the search: a larger budget makes the same walks first. */
static weft_status search_round(wefti_joint_branch *s) {
    const bool local = !s->j.problem->by_bound && !s->j.problem->plain && s->j.scalable;
    if (local && s->round == WEFTI_JOINT_ROUND) {
        wefti_joint_begin_phase(s, 1);
        WEFT_TRY(branch(s, true));
        wefti_joint_begin_phase(s, WEFTI_GUESS_PLAIN + more_on_few(s));
        WEFT_TRY(wefti_joint_walk_plain(s));
    }
    wefti_joint_begin_phase(s, 1);
    WEFT_TRY(branch(s, false));
    if (local && s->round == WEFTI_JOINT_ROUND) {
        wefti_joint_begin_phase(s, more_on_few(s));
        WEFT_TRY(wefti_joint_walk_singles(s));
    }
    if (local) WEFT_TRY(walk_neighbours(s));
    const double before = wefti_joint_best(s);
    wefti_joint_begin_phase(s, 1);
    WEFT_TRY(prove(s));
    if (local && wefti_joint_best(s) < before) WEFT_TRY(walk_neighbours(s));
    note_bound(s);
    return WEFT_OK;
}

static weft_status branch_and_bound(wefti_joint_branch *s) {
    const wefti_joint_visit visit = {s, push_split};
    WEFT_TRY(wefti_joint_walk_splits_of_ops(s));
    WEFT_TRY(wefti_joint_splits(&s->j, &visit));
    for (s->round = WEFTI_JOINT_ROUND;; s->round *= 2) {
        WEFT_TRY(search_round(s));
        s->out->cut = wefti_joint_out_of_time(s);
        if (s->out->exhausted || s->out->cut || !s->out->prediction || wefti_joint_is_over(s) ||
            s->round >= s->j.problem->evaluations)
            return WEFT_OK;
    }
}

/* ---- the answer ---- */

/* Derived: the inequalities of bound/, but for those that say that they are checked. */
const char wefti_joint_bound_scope[] =
    "plans with the usual splits of the model's family, stages and optimizer thresholds as the "
    "search sets them, and the job's copies; checked by tests, not derived in all its parts";
weft_status wefti_joint_begin(wefti_joint_branch *s) {
    wefti_joint *j = &s->j;
    const wefti_joint_problem *p = j->problem;
    WEFT_TRY(wefti_model_fits(p->machine, j->devices));
    WEFT_TRY(wefti_joint_fix_check(&p->fix, j->devices, p->source.batch));
    j->instant = *p->machine;
    for (int32_t l = 0; l < j->instant.level_count; l++) {
        j->instant.level[l].latency_seconds.value = 0;
        j->instant.level[l].all_reduce.count = 0;
    }
    j->links = wefti_model_links(p->machine);
    j->rates = wefti_model_rates(p->machine);
    j->limit = p->memory_bytes ? p->memory_bytes : (int64_t)p->machine->device.memory_bytes.value;
    j->scalable = p->source.batch > 0;
    j->known = p->source.config != NULL;
    s->outwards = wefti_joint_is_slower_outwards(p->machine);
    s->guessing = !p->by_bound;
    s->ratio = 1 + (p->tolerance > 0 ? p->tolerance : tolerance);
    WEFT_TRY(wefti_arena_create(&j->arena));
    WEFT_TRY(wefti_route_cache_create(&j->routes));
    WEFT_TRY(wefti_joint_shape_find(j));
    return wefti_joint_find_ideal(s);
}

void wefti_joint_end(wefti_joint_branch *s) {
    wefti_free(s->items);
    wefti_free(s->past);
    wefti_free(s->corrections);
    wefti_free(s->sizes);
    for (int k = 0; k < WEFTI_JOINT_ORDERS; k++) wefti_free(s->heaps[k].at);
    wefti_free(s->j.works);
    for (int64_t i = 0; i < s->j.line_count; i++) wefti_free(s->j.lines[i].products);
    wefti_free(s->j.lines);
    wefti_free(s->j.states);
    wefti_free(s->j.products);
    wefti_route_cache_destroy(s->j.routes);
    wefti_arena_destroy(s->j.arena);
}

/* Divides the gap: what the bounds leave out of the plan, and what is open elsewhere. */
static weft_status explain_gap(wefti_joint_branch *s) {
    wefti_joint_answer *a = s->out;
    const double step = a->prediction->step_seconds;
    wefti_joint_chain chain;
    wefti_text text = {0};
    double least;
    if (a->cut || a->exhausted || !s->j.scalable || s->j.problem->plain) return WEFT_OK;
    WEFT_TRY(wefti_joint_chain_find(s, &a->degrees, &chain));
    a->plan_bound_seconds = a->lower_bound_seconds; /* of all plans, so of this one */
    for (int k = 0; k < WEFTI_JOINT_LINKS; k++)
        a->plan_bound_seconds = wefti_larger(a->plan_bound_seconds, chain.seconds[k]);
    a->plan_bound_seconds = wefti_smaller(a->plan_bound_seconds, step);
    const wefti_joint_item *x = least_bound(s, &least);
    if (!x || a->lower_bound_seconds >= a->plan_bound_seconds) return WEFT_OK;
    if (wefti_joint_is_walked(x) || x->kind == WEFTI_JOINT_RETRY)
        wefti_joint_degrees_text(&x->degrees, &text);
    else
        wefti_joint_split_text(&x->degrees, &text);
    a->least = wefti_text_take(&text);
    WEFT_REQUIRE(a->least, WEFT_E_NOMEM, "no memory for an answer");
    return WEFT_OK;
}

static weft_status check_tiers(const wefti_joint *j) {
    const int32_t level = j->problem->fix.value[WEFTI_JOINT_LEVEL];
    WEFT_REQUIRE(!wefti_plan_may_run_on_host(j->problem->settings), WEFT_E_NO_IMPL,
                 "place: a search places updates alone; match '*:update', or set parallel.mesh");
    WEFT_REQUIRE(
        (level != 1 && level != 2) || !wefti_joint_moves_parameters(j), WEFT_E_NO_IMPL,
        "memory.offload: a search moves parameters at levels 0 and 3 of the optimizer, but "
        "level=%d is given, which would gather them as level 3 does: leave it out, or set "
        "parallel.mesh",
        level);
    return WEFT_OK;
}

weft_status wefti_joint_search(const wefti_joint_problem *problem, wefti_joint_answer *out) {
    wefti_joint_branch s = {.j = {.problem = problem, .devices = problem->settings->devices},
                            .out = out,
                            .begin = wefti_joint_now(problem)};
    *out = (wefti_joint_answer){0};
    WEFT_TRY(check_tiers(&s.j));
    weft_status status = wefti_joint_begin(&s);
    if (status >= 0) status = branch_and_bound(&s);
    out->exhausted = out->exhausted && out->lower_bound_seconds * s.ratio >= wefti_joint_best(&s);
    if (status >= 0 && !out->prediction) status = wefti_joint_no_plan(&s);
    out->programs = s.j.built;
    if (status >= 0) status = wefti_joint_cells_find(&s.j, &out->degrees, out->plan, &out->cells);
    if (status >= 0) status = explain_gap(&s);
    wefti_joint_end(&s);
    if (status < 0) {
        wefti_joint_answer_free(out);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    out->gap =
        (out->prediction->step_seconds - out->lower_bound_seconds) / out->lower_bound_seconds;
    return WEFT_OK;
}

void wefti_joint_answer_free(wefti_joint_answer *answer) {
    weft_plan_destroy(answer->plan);
    weft_prediction_free(answer->prediction);
    wefti_joint_cells_free(&answer->cells);
    wefti_free(answer->least);
    answer->least = NULL;
    answer->plan = NULL;
    answer->prediction = NULL;
}
