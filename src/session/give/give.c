/* Who gives a state to whom. A rank whose process is new takes it from a replica or from its buddy.
 * A buddy takes copies of its ward's state. */
#include "session/give/give.h"

/* ---- who has the state of whom ---- */

static bool is_kept(const wefti_tensor *t) {
    return t->role <= WEFTI_TENSOR_OPTIMIZER;
}

static bool same_region(const wefti_site *x, const wefti_site *y, int32_t i) {
    const wefti_tensor *t = &x->tensors[i];
    const wefti_region a = wefti_site_region(x, t), b = wefti_site_region(y, &y->tensors[i]);
    if (t->layout.sum || t->layout.max) return false; /* each rank has a term of its own */
    return wefti_regions_equal(&a, &b, t->whole.rank);
}

bool wefti_session_replicates(const weft_session *s, int32_t a, int32_t b) {
    if (!s->plan || s->plan->mode == WEFT_PARALLEL_MANUAL) return false;
    for (int64_t i = 0; i < s->view_count; i++) {
        const wefti_site *x = &s->views[i]->sites[a], *y = &s->views[i]->sites[b];
        if (x->facts.mesh.first != y->facts.mesh.first) return false; /* of another stage */
        for (int32_t t = 0; t < x->facts.tensor_count; t++)
            if (is_kept(&x->tensors[t]) && !same_region(x, y, t)) return false;
    }
    return true;
}

bool wefti_session_keeps(const weft_session *s, int32_t a, int32_t b) {
    return wefti_survivor_keeps(&s->survivor) && s->views[0]->sites[b].facts.holder == a;
}

static bool has_buddies(const weft_session *s) {
    for (int32_t r = 0; r < s->devices; r++)
        if (s->views[0]->sites[r].facts.holder >= 0) return true;
    return false;
}

static int32_t holder_of(const weft_session *s, int32_t rank) {
    return s->views[0]->sites[rank].facts.holder;
}

/* ---- copies ---- */

/* The holder of `rank` takes copies of its pieces. */
static weft_status copy_rank(weft_session *s, int32_t rank) {
    const int32_t holder = holder_of(s, rank);
    if (holder < 0 || (s->world && rank != s->me && holder != s->me)) return WEFT_OK;
    const wefti_giving g = {rank, holder, WEFTI_GIVEN_OWNED, WEFTI_GIVEN_COPIES, -1};
    return wefti_state_give(s, &g, s->survivor.step);
}

weft_status wefti_session_copy(weft_session *s) {
    weft_status status = WEFT_OK;
    if (s->survivor.copies != WEFTI_COPIES_STALE || !has_buddies(s)) return WEFT_OK;
    for (int32_t r = 0; r < s->devices && status >= 0; r++) status = copy_rank(s, r);
    WEFT_TRY(wefti_fail_world(s->world, status));
    wefti_survivor_copied(&s->survivor);
    return WEFT_OK;
}

void wefti_session_changed(weft_session *s, wefti_tensor_role role) {
    wefti_session_saving_captured(s);
    if (role == WEFTI_TENSOR_PARAM) s->copied = false;
    if (role <= WEFTI_TENSOR_OPTIMIZER) wefti_survivor_changed(&s->survivor);
}

/* ---- newcomers ---- */

/* Of a rank that gets no state. */
static weft_status check_state(const weft_session *s, int64_t target) {
    const int64_t step = wefti_survivor_stands(&s->survivor).step;
    WEFT_REQUIRE(step == target, WEFT_E_MISMATCH,
                 "rank %d has %s, and no other rank gives it the one after %lld updates", s->me,
                 step < 0 ? "no whole state" : "another state", (long long)target);
    return WEFT_OK;
}

static weft_status give_state(weft_session *s, int32_t from, int32_t to, int64_t target) {
    if (from != s->me && to != s->me) return WEFT_OK;
    const bool replica = wefti_session_replicates(s, from, to);
    const wefti_giving g = {from, to, replica ? WEFTI_GIVEN_ALL : WEFTI_GIVEN_COPIES,
                            replica ? WEFTI_GIVEN_ALL : WEFTI_GIVEN_OWNED, -1};
    return wefti_state_give(s, &g, target);
}

/* Whether devices of this stage update only a piece of a parameter that they have. */
static bool is_gathered(const wefti_program *p, int32_t tensor) {
    for (int32_t i = 0; i < p->owned_count; i++)
        if (p->owned[i].tensor == tensor)
            return !wefti_layout_equal(&p->owned[i].layout, &p->tensors[tensor].layout);
    return false;
}

/* The lowest rank with the same region of a tensor, whose process is not new; -1: none. */
static int32_t find_same(const weft_session *s, int32_t rank, int32_t tensor,
                         const int32_t *source) {
    const wefti_site *sites = s->views[0]->sites;
    for (int32_t r = 0; r < s->devices; r++)
        if (source[r] < 0 && sites[r].facts.mesh.first == sites[rank].facts.mesh.first &&
            same_region(&sites[r], &sites[rank], tensor))
            return r;
    return -1;
}

/* A buddy has the piece of a parameter that its ward updates. Other devices have the whole, in
 * which that piece may be older: it comes last. */
static weft_status give_whole(weft_session *s, int32_t to, const int32_t *source, int64_t target) {
    const wefti_site *site = &s->views[0]->sites[to];
    if (wefti_session_replicates(s, source[to], to)) return WEFT_OK;
    for (int32_t t = 0; t < site->facts.tensor_count; t++) {
        if (site->tensors[t].role != WEFTI_TENSOR_PARAM) continue;
        const wefti_giving g = {find_same(s, to, t, source), to, WEFTI_GIVEN_TENSOR,
                                WEFTI_GIVEN_TENSOR, t};
        if ((g.from != s->me && to != s->me) || !is_gathered(s->views[0]->own, t)) continue;
        WEFT_REQUIRE(g.from >= 0, WEFT_E_MISMATCH, "no rank has '%s' of rank %d any more",
                     site->tensors[t].name, to);
        WEFT_TRY(wefti_state_give(s, &g, target));
    }
    return WEFT_OK;
}

/* ---- copies of newcomers ---- */

/* The copies that newcomers lack, or ranks that were to take them when a further process died.
 * Before the first step nobody has copies. */
static weft_status give_copies(weft_session *s) {
    const double own = s->survivor.copies;
    weft_status status = WEFT_OK;
    double *all = s->of_ranks;
    bool stale = false;
    if (!has_buddies(s)) return WEFT_OK;
    WEFT_TRY(wefti_agree_records(s->agreement, &own, sizeof own, all));
    for (int32_t r = 0; r < s->devices; r++) stale |= all[r] == WEFTI_COPIES_STALE;
    for (int32_t r = 0; r < s->devices && status >= 0 && !stale; r++)
        if (holder_of(s, r) >= 0 && all[holder_of(s, r)] == WEFTI_COPIES_LACKING)
            status = copy_rank(s, r);
    WEFT_TRY(wefti_agree(s->agreement, status));
    (stale ? wefti_survivor_changed : wefti_survivor_copied)(&s->survivor);
    return WEFT_OK;
}

weft_status wefti_session_give(weft_session *s, int64_t target, const int32_t *source) {
    weft_status status = WEFT_OK;
    for (int32_t r = 0; r < s->devices && status >= 0; r++)
        if (source[r] >= 0) status = give_whole(s, r, source, target);
    for (int32_t r = 0; r < s->devices && status >= 0; r++)
        if (source[r] >= 0) status = give_state(s, source[r], r, target);
    if (status >= 0 && source[s->me] < 0) status = check_state(s, target);
    WEFT_TRY(wefti_agree(s->agreement, status));
    if (source[s->me] >= 0) wefti_survivor_took(&s->survivor, target);
    return give_copies(s);
}
