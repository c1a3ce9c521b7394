/* Offsets for buffers with known lifetimes.
 *
 * Greedy by size: the largest buffer first, each at the lowest offset where it overlaps no placed
 * buffer that is alive at the same time. Source: Pisarchyk & Lee, "Efficient Memory Management for
 * Deep Neural Net Inference", MLSys 2020 workshop, section 5.2 ("greedy by size for offset
 * calculation").
 *
 * A segment tree over time stores the occupied addresses. Each node has two merged lists of address
 * ranges. `whole` lists the buffers that live through the node's whole time interval; `any` lists
 * the buffers that live in some part of it. A lifetime covers O(log steps) nodes. Their `any` lists
 * and the `whole` lists of their ancestors contain every address occupied at some time of the
 * lifetime. Buffers of deep models stack without gaps, so the lists stay short, and thousands of
 * layers take milliseconds. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "memory/place.h"

enum { MAX_LEVELS = 32 };
static const int64_t MOST_BYTES = INT64_C(1) << 61; /* limit for the sum of all sizes */

/* ---- sets of address ranges ---- */

typedef struct range {
    int64_t begin, end;
} range;

/* Sorted ranges that neither overlap nor touch. */
typedef struct range_set {
    range *ranges;
    int32_t count, cap;
} range_set;

/* Number of the first range that ends after `offset`. */
static int32_t first_behind(const range_set *s, int64_t offset) {
    int32_t low = 0, high = s->count;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (s->ranges[mid].end > offset)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Adds a range at or behind the last one, as most are. Returns false if there is no room, or the
 * range lies before that. */
static inline bool append(range_set *s, range r) {
    range *last = s->count ? &s->ranges[s->count - 1] : NULL;
    if (last && r.begin < last->begin) return false;
    if (last && r.begin <= last->end) {
        if (r.end > last->end) last->end = r.end;
        return true;
    }
    if (s->count == s->cap) return false;
    s->ranges[s->count++] = r;
    return true;
}

static weft_status insert(wefti_arena *scratch, range_set *s, range r) {
    int32_t from = first_behind(s, r.begin - 1), to = from; /* touching ranges merge too */
    for (; to < s->count && s->ranges[to].begin <= r.end; to++) {
        if (s->ranges[to].begin < r.begin) r.begin = s->ranges[to].begin;
        if (s->ranges[to].end > r.end) r.end = s->ranges[to].end;
    }
    if (from == to && s->count == s->cap) {
        int32_t cap = s->cap ? s->cap * 2 : 2;
        range *bigger = wefti_arena_alloc(scratch, (size_t)cap * sizeof *bigger);
        WEFT_REQUIRE(bigger, WEFT_E_NOMEM, "no memory to place buffers");
        if (s->count) memcpy(bigger, s->ranges, (size_t)s->count * sizeof *bigger);
        s->ranges = bigger;
        s->cap = cap;
    }
    if (to != from + 1)
        memmove(s->ranges + from + 1, s->ranges + to, (size_t)(s->count - to) * sizeof r);
    s->count += 1 - (to - from);
    s->ranges[from] = r;
    return WEFT_OK;
}

static inline weft_status add(wefti_arena *scratch, range_set *s, range r) {
    return append(s, r) ? WEFT_OK : insert(scratch, s, r);
}

/* ---- occupied ranges, by time ---- */

/* A heap-shaped tree: node 1 is all of time, leaf `leaves + t` is step t. A leaf has only one set,
 * `any`. */
typedef struct timetable {
    wefti_arena *scratch;
    range_set *whole, *any;
    int64_t leaves;
} timetable;

/* The nodes that a lifetime concerns. The intervals of the nodes `in` are together its steps; there
 * are at most two such nodes per level, for each of the two times of a lifetime. `above` has the
 * ancestors of those nodes. */
typedef struct place_span {
    int64_t in[4 * MAX_LEVELS], above[4 * MAX_LEVELS];
    int in_count, above_count;
} place_span;

static bool inside(const timetable *t, int64_t node, int level, int32_t begin, int32_t end) {
    int64_t first = (node << level) - t->leaves, last = first + ((int64_t)1 << level) - 1;
    return first >= begin && last <= end;
}

/* Adds the nodes of the steps [begin, end]. */
static void add_span(const timetable *t, int32_t begin, int32_t end, place_span *s) {
    int64_t low = t->leaves + begin, high = t->leaves + end + 1;
    for (; low < high; low /= 2, high /= 2) {
        if (low & 1) s->in[s->in_count++] = low++;
        if (high & 1) s->in[s->in_count++] = --high;
    }
    /* The interval of a node above reaches outside the lifetime, so it contains one end of the
     * lifetime. */
    low = t->leaves + begin;
    high = t->leaves + end;
    for (int level = 0; low; low /= 2, high /= 2, level++) {
        if (!inside(t, low, level, begin, end)) s->above[s->above_count++] = low;
        if (high != low && !inside(t, high, level, begin, end)) s->above[s->above_count++] = high;
    }
}

static void find_span(const timetable *t, const wefti_lifetime *b, place_span *s) {
    s->in_count = s->above_count = 0;
    add_span(t, b->first, b->last, s);
    if (b->until > 0) add_span(t, b->again, b->until, s);
}

static weft_status take(timetable *t, const place_span *s, range r) {
    for (int i = 0; i < s->in_count; i++) {
        int64_t node = s->in[i];
        if (node < t->leaves) WEFT_TRY(add(t->scratch, &t->whole[node], r));
        WEFT_TRY(add(t->scratch, &t->any[node], r));
    }
    for (int i = 0; i < s->above_count; i++) WEFT_TRY(add(t->scratch, &t->any[s->above[i]], r));
    return WEFT_OK;
}

/* Collects the sets of all ranges occupied at some step of a lifetime. Sets of high nodes come
 * first: their buffers live longest and usually lie lowest. */
static int taken_sets(const timetable *t, const place_span *s,
                      const range_set *sets[8 * MAX_LEVELS]) {
    int count = 0;
    for (int i = s->above_count - 1; i >= 0; i--)
        if (t->whole[s->above[i]].count) sets[count++] = &t->whole[s->above[i]];
    for (int i = s->in_count - 1; i >= 0; i--)
        if (t->any[s->in[i]].count) sets[count++] = &t->any[s->in[i]];
    return count;
}

/* The lowest offset at which `size` bytes are free in all sets. The offset only grows, so each set
 * is read once from its begin. */
static int64_t lowest_free(const range_set *const *sets, int count, int64_t size) {
    const range *next[8 * MAX_LEVELS];
    int64_t offset = 0;
    for (int i = 0; i < count; i++) next[i] = sets[i]->ranges;
    for (int agreed = 0, i = 0; agreed < count; i = i + 1 < count ? i + 1 : 0) {
        const range *at = next[i], *end = sets[i]->ranges + sets[i]->count;
        int64_t before = offset;
        while (at < end && at->begin < offset + size) {
            if (at->end > offset) offset = at->end;
            at++;
        }
        next[i] = at;
        agreed = offset == before ? agreed + 1 : 1; /* this set has room at the new offset */
    }
    return offset;
}

/* ---- placing ---- */

typedef struct by_size {
    int64_t bytes;
    int32_t first;
    int64_t index;
} by_size;

static bool goes_before(const by_size *x, const by_size *y) {
    if (x->bytes != y->bytes) return x->bytes > y->bytes;
    if (x->first != y->first) return x->first < y->first;
    return x->index < y->index;
}

/* The end of the run that begins at `from`: its elements are in order. */
static int64_t run_end(const by_size *order, int64_t from, int64_t count) {
    int64_t end = from < count ? from + 1 : count;
    while (end < count && !goes_before(&order[end], &order[end - 1])) end++;
    return end;
}

/* Sorts by merging pairs of runs: buffers of equal layers come in such runs. Both arrays have
 * `count` elements. Returns the one with the result. */
static by_size *sort(by_size *in, by_size *out, int64_t count) {
    while (run_end(in, 0, count) < count) {
        for (int64_t from = 0, middle, end; from < count; from = end) {
            middle = run_end(in, from, count);
            end = run_end(in, middle, count);
            for (int64_t k = from, a = from, b = middle; k < end; k++)
                out[k] =
                    b >= end || (a < middle && !goes_before(&in[b], &in[a])) ? in[a++] : in[b++];
        }
        by_size *sorted = out;
        out = in;
        in = sorted;
    }
    return in;
}

static weft_status place(wefti_lifetime *buffers, int64_t count, wefti_arena *scratch,
                         int64_t *out_bytes) {
    int64_t last = 0, total = 0;
    for (int64_t i = 0; i < count; i++) {
        if (buffers[i].last > last) last = buffers[i].last;
        if (buffers[i].until > last) last = buffers[i].until;
    }
    timetable t = {.scratch = scratch, .leaves = 1};
    while (t.leaves <= last) t.leaves *= 2;
    by_size *order = wefti_arena_alloc(scratch, (size_t)count * sizeof *order);
    by_size *other = wefti_arena_alloc(scratch, (size_t)count * sizeof *other);
    t.whole = wefti_arena_alloc(scratch, (size_t)t.leaves * sizeof *t.whole);
    t.any = wefti_arena_alloc(scratch, 2 * (size_t)t.leaves * sizeof *t.any);
    WEFT_REQUIRE(order && other && t.whole && t.any, WEFT_E_NOMEM,
                 "no memory to place %lld buffers", (long long)count);
    for (int64_t i = 0; i < count; i++)
        order[i] = (by_size){wefti_aligned(buffers[i].bytes), buffers[i].first, i};
    order = sort(order, other, count);
    for (int64_t k = 0; k < count; k++) {
        wefti_lifetime *b = &buffers[order[k].index];
        const range_set *sets[8 * MAX_LEVELS];
        place_span s;
        b->offset = 0;
        if (order[k].bytes == 0) continue;
        find_span(&t, b, &s);
        b->offset = lowest_free(sets, taken_sets(&t, &s, sets), order[k].bytes);
        WEFT_TRY(take(&t, &s, (range){b->offset, b->offset + order[k].bytes}));
        if (b->offset + b->bytes > total) total = b->offset + b->bytes;
    }
    *out_bytes = total;
    return WEFT_OK;
}

weft_status wefti_place_count(int64_t bytes, int64_t *all) {
    WEFT_REQUIRE(bytes <= MOST_BYTES - *all, WEFT_E_NOMEM,
                 "the buffers have more bytes in all than 64 bits can count");
    *all += wefti_aligned(bytes);
    return WEFT_OK;
}

weft_status wefti_place(wefti_lifetime *buffers, int64_t count, int64_t *out_bytes) {
    wefti_arena *scratch;
    int64_t all = 0;
    for (int64_t i = 0; i < count; i++) WEFT_TRY(wefti_place_count(buffers[i].bytes, &all));
    WEFT_TRY(wefti_arena_create(&scratch));
    weft_status status = place(buffers, count, scratch, out_bytes);
    wefti_arena_destroy(scratch);
    return status;
}

/* ---- the check, which shares only the definition with the code above ---- */

/* A buffer's birth (at twice its first step) or death (at twice its last step plus 1); a buffer
 * with a second time has four events. */
typedef struct place_event {
    int64_t time, buffer;
} place_event;

static int compare_event(const void *a, const void *b) {
    const place_event *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return x->buffer < y->buffer ? -1 : 1;
}

/* Position of the first live buffer at or after `offset`; `live` is sorted by offset. */
static int64_t position(const wefti_lifetime *buffers, const int64_t *live, int64_t count,
                        int64_t offset) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (buffers[live[mid]].offset >= offset)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static weft_status check_pair(const wefti_lifetime *buffers, int64_t i, int64_t j) {
    const wefti_lifetime *a = &buffers[i], *b = &buffers[j];
    bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
    WEFT_REQUIRE(apart, WEFT_E_BUG,
                 "buffers %lld and %lld overlap at offset %lld while both are alive", (long long)i,
                 (long long)j, (long long)(a->offset > b->offset ? a->offset : b->offset));
    return WEFT_OK;
}

/* Moves through time and keeps the live buffers sorted by offset. As long as these do not overlap,
 * a new buffer can only overlap its two neighbors. */
static weft_status sweep(const wefti_lifetime *buffers, const place_event *events, int64_t count,
                         int64_t *live) {
    int64_t used = 0;
    for (int64_t k = 0; k < count; k++) {
        int64_t i = events[k].buffer;
        int64_t at = position(buffers, live, used, buffers[i].offset);
        if (events[k].time & 1) {
            memmove(live + at, live + at + 1, (size_t)(used - at - 1) * sizeof *live);
            used--;
            continue;
        }
        if (at > 0) WEFT_TRY(check_pair(buffers, live[at - 1], i));
        if (at < used) WEFT_TRY(check_pair(buffers, live[at], i));
        memmove(live + at + 1, live + at, (size_t)(used - at) * sizeof *live);
        live[at] = i;
        used++;
    }
    return WEFT_OK;
}

weft_status wefti_place_check(const wefti_lifetime *buffers, int64_t count, int64_t bytes) {
    place_event *events;
    int64_t events_count = 0;
    for (int64_t i = 0; i < count; i++) {
        const wefti_lifetime *a = &buffers[i];
        WEFT_REQUIRE(a->offset >= 0 && a->offset % WEFTI_ALIGNMENT == 0 &&
                         a->offset + a->bytes <= bytes,
                     WEFT_E_BUG, "buffer %lld at [%lld, %lld) is outside the arena of %lld bytes",
                     (long long)i, (long long)a->offset, (long long)(a->offset + a->bytes),
                     (long long)bytes);
    }
    WEFT_NEW_ARRAY(events, place_event, 4 * count + 1);
    int64_t *live = wefti_alloc((size_t)(count + 1) * sizeof *live);
    for (int64_t i = 0; i < count; i++) {
        if (!buffers[i].bytes) continue;
        events[events_count++] = (place_event){2 * (int64_t)buffers[i].first, i};
        events[events_count++] = (place_event){2 * (int64_t)buffers[i].last + 1, i};
        if (buffers[i].until <= 0) continue;
        events[events_count++] = (place_event){2 * (int64_t)buffers[i].again, i};
        events[events_count++] = (place_event){2 * (int64_t)buffers[i].until + 1, i};
    }
    qsort(events, (size_t)events_count, sizeof *events, compare_event);
    weft_status status =
        live ? sweep(buffers, events, events_count, live)
             : WEFT_RAISE(WEFT_E_NOMEM, "no memory to check %lld buffers", (long long)count);
    wefti_free(live);
    wefti_free(events);
    return status;
}
