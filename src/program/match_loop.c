/* Loops of programs, in matching: whole periods are skipped once the play repeats.
 *
 * The play is deterministic. So if its state is the same as some iterations ago, but for
 * microbatches that are all later by one number, it goes on in the same way until a rank leaves its
 * loop. The state is kept as a digest, and compared whenever one rank, the reference, begins
 * another iteration. Source of the search for a repeated state: Brent, "An improved Monte Carlo
 * factorization algorithm", BIT 1980. */
#include "program/match_parts.h"

#include "base/digest/digest.h"

static const wefti_loop *loop_of(const wefti_match *m, const wefti_match_rank *r) {
    return wefti_cursor_loop(r->program, m->section, &r->at);
}

/* By how much the microbatches of a rank's iteration are later than those of its loop's first. */
static int64_t later(const wefti_match *m, const wefti_match_rank *r) {
    const wefti_loop *l = loop_of(m, r);
    return l ? (int64_t)r->at.iteration * l->micro : 0;
}

static uint64_t add(uint64_t digest, int64_t number) {
    return wefti_digest_number(digest, (uint64_t)number);
}

static uint64_t add_pointer(uint64_t digest, const void *p) {
    return wefti_digest_number(digest, (uint64_t)(uintptr_t)p);
}

static uint64_t digest_rank(const wefti_match *m, const wefti_match_rank *r, int64_t base,
                            uint64_t digest) {
    digest = add(digest, r->at.step);
    digest = add(digest, r->at.loop);
    digest = add(digest, loop_of(m, r) ? later(m, r) - base : 0);
    digest = add(digest, (int64_t)r->code << 32 | r->joined_end);
    digest = add(digest, (int64_t)r->under_way << 2 | r->entered << 1 | r->blocked);
    for (int32_t i = 0; i < r->count; i++) {
        const wefti_match_end *e = &r->ends[i];
        if (e->posted == e->waited) continue;
        digest = add(digest, i);
        for (uint32_t k = e->waited; k != e->posted; k++) {
            const wefti_match_post *x = &e->in_flight[k % WEFTI_COMM_DEPTH];
            digest = add(digest, x->number - e->channel->complete);
            for (int p = 0; p < 2; p++)
                digest = add(digest, x->place[p] - r->at.iteration * x->stride[p]);
        }
    }
    return digest;
}

static uint64_t digest_channel(const wefti_match_channel *c, int64_t base, uint64_t digest) {
    for (int32_t i = 0; i < c->members; i++)
        digest = add(digest, (c->posted[i] - c->complete) << 1 | c->waiting[i]);
    for (int64_t k = c->complete - c->begin; k < c->used; k++) {
        const wefti_meeting *x = &c->open[k];
        digest = add_pointer(digest, x->first.step);
        digest = add_pointer(digest, x->first.code);
        digest = add(digest, x->first.micro - base);
        digest = add(digest, x->arrived);
    }
    return digest;
}

static uint64_t digest_state(const wefti_match *m) {
    int64_t base = later(m, &m->ranks[m->repeat.reference]);
    uint64_t digest = add(6, m->queued);
    for (int32_t i = 0; i < m->queued; i++) digest = add(digest, m->queue[i]);
    for (int32_t i = 0; i < m->count; i++) digest = digest_rank(m, &m->ranks[i], base, digest);
    for (uint64_t b = 0; b < m->buckets; b++)
        for (const wefti_match_channel *c = m->channels[b]; c; c = c->next)
            digest = digest_channel(c, base, digest);
    return digest;
}

void wefti_match_repeat_begin(wefti_match *m) {
    m->repeat.reference = -1;
    for (int32_t i = m->count - 1; i >= 0; i--)
        if (m->ranks[i].program->loop_count[m->section]) m->repeat.reference = i;
    m->repeat.known = false;
}

/* Remembers the present state, for twice as many iterations as the state before. */
static void remember(wefti_match *m, uint64_t digest) {
    wefti_match_repeat *x = &m->repeat;
    x->patience = x->known ? 2 * x->patience : 1;
    x->known = true;
    x->digest = digest;
    x->passed = 0;
    for (int32_t i = 0; i < m->count; i++) m->ranks[i].iteration = m->ranks[i].at.iteration;
}

/* How often all ranks can repeat what they did since the remembered state, and stay in their
 * loops. */
static int32_t repetitions(const wefti_match *m) {
    int32_t most = INT32_MAX;
    for (int32_t i = 0; i < m->count; i++) {
        const wefti_match_rank *r = &m->ranks[i];
        const wefti_loop *l = loop_of(m, r);
        int32_t advance = r->at.iteration - r->iteration;
        if (!l || advance <= 0) continue;
        int32_t times = (l->times - 1 - r->at.iteration) / advance;
        if (times < most) most = times;
    }
    return most;
}

static void skip(wefti_match *m, int32_t times) {
    const wefti_match_rank *reference = &m->ranks[m->repeat.reference];
    int32_t by =
        (reference->at.iteration - reference->iteration) * times * loop_of(m, reference)->micro;
    for (int32_t i = 0; i < m->count; i++) {
        wefti_match_rank *r = &m->ranks[i];
        const int32_t skipped = loop_of(m, r) ? (r->at.iteration - r->iteration) * times : 0;
        r->at.iteration += skipped;
        r->waits.micro += by;
        for (int32_t k = 0; k < r->count; k++) {
            wefti_match_end *e = &r->ends[k];
            e->last.micro += by;
            for (int x = 0; x < 2 * WEFTI_COMM_DEPTH; x++) {
                wefti_match_post *post = &e->in_flight[x / 2];
                post->place[x % 2] += skipped * post->stride[x % 2];
            }
        }
    }
    for (uint64_t b = 0; b < m->buckets; b++)
        for (wefti_match_channel *c = m->channels[b]; c; c = c->next)
            for (int64_t k = c->complete - c->begin; k < c->used; k++) c->open[k].first.micro += by;
}

void wefti_match_repeat_at(wefti_match *m, const wefti_match_rank *r) {
    wefti_match_repeat *x = &m->repeat;
    if (r != &m->ranks[x->reference]) return;
    uint64_t digest = digest_state(m);
    if (x->known && digest == x->digest) {
        skip(m, repetitions(m));
        x->known = false;
    } else if (!x->known || ++x->passed == x->patience) {
        remember(m, digest);
    }
}
