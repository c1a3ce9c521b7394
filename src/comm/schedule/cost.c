/* Predicts the cost of each algorithm with a simple model. A message has a latency and takes work
 * of both sides. Bytes within a host pass the process's own link. Bytes that leave the host pass
 * the host's one link, which all its processes share. The input is known to all members, so that
 * all choose the same algorithm. */
#include "comm/schedule/build.h"

#include <math.h>

static double rounds_of(int32_t members) {
    double rounds = 0;
    for (int32_t reach = 1; reach < members; reach *= 2) rounds++;
    return rounds;
}

typedef struct model {
    const wefti_commsched_build *b;
    const wefti_commsched_costs *c;
    double g, hosts, local;      /* members, hosts, members of a host at most */
    double latency;              /* of the slowest messages that there are */
    double round;                /* with both sides' work */
    double intranode, internode; /* seconds for a byte */
    double bytes, sum;           /* of the whole; seconds to reduce as many */
} model;

static double later(double a, double b) {
    return a > b ? a : b;
}

/* Each member sends this many bytes to each other member. */
static double all_to_all(const model *m, double bytes) {
    double leaving = m->hosts > 1 ? m->local * (m->g - m->local) : 0;
    double inside = (m->local - 1) * bytes * m->intranode;
    return (1 + m->c->crowd * (m->g - 2)) * later(inside, leaving * bytes * m->internode);
}

/* Each member sends this many bytes to the member `distance` after it. */
static double shift(const model *m, double bytes, double distance) {
    double leaving = m->b->hosts.in_order && distance < m->local ? distance : m->local;
    double inside = m->local > 1 ? bytes * m->intranode : 0;
    return m->round + later(inside, m->hosts > 1 ? leaving * bytes * m->internode : 0);
}

static double bruck(const model *m) {
    double seconds = 0, block = m->bytes;
    if (m->b->form == WEFTI_COMMSCHED_ALL_GATHER) block /= m->g;
    for (double step = 1; step < m->g; step *= 2)
        seconds += shift(m, block * fmin(step, m->g - step), step);
    return seconds;
}

/* Along a binomial tree: its last rounds stay within hosts if these are whole branches of it. */
static double tree(const model *m) {
    const wefti_commsched_build *b = m->b;
    int32_t local = b->hosts.most, reach = 1;
    double seconds = 0;
    bool branches = (local & (local - 1)) == 0 && b->hosts.in_order && b->hosts.place[b->root] == 0;
    for (int32_t h = 0; h < b->hosts.hosts; h++)
        branches = branches && wefti_commsched_hosts_count(&b->hosts, h) == local;
    for (; reach < b->wanting + 1; reach *= 2) {
        bool inside = b->hosts.hosts == 1 || (branches && reach < local);
        double latency = inside ? m->c->intranode_latency_s : m->c->latency_s;
        seconds +=
            latency + 2 * m->c->message_s + m->bytes * (inside ? m->intranode : m->internode);
    }
    return seconds;
}

/* Within hosts and between them; pipelined in this many parts. */
static double by_hosts(const model *m) {
    const wefti_commsched_costs *c = m->c;
    double others = m->local - 1, h = m->hosts;
    double parts = (double)wefti_commsched_host_parts(m->b);
    double inside = m->bytes * m->intranode, between = m->bytes * m->internode;
    double messages = 2 * others * c->message_s;
    if (!wefti_commsched_host_possible(m->b)) return -1;
    switch (m->b->form) {
    case WEFTI_COMMSCHED_ALL_REDUCE: /* there and back; hosts in the middle carry both */
        return (parts + 2 * h - 1) * (m->round + 2 * messages) + 2 * others / m->local * inside +
               m->sum + (2 * h - 2 + (h > 2 ? 2 : 1) * (parts - 1)) / parts * between;
    case WEFTI_COMMSCHED_REDUCE:
    case WEFTI_COMMSCHED_REDUCE_SCATTER:
        return (parts + h) * (m->round + messages) + others / m->local * inside + m->sum +
               (parts + h - 1) / parts * between;
    case WEFTI_COMMSCHED_ALL_GATHER: {
        double wire = (1 - 1 / h) * between, local = others / m->local * inside;
        return (parts + 1) * (m->round + h * messages + 2 * (h - 1) * c->message_s) +
               later(wire, local) + fmin(wire, local) / parts;
    }
    default:
        if (parts > 1)
            return (h + m->local - 3 + parts) * (m->round + later(inside, between) / parts);
        return rounds_of((int32_t)h) * (m->round + between) +
               rounds_of((int32_t)m->local) * (c->intranode_latency_s + 2 * c->message_s + inside);
    }
}

static double of_all_reduce(const model *m, wefti_commsched_algorithm algorithm) {
    double others = m->g - 1, message = m->c->message_s;
    double chunks = (double)wefti_commsched_chunks((int64_t)m->bytes);
    if (algorithm == WEFTI_COMMSCHED_DIRECT)
        return m->latency + others * (2 * message + m->sum) + all_to_all(m, m->bytes);
    if (algorithm == WEFTI_COMMSCHED_BRUCK) return bruck(m) + others * m->sum;
    if (algorithm == WEFTI_COMMSCHED_SHARES)
        return 2 * (m->latency + 2 * others * message) + 2 * all_to_all(m, m->bytes / m->g) +
               others / m->g * m->sum;
    if (algorithm == WEFTI_COMMSCHED_CHAIN && wefti_commsched_exact(m->b))
        return (2 * others + chunks) * (shift(m, 2 * m->bytes / chunks, 1) + m->sum / chunks);
    return -1;
}

static double of_reduce(const model *m, wefti_commsched_algorithm algorithm) {
    double others = m->g - 1, message = m->c->message_s, wanting = m->b->wanting;
    double chunks = (double)wefti_commsched_chunks((int64_t)m->bytes);
    double leaving = m->local > 1 ? fmin(wanting, m->local) * (m->g - m->local) : 0;
    if (algorithm == WEFTI_COMMSCHED_DIRECT)
        return m->latency + others * (message + m->sum) +
               later(leaving, later(wanting, others)) * m->bytes *
                   (m->hosts > 1 ? m->internode : m->intranode) * (1 + m->c->crowd * (m->g - 2));
    if (algorithm == WEFTI_COMMSCHED_SHARES)
        return 2 * (m->latency + 2 * others * message) + 2 * all_to_all(m, m->bytes / m->g) +
               others / m->g * m->sum;
    if (algorithm == WEFTI_COMMSCHED_CHAIN && wefti_commsched_exact(m->b) && m->b->wanting == 1)
        return (m->g + chunks) * (shift(m, m->bytes / chunks, 1) + m->sum / chunks);
    return -1;
}

static double of_reduce_scatter(const model *m, wefti_commsched_algorithm algorithm) {
    double others = m->g - 1;
    if (algorithm != WEFTI_COMMSCHED_DIRECT) return -1;
    return m->latency + others * 2 * m->c->message_s + all_to_all(m, m->bytes / m->g) +
           others / m->g * m->sum;
}

static double of_all_gather(const model *m, wefti_commsched_algorithm algorithm) {
    double others = m->g - 1;
    if (algorithm == WEFTI_COMMSCHED_DIRECT)
        return m->latency + others * 2 * m->c->message_s + all_to_all(m, m->bytes / m->g);
    if (algorithm == WEFTI_COMMSCHED_BRUCK) return bruck(m) + m->sum;
    if (algorithm == WEFTI_COMMSCHED_RING) return others * shift(m, m->bytes / m->g, 1);
    return -1;
}

static double of_broadcast(const model *m, wefti_commsched_algorithm algorithm) {
    double wanting = m->b->wanting, wire = m->bytes * (m->hosts > 1 ? m->internode : m->intranode);
    double chunks = (double)wefti_commsched_chunks((int64_t)m->bytes);
    if (algorithm == WEFTI_COMMSCHED_DIRECT) return m->latency + wanting * (m->c->message_s + wire);
    if (algorithm == WEFTI_COMMSCHED_TREE) return tree(m);
    if (algorithm == WEFTI_COMMSCHED_CHAIN)
        return (wanting - 1 + chunks) * shift(m, m->bytes / chunks, 1);
    return -1;
}

double wefti_commsched_cost(const wefti_commsched_build *b, const wefti_commsched_costs *c,
                            wefti_commsched_algorithm algorithm) {
    const wefti_transfer *t = b->t;
    const wefti_region *all =
        b->form == WEFTI_COMMSCHED_ALL_GATHER ? &t->want[0] : &t->have[b->root];
    model m = {.b = b,
               .c = c,
               .g = t->members,
               .hosts = b->hosts.hosts,
               .local = b->hosts.most,
               .latency = b->hosts.hosts > 1 ? c->latency_s : c->intranode_latency_s,
               .intranode = 1 / c->intranode_bytes_per_s,
               .internode = 1 / c->bytes_per_s,
               .bytes = (double)wefti_commsched_bytes(b, all)};
    m.round = m.latency + 2 * c->message_s;
    m.sum = m.bytes / c->reduce_bytes_per_s;
    if (algorithm == WEFTI_COMMSCHED_HOSTS) return by_hosts(&m);
    switch (b->form) {
    case WEFTI_COMMSCHED_ALL_REDUCE:
        return of_all_reduce(&m, algorithm);
    case WEFTI_COMMSCHED_REDUCE:
        return of_reduce(&m, algorithm);
    case WEFTI_COMMSCHED_REDUCE_SCATTER:
        return of_reduce_scatter(&m, algorithm);
    case WEFTI_COMMSCHED_ALL_GATHER:
        return of_all_gather(&m, algorithm);
    case WEFTI_COMMSCHED_BROADCAST:
        return of_broadcast(&m, algorithm);
    default:
        return algorithm == WEFTI_COMMSCHED_DIRECT ? 0 : -1;
    }
}
