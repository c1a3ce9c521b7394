/* Messages for programs that do not match: both sides, the difference, and the chain of waits. */
#include <stdio.h>
#include <string.h>

#include "program/match_parts.h"
#include "program/print.h"

static void add_ranks(wefti_text *text, int32_t members, const int32_t *ranks) {
    enum { MOST = 16 };
    wefti_text_add(text, "ranks");
    for (int32_t i = 0; i < members && i < MOST; i++) wefti_text_add(text, " %d", ranks[i]);
    if (members > MOST) wefti_text_add(text, " and %d more", members - MOST);
}

static void add_place(wefti_text *text, const wefti_match_side *s) {
    wefti_text_add(text, "rank %d in step '%s'", s->program->rank, s->step->name);
    if (s->step->phase != WEFTI_OTHER) wefti_text_add(text, " (%s)", wefti_phase_text(s->step));
    if (s->program->all_microbatches) wefti_text_add(text, " of microbatch %d", s->micro);
}

static void add_transfer(wefti_text *text, const wefti_match_side *s) {
    const wefti_transfer *t = s->transfer;
    char name[256], have[32], want[32];
    int64_t size = (int64_t)weft_dtype_bytes(t->dtype);
    const char *reduction = wefti_reduction_text(t->reduction);
    wefti_text_add(text, "%s%s%s of '%s' (%s, gives %s, gets %s, ",
                   wefti_transfer_kind_text(t->kind), *reduction ? " " : "", reduction,
                   wefti_transfer_name(s->step, s->code, t, name, sizeof name),
                   weft_dtype_text(t->dtype),
                   wefti_bytes_text(wefti_region_elems(&t->have[t->me], t->rank) * size, have),
                   wefti_bytes_text(wefti_region_elems(&t->want[t->me], t->rank) * size, want));
    add_ranks(text, t->members, t->ranks);
    if (t->tag) wefti_text_add(text, ", tag %llu", (unsigned long long)t->tag);
    wefti_text_add(text, ")");
}

static void add_box(wefti_text *text, const wefti_region *box, int rank) {
    wefti_text_add(text, "[");
    for (int d = 0; d < rank; d++)
        wefti_text_add(text, "%s%lld:%lld", d ? ", " : "", (long long)box->begin[d],
                       (long long)(box->begin[d] + box->size[d]));
    wefti_text_add(text, "]");
}

static bool same_box(const wefti_region *a, const wefti_region *b, int rank) {
    for (int d = 0; d < rank; d++)
        if (a->begin[d] != b->begin[d] || a->size[d] != b->size[d]) return false;
    return true;
}

static void add_boxes(wefti_text *text, const wefti_transfer *a, const wefti_transfer *b) {
    for (int32_t i = 0; i < a->members && i < b->members; i++) {
        bool had = same_box(&a->have[i], &b->have[i], a->rank);
        if (had && same_box(&a->want[i], &b->want[i], a->rank)) continue;
        wefti_text_add(text, "what rank %d %s is ", a->ranks[i], had ? "gets" : "gives");
        add_box(text, had ? &a->want[i] : &a->have[i], a->rank);
        wefti_text_add(text, " for the one and ");
        add_box(text, had ? &b->want[i] : &b->have[i], a->rank);
        wefti_text_add(text, " for the other");
        return;
    }
    wefti_text_add(text, "they are of different passes");
}

static void add_difference(wefti_text *text, const wefti_match_side *x, const wefti_match_side *y) {
    const wefti_transfer *a = x->transfer, *b = y->transfer;
    if (strcmp(wefti_transfer_what(x->step, x->code, a), wefti_transfer_what(y->step, y->code, b)))
        wefti_text_add(text, "they move different values");
    else if (strcmp(x->step->name, y->step->name))
        wefti_text_add(text, "they are of different calls");
    else if (a->kind != b->kind)
        wefti_text_add(text, "one is %s, the other %s", wefti_transfer_kind_text(a->kind),
                       wefti_transfer_kind_text(b->kind));
    else if (a->reduction != b->reduction)
        wefti_text_add(text, "they reduce in different ways");
    else if (a->dtype != b->dtype)
        wefti_text_add(text, "one is %s, the other %s", weft_dtype_text(a->dtype),
                       weft_dtype_text(b->dtype));
    else if (a->rank != b->rank)
        wefti_text_add(text, "one has %d dimensions, the other %d", a->rank, b->rank);
    else if (x->micro != y->micro && x->kind == y->kind)
        wefti_text_add(text, "they are of microbatches %d and %d", x->micro, y->micro);
    else
        add_boxes(text, a, b);
}

static weft_status refuse(wefti_text *text) {
    char *message = wefti_text_take(text);
    WEFT_REQUIRE(message, WEFT_E_NOMEM, "no memory to say how programs differ");
    weft_status status = WEFT_RAISE(WEFT_E_MISMATCH, "%s", message);
    wefti_free(message);
    return status;
}

weft_status wefti_match_differ(const wefti_match *m, const wefti_match_side *a,
                               const wefti_match_side *b) {
    wefti_text text = {0};
    wefti_text_add(&text,
                   "the ranks' programs do not match (%s): ", wefti_section_text(m->section));
    add_place(&text, a);
    wefti_text_add(&text, " has ");
    add_transfer(&text, a);
    wefti_text_add(&text, " where ");
    add_place(&text, b);
    wefti_text_add(&text, " has ");
    add_transfer(&text, b);
    wefti_text_add(&text, ": ");
    add_difference(&text, a, b);
    return refuse(&text);
}

weft_status wefti_match_wrong(const wefti_match *m, const wefti_match_side *side,
                              const char *what) {
    wefti_text text = {0};
    wefti_text_add(&text, "the program of a rank is wrong (%s): ", wefti_section_text(m->section));
    add_place(&text, side);
    wefti_text_add(&text, ": ");
    add_transfer(&text, side);
    wefti_text_add(&text, " %s", what);
    return refuse(&text);
}

/* The first player for which a blocked player waits. */
static int32_t missing(const wefti_match *m, int32_t player) {
    const wefti_match_rank *r = &m->ranks[player];
    const wefti_transfer *t = r->waits.transfer;
    wefti_match_end *end = NULL;
    for (int32_t i = 0; i < r->count && !end; i++)
        if (wefti_partition_transfer(r->program->partition, i) == t) end = &r->ends[i];
    const int64_t number = wefti_match_oldest(end)->number;
    for (int32_t i = 0; i < end->channel->members; i++)
        if (end->channel->posted[i] <= number) return end->channel->ranks[i];
    return player; /* not reached: the wait would have ended */
}

/* Reports the chain of waits from the first blocked rank on, until it closes or ends. */
weft_status wefti_match_stuck(const wefti_match *m) {
    enum { MOST = 6 };
    wefti_text text = {0};
    int32_t at = 0, told = 0;
    while (!m->ranks[at].blocked) at++;
    for (int32_t i = 0; i < m->count && m->ranks[at].blocked; i++) /* go on until the rank is in the
                                                                      circle */
        at = missing(m, at);
    int32_t end = at;
    bool circle = m->ranks[end].blocked;
    if (!circle) { /* start again, up to the rank before the end */
        at = 0;
        while (!m->ranks[at].blocked) at++;
        wefti_text_add(&text, "the ranks' programs do not match (%s): a transfer is missing: ",
                       wefti_section_text(m->section));
    } else {
        wefti_text_add(&text, "the ranks' programs wait for each other (%s): ",
                       wefti_section_text(m->section));
    }
    do {
        int32_t next = missing(m, at);
        if (told++ < MOST) {
            wefti_text_add(&text, "%s", told > 1 ? "; " : "");
            add_place(&text, &m->ranks[at].waits);
            wefti_text_add(&text, " waits for rank %d in ", m->ranks[next].program->rank);
            add_transfer(&text, &m->ranks[at].waits);
        }
        at = next;
    } while (at != end);
    if (told > MOST) wefti_text_add(&text, "; and %d more", told - MOST);
    if (!circle)
        wefti_text_add(&text, "; rank %d is at its end without it", m->ranks[end].program->rank);
    return refuse(&text);
}
