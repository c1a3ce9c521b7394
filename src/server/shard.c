/* Shards: see server/shard.h. */
#include "server/shard.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "comm/reduce/reduce.h"
#include "compile/routine_run.h"

enum { SHARD_OPERANDS = 16 };

/* A body and its routine. */
typedef struct shard_routine {
    weft_body *body;
    wefti_routine *routine;
    unsigned char *frame;
} shard_routine;

struct wefti_shard_state {
    wefti_served of;
    wefti_arena *arena; /* of the description */
    weft_graph *graph;  /* of the bodies */
    shard_routine update, norm;
    wefti_device *memory;
    void *block;
    int64_t block_bytes;
    bool small; /* from the allocator, not pages of their own */
    unsigned char *part[WEFTI_SERVED_PARTS], *sum;
    unsigned char square[sizeof(double)];
    int64_t number;
    wefti_shard_phase phase;
    const void **terms; /* [of.terms]; NULL: not there */
    wefti_move_side *sides;
    int32_t *members;
    int32_t arrived, culprit;
    bool working;
    wefti_shard_phase from; /* of the work */
    int64_t of_number;      /* likewise */
};

/* ---- life ---- */

/* Places in one block, aligned as kernels like it. Small blocks are not worth pages of their own.
 */
static weft_status take_memory(wefti_shard_state *s) {
    enum { SMALL = 1 << 20 };
    int64_t at[WEFTI_SERVED_PARTS + 3], bytes = 0;
    int n = 0;
    for (int k = 0; k <= s->of.rule.states; k++)
        bytes = wefti_aligned((at[n++] = bytes) + s->of.part_bytes[k]);
    bytes = wefti_aligned((at[n++] = bytes) + s->of.part_bytes[0]);
    bytes = wefti_aligned((at[n++] = bytes) + s->update.routine->frame_bytes);
    bytes = wefti_aligned((at[n++] = bytes) + s->norm.routine->frame_bytes);
    bytes += wefti_aligned(1);
    s->block_bytes = bytes;
    s->small = bytes < SMALL;
    if (s->small)
        s->block = wefti_calloc(1, (size_t)bytes);
    else
        WEFT_TRY(s->memory->table->allocate(s->memory, WEFTI_SPACE_HOST, bytes, &s->block));
    WEFT_REQUIRE(s->block, WEFT_E_NOMEM, "no memory for %lld bytes", (long long)bytes);
    unsigned char *base = (unsigned char *)(uintptr_t)wefti_aligned((int64_t)(uintptr_t)s->block);
    n = 0;
    for (int k = 0; k <= s->of.rule.states; k++) s->part[k] = base + at[n++];
    s->sum = base + at[n++];
    s->update.frame = base + at[n++];
    s->norm.frame = base + at[n];
    return WEFT_OK;
}

static void give_memory(wefti_shard_state *s) {
    if (s->small)
        wefti_free(s->block);
    else if (s->block)
        s->memory->table->free(s->memory, WEFTI_SPACE_HOST, s->block, s->block_bytes);
}

static weft_status compile(int threads, shard_routine *r) {
    const wefti_routine_spec spec = {.body = r->body,
                                     .prepare = {.threads = threads, .bf16 = WEFTI_BF16_AS_F32},
                                     .backends = wefti_kind_backends(wefti_kind_host())};
    return wefti_routine_compile(&spec, &r->routine);
}

/* The square of the gradient, as programs compute it. */
static weft_status norm_body(wefti_shard_state *s, weft_body *body) {
    int32_t in, node;
    const wefti_attr to[] = {WEFTI_I(dtype, s->of.square), {0}};
    WEFT_TRY(wefti_body_input(body, s->of.desc, WEFTI_VALUE_INPUT, "gradient", &in));
    WEFT_TRY(wefti_body_add(body, wefti_op_find(s->graph->ops, "grad_norm2"), NULL, 1, &in, NULL,
                            "", &node));
    if (wefti_out(&body->nodes[node], 0)->dtype != s->of.square) {
        in = body->nodes[node].out[0];
        WEFT_TRY(wefti_body_add(body, wefti_op_find(s->graph->ops, "cast"), NULL, 1, &in, to, "",
                                &node));
    }
    return wefti_body_output(body, body->nodes[node].out[0]);
}

static weft_status describe(wefti_shard_state *s, const wefti_served *served) {
    wefti_served *of = &s->of;
    *of = *served;
    of->term = -1;
    of->name = wefti_arena_strdup(s->arena, served->name);
    WEFT_REQUIRE(of->name, WEFT_E_NOMEM, "no memory for the shard of a server");
    if (served->rule.attrs) {
        const size_t bytes =
            ((size_t)wefti_attr_count(served->rule.op) + 1) * sizeof *of->rule.attrs;
        wefti_attr *attrs = wefti_arena_alloc(s->arena, bytes);
        WEFT_REQUIRE(attrs, WEFT_E_NOMEM, "no memory for the shard of a server");
        memcpy(attrs, served->rule.attrs, bytes);
        of->rule.attrs = attrs;
    }
    for (int i = 0; i < of->rule.states; i++) {
        of->rule.state_names[i] = wefti_arena_strdup(s->arena, served->rule.state_names[i]);
        WEFT_REQUIRE(of->rule.state_names[i], WEFT_E_NOMEM, "no memory for the shard of a server");
    }
    return WEFT_OK;
}

static weft_status fill(wefti_shard_state *s, int threads) {
    WEFT_TRY(wefti_arena_create(&s->arena));
    WEFT_TRY(wefti_device_open(wefti_kind_host()->table, &s->memory));
    WEFT_TRY(weft_graph_create(&s->graph));
    WEFT_TRY(wefti_update_body(s->graph, &s->of.desc, &s->of.rule, false, &s->update.body));
    WEFT_TRY(compile(threads, &s->update));
    WEFT_REQUIRE(s->update.routine->args <= SHARD_OPERANDS, WEFT_E_BUG,
                 "the update of '%s' has %d operands", s->of.name, s->update.routine->args);
    WEFT_TRY(wefti_body_create(s->graph, "norm", &s->norm.body));
    WEFT_TRY(norm_body(s, s->norm.body));
    WEFT_TRY(compile(threads, &s->norm));
    WEFT_TRY(take_memory(s));
    WEFT_NEW_ARRAY(s->terms, const void *, s->of.terms);
    WEFT_NEW_ARRAY(s->sides, wefti_move_side, s->of.terms);
    WEFT_NEW_ARRAY(s->members, int32_t, s->of.terms);
    for (int32_t t = 0; t < s->of.terms; t++) s->members[t] = t;
    return describe(s, &s->of); /* copies the names, at last: the bodies keep none */
}

weft_status wefti_shard_create(const wefti_served *served, int threads, wefti_shard_state **out) {
    wefti_shard_state *s;
    WEFT_REQUIRE(served->terms >= 1 && served->rule.states < WEFTI_SERVED_PARTS, WEFT_E_BUG,
                 "'%s' has %d terms and %d states", served->name, served->terms,
                 served->rule.states);
    WEFT_NEW(s, wefti_shard_state);
    s->of = *served;
    s->phase = WEFTI_SHARD_FAILED; /* nothing is there before the first push */
    const weft_status status = fill(s, threads);
    if (status < 0) {
        wefti_shard_destroy(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

static void free_routine(shard_routine *r) {
    wefti_routine_destroy(r->routine);
    wefti_body_destroy(r->body);
}

void wefti_shard_destroy(wefti_shard_state *s) {
    if (!s) return;
    give_memory(s);
    free_routine(&s->update);
    free_routine(&s->norm);
    weft_graph_destroy(s->graph);
    wefti_device_close(s->memory);
    wefti_arena_destroy(s->arena);
    wefti_free(s->members);
    wefti_free(s->sides);
    wefti_free(s->terms);
    wefti_free(s);
}

const wefti_served *wefti_shard_of(const wefti_shard_state *s) {
    return &s->of;
}

static bool same_rule(const wefti_update_rule *a, const wefti_update_rule *b) {
    if (a->op != b->op || a->states != b->states || a->absent != b->absent) return false;
    for (int i = 0; i < a->states; i++)
        if (!wefti_desc_equal(&a->state_descs[i], &b->state_descs[i])) return false;
    if (!a->attrs || !b->attrs) return a->attrs == b->attrs;
    for (int i = 0; i < wefti_attr_count(a->op); i++)
        if (!wefti_attr_equal(&a->attrs[i], &b->attrs[i])) return false;
    return true;
}

weft_status wefti_shard_check(const wefti_shard_state *s, const wefti_served *x) {
    const wefti_served *of = &s->of;
    WEFT_REQUIRE(wefti_desc_equal(&of->desc, &x->desc) && wefti_desc_equal(&of->whole, &x->whole),
                 WEFT_E_MISMATCH, "'%s' is %s on one rank, and %s on another", x->name,
                 wefti_desc_text(&of->desc).text, wefti_desc_text(&x->desc).text);
    WEFT_REQUIRE(of->terms == x->terms, WEFT_E_MISMATCH,
                 "the gradient of '%s' is a sum of %d terms on one rank, and of %d on another",
                 x->name, of->terms, x->terms);
    WEFT_REQUIRE(same_rule(&of->rule, &x->rule) && of->square == x->square, WEFT_E_MISMATCH,
                 "the ranks update '%s' by unlike rules", x->name);
    return WEFT_OK;
}

/* ---- rounds ---- */

wefti_shard_phase wefti_shard_phase_of(const wefti_shard_state *s, int64_t number) {
    return number == s->number  ? s->phase
           : number > s->number ? WEFTI_SHARD_TERMS
                                : WEFTI_SHARD_FAILED;
}

weft_status wefti_shard_push(wefti_shard_state *s, int32_t term, int64_t number,
                             const void *gradient) {
    WEFT_REQUIRE(term >= 0 && term < s->of.terms, WEFT_E_BUG, "term %d of '%s', which has %d terms",
                 term, s->of.name, s->of.terms);
    if (number < s->number) return WEFT_OK;
    if (number > s->number) {
        s->number = number;
        s->phase = WEFTI_SHARD_TERMS;
        s->arrived = 0;
        memset(s->terms, 0, (size_t)s->of.terms * sizeof *s->terms);
    }
    WEFT_REQUIRE(s->phase == WEFTI_SHARD_TERMS && !s->terms[term], WEFT_E_BUG,
                 "term %d of '%s' is pushed twice in step %lld", term, s->of.name,
                 (long long)number);
    s->terms[term] = gradient;
    if (++s->arrived == s->of.terms) s->phase = WEFTI_SHARD_FULL;
    return WEFT_OK;
}

bool wefti_shard_withdraw(wefti_shard_state *s, int32_t term, int64_t number) {
    const bool there = number == s->number && s->phase <= WEFTI_SHARD_FULL && s->terms[term];
    if (s->working && s->from == WEFTI_SHARD_FULL) return false;
    if (!there) return true;
    s->terms[term] = NULL;
    s->arrived--;
    s->phase = WEFTI_SHARD_TERMS;
    return true;
}

bool wefti_shard_begin(wefti_shard_state *s, wefti_shard_phase from) {
    if (s->working || s->phase != from) return false;
    s->working = true;
    s->from = from;
    s->of_number = s->number;
    return true;
}

void wefti_shard_end(wefti_shard_state *s, weft_status status) {
    s->working = false;
    if (s->number != s->of_number) return;
    s->phase = status < 0                    ? WEFTI_SHARD_FAILED
               : s->from == WEFTI_SHARD_FULL ? WEFTI_SHARD_SUM
                                             : WEFTI_SHARD_VALUE;
}

/* ---- work ---- */

/* The operands of a routine: its arguments, and its frame. */
typedef struct shard_call {
    void *args[SHARD_OPERANDS];
    unsigned char *frame;
} shard_call;

static wefti_operand operand_at(void *context, wefti_ref ref, int64_t written) {
    const shard_call *c = context;
    unsigned char *base = ref.arg == WEFTI_REF_FRAME  ? c->frame
                          : ref.arg == WEFTI_REF_NONE ? NULL
                                                      : c->args[ref.arg];
    (void)written;
    return (wefti_operand){base ? base + ref.offset : NULL, WEFTI_SPACE_HOST};
}

static weft_status run_routine(const wefti_shard_state *s, const shard_routine *r, shard_call *c,
                               const wefti_run *run) {
    const wefti_routine_call call = {.routine = r->routine,
                                     .name = s->of.name,
                                     .run = run,
                                     .at = operand_at,
                                     .context = c,
                                     .space = WEFTI_SPACE_HOST};
    int32_t k = 0;
    c->frame = r->frame;
    return wefti_routine_run(&call, &k, r->routine->code_count);
}

/* A square that is not finite may be that of large numbers. */
static weft_status find_culprit(wefti_shard_state *s) {
    const int64_t elems = weft_desc_elems(&s->of.desc);
    for (int32_t t = 0; t < s->of.terms; t++)
        for (int64_t i = 0; i < elems; i++) {
            const double x = wefti_load(s->of.desc.dtype, s->terms[t], i);
            if (isfinite(x)) continue;
            s->culprit = t;
            WEFT_FAIL(WEFT_E_NUMERIC, "element %lld of its gradient of '%s' is %g: it is not taken",
                      (long long)i, s->of.name, wefti_printed(x));
        }
    return WEFT_OK;
}

/* In the order of the terms, by the arithmetic of an all-reduce within one host. */
static weft_status add_terms(wefti_shard_state *s, const wefti_run *run) {
    const wefti_copy_move move = {.dtype = s->of.desc.dtype,
                                  .reduction = WEFTI_REDUCE_SUM,
                                  .run = weft_desc_elems(&s->of.desc),
                                  .sources = s->of.terms,
                                  .members = s->members,
                                  .from = s->sides};
    if (move.run) wefti_move_run(&move, s->terms, s->sum);
    shard_call norm = {.args = {s->sum, s->square}};
    WEFT_TRY(run_routine(s, &s->norm, &norm, run));
    return isfinite(wefti_load(s->of.square, s->square, 0)) ? WEFT_OK : find_culprit(s);
}

static weft_status update(wefti_shard_state *s, const wefti_run *run,
                          const wefti_step_block *scalars) {
    const wefti_routine *r = s->update.routine;
    const bool f64 = wefti_update_scalars(&s->of.desc) == WEFT_F64;
    shard_call c = {.args = {s->part[0]}};
    int n = 1;
    for (int k = 1; k <= s->of.rule.states; k++) c.args[n++] = s->part[k];
    c.args[n++] = s->sum;
    c.args[n++] = (unsigned char *)(uintptr_t)scalars +
                  (f64 ? offsetof(wefti_step_block, f64) : offsetof(wefti_step_block, f32));
    /* Results replace their operands, as in programs. */
    for (int32_t o = 0; o < r->outputs; o++)
        c.args[r->inputs + o] = c.args[r->alias[o] >= 0 ? r->alias[o] : o];
    return run_routine(s, &s->update, &c, run);
}

weft_status wefti_shard_work(wefti_shard_state *s, const wefti_run *run,
                             const wefti_step_block *scalars) {
    s->culprit = -1;
    return s->from == WEFTI_SHARD_FULL ? add_terms(s, run) : update(s, run, scalars);
}

int32_t wefti_shard_culprit(const wefti_shard_state *s) {
    return s->culprit;
}

void wefti_shard_square(const wefti_shard_state *s, void *out) {
    memcpy(out, s->square, weft_dtype_bytes(s->of.square));
}

weft_status wefti_shard_bytes(wefti_shard_state *s, int part, int64_t offset, int64_t bytes,
                              unsigned char **out) {
    WEFT_REQUIRE(part >= 0 && part <= s->of.rule.states && offset >= 0 && bytes >= 0 &&
                     bytes <= s->of.part_bytes[part] - offset,
                 WEFT_E_BUG, "%lld bytes from %lld of part %d of '%s'", (long long)bytes,
                 (long long)offset, part, s->of.name);
    *out = s->part[part] + offset;
    return WEFT_OK;
}
