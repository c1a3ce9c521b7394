/* One op, cut for every rank of a mesh and run. All ranks' local bodies run in lockstep, node by
 * node in double with the reference kernels. A transfer is carried out by its regions once all
 * members have arrived at equal transfers. The ranks' results are put together and compared with
 * the uncut op. */
#ifndef WEFT_TESTS_PROGRAM_SPMD_H
#define WEFT_TESTS_PROGRAM_SPMD_H

#include "graph/lower/lower.h"
#include "layout/redistribute.h"
#include "ops/harness.h"
#include "partition/partition.h"

enum { SPMD_RANKS = 8, SPMD_MOVES = 64, SPMD_KINDS = WEFTI_TRANSFER_KINDS };

typedef struct spmd_rank {
    wefti_partition *partition;
    const wefti_local_body *cut;
    double **value; /* per value of the body; NULL: not there yet */
    int64_t next;   /* node to run */
} spmd_rank;

typedef struct spmd {
    op_graph *whole;
    wefti_mesh mesh;
    weft_plan *plan;
    wefti_route_cache *routes;
    spmd_rank rank[SPMD_RANKS];
    int32_t ranks;
    int transfers[SPMD_KINDS]; /* carried out, by kind */
    int64_t bytes;             /* received by all, of elements of 4 bytes */
    int64_t halo[SPMD_RANKS];  /* received in halos, by each rank */
    int moved[SPMD_RANKS];     /* other transfers so far, of each rank */
    int64_t most[SPMD_MOVES];  /* received in the n-th of them by the rank that gets most */
    char why[512];             /* what went wrong */
} spmd;

#define SPMD_FAIL(s_, ...) ((void)snprintf((s_)->why, sizeof(s_)->why, __VA_ARGS__), false)

static inline int64_t spmd_flat(const wefti_region *box, int rank, const int64_t *at) {
    int64_t flat = 0;
    for (int d = 0; d < rank; d++) flat = flat * box->size[d] + at[d] - box->begin[d];
    return flat;
}

static inline bool spmd_inside(const wefti_region *box, int rank, const int64_t *at) {
    for (int d = 0; d < rank; d++)
        if (at[d] < box->begin[d] || at[d] >= box->begin[d] + box->size[d]) return false;
    return true;
}

static inline void spmd_index(const wefti_region *box, int rank, int64_t flat, int64_t *at) {
    for (int d = rank - 1; d >= 0; d--) {
        at[d] = box->begin[d] + flat % box->size[d];
        flat /= box->size[d];
    }
}

/* ---- transfers ---- */

static inline const wefti_transfer *spmd_waiting(const spmd_rank *r) {
    const weft_body *b = r->cut->body;
    if (r->next >= b->node_count) return NULL;
    const weft_node *n = &b->nodes[r->next];
    if (n->op != &wefti_op_transfer) return NULL;
    return wefti_partition_transfer(r->partition, (int32_t)wefti_attr_int(n, WEFTI_AT_index));
}

static inline double spmd_reduce(wefti_reduction reduction, double a, double b) {
    return reduction == WEFTI_REDUCE_MAX ? (a > b || isnan(a) ? a : b) : a + b;
}

/* One element for member `me`: from itself or the first that has it, or reduced over all. */
static inline bool spmd_element(spmd *s, const wefti_transfer *t, const int64_t *at, double *out) {
    bool found = false;
    int32_t first =
        t->reduction == WEFTI_REDUCE_NONE && spmd_inside(&t->have[t->me], t->rank, at) ? t->me : 0;
    for (int32_t m = first; m < t->members; m++) {
        if (!spmd_inside(&t->have[m], t->rank, at)) continue;
        const spmd_rank *r = &s->rank[t->ranks[m]];
        const weft_node *n = &r->cut->body->nodes[r->next];
        double v = r->value[n->in[0]][spmd_flat(&t->have[m], t->rank, at)];
        *out = found ? spmd_reduce(t->reduction, *out, v) : v;
        found = true;
        if (t->reduction == WEFTI_REDUCE_NONE) break;
    }
    return found;
}

/* Carries out the transfer that rank 'lead' waits for, if all members wait for the same
 * transfer. */
static inline bool spmd_carry_out(spmd *s, int32_t lead, bool *done) {
    const wefti_transfer *t = spmd_waiting(&s->rank[lead]);
    *done = false;
    if (!t) return true;
    for (int32_t m = 0; m < t->members; m++) {
        const wefti_transfer *other = spmd_waiting(&s->rank[t->ranks[m]]);
        if (!other || other->tag != t->tag || !wefti_transfer_equal(t, other)) return true;
        if (other->me != m)
            return SPMD_FAIL(s, "rank %d is member %d of a transfer, not %d", t->ranks[m],
                             other->me, m);
    }
    double *results[SPMD_RANKS];
    for (int32_t m = 0; m < t->members; m++) {
        int64_t before = s->bytes;
        spmd_rank *r = &s->rank[t->ranks[m]];
        const wefti_transfer *own = spmd_waiting(r);
        const weft_node *n = &r->cut->body->nodes[r->next];
        int64_t count = wefti_region_elems(&own->want[m], own->rank), at[WEFT_MAX_RANK];
        if (weft_desc_elems(wefti_in(n, 0)) != wefti_region_elems(&own->have[m], own->rank) ||
            weft_desc_elems(wefti_out(n, 0)) != count)
            return SPMD_FAIL(s, "rank %d: a transfer's boxes are not its operand or result",
                             t->ranks[m]);
        results[m] = new_values(wefti_out(n, 0));
        for (int64_t e = 0; e < count; e++) {
            spmd_index(&own->want[m], own->rank, e, at);
            if (!spmd_element(s, own, at, &results[m][e]))
                return SPMD_FAIL(s, "rank %d wants what nobody has", t->ranks[m]);
            if (!spmd_inside(&own->have[m], own->rank, at) || t->reduction) s->bytes += 4;
        }
        int64_t received = s->bytes - before;
        int32_t rank = t->ranks[m];
        if (t->kind == WEFTI_TRANSFER_HALO) {
            s->halo[rank] += received;
        } else if (s->moved[rank] < SPMD_MOVES) {
            int64_t *most = &s->most[s->moved[rank]++];
            if (received > *most) *most = received;
        }
    }
    s->transfers[t->kind]++;
    int32_t members = t->members, ranks[SPMD_RANKS];
    memcpy(ranks, t->ranks, (size_t)members * sizeof *ranks);
    for (int32_t m = 0; m < members; m++) {
        spmd_rank *r = &s->rank[ranks[m]];
        r->value[r->cut->body->nodes[r->next].out[0]] = results[m];
        r->next++;
    }
    *done = true;
    return true;
}

/* ---- running ---- */

static inline bool spmd_run_node(spmd *s, int32_t at, const wefti_random *random) {
    spmd_rank *r = &s->rank[at];
    const weft_body *b = r->cut->body;
    const weft_node *n = &b->nodes[r->next++];
    const double *in[WEFTI_MAX_IN] = {0};
    double *out[WEFTI_MAX_OUT];
    for (int i = 0; i < n->inputs; i++) in[i] = n->in[i] < 0 ? NULL : r->value[n->in[i]];
    for (int o = 0; o < n->outputs; o++) out[o] = r->value[n->out[o]] = new_values(wefti_out(n, o));
    weft_status st = n->op->reference ? n->op->reference(n, random, in, out)
                                      : wefti_elementwise_reference(n, random, in, out);
    if (st < 0) return SPMD_FAIL(s, "rank %d: %s: %.300s", at, n->op->name, weft_error_message());
    return true;
}

static inline bool spmd_run(spmd *s, const wefti_random *random) {
    for (;;) {
        bool progress = false, finished = true;
        for (int32_t r = 0; r < s->ranks; r++) {
            spmd_rank *k = &s->rank[r];
            while (k->next < k->cut->body->node_count && !spmd_waiting(k)) {
                if (!spmd_run_node(s, r, random)) return false;
                progress = true;
            }
            finished = finished && k->next == k->cut->body->node_count;
        }
        if (finished) return true;
        for (int32_t r = 0; r < s->ranks; r++) {
            bool done;
            if (!spmd_carry_out(s, r, &done)) return false;
            progress = progress || done;
        }
        if (!progress) {
            for (int32_t r = 0; r < s->ranks; r++)
                if (spmd_waiting(&s->rank[r]))
                    return SPMD_FAIL(s, "rank %d waits for a %s that others never make", r,
                                     wefti_transfer_kind_text(spmd_waiting(&s->rank[r])->kind));
        }
    }
}

/* ---- operands and results ---- */

/* Axes that a layout does not name. */
static inline bool spmd_first_replica(const spmd *s, const wefti_layout *l, int32_t rank) {
    int32_t at[WEFTI_MAX_AXES];
    wefti_mesh_coordinates(&s->mesh, rank, at);
    for (int a = 0; a < s->mesh.axes; a++)
        if (at[a] && !(wefti_layout_axes(l) >> a & 1)) return false;
    return true;
}

/* Terms of a partial value: random, but the last term makes the sum right. Of a maximum: at most
 * the value, and exactly the value on one rank. */
static inline double spmd_term(const spmd *s, const wefti_layout *l, int32_t rank, uint64_t seed,
                               int64_t element, double value) {
    int32_t at[WEFTI_MAX_AXES], index = 0, count = 1;
    wefti_mesh_coordinates(&s->mesh, rank, at);
    for (int a = 0; a < s->mesh.axes; a++)
        if ((l->sum | l->max) >> a & 1) {
            index = index * s->mesh.axis[a].size + at[a];
            count *= s->mesh.axis[a].size;
        }
    if (count == 1) return value;
    if (l->max) {
        uint32_t holder = wefti_philox_u32(seed, 99, (uint64_t)element) % (uint32_t)count;
        return (int32_t)holder == index
                   ? value
                   : value - fabs((double)wefti_philox_normal(seed, 100 + (uint64_t)index,
                                                              (uint64_t)element));
    }
    double rest = value;
    for (int32_t k = 0; k < count; k++) {
        double term = k == count - 1
                          ? rest
                          : (double)wefti_philox_normal(seed, 200 + (uint64_t)k, (uint64_t)element);
        if (k == index) return term;
        rest -= term;
    }
    return 0.0;
}

static inline void spmd_feed(spmd *s, uint64_t seed) {
    const weft_body *whole = s->whole->graph->root;
    for (int32_t r = 0; r < s->ranks; r++) {
        spmd_rank *k = &s->rank[r];
        k->value = calloc((size_t)k->cut->body->value_count + 1, sizeof *k->value);
        if (!k->value) abort();
        int operand = 0;
        for (int64_t i = 0; i < whole->in_count; i++, operand++) {
            while (!s->whole->in[operand]) operand++; /* absent ones are no inputs of the body */
            const weft_desc *desc = &whole->values[whole->in[i]].desc;
            const wefti_layout *l = &k->cut->in[i];
            wefti_region box, all = {{0}, {0}};
            wefti_layout_region(l, &s->mesh, desc, r, &box);
            for (int d = 0; d < desc->rank; d++) all.size[d] = desc->shape[d];
            int64_t count = wefti_region_elems(&box, desc->rank), at[WEFT_MAX_RANK];
            double *local = calloc((size_t)count + 1, sizeof *local);
            if (!local) abort();
            for (int64_t e = 0; e < count; e++) {
                spmd_index(&box, desc->rank, e, at);
                int64_t flat = spmd_flat(&all, desc->rank, at);
                local[e] =
                    spmd_term(s, l, r, seed + (uint64_t)i, flat, s->whole->in[operand][flat]);
            }
            k->value[k->cut->body->in[i]] = local;
        }
    }
}

static inline bool spmd_same(double a, double b) {
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-11 * (1.0 + fabs(a));
}

/* Replicas hold the same bits. Pieces and terms together give the uncut result. */
static inline bool spmd_compare(spmd *s) {
    const weft_body *whole = s->whole->graph->root;
    for (int64_t o = 0; o < whole->out_count; o++) {
        const weft_desc *desc = &whole->values[whole->out[o]].desc;
        const wefti_layout *l = &s->rank[0].cut->out[o];
        int64_t count = weft_desc_elems(desc), at[WEFT_MAX_RANK];
        double *merged = new_values(desc);
        bool *there = calloc((size_t)count + 1, 1), ok = true;
        if (!there) abort();
        wefti_region all = {{0}, {0}};
        for (int d = 0; d < desc->rank; d++) all.size[d] = desc->shape[d];
        for (int32_t r = 0; r < s->ranks && ok; r++) {
            const spmd_rank *k = &s->rank[r];
            const double *local = k->value[k->cut->body->out[o]];
            wefti_region box;
            if (!wefti_layout_equal(l, &k->cut->out[o]))
                ok = SPMD_FAIL(s, "output %lld: ranks 0 and %d see other layouts", (long long)o, r);
            wefti_layout_region(l, &s->mesh, desc, r, &box);
            int64_t elements = wefti_region_elems(&box, desc->rank);
            if (ok && !spmd_first_replica(s, l, r)) {
                int32_t c[WEFTI_MAX_AXES];
                wefti_mesh_coordinates(&s->mesh, r, c);
                for (int a = 0; a < s->mesh.axes; a++)
                    if (!(wefti_layout_axes(l) >> a & 1)) c[a] = 0;
                const spmd_rank *first = &s->rank[wefti_mesh_rank(&s->mesh, c)];
                const double *model = first->value[first->cut->body->out[o]];
                if (elements && memcmp(model, local, (size_t)elements * sizeof *local))
                    ok = SPMD_FAIL(s, "output %lld: replicas differ on rank %d", (long long)o, r);
                continue;
            }
            for (int64_t e = 0; e < elements && ok; e++) {
                spmd_index(&box, desc->rank, e, at);
                int64_t flat = spmd_flat(&all, desc->rank, at);
                merged[flat] = there[flat]
                                   ? spmd_reduce(l->max ? WEFTI_REDUCE_MAX : WEFTI_REDUCE_SUM,
                                                 merged[flat], local[e])
                                   : local[e];
                there[flat] = true;
            }
        }
        for (int64_t e = 0; e < count && ok; e++)
            if (!there[e] || !spmd_same(s->whole->out[o][e], merged[e]))
                ok = SPMD_FAIL(s, "output %lld [%s], element %lld: %.17g, uncut %.17g",
                               (long long)o, wefti_layout_text(l, &s->mesh).text, (long long)e,
                               merged[e], s->whole->out[o][e]);
        free(merged);
        free(there);
        if (!ok) return false;
    }
    return true;
}

/* ---- all of it ---- */

static inline void spmd_close(spmd *s) {
    for (int32_t r = 0; r < s->ranks; r++) {
        spmd_rank *k = &s->rank[r];
        if (k->value)
            for (int64_t v = 0; v < k->cut->body->value_count; v++) free(k->value[v]);
        free(k->value);
        wefti_partition_destroy(k->partition);
    }
    wefti_route_cache_destroy(s->routes);
    *s = (spmd){0};
}

/* Cuts `whole`, which has run, for all ranks of the plan's mesh. `in` are the layouts of the
 * operands, `out` the required layouts of the results; NULL: as the op produces them. Returns false
 * with s->why. The plan is borrowed. */
static inline bool spmd_partition_over(spmd *s, op_graph *whole, weft_plan *plan,
                                       const wefti_layout *in, const wefti_layout *out,
                                       wefti_link link) {
    static const uint8_t given[WEFTI_MAX_OUT] = {0};
    *s = (spmd){.whole = whole, .plan = plan, .mesh = wefti_plan_mesh(plan, 0)};
    for (int a = 0; a < s->mesh.axes; a++) s->mesh.axis[a].link = link;
    s->ranks = wefti_mesh_product(&s->mesh, ~0u >> (32 - s->mesh.axes));
    if (wefti_route_cache_create(&s->routes) < 0) abort();
    wefti_partition_spec spec = {.body = whole->graph->root, .call = "x", .in = in, .out = out};
    if (out) spec.out_state = given;
    for (int32_t r = 0; r < s->ranks; r++) {
        weft_status st = wefti_partition_create(plan, &s->mesh, r, whole->graph, s->routes,
                                                &s->rank[r].partition);
        if (st >= 0) st = wefti_partition_body(s->rank[r].partition, &spec, &s->rank[r].cut);
        if (st < 0) return SPMD_FAIL(s, "rank %d is not cut: %.400s", r, weft_error_message());
    }
    return true;
}

static inline bool spmd_partition(spmd *s, op_graph *whole, weft_plan *plan,
                                  const wefti_layout *in) {
    return spmd_partition_over(s, whole, plan, in, NULL, (wefti_link){1e-6, 1e-9});
}

#endif
