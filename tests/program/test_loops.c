/* Loops over microbatches: a program with loops, expanded, does what the program without loops
 * does.
 *
 * Both programs run over shadow memory. It holds, for each 4 bytes, which operand of which step
 * wrote them last. Each instruction must read the same shadows in both programs. */
#include "support.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/digest/digest.h"
#include "base/memory.h"
#include "program/match.h"
#include "program/print.h"
#include "session/optimizer.h"
#include "weft/model.h"
#include "weft/plan.h"

typedef struct loop_case {
    const char *name;
    weft_schedule schedule;
    int devices, stages, chunks, copies, level, layers, tensor;
    bool dropout, whole; /* whole: the schedule has no loop */
} loop_case;

static const loop_case cases[] = {
    {"1f1b, 2 stages", WEFT_PIPELINE_1F1B, 2, 2, 1, 1, 0, 2, 0, true, false},
    {"1f1b, 3 stages", WEFT_PIPELINE_1F1B, 3, 3, 1, 1, 0, 3, 0, false, false},
    {"1f1b, 4 stages", WEFT_PIPELINE_1F1B, 4, 4, 1, 1, 0, 4, 0, false, false},
    {"1f1b, 2 data 2 stages, level 3", WEFT_PIPELINE_1F1B, 4, 2, 1, 1, 3, 2, 0, false, false},
    {"1f1b, 2 tensor 2 stages, 2 copies", WEFT_PIPELINE_1F1B, 4, 2, 1, 2, 0, 2, 2, false, false},
    {"1f1b, 2 stages, 3 copies", WEFT_PIPELINE_1F1B, 2, 2, 1, 3, 0, 2, 0, false, false},
    {"interleaved", WEFT_PIPELINE_INTERLEAVED, 2, 2, 2, 1, 0, 4, 0, false, false},
    {"interleaved, 3 chunks", WEFT_PIPELINE_INTERLEAVED, 2, 2, 3, 1, 0, 6, 0, false, false},
    {"zero bubble", WEFT_PIPELINE_ZERO_BUBBLE, 3, 3, 1, 1, 0, 3, 0, false, false},
    {"zero bubble, 2 chunks", WEFT_PIPELINE_ZERO_BUBBLE, 2, 2, 2, 1, 0, 4, 0, false, false},
    {"gpipe", WEFT_PIPELINE_GPIPE, 2, 2, 1, 1, 0, 2, 0, false, true},
    {"2 copies", WEFT_PIPELINE_1F1B, 2, 1, 1, 2, 0, 2, 2, false, false},
    {"3 copies, level 3", WEFT_PIPELINE_1F1B, 2, 1, 1, 3, 3, 2, 0, false, false},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- building ---- */

typedef struct builds {
    weft_graph *graph;
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    weft_plan *plan;
} builds;

static weft_plan *plan_of(const loop_case *c, int micro) {
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(c->devices, &plan));
    if (c->tensor) {
        ASSERT_OK(weft_plan_axis(plan, "tp", c->tensor));
        ASSERT_OK(weft_plan_split_op(plan, "h.*.mlp.c_fc", "n0=tp"));
        ASSERT_OK(weft_plan_split_op(plan, "h.*.mlp.c_proj", "k=tp"));
    }
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    if (c->copies > 1) ASSERT_OK(weft_plan_copies(plan, c->copies));
    if (c->stages > 1)
        ASSERT_OK(weft_plan_pipeline(plan, c->stages, micro, c->schedule, c->chunks));
    return plan;
}

static void open_builds(const loop_case *c, builds *b) {
    weft_model_config config = {.family = WEFT_FAMILY_GPT2,
                                .layers = c->layers,
                                .hidden = 8,
                                .heads = 2,
                                .context = 4,
                                .vocab = 12,
                                .dropout = c->dropout ? 0.1 : 0};
    weft_optimizer adamw = {
        .kind = WEFT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    ASSERT_OK(weft_model_build(&config, WEFT_USE_TRAIN, 2, 0, WEFT_F32, &b->graph));
    ASSERT_OK(wefti_graph_wrap(b->graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, false, b->graph, &b->optimizer));
}

static void close_builds(builds *b) {
    wefti_optimizer_destroy(b->optimizer);
    weft_graph_destroy(b->graph);
}

static wefti_program *build(const builds *b, int micro, int32_t rank, bool unrolled) {
    wefti_program *p;
    wefti_program_spec spec = {.graph = b->graph,
                               .kind = wefti_kind_of(rank),
                               .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32, .dry = true},
                               .optimizer = wefti_optimizer_plan_of(b->optimizer),
                               .microbatches = b->plan->copies * micro,
                               .plan = b->plan,
                               .rank = rank,
                               .unrolled = unrolled,
                               .routes = b->routes};
    ASSERT_OK(wefti_program_build(&spec, &p));
    return p;
}

/* ---- shadow memory ---- */

enum { GRAIN = 4 };

typedef struct shadow {
    const wefti_program *program;
    uint64_t *of; /* per GRAIN bytes of the arena */
    wefti_cursor at;
} shadow;

/* The persistent arena lies below the transient one here. */
static int64_t offset_of(const shadow *s, wefti_location at) {
    const bool transient = wefti_location_term(at) == WEFTI_TRANSIENT;
    return wefti_location_offset(at) + (transient ? s->program->persistent_bytes : 0);
}

static void fill(shadow *s, int64_t offset, int64_t bytes, uint64_t value) {
    for (int64_t i = 0; i * GRAIN < bytes; i++)
        s->of[offset / GRAIN + i] = wefti_digest_number(value, (uint64_t)i);
}

static uint64_t look(const shadow *s, uint64_t digest, int64_t offset, int64_t bytes) {
    for (int64_t i = 0; i * GRAIN < bytes; i++)
        digest = wefti_digest_number(digest, s->of[offset / GRAIN + i]);
    return digest;
}

static shadow shadow_of(const wefti_program *p) {
    shadow s = {.program = p, .of = calloc((size_t)p->peak_bytes / GRAIN + 64, sizeof *s.of)};
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        if (t->role == WEFTI_TENSOR_OUTPUT) continue;
        for (int32_t m = 0; m < t->microbatches; m++)
            fill(&s, offset_of(&s, t->home) + m * t->stride, weft_desc_bytes(&t->desc),
                 wefti_digest_number(wefti_digest_text(1, t->name), (uint64_t)m));
    }
    if (wefti_location_exists(p->one)) fill(&s, offset_of(&s, p->one), 64, 2);
    return s;
}

static int64_t argument(const shadow *s, const wefti_step *step, int32_t arg) {
    return offset_of(s, wefti_cursor_arg(step, &s->at, arg));
}

static int64_t place(const shadow *s, const wefti_step *step, wefti_ref ref) {
    if (ref.arg == WEFTI_REF_FRAME) return offset_of(s, step->frame) + ref.offset;
    return argument(s, step, ref.arg) + ref.offset;
}

/* Runs one instruction; returns what it read. Values differ by step, instruction and operand. */
static uint64_t instruct(shadow *s, const wefti_step *step, int32_t k) {
    const wefti_instruction *x = &step->routine->code[k];
    const weft_node *n = x->node;
    uint64_t seen = wefti_digest_number((uint64_t)s->at.number, (uint64_t)k);
    for (int i = 0; i < (n ? n->inputs : 1); i++)
        if (x->in[i].arg != WEFTI_REF_NONE)
            seen = look(s, seen, place(s, step, x->in[i]),
                        n ? weft_desc_bytes(wefti_in(n, i)) : x->bytes);
    if (!n && x->add) seen = look(s, seen, place(s, step, x->out[0]), x->bytes);
    if (x->workspace.arg != WEFTI_REF_NONE)
        fill(s, place(s, step, x->workspace), x->workspace_bytes, 3);
    for (int o = 0; o < (n ? n->outputs : 1); o++)
        if (x->out[o].arg != WEFTI_REF_NONE)
            fill(s, place(s, step, x->out[o]), n ? weft_desc_bytes(wefti_out(n, o)) : x->bytes,
                 wefti_digest_number(seen, (uint64_t)o));
    return seen;
}

static int64_t moved(const shadow *s, const wefti_step *step, bool want) {
    const wefti_transfer *t =
        wefti_partition_transfer(s->program->partition, wefti_step_transfer_of(s->program, step));
    return wefti_region_elems(want ? &t->want[t->me] : &t->have[t->me], t->rank) *
           (int64_t)weft_dtype_bytes(t->dtype);
}

/* A transfer reads its source, and writes its result, until its wait. */
static uint64_t run(shadow *s, const wefti_step *step) {
    uint64_t seen = (uint64_t)s->at.number;
    int64_t bytes;
    switch (step->kind) {
    case WEFTI_STEP_CALL:
        for (int32_t k = step->from - step->waits; k < step->to; k++)
            seen = wefti_digest_number(seen, instruct(s, step, k));
        return seen;
    case WEFTI_STEP_COPY:
        for (int64_t i = 0; i < wefti_copy_rows(step); i++)
            seen = look(s, seen, argument(s, step, 1) + i * step->pitch[1], step->bytes);
        for (int64_t i = 0; i < wefti_copy_rows(step); i++)
            fill(s, argument(s, step, 0) + i * step->pitch[0], step->bytes, seen);
        return seen;
    case WEFTI_STEP_LOSS:
        return look(s, seen, argument(s, step, 0), 4);
    case WEFTI_STEP_POST:
    case WEFTI_STEP_WAIT:
        if (wefti_location_exists(step->args[0]) && (bytes = moved(s, step, false)))
            seen = look(s, seen, argument(s, step, 0), bytes);
        if (wefti_location_exists(step->args[1]) && (bytes = moved(s, step, true)))
            fill(s, argument(s, step, 1), bytes, seen);
        return seen;
    }
    return seen;
}

/* ---- comparing ---- */

static int32_t routine_number(const wefti_program *p, const wefti_step *step) {
    int32_t i = 0;
    while (i < p->routine_count && p->routines[i] != step->routine) i++;
    return step->kind == WEFTI_STEP_CALL ? i : -1;
}

static bool same_step(const wefti_program *p, const wefti_step *x, const wefti_program *q,
                      const wefti_step *y) {
    bool moves = x->kind == WEFTI_STEP_POST || x->kind == WEFTI_STEP_WAIT;
    return x->kind == y->kind && x->phase == y->phase && !strcmp(x->name, y->name) &&
           x->stream == y->stream && x->from == y->from && x->to == y->to && x->part == y->part &&
           x->parts == y->parts && (!moves || x->move == y->move) &&
           routine_number(p, x) == routine_number(q, y);
}

/* A program with loops does what the program without loops does, step by step. */
static void expect_same(const char *what, const wefti_program *p, const wefti_program *q) {
    for (int i = 0; i < WEFTI_SECTIONS; i++) {
        const wefti_section section = (wefti_section)i;
        shadow a = shadow_of(p), b = shadow_of(q);
        assert_int_equal(q->loop_count[i], 0);
        const wefti_step *x, *y;
        for (;;) {
            x = wefti_cursor_step(p, section, &a.at);
            y = wefti_cursor_step(q, section, &b.at);
            if (!x || !y) break;
            if (!same_step(p, x, q, y) ||
                wefti_cursor_micro(p, section, &a.at) != wefti_cursor_micro(q, section, &b.at))
                fail_msg("%s: step %lld is '%s' of microbatch %d, not '%s' of %d", what,
                         (long long)a.at.number, x->name, wefti_cursor_micro(p, section, &a.at),
                         y->name, y->micro);
            if (run(&a, x) != run(&b, y))
                fail_msg("%s: step %lld, '%s' of microbatch %d (kind %d), reads other values", what,
                         (long long)a.at.number, x->name, y->micro, (int)y->kind);
            wefti_cursor_next(p, section, &a.at);
            wefti_cursor_next(q, section, &b.at);
        }
        if (x || y) fail_msg("%s: the programs have different lengths", what);
        free(a.of);
        free(b.of);
    }
    if (p->saved_bytes != q->saved_bytes || fabs(p->forward_flops - q->forward_flops) > 1e-6 ||
        fabs(p->backward_flops - q->backward_flops) > 1e-6)
        fail_msg("%s: the programs count other bytes or operations", what);
}

static void expect_loops(const loop_case *c, builds *b, int micro, int *looped) {
    char what[160];
    b->plan = plan_of(c, micro);
    ASSERT_OK(wefti_route_cache_create(&b->routes));
    for (int32_t r = 0; r < c->devices; r++) {
        wefti_program *p = build(b, micro, r, false), *q = build(b, micro, r, true);
        (void)snprintf(what, sizeof what, "%s, %d microbatches, rank %d", c->name, micro, r);
        expect_same(what, p, q);
        if (p->peak_bytes > q->peak_bytes + q->transient_bytes / 8)
            fail_msg("%s: %lld bytes with loops, %lld without", what, (long long)p->peak_bytes,
                     (long long)q->peak_bytes);
        *looped += p->loop_count[WEFTI_SECTION_FIRST];
        wefti_program_destroy(p);
        wefti_program_destroy(q);
    }
    wefti_route_cache_destroy(b->routes);
    weft_plan_destroy(b->plan);
}

/* All schedules, from 1 microbatch up to several periods. */
static void loops_are_what_they_stand_for(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const loop_case *c = &cases[i];
        int step = c->schedule == WEFT_PIPELINE_INTERLEAVED ? c->stages : 1, looped = 0;
        int first = c->stages > 1 ? step > 1 ? 2 * c->stages : c->stages : 1;
        builds b;
        open_builds(c, &b);
        /* 5 has no common divisor with a period, so all remainders occur. */
        if (SANITIZED) step *= 5;
        for (int micro = first; micro <= 8 + 5 * c->stages * c->chunks; micro += step)
            expect_loops(c, &b, micro, &looped);
        close_builds(&b);
        if ((looped > 0) == c->whole) fail_msg("%s: %d programs have loops", c->name, looped);
    }
}

/* ---- matching ---- */

enum { FAULTS = 5 };
typedef enum fault { NO_FAULT, OTHER_MICROBATCH, NO_SEND, ONE_TIME_MORE, OTHER_POST } fault;

static wefti_step *copy_steps(wefti_step *to, const wefti_step *from, int32_t count,
                              int32_t later) {
    for (int32_t i = 0; i < count; i++) {
        to[i] = from[i];
        to[i].micro += later;
    }
    return to + count;
}

static void drop_step(wefti_step *steps, int32_t *count, int32_t at) {
    memmove(&steps[at], &steps[at + 1], (size_t)(*count - at - 1) * sizeof *steps);
    --*count;
}

/* The first wait behind a post of its transfer. */
static int32_t find_wait(const wefti_step *steps, int32_t count, int32_t post) {
    int32_t wait = post + 1;
    while (wait < count &&
           (steps[wait].kind != WEFTI_STEP_WAIT || steps[wait].move != steps[post].move))
        wait++;
    assert_true(wait < count);
    return wait;
}

/* Alters one iteration, which has `count` steps. Returns its new number of steps. */
static int32_t alter(wefti_step *steps, int32_t count, fault what) {
    static wefti_location other[2];
    int32_t post = 0, wait;
    while (steps[post].kind != WEFTI_STEP_POST) post++;
    switch (what) {
    case OTHER_MICROBATCH:
        steps[post].micro++;
        break;
    case NO_SEND:
        wait = find_wait(steps, count, post);
        drop_step(steps, &count, wait);
        drop_step(steps, &count, post);
        break;
    case OTHER_POST: /* the wait is for other memory than the oldest post */
        wait = find_wait(steps, count, post);
        for (int a = 0; a < 2; a++) other[a] = wefti_location_plus(steps[wait].args[a], 64);
        steps[wait].args = other;
        break;
    case NO_FAULT:
    case ONE_TIME_MORE:
        break;
    }
    return count;
}

/* Gives iteration k of the program's loop steps of its own, with a fault. */
typedef struct altered {
    wefti_program *program;
    wefti_step *steps, *kept;
    wefti_loop *kept_loops, loops[2];
    int32_t kept_count;
} altered;

static altered alter_iteration(wefti_program *p, int32_t k, fault what) {
    altered x = {p, NULL, p->steps[0], p->loops[0], {{0}}, p->step_count[0]};
    wefti_loop l = *p->loops[0];
    int32_t behind = l.first + l.count;
    x.steps = calloc((size_t)(p->step_count[0] + 2 * l.count), sizeof *x.steps);
    wefti_step *to = copy_steps(x.steps, x.kept, behind, 0);
    (void)copy_steps(to, x.kept + l.first, l.count, k * l.micro);
    to += alter(to, l.count, what);
    x.loops[0] = (wefti_loop){l.first, l.count, k, l.micro};
    x.loops[1] = (wefti_loop){(int32_t)(to - x.steps), l.count,
                              l.times - k - 1 + (what == ONE_TIME_MORE), l.micro};
    to = copy_steps(to, x.kept + l.first, l.count, (k + 1) * l.micro);
    to = copy_steps(to, x.kept + behind, x.kept_count - behind, 0);
    p->steps[0] = x.steps;
    p->step_count[0] = (int32_t)(to - x.steps);
    p->loops[0] = x.loops;
    p->loop_count[0] = 2;
    return x;
}

static void restore(altered *x) {
    x->program->steps[0] = x->kept;
    x->program->step_count[0] = x->kept_count;
    x->program->loops[0] = x->kept_loops;
    x->program->loop_count[0] = 1;
    free(x->steps);
}

static void expect_match(const loop_case *c, wefti_program **programs, int32_t rank, int32_t k,
                         fault what) {
    altered x = alter_iteration(programs[rank], k, what);
    int32_t micro = x.kept[x.kept_loops->first].micro + k * x.kept_loops->micro;
    weft_status status = wefti_programs_match((const wefti_program *const *)programs, c->devices);
    restore(&x);
    if (what == NO_FAULT) {
        if (status < 0) fail_msg("%s, rank %d: %s", c->name, rank, weft_error_message());
        return;
    }
    if (status != WEFT_E_MISMATCH)
        fail_msg("%s: fault %d in iteration %d of rank %d is not found", c->name, (int)what, k,
                 rank);
    if (what == ONE_TIME_MORE) return; /* found at the end of the loop */
    const char *text = strstr(weft_error_message(), "of microbatch ");
    assert_non_null(text);
    long named = strtol(text + strlen("of microbatch "), NULL, 10);
    if (labs(named - micro) > 3 * x.kept_loops->micro)
        fail_msg("%s: fault %d in iteration %d, near microbatch %d: %s", c->name, (int)what, k,
                 micro, weft_error_message());
}

/* Programs of many microbatches match. A fault in any iteration of a rank is found and named. */
static void faults_are_found_in_any_iteration(void **state) {
    (void)state;
    enum { MANY = 120000 };
    for (int i = 0; i < CASES; i++) {
        const loop_case *c = &cases[i];
        wefti_program *programs[4];
        builds b;
        if (c->stages == 1 || c->whole) continue;
        open_builds(c, &b);
        b.plan = plan_of(c, MANY);
        ASSERT_OK(wefti_route_cache_create(&b.routes));
        for (int32_t r = 0; r < c->devices; r++) programs[r] = build(&b, MANY, r, false);
        for (int32_t r = 0; r < c->devices; r += c->devices - 1) {
            int32_t times = programs[r]->loops[0]->times, at[] = {1, 7, 1000, times / 2, times - 2};
            for (size_t k = 0; k < sizeof at / sizeof *at; k += SANITIZED ? 2 : 1)
                for (int what = 0; what < FAULTS; what++)
                    expect_match(c, programs, r, at[k], (fault)what);
        }
        for (int32_t r = 0; r < c->devices; r++) wefti_program_destroy(programs[r]);
        wefti_route_cache_destroy(b.routes);
        weft_plan_destroy(b.plan);
        close_builds(&b);
    }
}

/* ---- memory ---- */

static int64_t heap(void) {
    struct mallinfo2 info = mallinfo2();
    return (int64_t)info.uordblks + (int64_t)info.hblkhd;
}

/* Builds and matches the programs of all ranks; returns the memory that they take. */
static int64_t memory_of(const loop_case *c, builds *b, int micro, int64_t *out_inputs) {
    wefti_program *programs[4];
    int64_t before = heap();
    b->plan = plan_of(c, micro);
    ASSERT_OK(wefti_route_cache_create(&b->routes));
    for (int32_t r = 0; r < c->devices; r++) programs[r] = build(b, micro, r, false);
    ASSERT_OK(wefti_programs_match((const wefti_program *const *)programs, c->devices));
    int64_t bytes = heap() - before;
    *out_inputs = 0;
    for (int32_t r = 0; r < c->devices; r++) {
        int64_t inputs = 0;
        for (int32_t i = 0; i < programs[r]->tensor_count; i++) {
            const wefti_tensor *t = &programs[r]->tensors[i];
            inputs += (t->microbatches - 1) * t->stride;
        }
        *out_inputs += programs[r]->peak_bytes - inputs;
        wefti_program_destroy(programs[r]);
    }
    wefti_route_cache_destroy(b->routes);
    weft_plan_destroy(b->plan);
    return bytes;
}

/* Programs of 1,048,576 microbatches take the memory of those of 4,096, and the peak grows by the
 * inputs only. */
static void microbatches_cost_no_memory(void **state) {
    (void)state;
    enum { MOST_BYTES = 4 << 20 };
    for (int i = 0; i < CASES; i++) {
        const loop_case *c = &cases[i];
        builds b;
        int64_t rest, rest_of_more;
        if (c->whole || c->copies > 1) continue;
        open_builds(c, &b);
        int64_t some = memory_of(c, &b, 4096 * c->stages, &rest);
        int64_t more = memory_of(c, &b, 1048576 / 12 * 12, &rest_of_more);
        print_message("%s: %lld and %lld bytes\n", c->name, (long long)some, (long long)more);
        assert_true(some < MOST_BYTES && more < MOST_BYTES);
        assert_true(more <= some + some / 4);
        assert_true(rest_of_more < rest + rest / 4);
        close_builds(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_are_what_they_stand_for),
        cmocka_unit_test(faults_are_found_in_any_iteration),
        cmocka_unit_test(microbatches_cost_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
