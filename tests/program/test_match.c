/* Programs of real plans match. Any fault in one rank's program is found. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kinds.h"
#include "base/fault.h"
#include "base/memory.h"
#include "base/philox.h"
#include "program/match.h"
#include "program/print.h"
#include "partition/context.h"
#include "session/optimizer.h"
#include "weft/model.h"
#include "weft/plan.h"

/* ---- plans and their programs ---- */

typedef struct plan_case {
    const char *name;
    int devices;
    struct {
        const char *name;
        int size;
    } axis[3];
    bool tensor; /* Megatron's split over tp */
    int level, stages, micro, chunks, clip, copies;
    weft_schedule schedule;
} plan_case;

static const plan_case cases[] = {
    {.name = "2 data", .devices = 2},
    {.name = "3 data, uneven", .devices = 3, .level = 1},
    {.name = "4 data, accumulated", .devices = 4, .micro = 2, .clip = 1},
    {.name = "4 data, level 1", .devices = 4, .level = 1, .clip = 1},
    {.name = "4 data, level 2", .devices = 4, .level = 2},
    {.name = "4 data, level 3", .devices = 4, .level = 3},
    {.name = "2 tensor", .devices = 2, .axis = {{"tp", 2}}, .tensor = true},
    {.name = "2 data 2 tensor",
     .devices = 4,
     .axis = {{"dp", 2}, {"tp", 2}},
     .tensor = true,
     .level = 2,
     .micro = 2},
    {.name = "gpipe", .devices = 2, .stages = 2, .micro = 3, .schedule = WEFT_PIPELINE_GPIPE},
    {.name = "1f1b", .devices = 4, .stages = 4, .micro = 6, .schedule = WEFT_PIPELINE_1F1B},
    {.name = "interleaved",
     .devices = 2,
     .stages = 2,
     .micro = 4,
     .chunks = 2,
     .schedule = WEFT_PIPELINE_INTERLEAVED},
    {.name = "zero bubble",
     .devices = 2,
     .stages = 2,
     .micro = 4,
     .chunks = 2,
     .schedule = WEFT_PIPELINE_ZERO_BUBBLE},
    {.name = "2 data 2 tensor 2 stages",
     .devices = 8,
     .axis = {{"dp", 2}, {"tp", 2}},
     .tensor = true,
     .level = 2,
     .stages = 2,
     .micro = 4,
     .clip = 1,
     .schedule = WEFT_PIPELINE_1F1B},
    {.name = "2 tensor, 2 copies", .devices = 2, .axis = {{"tp", 2}}, .tensor = true, .copies = 2},
    {.name = "2 data 2 tensor 2 stages, 3 copies, level 3",
     .devices = 8,
     .axis = {{"dp", 2}, {"tp", 2}},
     .tensor = true,
     .level = 3,
     .stages = 2,
     .micro = 2,
     .copies = 3,
     .schedule = WEFT_PIPELINE_1F1B},
    {.name = "2 tensor, 2 copies, a loop",
     .devices = 2,
     .axis = {{"tp", 2}},
     .tensor = true,
     .micro = 16,
     .copies = 2},
};
enum { CASES = sizeof cases / sizeof *cases, MOST = 8 };

typedef struct world {
    weft_graph *graph;
    weft_plan *plan;
    wefti_optimizer *optimizer;
    wefti_route_cache *routes;
    wefti_program *programs[MOST];
    int32_t count;
} world;

static weft_plan *plan_of(const plan_case *c) {
    static const char *const splits[][2] = {{"h.*.attn.c_attn", "n1=tp"},
                                            {"h.*.attn", "heads=tp"},
                                            {"h.*.attn.c_proj", "k=tp"},
                                            {"h.*.mlp.c_fc", "n0=tp"},
                                            {"h.*.mlp.c_proj", "k=tp"}};
    weft_plan *plan;
    ASSERT_OK(weft_plan_create(c->devices, &plan));
    for (int a = 0; a < 3 && c->axis[a].name; a++)
        ASSERT_OK(weft_plan_axis(plan, c->axis[a].name, c->axis[a].size));
    for (size_t i = 0; c->tensor && i < sizeof splits / sizeof *splits; i++)
        ASSERT_OK(weft_plan_split_op(plan, splits[i][0], splits[i][1]));
    if (c->level) ASSERT_OK(weft_plan_optimizer(plan, c->level, 0, 0));
    if (c->copies) ASSERT_OK(weft_plan_copies(plan, c->copies));
    if (c->stages)
        ASSERT_OK(
            weft_plan_pipeline(plan, c->stages, c->micro, c->schedule, c->chunks ? c->chunks : 1));
    return plan;
}

static void open_world(const plan_case *c, world *w) {
    weft_model_config config = {.family = WEFT_FAMILY_GPT2,
                                .layers = 3,
                                .hidden = 32,
                                .heads = 4,
                                .context = 8,
                                .vocab = 50};
    weft_optimizer adamw = {
        .kind = WEFT_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    *w = (world){.count = c->devices, .plan = plan_of(c)};
    ASSERT_OK(weft_model_build(&config, WEFT_USE_TRAIN, 8, 0, WEFT_F32, &w->graph));
    ASSERT_OK(wefti_graph_wrap(w->graph));
    ASSERT_OK(wefti_optimizer_create(&adamw, c->clip, w->graph, &w->optimizer));
    ASSERT_OK(wefti_route_cache_create(&w->routes));
    for (int32_t r = 0; r < c->devices; r++) {
        wefti_program_spec spec = {.graph = w->graph,
                                   .kind = wefti_kind_of(r),
                                   .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32},
                                   .optimizer = wefti_optimizer_plan_of(w->optimizer),
                                   .microbatches = w->plan->copies * (c->micro ? c->micro : 1),
                                   .plan = w->plan,
                                   .rank = r,
                                   .routes = w->routes};
        ASSERT_OK(wefti_program_build(&spec, &w->programs[r]));
    }
}

static void close_world(world *w) {
    for (int32_t r = 0; r < w->count; r++) wefti_program_destroy(w->programs[r]);
    wefti_route_cache_destroy(w->routes);
    wefti_optimizer_destroy(w->optimizer);
    weft_graph_destroy(w->graph);
    weft_plan_destroy(w->plan);
}

static weft_status match(const world *w) {
    return wefti_programs_match((const wefti_program *const *)w->programs, w->count);
}

static void test_real_programs(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c++) {
        world w;
        open_world(&cases[c], &w);
        if (match(&w) < 0) fail_msg("%s: %s", cases[c].name, weft_error_message());
        close_world(&w);
    }
}

/* Every transfer that an instruction or a step of a program uses has a name, equal on all ranks. */
static void test_names(void **state) {
    (void)state;
    for (int c = 0; c < CASES; c++) {
        world w;
        open_world(&cases[c], &w);
        for (int32_t r = 0; r < w.count; r++)
            for (int s = 0; s < WEFTI_SECTIONS; s++)
                for (int32_t i = 0; i < w.programs[r]->step_count[s]; i++) {
                    const wefti_step *step = &w.programs[r]->steps[s][i];
                    const wefti_routine *code =
                        step->kind == WEFTI_STEP_CALL ? step->routine : NULL;
                    for (int32_t k = 0; code && k < code->code_count; k++) {
                        const wefti_instruction *x = &code->code[k];
                        if (x->transfer < 0) continue;
                        char name[256];
                        const wefti_transfer *t =
                            wefti_partition_transfer(w.programs[r]->partition, x->transfer);
                        wefti_transfer_name(step, x, t, name, sizeof name);
                        if (name[0] == '\0' || !strcmp(name, "transfer"))
                            fail_msg("%s: rank %d, step %s: a transfer has no name", cases[c].name,
                                     r, step->name);
                    }
                }
        close_world(&w);
    }
}

/* ---- dice ---- */

typedef struct dice {
    uint64_t seed, thrown;
} dice;

static int32_t roll(dice *d, int32_t sides) {
    return (int32_t)(wefti_philox_u32(d->seed, 0, d->thrown++) % (uint32_t)sides);
}

/* ---- places where faults are made ---- */

/* A routine that a rank runs and that communicates: `routine` of `program`; or the steps of a
 * section. */
typedef struct spot {
    wefti_program *program;
    wefti_routine *routine;
    int32_t at[512], count; /* its communicating instructions */
} spot;

static bool runs(const wefti_program *p, const wefti_routine *r) {
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t i = 0; i < p->step_count[s]; i++)
            if (p->steps[s][i].kind == WEFTI_STEP_CALL && p->steps[s][i].routine == r) return true;
    return false;
}

static bool find_spot(dice *d, wefti_program *p, spot *out) {
    int32_t first = roll(d, p->routine_count);
    for (int32_t i = 0; i < p->routine_count; i++) {
        wefti_routine *r = p->routines[(first + i) % p->routine_count];
        *out = (spot){.program = p, .routine = r};
        for (int32_t k = 0; k < r->code_count && out->count < 512; k++)
            if (r->code[k].transfer >= 0) out->at[out->count++] = k;
        if (out->count && runs(p, r)) return true;
    }
    return false;
}

/* A transfer that the rank carries out. */
static int32_t find_transfer(dice *d, wefti_program *p) {
    int32_t list[1024], count = 0;
    for (int32_t s = 0; s < p->step_count[WEFTI_SECTION_FIRST] && count < 1024; s++)
        if (p->steps[WEFTI_SECTION_FIRST][s].kind == WEFTI_STEP_POST)
            list[count++] = wefti_step_transfer_of(p, &p->steps[WEFTI_SECTION_FIRST][s]);
    spot at;
    if (count && roll(d, 2)) return list[roll(d, count)];
    if (find_spot(d, p, &at)) return at.routine->code[at.at[roll(d, at.count)]].transfer;
    return count ? list[roll(d, count)] : -1;
}

static const wefti_transfer *transfer_of(const spot *s, int32_t k) {
    return wefti_partition_transfer(s->program->partition, s->routine->code[k].transfer);
}

/* ---- faults: made, tried, taken back ---- */

static const char *fault_names[] = {
    "dropped",         "doubled",    "swapped",      "other transfer", "resized",
    "moved box",       "retyped",    "wrong member", "lost member",    "other tag",
    "other reduction", "other kind", "dropped step", "doubled step",   "swapped microbatches"};
enum {
    DROPPED,
    DOUBLED,
    SWAPPED,
    OTHER_TRANSFER,
    RESIZED,
    MOVED_BOX,
    RETYPED,
    WRONG_MEMBER,
    LOST_MEMBER,
    OTHER_TAG,
    OTHER_REDUCTION,
    OTHER_KIND,
    DROPPED_STEP,
    DOUBLED_STEP,
    SWAPPED_MICRO,
    FAULTS
};

static void must_be_found(const world *w, const char *plan, int fault, uint64_t seed) {
    weft_status status = match(w);
    if (status != WEFT_E_MISMATCH || !has_facts(weft_error_message(), "rank "))
        fail_msg("seed %llu, %s: a fault of the kind '%s' was not found (%d: %s)",
                 (unsigned long long)seed, plan, fault_names[fault], status,
                 status < 0 ? weft_error_message() : "");
}

static bool shares_two(const wefti_transfer *a, const wefti_transfer *b) {
    int shared = 0;
    for (int32_t i = 0; i < a->members; i++)
        for (int32_t k = 0; k < b->members; k++) shared += a->ranks[i] == b->ranks[k];
    return shared >= 2;
}

static bool same_channel(const wefti_transfer *a, const wefti_transfer *b) {
    return a->tag == b->tag && a->members == b->members &&
           !memcmp(a->ranks, b->ranks, (size_t)a->members * sizeof *a->ranks);
}

/* Whether the exchange of two transfers on one rank is a fault.
 * - Same members and tag: the k-th transfer of one rank meets the k-th of the others. The exchange
 *   is a fault, unless both are the same transfer of the same value.
 * - Other members or tag, and two common members: the ranks wait for each other for ever. This is a
 *   fault, unless the rank posts both transfers before it waits for one.
 * - One common member or none: no other rank waits for both. This is no fault. */
static bool swap_matters(const spot *s, int32_t a, int32_t b) {
    const wefti_instruction *x = &s->routine->code[a], *y = &s->routine->code[b];
    const wefti_transfer *t = transfer_of(s, a), *u = transfer_of(s, b);
    if (same_channel(t, u)) {
        wefti_step step = {.name = "", .routine = s->routine};
        return x->transfer != y->transfer ||
               strcmp(wefti_transfer_what(&step, x, t), wefti_transfer_what(&step, y, u));
    }
    bool together = true;
    for (int32_t k = a; k < b; k++) together &= s->routine->code[k].joined;
    return !together && shares_two(t, u);
}

/* The code without or with instruction `at` twice. */
static wefti_instruction *recode(const wefti_routine *r, int32_t at, bool twice) {
    wefti_instruction *code = malloc((size_t)(r->code_count + 1) * sizeof *code);
    int32_t n = 0;
    for (int32_t k = 0; k < r->code_count; k++)
        for (int copies = k == at ? (twice ? 2 : 0) : 1; copies; copies--) code[n++] = r->code[k];
    if (twice) code[at].joined = false;
    if (!twice && at > 0 && !r->code[at].joined) code[at - 1].joined = false;
    return code;
}

/* Parts of calls keep their ends when one instruction is added or removed at `at`. */
static void move_parts(const spot *s, int32_t at, int32_t by, wefti_step **kept) {
    for (int c = 0; c < WEFTI_SECTIONS; c++) {
        size_t bytes = (size_t)s->program->step_count[c] * sizeof **kept;
        memcpy(kept[c] = malloc(bytes + 1), s->program->steps[c], bytes);
        for (int32_t i = 0; i < s->program->step_count[c]; i++) {
            wefti_step *step = &s->program->steps[c][i];
            if (step->kind != WEFTI_STEP_CALL || step->routine != s->routine) continue;
            if (step->from > at) step->from += by;
            if (step->to > at) step->to += by;
        }
    }
}

static void put_parts_back(const spot *s, wefti_step **kept) {
    for (int c = 0; c < WEFTI_SECTIONS; c++) {
        memcpy(s->program->steps[c], kept[c], (size_t)s->program->step_count[c] * sizeof **kept);
        free(kept[c]);
    }
}

static bool fault_code(dice *d, world *w, const plan_case *c, int fault) {
    spot s;
    if (!find_spot(d, w->programs[roll(d, w->count)], &s)) return false;
    wefti_routine *r = s.routine;
    int32_t at = s.at[roll(d, s.count)], other = s.at[roll(d, s.count)];
    if (fault == SWAPPED) {
        if (at > other) return false;
        if (at == other || !swap_matters(&s, at, other)) return false;
        wefti_instruction x = r->code[at], y = r->code[other];
        r->code[at] = y;
        r->code[other] = x;
        r->code[at].joined = x.joined;
        r->code[other].joined = y.joined;
        must_be_found(w, c->name, fault, d->seed);
        r->code[at] = x;
        r->code[other] = y;
        return true;
    }
    if (fault == OTHER_TRANSFER) {
        int32_t own = r->code[at].transfer;
        int32_t transfers = wefti_partition_transfers(s.program->partition);
        if (transfers < 2) return false;
        r->code[at].transfer = (own + 1 + roll(d, transfers - 1)) % transfers;
        must_be_found(w, c->name, fault, d->seed);
        r->code[at].transfer = own;
        return true;
    }
    wefti_step *kept[WEFTI_SECTIONS];
    wefti_instruction *code = r->code;
    r->code = recode(r, at, fault == DOUBLED);
    int32_t by = fault == DOUBLED ? 1 : -1;
    r->code_count += by;
    move_parts(&s, at, by, kept);
    must_be_found(w, c->name, fault, d->seed);
    put_parts_back(&s, kept);
    r->code_count -= by;
    free(r->code);
    r->code = code;
    return true;
}

static bool change_group(dice *d, const world *w, wefti_transfer *t, int fault) {
    int32_t i = roll(d, t->members);
    if (i == t->me) return false;
    if (fault == LOST_MEMBER) {
        size_t behind = (size_t)(t->members - i - 1);
        memmove(&t->ranks[i], &t->ranks[i + 1], behind * sizeof *t->ranks);
        memmove(&t->have[i], &t->have[i + 1], behind * sizeof *t->have);
        memmove(&t->want[i], &t->want[i + 1], behind * sizeof *t->want);
        t->members--;
        if (t->me > i) t->me--;
        return true;
    }
    int32_t low = i ? t->ranks[i - 1] + 1 : 0;
    int32_t high = i + 1 < t->members ? t->ranks[i + 1] : w->count;
    int32_t now = t->ranks[i];
    if (high - low < 2) return false;
    do t->ranks[i] = low + roll(d, high - low);
    while (t->ranks[i] == now);
    return true;
}

static bool change(dice *d, const world *w, wefti_transfer *t, int fault) {
    wefti_region *box = roll(d, 2) ? &t->have[roll(d, t->members)] : &t->want[roll(d, t->members)];
    int dim = t->rank ? roll(d, t->rank) : -1;
    switch (fault) {
    case RESIZED:
        if (dim < 0) return false;
        box->size[dim] += box->size[dim] && roll(d, 2) ? -1 : 1;
        return true;
    case MOVED_BOX:
        if (dim < 0) return false;
        box->begin[dim] += 1 + roll(d, 3);
        return true;
    case RETYPED:
        t->dtype = t->dtype == WEFT_BF16 ? WEFT_F32 : WEFT_BF16;
        return true;
    case OTHER_TAG:
        t->tag += 1 + (uint64_t)roll(d, 9) * 1000003;
        return true;
    case OTHER_REDUCTION:
        t->reduction = (wefti_reduction)(((int)t->reduction + 1 + roll(d, 2)) % 3);
        return true;
    case OTHER_KIND:
        t->kind = (wefti_transfer_kind)(((int)t->kind + 1 + roll(d, WEFTI_TRANSFER_KINDS - 1)) %
                                        WEFTI_TRANSFER_KINDS);
        return true;
    default:
        return change_group(d, w, t, fault);
    }
}

static bool fault_transfer(dice *d, world *w, const plan_case *c, int fault) {
    wefti_program *p = w->programs[roll(d, w->count)];
    int32_t index = find_transfer(d, p);
    if (index < 0) return false;
    wefti_transfer *own = p->partition->transfers[index], *altered;
    assert_true(own->members >= 2);
    ASSERT_OK(wefti_transfer_clone(own, &altered));
    bool made = change(d, w, altered, fault);
    if (made) {
        p->partition->transfers[index] = altered;
        must_be_found(w, c->name, fault, d->seed);
        p->partition->transfers[index] = own;
    }
    wefti_free(altered);
    return made;
}

static bool communicates(const wefti_step *step) {
    if (step->kind == WEFTI_STEP_POST || step->kind == WEFTI_STEP_WAIT) return true;
    for (int32_t k = 0; step->kind == WEFTI_STEP_CALL && k < step->routine->code_count; k++)
        if (step->routine->code[k].transfer >= 0) return true;
    return false;
}

static bool fault_step(dice *d, world *w, const plan_case *c, int fault) {
    wefti_program *p = w->programs[roll(d, w->count)];
    int s = roll(d, WEFTI_SECTIONS);
    int32_t count = p->step_count[s];
    if (!count) return false;
    wefti_step *steps = p->steps[s];
    int32_t at = roll(d, count), n = 0;
    if (!communicates(&steps[at])) return false;
    wefti_step *altered = malloc((size_t)(count + 1) * sizeof *altered);
    if (fault == SWAPPED_MICRO) {
        int32_t other = at + 1; /* the next of the same value */
        while (other < count &&
               (steps[other].kind != WEFTI_STEP_POST || steps[other].move != steps[at].move))
            other++;
        memcpy(altered, steps, (size_t)count * sizeof *steps);
        if (steps[at].kind != WEFTI_STEP_POST || other == count ||
            (steps[at].micro == steps[other].micro && /* the same value once more: no fault */
             !strcmp(steps[at].name, steps[other].name))) {
            free(altered);
            return false;
        }
        altered[at] = steps[other];
        altered[other] = steps[at];
        n = count;
    } else {
        for (int32_t i = 0; i < count; i++)
            for (int k = i == at ? (fault == DOUBLED_STEP ? 2 : 0) : 1; k; k--)
                altered[n++] = steps[i];
    }
    p->steps[s] = altered;
    p->step_count[s] = n;
    must_be_found(w, c->name, fault, d->seed);
    p->steps[s] = steps;
    p->step_count[s] = count;
    free(altered);
    return true;
}

static bool make_fault(dice *d, world *w, const plan_case *c, int fault) {
    if (fault <= OTHER_TRANSFER) return fault_code(d, w, c, fault);
    if (fault >= DROPPED_STEP) return fault_step(d, w, c, fault);
    return fault_transfer(d, w, c, fault);
}

static void test_faults(void **state) {
    enum { TRIES = 8 };
    int made[FAULTS] = {0}, total = 0;
    const uint64_t seed = test_seed(20260);
    (void)state;
    dice d = {seed, 0};
    for (int c = 0; c < CASES; c++) {
        world w;
        open_world(&cases[c], &w);
        for (int t = 0; t < TRIES; t++)
            for (int fault = 0; fault < FAULTS; fault++) {
                bool done = false;
                for (int again = 0; again < 40 && !done; again++)
                    done = make_fault(&d, &w, &cases[c], fault);
                made[fault] += done;
                total += done;
            }
        ASSERT_OK(match(&w)); /* all is taken back */
        close_world(&w);
    }
    for (int fault = 0; fault < FAULTS; fault++) {
        print_message("%4d %s\n", made[fault], fault_names[fault]);
        assert_true(made[fault] > 0);
    }
    assert_true(total > 500);
}

/* ---- waits that end another post than their own ---- */

/* Whether both steps wait for posts of the same transfers. */
static bool wait_alike(const wefti_step *a, const wefti_step *b) {
    if (a->kind != b->kind) return false;
    if (a->kind == WEFTI_STEP_WAIT)
        return a->move == b->move && memcmp(a->args, b->args, 2 * sizeof *a->args);
    return a->kind == WEFTI_STEP_CALL && a->waits > 0 && a->routine == b->routine &&
           a->from == b->from && a->part == b->part && a->waits == b->waits;
}

static bool is_post_of(const wefti_step *post, const wefti_step *wait) {
    if (wait->kind == WEFTI_STEP_WAIT)
        return post->kind == WEFTI_STEP_POST && post->move == wait->move &&
               !memcmp(post->args, wait->args, 2 * sizeof *post->args);
    return post->kind == WEFTI_STEP_CALL && post->routine == wait->routine &&
           post->part + 1 == wait->part &&
           !memcmp(post->args, wait->args, (size_t)post->routine->args * sizeof *post->args);
}

/* Finds two waits of a section, for posts that are in flight at once. */
static bool find_waits(const wefti_program *p, int s, wefti_step_kind kind, int32_t out[2]) {
    const wefti_step *steps = p->steps[s];
    for (int32_t a = 0; a < p->step_count[s]; a++)
        for (int32_t b = a + 1; steps[a].kind == kind && b < p->step_count[s]; b++) {
            if (!wait_alike(&steps[a], &steps[b])) continue;
            int32_t post = a - 1;
            while (post >= 0 && !is_post_of(&steps[post], &steps[b])) post--;
            out[0] = a;
            out[1] = b;
            if (post >= 0) return true;
            break;
        }
    return false;
}

static void swap_steps(wefti_program *p, int s, const int32_t at[2]) {
    wefti_step first = p->steps[s][at[0]];
    p->steps[s][at[0]] = p->steps[s][at[1]];
    p->steps[s][at[1]] = first;
}

/* Swaps the waits on all ranks alike, so that all posts still meet. */
static bool waits_are_swapped(const world *w, const plan_case *c, wefti_step_kind kind) {
    int32_t at[MOST][2];
    for (int s = 0; s < WEFTI_SECTIONS; s++) {
        int32_t swapped = 0;
        while (swapped < w->count && find_waits(w->programs[swapped], s, kind, at[swapped]))
            swapped++;
        if (swapped == 0 || (kind == WEFTI_STEP_CALL && swapped < w->count)) continue;
        for (int32_t r = 0; r < swapped; r++) swap_steps(w->programs[r], s, at[r]);
        weft_status status = match(w);
        if (status != WEFT_E_MISMATCH || !has_facts(weft_error_message(), "rank |older post"))
            fail_msg("%s: swapped waits are not found (%d: %s)", c->name, status,
                     status < 0 ? weft_error_message() : "");
        for (int32_t r = 0; r < swapped; r++) swap_steps(w->programs[r], s, at[r]);
        return true;
    }
    return false;
}

static void test_waits_end_their_own_posts(void **state) {
    (void)state;
    int calls = 0, sends = 0, in_loops = 0;
    for (int c = 0; c < CASES; c++) {
        world w;
        open_world(&cases[c], &w);
        const bool found = waits_are_swapped(&w, &cases[c], WEFTI_STEP_CALL);
        calls += found;
        in_loops += found && w.programs[0]->loop_count[0] > 0;
        sends += waits_are_swapped(&w, &cases[c], WEFTI_STEP_WAIT);
        ASSERT_OK(match(&w)); /* all is taken back */
        close_world(&w);
    }
    print_message("%d of calls, %d of them with loops, %d of sends\n", calls, in_loops, sends);
    assert_true(calls >= 3 && in_loops >= 1 && sends >= 3);
}

/* ---- messages, and failing allocations ---- */

static void must_say(const world *w, const char *const *parts) {
    assert_int_equal(match(w), WEFT_E_MISMATCH);
    for (; *parts; parts++)
        if (!has_facts(weft_error_message(), *parts))
            fail_msg("\"%s\" does not say \"%s\"", weft_error_message(), *parts);
}

/* The transfer of the first rank's gradient of wte: the message names both sides and the
 * difference. */
static void test_messages(void **state) {
    (void)state;
    world w;
    open_world(&cases[6], &w); /* 2 tensor */
    spot s;
    dice d = {1, 0};
    assert_true(find_spot(&d, w.programs[1], &s));
    int32_t index = s.routine->code[s.at[0]].transfer;
    wefti_transfer *own = w.programs[1]->partition->transfers[index], *altered;
    ASSERT_OK(wefti_transfer_clone(own, &altered));
    w.programs[1]->partition->transfers[index] = altered;
    altered->dtype = WEFT_BF16;
    must_say(&w, (const char *const[]){"rank 0 in step 'h.", "rank 1 in step 'h.", "gives 8.0 KiB",
                                       "gives 4.0 KiB", "one is f32, the other bf16", NULL});
    altered->dtype = own->dtype;
    altered->tag += 7;
    must_say(
        &w, (const char *const[]){"wait", "rank 1|all_reduce", "rank 0|all_reduce", "tag 7", NULL});
    altered->tag = own->tag;
    ASSERT_OK(match(&w));
    altered->ranks[0] = 1; /* not ascending */
    must_say(&w, (const char *const[]){"rank 1", "ranks 0 to 1", NULL});
    w.programs[1]->partition->transfers[index] = own;
    wefti_free(altered);
    close_world(&w);
}

/* A transfer that is wrong in the same way on all ranks matches its peers, but not its operands. */
static void test_all_alike_but_wrong(void **state) {
    (void)state;
    world w;
    open_world(&cases[6], &w);
    wefti_transfer *own[2], *altered[2];
    spot s;
    dice d = {1, 0};
    assert_true(find_spot(&d, w.programs[0], &s));
    int32_t index = s.routine->code[s.at[0]].transfer;
    for (int r = 0; r < 2; r++) {
        wefti_transfer **at = &w.programs[r]->partition->transfers[index];
        own[r] = *at;
        ASSERT_OK(wefti_transfer_clone(own[r], &altered[r]));
        *at = altered[r];
        for (int m = 0; m < 2; m++) altered[r]->have[m].size[0]--, altered[r]->want[m].size[0]--;
    }
    must_say(&w, (const char *const[]){"rank 0", "fit|operands", NULL});
    for (int r = 0; r < 2; r++) altered[r]->want[1].size[0] += 5; /* what nobody has */
    assert_int_equal(match(&w), WEFT_E_MISMATCH);
    for (int r = 0; r < 2; r++) {
        w.programs[r]->partition->transfers[index] = own[r];
        wefti_free(altered[r]);
    }
    close_world(&w);
}

static void test_memory(void **state) {
    (void)state;
    world w;
    open_world(&cases[9], &w); /* 1f1b */
    int64_t failed = 0;
    for (;; failed++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, failed, failed & 1, 0);
        weft_status status = match(&w);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (status == WEFT_OK) break;
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(failed > 0);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_programs), cmocka_unit_test(test_names),
        cmocka_unit_test(test_faults),        cmocka_unit_test(test_waits_end_their_own_posts),
        cmocka_unit_test(test_messages),      cmocka_unit_test(test_all_alike_but_wrong),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
