/* What is open in the joint search, in the order of bounds and in that of guesses. */
#include <math.h>

#include "base/heap.h"
#include "search/joint/branch.h"

enum { PLAIN_PARTS = 64 };

static bool before(const wefti_joint_item *a, const wefti_joint_item *b) {
    if (a->bound != b->bound) return a->bound < b->bound;
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->number < b->number;
}

/* What is known less well turns out longer. */
double wefti_joint_guess_of(const wefti_joint_item *x) {
    static const double later[] = {[WEFTI_JOINT_BOUNDED] = 1,
                                   [WEFTI_JOINT_DRAFT] = 1,
                                   [WEFTI_JOINT_RETRY] = 1,
                                   [WEFTI_JOINT_SPLIT] = WEFTI_GUESS_OF_SPLIT,
                                   [WEFTI_JOINT_DRAWN] = WEFTI_GUESS_OF_DRAWN,
                                   [WEFTI_JOINT_COARSE] = WEFTI_GUESS_OF_COARSE};
    return x->guess * later[x->kind] * (x->tight ? WEFTI_GUESS_TIGHT : 1);
}

static double key_of(const wefti_joint_item *x, wefti_joint_order by) {
    switch (by) {
    case WEFTI_JOINT_BY_BOUND:
        return x->bound;
    case WEFTI_JOINT_BY_BYTES:
        return x->about;
    case WEFTI_JOINT_FIRST_PLAN:
        return wefti_joint_guess_of(x) * (1 + WEFTI_GUESS_KIND * (int)x->kind);
    default:
        return wefti_joint_guess_of(x);
    }
}

typedef struct order {
    const wefti_joint_branch *search;
    wefti_joint_order by;
} order;

static bool is_first(order c, const int64_t *a, const int64_t *b) {
    const wefti_joint_item *x = &c.search->items[*a], *y = &c.search->items[*b];
    const double of_x = key_of(x, c.by), of_y = key_of(y, c.by);
    return of_x != of_y ? of_x < of_y : before(x, y);
}
WEFTI_HEAP(open, int64_t, order, is_first)

/* Candidates that are cheap to build and seldom bad: tensors within a host, whole sequences,
 * replicas outermost, whole parameters. The first plan is one of them. */
static bool is_plain(const wefti_joint_branch *s, const wefti_degrees *d) {
    return d->context == 1 && d->level < 3 && !d->shard && d->chunks == 1 &&
           d->schedule == WEFT_PIPELINE_1F1B && wefti_joint_outermost(d) &&
           d->tensor <= wefti_model_per_host(s->j.problem->machine) &&
           d->tensor * d->expert <= PLAIN_PARTS;
}

weft_status wefti_joint_insert(wefti_joint_branch *s, wefti_joint_order by, int64_t number) {
    wefti_joint_heap *h = &s->heaps[by];
    WEFT_TRY(WEFT_GROW(h->at, h->count, h->cap));
    open_push(h->at, &h->count, number, (order){s, by});
    return WEFT_OK;
}

void wefti_joint_remove_first(wefti_joint_branch *s, wefti_joint_order by) {
    wefti_joint_heap *h = &s->heaps[by];
    (void)open_pop(h->at, &h->count, (order){s, by});
}

weft_status wefti_joint_push_item(wefti_joint_branch *s, wefti_joint_item x) {
    WEFT_TRY(WEFT_GROW(s->items, s->numbered, s->cap));
    x.number = s->numbered++;
    s->items[x.number] = x;
    s->count++;
    const bool guessed = s->guessing && isfinite(x.guess);
    if (guessed) WEFT_TRY(wefti_joint_insert(s, WEFTI_JOINT_BY_GUESS, x.number));
    if (!s->out->prediction && !x.waits)
        WEFT_TRY(wefti_joint_insert(s, WEFTI_JOINT_BY_BYTES, x.number));
    if (guessed && !x.tight && !s->out->prediction && is_plain(s, &x.degrees))
        WEFT_TRY(wefti_joint_insert(s, WEFTI_JOINT_FIRST_PLAN, x.number));
    return wefti_joint_insert(s, WEFTI_JOINT_BY_BOUND, x.number);
}

wefti_joint_item wefti_joint_take(wefti_joint_branch *s, int64_t number) {
    s->items[number].taken = true;
    s->count--;
    return s->items[number];
}
/* The first item that is open, -1: none. */
int64_t wefti_joint_first_of(wefti_joint_branch *s, wefti_joint_order by) {
    wefti_joint_heap *h = &s->heaps[by];
    while (h->count && s->items[h->at[0]].taken) wefti_joint_remove_first(s, by);
    return h->count ? h->at[0] : -1;
}
