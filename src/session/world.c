/* Sessions over a world. Each process has one device of the plan and compiles programs for it. From
 * the other processes it gets the positions of pieces, the memory needed, and which ranks have the
 * loss. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest/digest.h"
#include "session/parts.h"

/* ---- the same job everywhere ---- */

/* How a rank computes products in bf16, and with which arithmetic it can. */
typedef struct bf16_record {
    int32_t bf16; /* AUTO: it has not decided */
    bool uses;    /* its graph has values in bf16 */
    char isa[24]; /* of products in bf16 */
} bf16_record;
_Static_assert(sizeof(bf16_record) <= WEFTI_RECORD_BYTES, "a record of agree.h");

weft_status wefti_session_digest_graph(const weft_graph *graph, uint64_t *out) {
    char *text;
    *out = 0;
    if (weft_graph_status(graph) < 0) return WEFT_OK; /* compiling it gives the reason */
    WEFT_TRY(weft_graph_print(graph, &text));
    *out = wefti_digest_text(1, text);
    weft_text_free(text);
    return WEFT_OK;
}

static weft_status digest_plan(const weft_plan *plan, uint64_t *out) {
    char *text;
    *out = 0;
    if (!plan) return WEFT_OK;
    WEFT_TRY(weft_plan_print(plan, &text));
    *out = wefti_digest_text(2, text);
    weft_text_free(text);
    return WEFT_OK;
}

static uint64_t digest_settings(const weft_session *s) {
    const weft_session_options *o = &s->options;
    const weft_optimizer *x = &o->optimizer;
    const double reals[] = {
        x->beta1, x->beta2, x->eps, x->momentum, x->weight_decay, x->initial_accumulator, o->clip};
    uint64_t digest = wefti_digest_number(3, (uint64_t)x->kind);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        digest = wefti_digest_real(digest, reals[i]);
    digest =
        wefti_digest_number(digest, (uint64_t)o->microbatches << 5 | (uint64_t)o->rows << 4 |
                                        (uint64_t)o->buddy << 3 | (uint64_t)o->keep_gradients << 2 |
                                        (uint64_t)o->recompute << 1 | (uint64_t)o->recovery);
    const uint64_t decay = s->optimizer ? wefti_optimizer_digest(s->optimizer) : 0;
    return wefti_digest_number(digest, decay);
}

/* Rank 0 decides. If it chose by itself and ranks differ in bf16 arithmetic, all ranks compute
 * products in f32. */
static weft_status decide_bf16(weft_session *s, const bf16_record *all) {
    enum { WAY, BY_ITSELF, FACTS };
    int32_t first[FACTS] = {0};
    if (s->me == 0) {
        first[WAY] = (int32_t)wefti_choose_bf16(s->me, s->options.bf16);
        first[BY_ITSELF] = s->options.bf16 == WEFT_BF16_AUTO;
    }
    WEFT_TRY(wefti_agree_broadcast(s->agreement, WEFT_OK, first, sizeof first));
    s->bf16 = (wefti_bf16_compute)first[WAY];
    if (s->bf16 != WEFTI_BF16_NATIVE || !first[BY_ITSELF]) return WEFT_OK;
    for (int32_t r = 0; r < s->devices; r++)
        if (strncmp(all[r].isa, all[0].isa, sizeof all[r].isa) != 0) s->bf16 = WEFTI_BF16_AS_F32;
    return WEFT_OK;
}

/* A decision is made once for a session: a process that comes later, also as rank 0, takes it. */
static weft_status agree_on_bf16(weft_session *s, bool uses) {
    bf16_record own = {.bf16 = (int32_t)s->bf16, .uses = uses};
    bf16_record *all = wefti_calloc((size_t)s->devices, sizeof *all);
    (void)snprintf(own.isa, sizeof own.isa, "%s",
                   wefti_kind_variant(wefti_kind_of(s->me), WEFTI_BF16_NATIVE));
    weft_status status = wefti_agree_records(s->agreement, &own, sizeof own, all);
    for (int32_t r = s->devices - 1; r >= 0 && status >= 0; r--)
        if (all[r].bf16 != WEFTI_BF16_AUTO) s->bf16 = (wefti_bf16_compute)all[r].bf16;
    if (status >= 0 && s->bf16 == WEFTI_BF16_AUTO && all[0].uses) status = decide_bf16(s, all);
    wefti_free(all);
    return status;
}

enum { FACT_ISA, FACT_MODEL, FACT_PLAN, FACT_SETTINGS, FACT_SEED, SESSION_FACTS };

weft_status wefti_session_same_job(weft_session *s, uint64_t model, bool bf16, weft_status status) {
    wefti_job_fact facts[SESSION_FACTS] = {
        [FACT_ISA] = {.name = "arithmetic",
                      .verb = "computes",
                      .advice =
                          "their last bits differ; set WEFT_ISA to a value that all processors "
                          "support"},
        [FACT_MODEL] = {.name = "model", .value = model},
        [FACT_PLAN] = {.name = "plan"},
        [FACT_SETTINGS] = {.name = "optimizer, clipping or number of microbatches",
                           .value = digest_settings(s)},
        [FACT_SEED] = {.name = "seed", .value = s->options.seed},
    };
    if (status >= 0) status = digest_plan(s->plan, &facts[FACT_PLAN].value);
    WEFT_TRY(wefti_agree(s->agreement, status));
    WEFT_TRY(agree_on_bf16(s, bf16));
    (void)snprintf(facts[FACT_ISA].text, sizeof facts[FACT_ISA].text, "with %s instructions",
                   wefti_kind_variant(wefti_kind_of(s->me), s->bf16));
    return wefti_agree_same(s->agreement, WEFT_OK, facts, SESSION_FACTS);
}

/* ---- devices of other processes ---- */

/* A tensor as it is sent; its name follows. */
typedef struct world_row {
    int32_t role, microbatches, param, state, name_bytes;
    weft_desc whole;
    wefti_layout layout;
} world_row;

/* The message of each rank: this, its channels, and, from the first rank of a stage, the rows of
 * its tensors. */
typedef struct world_head {
    wefti_facts facts;
    uint64_t tensors; /* digest */
    int64_t channels, rows_bytes;
} world_head;

static uint64_t digest_tensors(const wefti_program *p) {
    uint64_t digest = 4;
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        digest = wefti_digest_text(digest, t->name);
        digest = wefti_digest_number(digest, (uint64_t)t->role << 32 | (uint32_t)t->microbatches);
        digest = wefti_digest_number(digest, (uint64_t)t->whole.dtype);
        digest =
            wefti_digest_number(digest, (uint64_t)(uint32_t)t->param << 32 | (uint32_t)t->state);
        digest = wefti_digest_number(digest, (uint64_t)t->layout.sum << 32 | t->layout.max);
        for (int d = 0; d < t->whole.rank; d++) {
            const wefti_dim_split *split = &t->layout.dim[d];
            digest = wefti_digest_number(digest, (uint64_t)t->whole.shape[d]);
            digest = wefti_digest_number(digest, (uint64_t)split->unit);
            for (int a = 0; a < split->count; a++)
                digest = wefti_digest_number(digest, (uint64_t)split->axis[a] + 1);
        }
    }
    return digest;
}

static char *put(char *to, const void *data, size_t bytes) {
    if (bytes) memcpy(to, data, bytes);
    return to + bytes;
}

/* One block: head, channels, rows. */
static weft_status tell(const wefti_view *v, char **out, int64_t *out_bytes) {
    const wefti_program *p = v->own;
    world_head h;
    memset(&h, 0, sizeof h);
    h.facts = v->sites[p->rank].facts;
    h.tensors = digest_tensors(p);
    wefti_channel_record *channels;
    WEFT_TRY(wefti_channels_of(p, &channels, &h.channels));
    bool leads = p->rank == p->mesh.first;
    for (int32_t i = 0; i < p->tensor_count && leads; i++)
        h.rows_bytes += (int64_t)(sizeof(world_row) + strlen(p->tensors[i].name));
    size_t channel_bytes = (size_t)h.channels * sizeof *channels;
    *out_bytes = ((int64_t)(sizeof h + channel_bytes) + h.rows_bytes + 7) & ~(int64_t)7;
    *out = wefti_calloc(1, (size_t)*out_bytes);
    char *to = *out;
    if (to) {
        to = put(put(to, &h, sizeof h), channels, channel_bytes);
        for (int32_t i = 0; i < p->tensor_count && leads; i++) {
            const wefti_tensor *t = &p->tensors[i];
            world_row x = {.role = (int32_t)t->role,
                           .microbatches = t->microbatches,
                           .param = t->param,
                           .state = t->state,
                           .name_bytes = (int32_t)strlen(t->name),
                           .whole = t->whole,
                           .layout = t->layout};
            to = put(put(to, &x, sizeof x), t->name, (size_t)x.name_bytes);
        }
    }
    wefti_free(channels);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to describe a program");
    return WEFT_OK;
}

static weft_status read_rows(wefti_view *v, const char *from, int32_t count,
                             const wefti_tensor **out) {
    wefti_tensor *list = wefti_arena_alloc(v->arena, ((size_t)count + 1) * sizeof *list);
    WEFT_REQUIRE(list, WEFT_E_NOMEM, "no memory for a list of tensors");
    for (int32_t i = 0; i < count; i++) {
        world_row x;
        memcpy(&x, from, sizeof x);
        from += sizeof x;
        char *name = wefti_arena_alloc(v->arena, (size_t)x.name_bytes + 1);
        WEFT_REQUIRE(name, WEFT_E_NOMEM, "no memory for a list of tensors");
        memcpy(name, from, (size_t)x.name_bytes);
        name[x.name_bytes] = 0;
        from += x.name_bytes;
        list[i] = (wefti_tensor){.name = name,
                                 .role = (wefti_tensor_role)x.role,
                                 .microbatches = x.microbatches,
                                 .param = x.param,
                                 .state = x.state,
                                 .whole = x.whole,
                                 .layout = x.layout};
    }
    *out = list;
    return WEFT_OK;
}

/* The site of rank r from its message. The first rank of a stage comes before its other ranks. */
static weft_status read_site(wefti_view *v, const char *told, const world_head *h, int32_t r) {
    wefti_site *site = &v->sites[r];
    int32_t first = h->facts.mesh.first;
    if (r == v->own->rank) return WEFT_OK;
    site->facts = h->facts;
    if (first == v->own->mesh.first)
        site->tensors = v->own->tensors;
    else if (first == r)
        WEFT_TRY(read_rows(v, told + sizeof *h + (size_t)h->channels * sizeof(wefti_channel_record),
                           h->facts.tensor_count, &site->tensors));
    else
        site->tensors = v->sites[first].tensors;
    return WEFT_OK;
}

static weft_status read_all(wefti_view *v, const char *all, const int64_t *offsets) {
    const wefti_channel_record **records;
    int64_t *counts;
    world_head *heads;
    size_t n = (size_t)v->devices;
    WEFT_NEW_ARRAY(heads, world_head, v->devices);
    records = wefti_calloc(n, sizeof *records);
    counts = wefti_calloc(n, sizeof *counts);
    weft_status status = records && counts
                             ? WEFT_OK
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d ranks", v->devices);
    for (int32_t r = 0; r < v->devices && status >= 0; r++) {
        memcpy(&heads[r], all + offsets[r], sizeof *heads);
        int32_t first = heads[r].facts.mesh.first;
        counts[r] = heads[r].channels;
        records[r] =
            (const wefti_channel_record *)(const void *)(all + offsets[r] + sizeof(world_head));
        if (first > r || first < 0 || heads[first].tensors != heads[r].tensors)
            status = wefti_blame(
                WEFT_RAISE(WEFT_E_MISMATCH,
                           "rank %d splits its tensors another way than rank %d of its stage", r,
                           first),
                r);
        if (status >= 0) status = read_site(v, all + offsets[r], &heads[r], r);
    }
    if (status >= 0) status = wefti_channels_match(v->own, records, counts);
    wefti_free(records);
    wefti_free(counts);
    wefti_free(heads);
    return status;
}

weft_status wefti_view_gather_sites(const weft_session *s, wefti_view *v) {
    char *mine = NULL, *all;
    int64_t bytes = 0, *offsets;
    weft_status status = wefti_agree(s->agreement, tell(v, &mine, &bytes));
    if (status >= 0) status = wefti_agree_gather(s->agreement, mine, bytes, &all, &offsets);
    wefti_free(mine);
    WEFT_TRY(status);
    status = read_all(v, all, offsets);
    wefti_free(offsets);
    return wefti_agree(s->agreement, status);
}

/* ---- passes ---- */

typedef struct pass_record {
    double loss;
    int32_t status;
    bool has_loss;
} pass_record;

/* Whether this rank reports the loss of rank r. In pipelines that communicate by hand, it reports
 * the loss of the rank with its own place in the last stage. */
static bool hears(const weft_session *s, const wefti_view *v, int32_t r) {
    const wefti_site *mine = &v->sites[s->me], *other = &v->sites[r];
    return !wefti_session_loss_is_own(s) ||
           r - other->facts.mesh.first == s->me - mine->facts.mesh.first;
}

weft_status wefti_session_agree_on_loss(weft_session *s, const wefti_view *v, weft_status status,
                                        double *loss) {
    pass_record record = {*loss, status, v->sites[s->me].facts.has_loss}, *all = NULL;
    if (!v->loss_everywhere && (status >= 0 || status == WEFT_E_NUMERIC)) {
        all = wefti_calloc((size_t)s->devices, sizeof *all);
        if (!all) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d ranks", s->devices);
    }
    if (status < 0 && status != WEFT_E_NUMERIC) return wefti_fail_world(s->world, status);
    if (!all) return status;
    weft_status told = wefti_agree_records(s->agreement, &record, sizeof record, all);
    int32_t from = -1, bad = -1;
    for (int32_t r = s->devices - 1; r >= 0 && told >= 0; r--) { /* the lowest */
        if (all[r].has_loss && hears(s, v, r)) from = r;
        if (all[r].status < 0) bad = r;
    }
    if (from >= 0) *loss = all[from].loss;
    wefti_free(all);
    WEFT_TRY(told);
    if (bad < 0) return WEFT_OK;
    const bool own = wefti_session_loss_is_own(s);
    if (own && status < 0) return status; /* the others get a report of it */
    WEFT_FAIL_OF(bad, own ? WEFT_E_PEER : WEFT_E_NUMERIC, "the loss of rank %d is not finite", bad);
}
