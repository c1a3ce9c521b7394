#include "replicate/governor.h"

static void say_all(const wefti_governor *g, wefti_servers some, wefti_map_word word) {
    const wefti_map_message m = {.word = word,
                                 .epoch = g->ruler.id.epoch,
                                 .id = g->ruler.id,
                                 .of = g->ruler.of,
                                 .views = g->views};
    for (some &= g->connected; some; some &= some - 1) g->say(g->self, __builtin_ctzll(some), &m);
}

/* ---- maps ---- */

/* Servers by what they hold. order[0] is free: for the server that gets the shard that moves. */
typedef struct desk {
    wefti_loads loads;
    int32_t order[1 + WEFTI_SERVERS_MOST], count;
} desk;

static void sort(const wefti_governor *g, desk *d) {
    d->count = wefti_loads_order(&d->loads, g->here, d->order + 1);
}

static wefti_view_facts facts_of(const wefti_governor *g, int32_t shard, desk *d) {
    const wefti_shard_facts *told = &g->facts[shard];
    wefti_view_facts f = {.here = g->here,
                          .leaving = g->leaving,
                          .caught_up = told->caught_up,
                          .updates = told->updates,
                          .order = d->order + 1,
                          .order_count = d->count,
                          .copies = g->copies};
    if (g->move.from == g->move.to || g->move.shard != shard) return f;
    d->order[0] = g->move.to;
    f.order = d->order;
    f.order_count++;
    f.leaving |= wefti_server(g->move.from);
    return f;
}

/* A view of the newest map. What was told of the view before is void. */
static void set_view(wefti_governor *g, int32_t shard, const wefti_shard_view *view) {
    g->views[shard] = *view;
    g->views[shard].made = g->ruler.id;
    g->facts[shard].caught_up = 0;
    for (int32_t s = 0; s < WEFTI_SERVERS_MOST; s++) g->facts[shard].updates[s] = -1;
}

/* The first map of this scheduler. If it has found one, nobody knows who has entered its views: all
 * are made anew. */
static void begin(wefti_governor *g) {
    const bool found = g->ruler.of.voters;
    g->here |= g->ruler.of.voters & ~wefti_server(WEFTI_SCHEDULER);
    (void)wefti_ruler_proposes(&g->ruler, g->here);
    desk d = {0};
    for (int32_t i = 0; i < g->shards; i++) {
        sort(g, &d);
        const wefti_view_facts f = facts_of(g, i, &d);
        const wefti_shard_view view = found ? g->views[i] : wefti_view_first(&f);
        set_view(g, i, &view);
        wefti_loads_add(&d.loads, &view, 1);
    }
    say_all(g, g->connected, WEFTI_MAP_MAP);
}

/* Begins a map with another view of each shard that needs one. False: there is none. */
static bool change_views(wefti_governor *g) {
    desk d = {.loads = wefti_loads_of(g->views, g->shards)};
    bool changes = false;
    sort(g, &d);
    for (int32_t i = 0; i < g->shards; i++) {
        const wefti_view_facts f = facts_of(g, i, &d);
        wefti_shard_view next;
        if (!wefti_view_next(&g->views[i], &f, &next) || !next.members) continue;
        if (!changes) (void)wefti_ruler_proposes(&g->ruler, g->here);
        changes = true;
        wefti_loads_add(&d.loads, &g->views[i], -1);
        wefti_loads_add(&d.loads, &next, 1);
        set_view(g, i, &next);
        sort(g, &d);
    }
    return changes;
}

/* Who has a part in a view, or has to halt before its shard has another primary. */
static wefti_servers in_use(const wefti_governor *g) {
    wefti_servers out = 0;
    for (int32_t i = 0; i < g->shards; i++) {
        const wefti_shard_view *v = &g->views[i];
        out |= v->members | v->filling;
        if (v->primary < 0 && v->last >= 0) out |= wefti_server(v->last);
    }
    return out;
}

/* Another shard moves once no view is under way. */
static bool moves_shard(wefti_governor *g) {
    for (int32_t i = 0; i < g->shards; i++)
        if (g->views[i].primary < 0 || g->views[i].filling) return false;
    const wefti_loads l = wefti_loads_of(g->views, g->shards);
    wefti_shard_move move;
    if (!wefti_loads_move(&l, g->views, g->shards, g->here & ~g->leaving, &move)) return false;
    g->move = move;
    return change_views(g);
}

static void decide(wefti_governor *g) {
    if (wefti_ruler_may_begin(&g->ruler, g->expected)) begin(g);
    if (g->ruler.phase != WEFTI_RULER_RULES) return;
    const wefti_shard_move m = g->move;
    if (!wefti_has_server(g->views[m.shard].members & g->here, m.from) ||
        !wefti_has_server(g->here & ~g->leaving, m.to))
        g->move = (wefti_shard_move){0};
    g->here &= ~g->leaving | in_use(g);
    const wefti_servers voters = g->here | wefti_server(WEFTI_SCHEDULER);
    if (!change_views(g) && !moves_shard(g)) {
        if (g->ruler.of.voters == voters) return;
        (void)wefti_ruler_proposes(&g->ruler, g->here);
    }
    say_all(g, g->connected, WEFTI_MAP_MAP);
}

/* ---- words ---- */

/* They are told nothing more: their processes end. */
static void say_ends(wefti_governor *g, wefti_servers some) {
    say_all(g, some, WEFTI_MAP_ENDS);
    g->connected &= ~some;
}

/* A server that has promised an epoch was here before. If it is not now, it was given up. */
static bool hears_hello(wefti_governor *g, wefti_servers one, int64_t epoch) {
    g->connected |= one;
    if (g->ruler.phase != WEFTI_RULER_GATHERS && !(g->here & one) && epoch) {
        say_ends(g, one);
        return false;
    }
    g->here |= one;
    const bool all = wefti_ruler_meets(&g->ruler, epoch);
    say_all(g, all ? g->connected : one, WEFTI_MAP_LEAD);
    return true;
}

static bool hears_promise(wefti_governor *g, int32_t server, const wefti_map_message *m) {
    if (wefti_ruler_hears(&g->ruler, server, m->epoch, m->id, m->of))
        for (int32_t i = 0; i < g->shards; i++) g->views[i] = m->views[i];
    if (g->ruler.phase == WEFTI_RULER_GATHERS) return true;
    /* It missed what was said while it was away; its STORED brings GO. */
    say_all(g, wefti_server(server), WEFTI_MAP_MAP);
    return false;
}

static bool hears_stored(wefti_governor *g, int32_t server, wefti_map_id id) {
    if (wefti_ruler_counts(&g->ruler, server, id)) {
        say_all(g, g->connected, WEFTI_MAP_GO);
        say_ends(g, ~g->here); /* they have left */
        return true;
    }
    if (g->ruler.phase == WEFTI_RULER_RULES && wefti_same_map(id, g->ruler.id))
        say_all(g, wefti_server(server), WEFTI_MAP_GO);
    return false;
}

/* Of use if it has halted for the present view, which waits for its updates. */
static bool hears_updates(wefti_governor *g, int32_t server, const wefti_map_message *m) {
    const wefti_shard_view *v = &g->views[m->shard];
    if (v->primary >= 0 || wefti_map_is_later(v->made, m->id)) return false;
    g->facts[m->shard].updates[server] = m->updates < 0 ? 0 : m->updates;
    return true;
}

static bool hears(wefti_governor *g, int32_t server, const wefti_map_message *m) {
    switch (m->word) {
    case WEFTI_MAP_HELLO:
        return hears_hello(g, wefti_server(server), m->epoch);
    case WEFTI_MAP_LEAVES:
        g->leaving |= wefti_server(server);
        return true;
    case WEFTI_MAP_PROMISE:
        return hears_promise(g, server, m);
    case WEFTI_MAP_TELLS:
        return hears_updates(g, server, m);
    case WEFTI_MAP_STORED:
        return hears_stored(g, server, m->id);
    case WEFTI_MAP_CAUGHT:
        if (!wefti_same_map(m->id, g->views[m->shard].made)) return false;
        g->facts[m->shard].caught_up |= m->caught_up;
        return true;
    default:
        return false;
    }
}

void wefti_governor_hears(wefti_governor *g, int32_t server, const wefti_map_message *m) {
    if (hears(g, server, m)) decide(g);
}

void wefti_governor_loses(wefti_governor *g, int32_t server) {
    g->connected &= ~wefti_server(server);
    wefti_ruler_loses(&g->ruler, server);
}

wefti_servers wefti_governor_missing(const wefti_governor *g) {
    return g->ruler.phase == WEFTI_RULER_GATHERS ? 0 : g->here & ~g->connected;
}

void wefti_governor_gives_up(wefti_governor *g, int32_t server) {
    g->here &= ~wefti_server(server);
    decide(g);
}

int32_t wefti_governor_lost_shard(const wefti_governor *g) {
    for (int32_t i = 0; g->ruler.phase != WEFTI_RULER_GATHERS && i < g->shards; i++)
        if (!(g->views[i].members & g->here)) return i;
    return -1;
}

bool wefti_governor_is_stuck(const wefti_governor *g) {
    return g->ruler.phase == WEFTI_RULER_PROPOSES && !wefti_ruler_may_choose(&g->ruler, g->here);
}
