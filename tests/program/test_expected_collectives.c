/* The programs hold the transfers of the textbook schemes, and no more. The model is a gpt2 of
 * several blocks:
 * - Megatron's tensor parallelism (Shoeybi et al., 2019): two sums forward and two backward for
 *   each block;
 * - its sequence parallelism (Korthikanti et al., 2022): a gather and a scattered sum in place of
 *   each sum;
 * - the three levels of sharded optimizers (Rajbhandari et al., ZeRO, 2020). */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/print.h"
#include "session/session.h"
#include "weft/model.h"
#include "weft/ops.h"

enum { LAYERS = 3 };

/* Transfers by kind. */
typedef struct counts {
    int all_reduce, all_gather, reduce_scatter, others;
} counts;

static void count(const wefti_step_transfer *t, counts *c) {
    switch (t->transfer->kind) {
    case WEFTI_TRANSFER_ALL_REDUCE:
        c->all_reduce++;
        break;
    case WEFTI_TRANSFER_ALL_GATHER:
        c->all_gather++;
        break;
    case WEFTI_TRANSFER_REDUCE_SCATTER:
        c->reduce_scatter++;
        break;
    default:
        c->others++;
    }
}

static counts counted_in(const wefti_program *p, wefti_section section) {
    counts c = {0};
    for (int32_t i = 0; i < p->step_count[section]; i++) {
        wefti_step_transfer t;
        for (int32_t at = 0; wefti_step_transfer_next(p, &p->steps[section][i], &at, &t);)
            count(&t, &c);
    }
    return c;
}

/* Counts the transfers in all steps of a rank with name `name` and phase `phase` (NULL: any). */
static counts counted(const wefti_program *p, const char *name, const char *phase) {
    counts c = {0};
    for (int32_t s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t i = 0; i < p->step_count[s]; i++) {
            const wefti_step *step = &p->steps[s][i];
            if (name && strcmp(step->name, name) != 0) continue;
            if (phase && strcmp(wefti_phase_text(step), phase) != 0) continue;
            wefti_step_transfer t;
            for (int32_t at = 0; wefti_step_transfer_next(p, step, &at, &t);) count(&t, &c);
        }
    return c;
}

static weft_graph *gpt2_of(int64_t batch, int layers, int width) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = layers,
                           .hidden = 32 * width,
                           .heads = 4,
                           .ffn = 64 * width,
                           .context = 16 * width,
                           .vocab = 64};
    weft_graph *g;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_TRAIN, batch, 0, WEFT_F32, &g));
    return g;
}

static weft_graph *gpt2(int64_t batch) {
    return gpt2_of(batch, LAYERS, 1);
}

static void tensor_parallel(weft_plan *plan) {
    ASSERT_OK(weft_plan_split_op(plan, "h.*.attn.c_attn", "n1=tp"));
    ASSERT_OK(weft_plan_split_op(plan, "h.*.attn:attention", "heads=tp"));
    ASSERT_OK(weft_plan_split_op(plan, "h.*.attn.c_proj", "k=tp"));
    ASSERT_OK(weft_plan_split_op(plan, "h.*.mlp.c_fc", "n0=tp"));
    ASSERT_OK(weft_plan_split_op(plan, "h.*.mlp.c_proj", "k=tp"));
}

typedef struct fixture {
    weft_graph *graph;
    weft_session *session;
} fixture;

static fixture open_graph(weft_graph *graph, weft_plan *plan) {
    fixture f = {.graph = graph};
    weft_session_options o = weft_session_defaults();
    o.plan = plan;
    o.threads = 2;
    ASSERT_OK(weft_session_create(f.graph, &o, &f.session));
    weft_plan_destroy(plan);
    return f;
}

static fixture open_with(weft_plan *plan, int64_t batch) {
    return open_graph(gpt2(batch), plan);
}

static void close_all(fixture *f) {
    weft_session_destroy(f->session);
    weft_graph_destroy(f->graph);
}

static void is(const char *what, counts c, counts want) {
    if (memcmp(&c, &want, sizeof c) != 0)
        fail_msg("%s: %d all-reduce, %d all-gather, %d reduce-scatter, %d others; expected %d, %d, "
                 "%d, %d",
                 what, c.all_reduce, c.all_gather, c.reduce_scatter, c.others, want.all_reduce,
                 want.all_gather, want.reduce_scatter, want.others);
}

/* Two sums forward, two backward for each block. */
static void megatron_tensor_parallelism(void **state) {
    (void)state;
    for (int tp = 2; tp <= 4; tp += 2) {
        weft_plan *plan;
        ASSERT_OK(weft_plan_create(tp, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", tp));
        tensor_parallel(plan);
        fixture f = open_with(plan, 4);
        for (int r = 0; r < tp; r++) {
            const wefti_program *p = wefti_session_program_of(f.session, 0, r);
            for (int l = 0; l < LAYERS; l++) {
                char name[16];
                (void)snprintf(name, sizeof name, "h.%d", l);
                is("forward", counted(p, name, "forward"), (counts){.all_reduce = 2});
                is("backward", counted(p, name, "backward"), (counts){.all_reduce = 2});
            }
        }
        close_all(&f);
    }
}

/* With norms and residuals split along the sequence: a gather and a scattered sum replace each sum,
 * at half the bytes each. In the backward pass each device keeps its part of the norms' results.
 * These are gathered once more for the gradients of weights. A product split along the sequence
 * would have less to bring on 4 devices, but a sum as large as the weights behind it. */
static void megatron_sequence_parallelism(void **state) {
    (void)state;
    enum { WIDE = 16 }; /* bytes decide, not latencies */
    for (int tp = 2; tp <= 4; tp += 2) {
        weft_plan *plan;
        ASSERT_OK(weft_plan_create(tp, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", tp));
        tensor_parallel(plan);
        ASSERT_OK(weft_plan_split_op(plan, "h.*.ln_?:layer_norm", "in0.1=tp"));
        ASSERT_OK(weft_plan_split_op(plan, "h.*:add", "in0.1=tp"));
        fixture f = open_graph(gpt2_of(1, LAYERS, WIDE), plan);
        for (int r = 0; r < tp; r++)
            for (int l = 1; l < LAYERS; l++) {
                char name[16];
                (void)snprintf(name, sizeof name, "h.%d", l);
                const wefti_program *p = wefti_session_program_of(f.session, 0, r);
                is("forward", counted(p, name, "forward"),
                   (counts){.all_gather = 2, .reduce_scatter = 2});
                is("backward", counted(p, name, "backward"),
                   (counts){.all_gather = 4, .reduce_scatter = 2});
            }
        close_all(&f);
    }
}

static int parameters(const weft_session *s) {
    int found = 0;
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, t, &info));
        found += info.role == WEFT_ROLE_PARAM;
    }
    return found;
}

/* Each collective alone, or as many together as one transfer takes. */
static void fuse(weft_plan *plan, bool fused) {
    static const char *const kinds[] = {"allreduce", "reducescatter", "allgather"};
    for (int i = 0; i < 3; i++)
        ASSERT_OK(weft_plan_fusion(plan, kinds[i], fused ? WEFT_FUSION_AUTO : WEFT_FUSION_NONE, 0,
                                   0, NULL));
}

/* The loss needs two sums: the loss itself, and the count of its elements. All other transfers
 * belong to parameters. Each gradient is summed once, alone or with all others; at level 2 with
 * those of its call. The parameters of a bucket are gathered once a step, in one message, since all
 * are small; at level 3, those of a call are, for each pass that reads some. */
static void split_optimizers(void **state) {
    (void)state;
    enum { LOSS = 2, CALLS = LAYERS + 2 };
    for (int level = 0; level <= 3; level++)
        for (int fused = 0; fused < 2; fused++) {
            weft_plan *plan;
            char what[24];
            ASSERT_OK(weft_plan_create(2, &plan));
            if (level) ASSERT_OK(weft_plan_optimizer(plan, level, 0, 0));
            fuse(plan, fused);
            fixture f = open_with(plan, 4);
            int count = parameters(f.session), reads = 12 * LAYERS + 2 + 3; /* wte is read twice */
            assert_int_equal(count, reads - 1);
            (void)snprintf(what, sizeof what, "level %d%s", level, fused ? ", fused" : "");
            int sums = !fused ? count : level == 2 ? CALLS : 1;
            for (int r = 0; r < 2; r++) {
                const wefti_program *p = wefti_session_program_of(f.session, 0, r);
                counts c = counted(p, NULL, NULL);
                if (level == 0) is(what, c, (counts){.all_reduce = LOSS + sums});
                if (level == 1 || level == 2)
                    is(what, c,
                       (counts){.all_reduce = LOSS, .reduce_scatter = sums, .all_gather = sums});
                if (level < 3) continue;
                if (fused) /* the head is one pass, and that of the embedding backward reads none */
                    assert_int_equal(c.all_gather, 2 * CALLS - 2);
                else
                    assert_true(c.all_gather >= reads && c.all_gather <= 2 * reads);
                is("level 3, updates", counted(p, NULL, "update"), (counts){0});
                c.all_gather = 0;
                is(what, c, (counts){.all_reduce = LOSS, .reduce_scatter = reads});
            }
            close_all(&f);
        }
}

/* If a batch has several parts, each gradient is summed over devices once, when it is complete: in
 * the last part if that overlaps, else in the update. At level 2, devices keep only their pieces,
 * so each part needs a sum. */
static void accumulated_gradients(void **state) {
    (void)state;
    enum { LOSS = 2, CALLS = LAYERS + 2 };
    for (int level = 0; level <= 2; level++)
        for (int overlap = 0; overlap < 2; overlap++) {
            weft_plan *plan;
            ASSERT_OK(weft_plan_create(2, &plan));
            ASSERT_OK(weft_plan_accumulate(plan, 3));
            ASSERT_OK(weft_plan_overlap(plan, overlap));
            if (level) ASSERT_OK(weft_plan_optimizer(plan, level, 0, 0));
            fixture f = open_with(plan, 4);
            int parts = level == 2 ? CALLS : 0;
            counts each = {.all_reduce = LOSS, .reduce_scatter = parts}, none = {0};
            counts sums = {.all_reduce = level == 0, .reduce_scatter = level == 1};
            counts last = {.all_reduce = LOSS + sums.all_reduce,
                           .reduce_scatter = sums.reduce_scatter};
            counts update = overlap ? none : sums;
            update.all_gather = level == 2 ? CALLS : level; /* one message for each bucket */
            for (int r = 0; r < 2; r++) {
                const wefti_program *p = wefti_session_program_of(f.session, 0, r);
                is("the first part", counted_in(p, WEFTI_SECTION_FIRST), each);
                is("a further part", counted_in(p, WEFTI_SECTION_NEXT), each);
                is("the last part", counted_in(p, WEFTI_SECTION_LAST),
                   overlap && level < 2 ? last : none);
                is("the update", counted_in(p, WEFTI_SECTION_UPDATE), update);
            }
            close_all(&f);
        }
}

/* Recomputed cells communicate again only on request. Then the sum after the attention is repeated.
 * The backward pass does not read the result of a block's last product. */
static void recomputed_communication(void **state) {
    (void)state;
    for (int again = 0; again < 2; again++) {
        weft_plan *plan;
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", 2));
        tensor_parallel(plan);
        ASSERT_OK(weft_plan_recompute(plan, WEFT_RECOMPUTE_FULL, NULL, again));
        fixture f = open_with(plan, 4);
        for (int r = 0; r < 2; r++)
            for (int l = 0; l < LAYERS; l++) {
                char name[16];
                (void)snprintf(name, sizeof name, "h.%d", l);
                const wefti_program *p = wefti_session_program_of(f.session, 0, r);
                is("forward", counted(p, name, "forward"), (counts){.all_reduce = 2});
                is("backward", counted(p, name, "backward"), (counts){.all_reduce = 2 + again});
            }
        close_all(&f);
    }
}

/* If gradients are joined up to a size, the sum of the first ones begins while the backward pass
 * continues. (Clipping by one norm of all gradients would have to wait for its end.) */
static void sums_begin_before_the_backward_pass_ends(void **state) {
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        weft_plan *plan;
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_fusion(plan, "allreduce", fused ? WEFT_FUSION_SIZE : WEFT_FUSION_NONE,
                                   fused ? 16 << 10 : 0, 0, NULL));
        fixture f = open_with(plan, 4);
        const wefti_program *p = wefti_session_program_of(f.session, 0, 0);
        const wefti_step *steps = p->steps[WEFTI_SECTION_FIRST];
        int32_t last = -1;
        int64_t early = 0, all = 0, want = 0;
        int messages = 0;
        for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++)
            if (steps[i].phase == WEFTI_BACKWARD) last = i;
        for (int32_t i = 0; i < p->step_count[WEFTI_SECTION_FIRST]; i++) {
            wefti_step_transfer t;
            for (int32_t at = 0; wefti_step_transfer_next(p, &steps[i], &at, &t);) {
                if (strncmp(wefti_transfer_what(&steps[i], t.code, t.transfer), "gradient", 8) != 0)
                    continue;
                messages++;
                all += t.gives;
                early += i < last ? t.gives : 0;
            }
        }
        for (int32_t i = 0; i < p->tensor_count; i++)
            if (p->tensors[i].role == WEFTI_TENSOR_PARAM)
                want += weft_desc_bytes(&p->tensors[i].desc);
        assert_true(all == want);
        /* all but the first block and the embedding */
        assert_true(early >= want * (LAYERS - 1) / (LAYERS + 1));
        if (fused) /* a bucket has all that 16 KiB hold */
            assert_true(messages >= want >> 14 && messages <= 2 * (want >> 14) + 1);
        else
            assert_int_equal(messages, parameters(f.session));
        close_all(&f);
    }
}

/* Counts reductions of gradients that are in flight during at least one backward pass of another
 * call, and those that begin before the last backward pass. */
static void count_hidden(const wefti_program *p, int *hidden, int *all) {
    for (int s = 0; s <= WEFTI_SECTION_LAST; s++) {
        int32_t last = -1;
        for (int32_t i = 0; i < p->step_count[s]; i++)
            if (p->steps[s][i].phase == WEFTI_BACKWARD) last = i;
        for (int32_t i = 0; i < p->step_count[s]; i++) {
            const wefti_step *x = &p->steps[s][i];
            bool during = false;
            if (strncmp(x->name, "gradients up to ", 16) != 0 || x->part) continue;
            *all += i < last;
            for (int32_t k = i + 1; k < p->step_count[s] && x->parts > 1; k++) {
                const wefti_step *y = &p->steps[s][k];
                during |= y->phase == WEFTI_BACKWARD;
                if (y->part == 1 && y->routine == x->routine && !strcmp(y->name, x->name)) break;
            }
            *hidden += during;
        }
    }
}

/* With overlap, a reduction that is posted before the last backward pass is in flight during the
 * next one, for every level, with and without clipping and microbatches. Without overlap none is.
 */
static void reductions_are_in_flight_during_backward_passes(void **state) {
    (void)state;
    for (int level = 0; level <= 2; level++)
        for (int variant = 0; variant < 8; variant++) {
            bool overlap = variant & 1, clip = variant & 2, several = variant & 4;
            weft_plan *plan;
            ASSERT_OK(weft_plan_create(2, &plan));
            ASSERT_OK(weft_plan_fusion(plan, "allreduce", WEFT_FUSION_SIZE, 40 << 10, 0, NULL));
            ASSERT_OK(weft_plan_fusion(plan, "reducescatter", WEFT_FUSION_SIZE, 40 << 10, 0, NULL));
            ASSERT_OK(weft_plan_overlap(plan, overlap));
            if (several) ASSERT_OK(weft_plan_accumulate(plan, 3));
            if (level) ASSERT_OK(weft_plan_optimizer(plan, level, 0, 0));
            fixture f = {.graph = gpt2(4)};
            weft_session_options o = weft_session_defaults();
            o.plan = plan;
            o.clip = clip ? 1.0 : 0;
            ASSERT_OK(weft_session_create(f.graph, &o, &f.session));
            weft_plan_destroy(plan);
            for (int r = 0; r < 2; r++) {
                int hidden = 0, all = 0;
                count_hidden(wefti_session_program_of(f.session, 0, r), &hidden, &all);
                if (overlap && (all < 3 || hidden != all))
                    fail_msg("level %d, variant %d: %d of %d reductions overlap", level, variant,
                             hidden, all);
                if (!overlap) assert_int_equal(hidden, 0);
            }
            close_all(&f);
        }
}

/* A pipeline, or copies of a microbatch. */
typedef struct several {
    const char *name;
    weft_schedule schedule;
    int devices, stages, microbatches, chunks, copies;
} several;

/* At level 2 too, pipelines and copies reduce behind the calls: with overlap, reductions are in
 * flight during the passes of other calls. Copies of a microbatch share a reduction. */
static void pipelines_and_copies_overlap_reductions(void **state) {
    (void)state;
    static const several all[] = {
        {"copies", WEFT_PIPELINE_1F1B, 2, 1, 4, 1, 2},
        {"many copies", WEFT_PIPELINE_1F1B, 2, 1, 16, 1, 2},
        {"gpipe", WEFT_PIPELINE_GPIPE, 4, 2, 4, 1, 1},
        {"1f1b", WEFT_PIPELINE_1F1B, 4, 2, 4, 1, 1},
        {"1f1b, a loop", WEFT_PIPELINE_1F1B, 4, 2, 32, 1, 1},
        {"1f1b, copies", WEFT_PIPELINE_1F1B, 4, 2, 8, 1, 2},
        {"interleaved", WEFT_PIPELINE_INTERLEAVED, 4, 2, 4, 2, 1},
        {"zero bubble", WEFT_PIPELINE_ZERO_BUBBLE, 4, 2, 4, 1, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int overlap = 0; overlap < 2; overlap++) {
            const several *c = &all[i];
            weft_plan *plan;
            ASSERT_OK(weft_plan_create(c->devices, &plan));
            ASSERT_OK(weft_plan_overlap(plan, overlap));
            ASSERT_OK(weft_plan_optimizer(plan, 2, 0, 0));
            if (c->stages > 1)
                ASSERT_OK(weft_plan_pipeline(plan, c->stages, c->microbatches / c->copies,
                                             c->schedule, c->chunks));
            else
                ASSERT_OK(weft_plan_accumulate(plan, c->microbatches / c->copies));
            ASSERT_OK(weft_plan_copies(plan, c->copies));
            fixture f = open_with(plan, 4);
            for (int r = 0; r < c->devices; r++) {
                const wefti_program *p = wefti_session_program_of(f.session, 0, r);
                int hidden = 0, reductions = 0, calls = LAYERS + 2, inside = 0;
                count_hidden(p, &hidden, &reductions);
                assert_int_equal(p->loop_count[WEFTI_SECTION_FIRST], c->microbatches >= 16);
                for (int s = 0; s < p->step_count[0]; s++) { /* none is inside of a pass */
                    wefti_step_transfer t;
                    for (int32_t at = 0; wefti_step_transfer_next(p, &p->steps[0][s], &at, &t);)
                        inside += p->steps[0][s].phase == WEFTI_BACKWARD &&
                                  t.transfer->kind == WEFTI_TRANSFER_REDUCE_SCATTER;
                }
                assert_int_equal(inside, 0);
                if (c->stages == 1) /* once for all copies, in each listed pass */
                    assert_int_equal(counted(p, NULL, NULL).reduce_scatter,
                                     calls * (c->microbatches == 4 ? 2
                                              : overlap            ? 4
                                                                   : 3));
                if (overlap && (reductions < 3 || hidden < reductions))
                    fail_msg("%s: rank %d: %d of %d reductions overlap", c->name, r, hidden,
                             reductions);
                if (!overlap) assert_int_equal(hidden, 0);
            }
            close_all(&f);
        }
}

/* Equal blocks share their compiled routines and the transfers in them: depth adds only calls. */
static void depth_adds_no_transfers(void **state) {
    (void)state;
    int32_t routines[2], transfers[2];
    int steps[2] = {0};
    for (int deep = 0; deep < 2; deep++) {
        weft_graph *g = gpt2_of(4, deep ? 12 : LAYERS, 1);
        weft_plan *plan;
        weft_session *s;
        weft_session_options o = weft_session_defaults();
        ASSERT_OK(weft_plan_create(2, &plan));
        ASSERT_OK(weft_plan_axis(plan, "tp", 2));
        tensor_parallel(plan);
        o.plan = plan;
        ASSERT_OK(weft_session_create(g, &o, &s));
        const wefti_program *p = wefti_session_program_of(s, 0, 0);
        counts c = counted(p, NULL, "forward");
        routines[deep] = p->routine_count;
        transfers[deep] = wefti_partition_transfers(p->partition);
        steps[deep] = c.all_reduce;
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
    assert_int_equal(steps[1] - steps[0], 2 * (12 - LAYERS));
    assert_int_equal(routines[1], routines[0]);
    assert_int_equal(transfers[1], transfers[0]);
}

/* A cell is called thirty times. Its sum over devices is one transfer of one routine, called thirty
 * times. The same holds for cells that communicate by explicit ops. */
static void thirty_equal_sums_are_one_routine(void **state) {
    (void)state;
    enum { CALLS = 30 };
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        weft_graph *g;
        weft_plan *plan;
        weft_session *s;
        weft_init zeros = {.kind = WEFT_INIT_ZEROS};
        weft_session_options o = weft_session_defaults();
        ASSERT_OK(weft_graph_create(&g));
        weft_value v = weft_input(g, "x", WEFT_DESC(WEFT_F32, 4, 8));
        for (int i = 0; i < CALLS; i++) {
            char name[20];
            (void)snprintf(name, sizeof name, "h.%d", i);
            weft_cell_begin(g, "%s", name);
            weft_value a = weft_param(g, "a", WEFT_DESC(WEFT_F32, 8, 16), zeros);
            weft_value b = weft_param(g, "b", WEFT_DESC(WEFT_F32, 16, 8), zeros);
            v = weft_tanh(g, weft_matmul(g, v, a, false, false));
            v = weft_matmul(g, v, b, false, false);
            if (by_hand) v = weft_graph_all_reduce(g, v, (weft_ranks){2, 1}, WEFT_REDUCE_SUM);
            v = weft_cell_end(g, weft_tanh(g, v));
        }
        weft_output(g, "y", v);
        ASSERT_OK(weft_plan_create(2, &plan));
        if (by_hand) {
            ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_MANUAL));
        } else {
            ASSERT_OK(weft_plan_axis(plan, "tp", 2));
            ASSERT_OK(weft_plan_split_tensor(plan, "x", "[-, -]"));
            ASSERT_OK(weft_plan_split_tensor(plan, "*.a", "[-, tp]"));
            ASSERT_OK(weft_plan_split_tensor(plan, "*.b", "[tp, -]"));
        }
        o.optimizer.kind = WEFT_NO_OPTIMIZER;
        o.plan = plan;
        ASSERT_OK(weft_session_create(g, &o, &s));
        const wefti_program *p = wefti_session_program_of(s, 0, 0);
        counts c = counted(p, NULL, NULL);
        assert_int_equal(c.all_reduce, CALLS);
        assert_int_equal(c.all_gather + c.reduce_scatter + c.others, 0);
        assert_int_equal(p->routine_count, 1);
        assert_int_equal(wefti_partition_transfers(p->partition), 1);
        weft_session_destroy(s);
        weft_plan_destroy(plan);
        weft_graph_destroy(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megatron_tensor_parallelism),
        cmocka_unit_test(megatron_sequence_parallelism),
        cmocka_unit_test(split_optimizers),
        cmocka_unit_test(accumulated_gradients),
        cmocka_unit_test(recomputed_communication),
        cmocka_unit_test(depth_adds_no_transfers),
        cmocka_unit_test(thirty_equal_sums_are_one_routine),
        cmocka_unit_test(sums_begin_before_the_backward_pass_ends),
        cmocka_unit_test(reductions_are_in_flight_during_backward_passes),
        cmocka_unit_test(pipelines_and_copies_overlap_reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
