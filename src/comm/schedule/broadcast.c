/* Broadcasts from one member to all that want the region. Little data goes along a binomial tree,
 * whose depth is the logarithm of the number of members. Much data goes along a chain, chunk after
 * chunk. If several hosts have several such members each, the data first reaches one member of
 * each host that way, once per host, and that member passes it on within its host. */
#include "comm/schedule/build.h"

/* Members in the order in which they hear of it, from the first one on. */
typedef struct line {
    int32_t *member; /* [places] */
    int32_t places, mine;
} line;

/* The member that this member receives from, and the members it sends to. */
typedef struct family {
    int32_t parent; /* -1: nobody */
    int32_t *child, children;
} family;

static bool takes_part(const wefti_commsched_build *b, int32_t m) {
    return m == b->root || wefti_region_elems(&b->t->want[m], b->t->rank) > 0;
}

static void add(line *l, int32_t member, int32_t me) {
    if (member == me) l->mine = l->places;
    l->member[l->places++] = member;
}

static void find_in_chain(const line *l, family *f) {
    if (l->mine < 0) return;
    if (l->mine > 0) f->parent = l->member[l->mine - 1];
    if (l->mine + 1 < l->places) f->child[f->children++] = l->member[l->mine + 1];
}

/* Places mine + 1 .. mine + reach - 1 hear it from this one and those that it tells. */
static void find_in_tree(const line *l, family *f) {
    int32_t reach = 1;
    if (l->mine < 0) return;
    while (l->mine == 0 ? reach < l->places : !(l->mine & reach)) reach *= 2;
    if (l->mine > 0) f->parent = l->member[l->mine - reach];
    for (int32_t internode = reach / 2; internode >= 1; internode /= 2)
        if (l->mine + internode < l->places)
            f->child[f->children++] = l->member[l->mine + internode];
}

/* All that take part, in the order of the group from the root on. */
static void line_up(const wefti_commsched_build *b, line *l) {
    const wefti_transfer *t = b->t;
    for (int32_t i = 0; i < t->members; i++) {
        int32_t m = (b->root + i) % t->members;
        if (takes_part(b, m)) add(l, m, t->me);
    }
}

/* One member of each host, starting with the root; and the members of this host, starting with
 * that one. */
static void line_up_hosts(const wefti_commsched_build *b, line *heads, line *local) {
    const wefti_commsched_hosts *h = &b->hosts;
    int32_t me = b->t->me;
    for (int32_t i = 0; i < h->hosts; i++) {
        int32_t host = (h->host[b->root] + i) % h->hosts, head = i == 0 ? b->root : -1;
        for (int32_t n = h->begin[host]; n < h->begin[host + 1] && head < 0; n++)
            if (takes_part(b, h->member[n])) head = h->member[n];
        if (head < 0) continue;
        add(heads, head, me);
        if (host != h->host[me]) continue;
        add(local, head, me);
        for (int32_t n = h->begin[host]; n < h->begin[host + 1]; n++)
            if (h->member[n] != head && takes_part(b, h->member[n])) add(local, h->member[n], me);
    }
}

/* What the one that has it wants for itself. */
static weft_status keep(wefti_commsched_build *b) {
    const wefti_transfer *t = b->t;
    wefti_commsched_place source = {WEFTI_COMMSCHED_SOURCE, 0};
    if (t->me != b->root || wefti_region_elems(&t->want[t->me], t->rank) == 0) return WEFT_OK;
    return wefti_commsched_op_flat(b, wefti_region_elems(&t->want[t->me], t->rank),
                                   wefti_commsched_at(WEFTI_COMMSCHED_DESTINATION, 0), 1, &source);
}

/* A chunk comes in its round and is told in the next one. */
static weft_status hand_on(wefti_commsched_build *b, const family *f, int64_t chunks) {
    int64_t bytes = wefti_commsched_bytes(b, &b->t->have[b->root]);
    wefti_commsched_array array =
        b->t->me == b->root ? WEFTI_COMMSCHED_SOURCE : WEFTI_COMMSCHED_DESTINATION;
    for (int64_t k = 0; k <= chunks; k++) {
        int64_t gone = bytes * (k - 1) / chunks, now = bytes * k / chunks;
        int64_t next = bytes * (k + 1) / chunks;
        WEFT_TRY(wefti_commsched_begin_round(b));
        if (!takes_part(b, b->t->me)) return WEFT_OK;
        for (int32_t i = 0; i < f->children && k > 0; i++)
            WEFT_TRY(
                wefti_commsched_send(b, f->child[i], wefti_commsched_at(array, gone), now - gone));
        if (k < chunks && f->parent >= 0)
            WEFT_TRY(wefti_commsched_receive(b, f->parent, wefti_commsched_at(array, now),
                                             next - now, (int32_t)k));
    }
    return keep(b);
}

static weft_status build(wefti_commsched_build *b, bool by_hosts, int64_t chunks) {
    int32_t *memory, g = b->t->members;
    WEFT_NEW_ARRAY(memory, int32_t, 3 * g);
    line first = {.member = memory, .mine = -1}, local = {.member = memory + g, .mine = -1};
    family f = {.parent = -1, .child = memory + 2 * g};
    void (*find)(const line *, family *) = chunks > 1 ? find_in_chain : find_in_tree;
    if (by_hosts)
        line_up_hosts(b, &first, &local);
    else
        line_up(b, &first);
    find(&first, &f);
    find(&local, &f); /* where the head of a host has no parent */
    weft_status status = hand_on(b, &f, chunks);
    wefti_free(memory);
    return status;
}

weft_status wefti_commsched_tree_broadcast(wefti_commsched_build *b) {
    return build(b, false, 1);
}
weft_status wefti_commsched_chain_broadcast(wefti_commsched_build *b) {
    int64_t chunks = wefti_commsched_chunks(wefti_commsched_bytes(b, &b->t->have[b->root]));
    return build(b, false, chunks);
}
weft_status wefti_commsched_host_broadcast(wefti_commsched_build *b) {
    return build(b, true, wefti_commsched_host_parts(b));
}
