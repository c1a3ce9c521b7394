/* Plans: which rule takes precedence, splits and cuts, refused settings and their messages,
 * checks. */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/philox.h"
#include "plan/plan.h"

static weft_plan *plan_of(int devices) {
    weft_plan *plan = NULL;
    assert_int_equal(weft_plan_create(devices, &plan), WEFT_OK);
    return plan;
}
static weft_plan *plan_2x4(void) {
    weft_plan *plan = plan_of(8);
    assert_int_equal(weft_plan_axis(plan, "dp", 2), WEFT_OK);
    assert_int_equal(weft_plan_axis(plan, "tp", 4), WEFT_OK);
    return plan;
}
static void good(weft_status status) {
    if (status < 0) fail_msg("refused: %s", weft_error_message());
}
static void bad(weft_status status, const char *message) {
    assert_int_equal(status, WEFT_E_ARG);
    if (!has_facts(weft_error_message(), message))
        fail_msg("'%s' is not in: %s", message, weft_error_message());
}

static void test_defaults(void **state) {
    (void)state;
    weft_plan *plan = plan_of(6);
    assert_int_equal(weft_plan_devices(plan), 6);
    assert_int_equal(plan->mode, WEFT_PARALLEL_SEMI);
    assert_int_equal(plan->mesh.axes, 1);
    assert_string_equal(plan->mesh.axis[0].name, "dp");
    assert_int_equal(plan->mesh.axis[0].size, 6);
    assert_int_equal(plan->fusion[2].mode, WEFT_FUSION_AUTO);
    assert_int_equal(plan->fusion[2].bytes, 16 << 20);
    assert_true(plan->overlap);
    assert_false(plan->gradients_sum);
    assert_int_equal(plan->recompute.mode, WEFT_RECOMPUTE_NONE);
    assert_false(wefti_plan_recomputes(plan, "h.0"));
    good(weft_plan_check(plan));
    /* the mesh follows the stages until it is said */
    good(weft_plan_pipeline(plan, 3, 3, WEFT_PIPELINE_1F1B, 1));
    assert_int_equal(plan->mesh.axis[0].size, 2);
    good(weft_plan_check(plan));
    assert_int_equal(wefti_plan_mesh(plan, 2).first, 4);
    assert_int_equal(wefti_plan_stage_of_rank(plan, 3), 1);
    weft_plan_destroy(plan);
    weft_plan_destroy(NULL);
    bad(weft_plan_create(0, &plan), "devices is 0");
    assert_int_equal(weft_plan_devices(NULL), 0);
    bad(weft_plan_check(NULL), "NULL");
}

/* The quick test of a strategy never rejects one that some call's label matches, and the candidates
 * that it leaves give the same strategy as all of them. */
static void test_candidates(void **state) {
    (void)state;
    static const char *const patterns[] = {"h.*.attn*",
                                           "*:linear",
                                           "h.1.attn.c_attn",
                                           "h.*.attn.c_attn:linear",
                                           "*",
                                           "h.?",
                                           "*.c_[a-f]*",
                                           "h.0.attn:attention_grad",
                                           "*attn",
                                           "h",
                                           "n.attn",
                                           "*.attn.c_attn:near",
                                           "*c_attn:?*",
                                           "h.0.*:a[]t]*n",
                                           "*:attention",
                                           "h.1:attention"};
    static const char *const calls[] = {"", "h.0", "h.1", "h"};
    static const char *const insides[] = {"", "attn", "attn.c_attn", "c_attn", "n"};
    static const char *const ops[] = {"linear", "attention", "attention_grad"};
    enum { PATTERNS = sizeof patterns / sizeof *patterns };
    weft_plan *plan = plan_2x4();
    int rejected = 0, matched = 0;
    for (int i = 0; i < PATTERNS; i++) good(weft_plan_split_op(plan, patterns[i], "n0=tp"));
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < 5; i++)
            for (int o = 0; o < 6; o++) {
                const char *op = ops[o / 2];
                char label[64];
                int32_t which[PATTERNS], count = 0;
                (void)snprintf(label, sizeof label, "%s%s%s", calls[c],
                               *calls[c] && *insides[i] ? "." : "", insides[i]);
                for (int32_t k = 0; k < PATTERNS; k++)
                    if (wefti_plan_may_match(&plan->strategies[k], insides[i], op))
                        which[count++] = k;
                rejected += PATTERNS - count;
                const wefti_strategy *all = wefti_plan_strategy(plan, label, op, o % 2);
                matched += all != NULL;
                if (all != wefti_plan_strategy_among(plan, which, count, label, op, o % 2))
                    fail_msg("'%s' of %s", label, op);
                for (int32_t k = 0; k < PATTERNS; k++) { /* alone */
                    plan->strategy_count = 1;
                    const wefti_strategy first = plan->strategies[0];
                    plan->strategies[0] = plan->strategies[k];
                    if (wefti_plan_strategy(plan, label, op, o % 2) &&
                        !wefti_plan_may_match(&plan->strategies[0], insides[i], op))
                        fail_msg("'%s' matches '%s' of %s", patterns[k], label, op);
                    plan->strategies[0] = first;
                    plan->strategy_count = PATTERNS;
                }
            }
    assert_true(rejected > 0 && matched > 0);
    weft_plan_destroy(plan);
}

static void test_last_rule_counts(void **state) {
    (void)state;
    weft_plan *plan = plan_2x4();
    good(weft_plan_split_op(plan, "h.*.attn*", "heads=tp"));
    good(weft_plan_split_op(plan, "*:linear", "n0=tp"));
    good(wefti_plan_split(plan, "h.1.attn.c_attn", "m0=dp", "job.yaml:14"));
    const wefti_strategy *s = wefti_plan_strategy(plan, "h.0.attn.c_attn", "linear", false);
    assert_string_equal(s->match, "*:linear");
    s = wefti_plan_strategy(plan, "h.1.attn.c_attn", "linear", false);
    assert_string_equal(s->splits[0].what, "m0");
    assert_string_equal(s->source, "job.yaml:14");
    s = wefti_plan_strategy(plan, "h.0.attn", "attention", false);
    assert_string_equal(s->splits[0].what, "heads");
    assert_int_equal(s->splits[0].axis[0], 1);
    assert_null(wefti_plan_strategy(plan, "wte", "embedding", false));
    /* Ops of the backward pass use their own setting before the setting of their label. */
    s = wefti_plan_strategy(plan, "h.0.attn", "attention_grad", true);
    assert_string_equal(s->match, "h.*.attn*");
    s = wefti_plan_strategy(plan, "h.1.attn.c_attn", "linear", true);
    assert_string_equal(s->match, "*:linear");
    assert_null(wefti_plan_strategy(plan, "wte", "embedding_grad", true));
    assert_string_equal(wefti_plan_strategy(plan, "h.0.mlp", "linear", true)->match, "*:linear");
    good(weft_plan_split_tensor(plan, "*.weight", "[-, tp]"));
    good(weft_plan_split_tensor(plan, "wte.*", "[dp+tp, -]"));
    assert_string_equal(wefti_plan_tensor(plan, "wte.weight")->layout, "[dp+tp, -]");
    assert_string_equal(wefti_plan_tensor(plan, "h.0.weight")->layout, "[-, tp]");
    assert_null(wefti_plan_tensor(plan, "h.0.bias"));
    good(weft_plan_stage(plan, "h.*", 0));
    good(weft_plan_stage(plan, "h.[4-7]", 1));
    assert_int_equal(wefti_plan_stage(plan, "h.3"), 0);
    assert_int_equal(wefti_plan_stage(plan, "h.5"), 1);
    assert_int_equal(wefti_plan_stage(plan, "head"), -1);
    good(weft_plan_recompute(plan, WEFT_RECOMPUTE_FULL, "h.[0-3]", false));
    good(weft_plan_recompute(plan, WEFT_RECOMPUTE_FULL, "h.5", true));
    assert_true(wefti_plan_recomputes(plan, "h.5"));
    assert_false(wefti_plan_recomputes(plan, "h.4"));
    good(weft_plan_recompute(plan, WEFT_RECOMPUTE_SELECTIVE, NULL, false));
    assert_true(wefti_plan_recomputes(plan, "h.4"));
    weft_plan_destroy(plan);
}

/* The last rule that matches counts, for a parameter without a rule the device. A plan without a
 * rule prints as before. */
static void test_offload(void **state) {
    (void)state;
    weft_plan *plan = plan_of(1);
    char *text = NULL;
    assert_int_equal(wefti_plan_tier(NULL, WEFT_OFFLOAD_OPTIMIZER, "h.0"), WEFT_TIER_DEVICE);
    assert_int_equal(wefti_plan_tier(plan, WEFT_OFFLOAD_OPTIMIZER, "h.0"), WEFT_TIER_DEVICE);
    assert_false(wefti_plan_matters(plan));
    good(weft_plan_print(plan, &text));
    assert_null(strstr(text, "offload"));
    weft_text_free(text);
    good(weft_plan_offload(plan, "h.*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    good(weft_plan_offload(plan, "*.weight", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_DISK));
    good(weft_plan_offload(plan, "h.1.*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_DEVICE));
    assert_true(wefti_plan_matters(plan));
    good(weft_plan_offload(plan, "wpe.*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    good(weft_plan_offload(plan, "wpe.*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_DISK));
    assert_int_equal(plan->offload.count, 4);
    good(weft_plan_offload(plan, "wpe.*", WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_HOST));
    good(weft_plan_offload(plan, "h.*", WEFT_OFFLOAD_SAVED, WEFT_TIER_DISK));
    assert_int_equal(plan->offload.count, 6);
    good(weft_plan_cache(plan, "wpe.*", WEFT_OFFLOAD_OPTIMIZER, 4096));
    good(weft_plan_cache(plan, "*.weight", WEFT_OFFLOAD_OPTIMIZER, 4096));
    good(weft_plan_cache_percent(plan, "*.weight", WEFT_OFFLOAD_OPTIMIZER, 12.3));
    weft_plan *copy;
    good(weft_plan_print(plan, &text));
    assert_null(strstr(text, "offload_ahead"));
    weft_text_free(text);
    plan->offload.ahead = 268435456;
    good(wefti_plan_copy(plan, &copy));
    weft_plan_destroy(plan);
    assert_true(copy->offload.ahead == 268435456);
    const struct {
        const char *name;
        weft_tier tier;
    } cases[] = {{"h.0.bias", WEFT_TIER_HOST},   {"h.0.weight", WEFT_TIER_DISK},
                 {"wte.weight", WEFT_TIER_DISK}, {"wpe.bias", WEFT_TIER_DISK},
                 {"h.1.bias", WEFT_TIER_DEVICE}, {"h.1.weight", WEFT_TIER_DEVICE},
                 {"ln_f.bias", WEFT_TIER_DEVICE}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (wefti_plan_tier(copy, WEFT_OFFLOAD_OPTIMIZER, cases[i].name) != cases[i].tier)
            fail_msg("%s is not in tier %d", cases[i].name, cases[i].tier);
    assert_int_equal(wefti_plan_offload_rule(copy, WEFT_OFFLOAD_OPTIMIZER, "wpe.bias")->cache.bytes,
                     4096);
    const wefti_cache_size part =
        wefti_plan_offload_rule(copy, WEFT_OFFLOAD_OPTIMIZER, "wte.weight")->cache;
    assert_true(part.bytes == 0 && part.percent == 12.3);
    for (int tier = WEFT_TIER_HOST; tier < WEFT_TIERS; tier++)
        assert_true(wefti_plan_may_offload(copy, WEFT_OFFLOAD_OPTIMIZER, (weft_tier)tier));
    good(weft_plan_offload(copy, "*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    assert_false(wefti_plan_may_offload(copy, WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_DISK));
    assert_true(wefti_plan_may_offload(copy, WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    assert_false(wefti_plan_may_offload(NULL, WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    assert_int_equal(wefti_plan_tier(copy, WEFT_OFFLOAD_PARAMETERS, "wte.weight"),
                     WEFT_TIER_DEVICE);
    assert_int_equal(wefti_plan_tier(copy, WEFT_OFFLOAD_PARAMETERS, "wpe.weight"), WEFT_TIER_HOST);
    assert_int_equal(wefti_plan_tier(copy, WEFT_OFFLOAD_SAVED, "h.3"), WEFT_TIER_DISK);
    assert_int_equal(wefti_plan_tier(copy, WEFT_OFFLOAD_SAVED, "embed"), WEFT_TIER_DEVICE);
    for (int level = 0; level <= 3; level++) { /* pieces in place of copies */
        copy->optimizer.level = level;
        assert_int_equal(wefti_plan_divides(copy, "wte.weight"), level == 3);
        assert_int_equal(wefti_plan_divides(copy, "wpe.weight"), level > 0);
    }
    weft_plan_destroy(copy);
}

/* Updates on the host: the last rule that matches counts. Their states lie in host memory, whatever
 * the rules for tiers say. */
static void test_place(void **state) {
    (void)state;
    weft_plan *plan = plan_of(1), *copy;
    assert_false(wefti_plan_updates_on_host(NULL, "h.0.weight"));
    assert_false(wefti_plan_may_update_on_host(plan));
    good(weft_op_place(plan, "h.*:update", "device"));
    assert_true(wefti_plan_matters(plan));
    assert_false(wefti_plan_may_update_on_host(plan));
    good(weft_op_place(plan, "*:update", "device"));
    good(weft_op_place(plan, "h.*:update", "host"));
    good(weft_op_place(plan, "h.*.bias:update", "device"));
    good(weft_op_place(plan, "ln", "host"));
    assert_int_equal(plan->place.count, 4);
    good(weft_plan_offload(plan, "*", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_DISK));
    good(wefti_plan_copy(plan, &copy));
    weft_plan_destroy(plan);
    assert_true(wefti_plan_may_update_on_host(copy));
    assert_true(wefti_plan_may_offload(copy, WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    assert_true(wefti_plan_updates_on_host(copy, "h.1.weight"));
    assert_int_equal(wefti_plan_tier(copy, WEFT_OFFLOAD_OPTIMIZER, "h.1.weight"), WEFT_TIER_HOST);
    static const char *const others[] = {"h.1.bias", "wte.weight", "ln"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_false(wefti_plan_updates_on_host(copy, others[i]));
        assert_int_equal(wefti_plan_tier(copy, WEFT_OFFLOAD_OPTIMIZER, others[i]), WEFT_TIER_DISK);
    }
    weft_plan_destroy(copy);
}

/* Servers keep what any rule matches. */
static void test_server(void **state) {
    (void)state;
    weft_plan *plan = plan_of(2), *copy, *taken = plan_of(2);
    assert_false(wefti_plan_serves(NULL, "wte.weight"));
    assert_false(wefti_plan_serves(plan, "wte.weight"));
    good(weft_plan_server(plan, "wte.*"));
    good(weft_plan_server(plan, "h.*.bias"));
    good(weft_plan_server(plan, "wte.*"));
    assert_int_equal(plan->server.count, 2);
    bad(weft_plan_server(plan, ""), "server");
    good(wefti_plan_copy(plan, &copy));
    good(wefti_plan_take_offload(taken, plan));
    weft_plan_destroy(plan);
    weft_plan *both[] = {copy, taken};
    for (int i = 0; i < 2; i++) {
        assert_true(wefti_plan_serves(both[i], "wte.weight"));
        assert_true(wefti_plan_serves(both[i], "h.1.bias"));
        assert_false(wefti_plan_serves(both[i], "h.1.weight"));
        good(wefti_plan_check(both[i]));
    }
    good(weft_plan_mode(copy, WEFT_PARALLEL_MANUAL));
    bad(wefti_plan_check(copy), "server|manual");
    good(weft_plan_master(taken, WEFT_TIER_HOST));
    bad(wefti_plan_check(taken), "server|train.master");
    weft_plan_destroy(copy);
    weft_plan_destroy(taken);
    plan = plan_of(1);
    assert_false(wefti_plan_matters(plan));
    good(weft_plan_server(plan, "*"));
    assert_true(wefti_plan_matters(plan));
    weft_plan_destroy(plan);
}

/* With masters on the host, the host updates all parameters, of which devices have pieces. */
static void test_master(void **state) {
    (void)state;
    weft_plan *plan = plan_of(2), *copy, *taken = plan_of(2);
    bad(weft_plan_master(plan, WEFT_TIER_DISK), "optimizer.master|device|host");
    good(weft_plan_master(plan, WEFT_TIER_DEVICE));
    assert_false(wefti_plan_may_update_on_host(plan));
    good(weft_plan_optimizer(plan, 1, 0, 0));
    assert_false(wefti_plan_divides(plan, "h.0.weight"));
    good(weft_plan_master(plan, WEFT_TIER_HOST));
    good(wefti_plan_copy(plan, &copy));
    good(wefti_plan_take_offload(taken, plan));
    weft_plan_destroy(plan);
    assert_true(wefti_plan_updates_on_host(taken, "h.0.weight"));
    assert_true(wefti_plan_may_update_on_host(copy));
    assert_true(wefti_plan_divides(copy, "h.0.weight"));
    assert_int_equal(wefti_plan_tier(copy, WEFT_OFFLOAD_OPTIMIZER, "h.0.weight"), WEFT_TIER_HOST);
    good(wefti_plan_check(copy));
    good(weft_op_place(copy, "h.0.weight:update", "device"));
    bad(wefti_plan_check(copy), "place|train.master");
    weft_plan_destroy(copy);
    weft_plan_destroy(taken);
    plan = plan_of(1);
    good(weft_plan_master(plan, WEFT_TIER_HOST));
    assert_true(wefti_plan_matters(plan));
    weft_plan_destroy(plan);
}

static void test_splits(void **state) {
    (void)state;
    weft_plan *plan = plan_2x4();
    good(weft_plan_split_op(plan, "a", "  m0=dp  in1.0=tp out0.1=tp 1=tp"));
    const wefti_strategy *s = &plan->strategies[0];
    assert_int_equal(s->split_count, 4);
    assert_string_equal(s->splits[3].what, "1");
    good(weft_plan_split_op(plan, "b", "n0=tp+dp"));
    s = &plan->strategies[1];
    assert_int_equal(s->splits[0].count, 2);
    assert_int_equal(s->splits[0].axis[0], 1); /* outermost first, as written */
    assert_int_equal(s->splits[0].axis[1], 0);
    good(weft_plan_split_op(plan, "c", ""));
    assert_int_equal(plan->strategies[2].split_count, 0);
    assert_null(plan->strategies[2].cuts);
    good(weft_plan_split_op(plan, "d", "((2, 1), (1,4,),(8,),(),)"));
    s = &plan->strategies[3];
    assert_int_equal(s->cut_inputs, 4);
    assert_int_equal(s->cut_ranks[2], 1);
    assert_int_equal(s->cut_ranks[3], 0);
    assert_int_equal(s->cuts[3], 4);
    assert_int_equal(s->cuts[4], 8);
    good(weft_plan_check(plan));
    static const char *const expected[] = {"m0=dp in1.0=tp out0.1=tp 1=tp", "n0=tp+dp", "",
                                           "((2,1),(1,4),(8),())"};
    for (int i = 0; i < 4; i++) {
        wefti_text text = {0};
        wefti_split_print(plan, &plan->strategies[i], &text);
        char *printed = wefti_text_take(&text);
        assert_string_equal(printed, expected[i]);
        good(weft_plan_split_op(plan, "again", printed));
        wefti_free(printed);
    }
    static const char *const results[] = {"n0=tp -> [dp, tp]", "-> [dp+tp, -]",
                                          "((2,4),(4,1)) -> [-, tp+dp:8]"};
    for (int i = 0; i < 3; i++) {
        wefti_text text = {0};
        good(weft_plan_split_op(plan, "result", results[i]));
        s = &plan->strategies[plan->strategy_count - 1];
        assert_int_equal(s->out->rank, 2);
        wefti_split_print(plan, s, &text);
        char *printed = wefti_text_take(&text);
        assert_string_equal(printed, results[i]);
        wefti_free(printed);
    }
    int64_t before = plan->strategy_count;
    bad(weft_plan_split_op(plan, "h", "n0=tp -> ((2,1),)"), "names|axes");
    bad(weft_plan_split_op(plan, "h", "n0=tp -> [sp]"), "'sp'");
    bad(weft_plan_split_op(plan, "h", "n0=tp ->"), "expected '['");
    bad(weft_plan_split_op(plan, "h", "-> [dp, -] sum(tp)"), "because|layout");
    bad(weft_plan_split_op(plan, "h", "-> [dp, -] -> [-]"), "end");
    bad(weft_plan_split_op(NULL, "h.*", "n0=tp"), "weft_plan_split_op|NULL");
    bad(weft_plan_split_tensor(NULL, "h.*", "[tp]"), "weft_plan_split_tensor|NULL");
    bad(weft_plan_split_op(plan, "h.*", "n0=tq"), "h.*|tq|2|4|tp");
    bad(weft_plan_split_op(plan, "h", "n0=experts"), "experts|dp=2|tp=4");
    bad(weft_plan_split_op(plan, "h", "n0"), "'n0'|n0=tp");
    bad(weft_plan_split_op(plan, "h", "n0="), "split");
    bad(weft_plan_split_op(plan, "h", "=tp"), "split");
    bad(weft_plan_split_op(plan, "h", "n0=tp+"), "''");
    bad(weft_plan_split_op(plan, "h", "n0=tp+tp"), "tp|n0|twice");
    bad(weft_plan_split_op(plan, "h", "n0=tp m0=tp"), "tp|n0|m0");
    bad(weft_plan_split_op(plan, "h", "n0=tp n0=dp"), "n0|twice");
    bad(weft_plan_split_op(plan, "h", "in0.x=tp"), "in0.x");
    bad(weft_plan_split_op(plan, "h", "abcdefghijklmnopqrstuvwxyz=tp"), "too long");
    bad(weft_plan_split_op(plan, "h", "(2,1)"), "(2,1)|(1,4)");
    bad(weft_plan_split_op(plan, "h", "((2,1)"), "form");
    bad(weft_plan_split_op(plan, "h", "((2,1)) x"), "form");
    bad(weft_plan_split_op(plan, "h", "()"), "form");
    bad(weft_plan_split_op(plan, "h", "((2,0))"), "dimension 1|input 0|0");
    bad(weft_plan_split_op(plan, "h", "((99999999999999999999))"), "cut");
    bad(weft_plan_split_op(plan, "", "n0=tp"), "needs|pattern");
    bad(weft_plan_split_op(plan, "h.[0", "n0=tp"), "has a [ without ]");
    assert_int_equal(plan->strategy_count, before); /* what was refused left nothing */
    good(weft_plan_split_op(plan, "e", "((3,1),(1,4))"));
    bad(weft_plan_check(plan), "dimension 0 of input 0");
    weft_plan_destroy(plan);
}

static void test_refused_values(void **state) {
    (void)state;
    weft_plan *p = plan_2x4();
    int sizes[] = {2, 2}, index[] = {20, 20}, first[] = {0};
    bad(weft_plan_axis(p, "tp", 2), "size 4");
    bad(weft_plan_axis(p, "2d", 2), "2d");
    bad(weft_plan_axis(p, "", 2), "''");
    bad(weft_plan_axis(p, "a-b", 2), "a-b");
    bad(weft_plan_axis(p, "sequence_parallel", 1), "names have 1 to 15");
    bad(weft_plan_axis(p, "sp", 0), "size 0");
    bad(weft_plan_axis(p, "sp", 9), "8 devices|1|8");
    bad(weft_plan_mode(p, WEFT_PARALLEL_MODES), "known|manual");
    bad(weft_plan_split_tensor(p, "w", "[ep, -]"), "layout");
    bad(weft_plan_optimizer(p, 4, 0, 0), "optimizer.level is 4");
    bad(weft_plan_optimizer(p, 1, -1, 0), "optimizer.threshold is -1");
    bad(weft_plan_optimizer(p, 1, 0, 9), "optimizer.shard_size is 9");
    bad(weft_plan_pipeline(p, 0, 1, WEFT_PIPELINE_1F1B, 1), "pipeline.stages is 0");
    bad(weft_plan_pipeline(p, 9, 1, WEFT_PIPELINE_1F1B, 1), "pipeline.stages is 9");
    bad(weft_plan_pipeline(p, 2, 0, WEFT_PIPELINE_1F1B, 1), "pipeline.microbatches is 0");
    bad(weft_plan_pipeline(p, 2, 2, WEFT_PIPELINE_SCHEDULES, 1), "1f1b");
    bad(weft_plan_pipeline(p, 2, 2, WEFT_PIPELINE_1F1B, 0), "pipeline.virtual_stages is 0");
    bad(weft_plan_stage(p, "h", -1), "0");
    bad(weft_plan_stage_mesh(p, 1, 2, sizes), "stage 1");
    bad(weft_plan_stage_mesh(p, 0, 1, sizes), "2");
    bad(weft_plan_accumulate(p, 0), "accumulate is 0");
    bad(weft_plan_copies(p, 0), "copies is 0");
    bad(weft_plan_recompute(p, WEFT_RECOMPUTES, NULL, false), "known|selective");
    bad(weft_plan_offload(p, "", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST), "offload");
    bad(weft_plan_cache(p, "wte", WEFT_OFFLOAD_PARAMETERS, 4096), "offload.cache|wte");
    good(weft_plan_offload(p, "wte", WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_HOST));
    bad(weft_plan_cache(p, "wte", WEFT_OFFLOAD_PARAMETERS, 4096), "offload.cache|wte|disk");
    bad(weft_plan_cache(p, "wte", WEFT_OFFLOAD_PARAMETERS, -1), "offload.cache|-1");
    bad(weft_plan_cache_percent(p, "wte", WEFT_OFFLOAD_PARAMETERS, 5), "offload.cache|wte|disk");
    bad(weft_plan_cache_percent(p, "wte", WEFT_OFFLOAD_PARAMETERS, 101), "101|100");
    bad(weft_plan_offload(p, "h", WEFT_OFFLOADS, WEFT_TIER_HOST),
        "known|optimizer|parameters|saved");
    bad(weft_plan_offload(p, "h", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIERS), "known|disk");
    bad(weft_op_place(p, "", "host"), "place");
    bad(weft_op_place(p, "h:update", "hots"), "place.on|hots|device|host");
    bad(weft_op_place(p, "h:update", NULL), "place.on|device|host");
    bad(weft_plan_fusion(p, "allreducer", WEFT_FUSION_AUTO, 0, 0, NULL), "allreduce");
    bad(weft_plan_fusion(p, "allgather", WEFT_FUSION_INDEX, 0, 1, index), "allreduce");
    bad(weft_plan_fusion(p, "allreduce", WEFT_FUSION_INDEX, 0, 2, index), "number 2");
    bad(weft_plan_fusion(p, "allreduce", WEFT_FUSION_INDEX, 0, 1, first), "number 1");
    bad(weft_plan_fusion(p, "allreduce", WEFT_FUSION_INDEX, 0, 0, NULL), "needs|list");
    bad(weft_plan_fusion(p, "allreduce", WEFT_FUSION_SIZE, 0, 0, NULL), "0");
    bad(weft_plan_dataset(p, WEFT_DATASETS), "known are data_parallel, full_batch");
    good(weft_plan_check(p));
    good(weft_plan_split_op(p, "h", "n0=tp"));
    bad(weft_plan_axis(p, "sp", 2), "axes|first");
    weft_plan_destroy(p);
    p = plan_of(1);
    for (int i = 0; i < 8; i++) {
        char name[8];
        snprintf(name, sizeof name, "a%d", i);
        good(weft_plan_axis(p, name, 1));
    }
    bad(weft_plan_axis(p, "a8", 1), "at most 8 axes");
    weft_plan_destroy(p);
}

static weft_status checked(int devices, int stages, int micro, weft_schedule schedule, int chunks) {
    weft_plan *plan = plan_of(devices);
    good(weft_plan_pipeline(plan, stages, micro, schedule, chunks));
    weft_status status = weft_plan_check(plan);
    weft_plan_destroy(plan);
    return status;
}

static void test_checks(void **state) {
    (void)state;
    bad(checked(8, 3, 4, WEFT_PIPELINE_1F1B, 1), "pipeline.stages = 3|devices = 8");
    bad(checked(8, 4, 3, WEFT_PIPELINE_1F1B, 1), "pipeline.microbatches = 3|pipeline.stages = 4");
    bad(checked(8, 1, 4, WEFT_PIPELINE_1F1B, 1), "cut|accumulate");
    bad(checked(8, 1, 1, WEFT_PIPELINE_1F1B, 2), "2 stages");
    bad(checked(8, 2, 4, WEFT_PIPELINE_GPIPE, 2), "gpipe|1");
    bad(checked(8, 2, 4, WEFT_PIPELINE_INTERLEAVED, 1), "virtual_stages|2");
    good(checked(8, 4, 4, WEFT_PIPELINE_INTERLEAVED, 2));
    bad(checked(8, 4, 10, WEFT_PIPELINE_INTERLEAVED, 2), "pipeline.stages = 4");
    bad(checked(8, 4, 8, WEFT_PIPELINE_ZERO_BUBBLE, 3), "the zero_bubble schedule has 1, or 2");
    good(checked(8, 4, 8, WEFT_PIPELINE_INTERLEAVED, 3));
    good(checked(8, 4, 5, WEFT_PIPELINE_ZERO_BUBBLE, 2));
    good(checked(8, 4, 5, WEFT_PIPELINE_GPIPE, 1));

    weft_plan *p = plan_of(8);
    good(weft_plan_axis(p, "dp", 2));
    good(weft_plan_axis(p, "tp", 3));
    bad(weft_plan_check(p), "dp=2|tp=3|6 devices|8");
    good(weft_plan_pipeline(p, 2, 2, WEFT_PIPELINE_1F1B, 1));
    bad(weft_plan_check(p), "2 stages|4|8 devices");
    weft_plan_destroy(p);

    p = plan_2x4();
    good(weft_plan_optimizer(p, 2, 0, 3));
    bad(weft_plan_check(p), "optimizer.shard_size = 3|8 devices");
    good(weft_plan_optimizer(p, 2, 0, 4));
    good(weft_plan_check(p));
    good(weft_plan_stage(p, "h.0", 1));
    bad(weft_plan_check(p), "h.0|stage 1");
    weft_plan_destroy(p);

    p = plan_2x4();
    good(weft_plan_split_tensor(p, "w", "[dp, -] sum(tp)"));
    bad(weft_plan_check(p), "tensors[0]");
    weft_plan_destroy(p);

    p = plan_2x4();
    good(wefti_plan_split(p, "h", "n0=tp", "job.yaml:9"));
    good(weft_plan_mode(p, WEFT_PARALLEL_DATA));
    bad(weft_plan_check(p), "job.yaml:9");
    weft_plan_destroy(p);

    /* In mode manual each rank has values of its own. So neither the optimizer's state nor a tensor
     * can be split over ranks. */
    p = plan_2x4();
    good(weft_plan_mode(p, WEFT_PARALLEL_MANUAL));
    good(weft_plan_optimizer(p, 1, 0, 0));
    bad(weft_plan_check(p), "optimizer.level = 1");
    good(weft_plan_mode(p, WEFT_PARALLEL_DATA));
    good(weft_plan_check(p));
    good(weft_plan_mode(p, WEFT_PARALLEL_MANUAL));
    good(weft_plan_optimizer(p, 0, 0, 0));
    good(weft_plan_check(p));
    good(weft_plan_split_tensor(p, "v", "[-, -]"));
    good(weft_plan_check(p));
    good(weft_plan_split_tensor(p, "w", "[-, tp]"));
    bad(weft_plan_check(p), "tensors[1]");
    weft_plan_destroy(p);

    p = plan_of(8);
    good(weft_plan_pipeline(p, 2, 4, WEFT_PIPELINE_1F1B, 1));
    good(weft_plan_accumulate(p, 2));
    bad(weft_plan_check(p), "accumulate = 2");
    weft_plan_destroy(p);
}

/* Stages of 6 and 2 devices. */
static void test_stage_meshes(void **state) {
    (void)state;
    weft_plan *p = plan_of(8);
    int first[] = {3, 2}, second[] = {1, 2};
    good(weft_plan_axis(p, "dp", 2));
    good(weft_plan_axis(p, "tp", 2));
    good(weft_plan_pipeline(p, 2, 2, WEFT_PIPELINE_1F1B, 1));
    good(weft_plan_check(p));
    good(weft_plan_stage_mesh(p, 0, 2, first));
    bad(weft_plan_check(p), "10 devices|8");
    good(weft_plan_stage_mesh(p, 1, 2, second));
    good(weft_plan_check(p));
    good(weft_plan_optimizer(p, 1, 0, 4)); /* of 6 and 2 */
    bad(weft_plan_check(p), "optimizer.shard_size = 4|6 devices");
    good(weft_plan_optimizer(p, 1, 0, 6)); /* the second stage has 2: all of them */
    good(weft_plan_check(p));
    good(weft_plan_optimizer(p, 0, 0, 0));
    good(weft_plan_mode(p, WEFT_PARALLEL_MANUAL)); /* each rank needs one partner in each
                                                    * other stage */
    bad(weft_plan_check(p), "pipeline.meshes|stage 1|stage 0");
    good(weft_plan_mode(p, WEFT_PARALLEL_SEMI));
    assert_int_equal(wefti_plan_mesh(p, 1).first, 6);
    assert_int_equal(wefti_mesh_size(&(wefti_mesh){0}), 1);
    wefti_mesh mesh = wefti_plan_mesh(p, 1);
    assert_int_equal(wefti_mesh_size(&mesh), 2);
    assert_int_equal(wefti_plan_stage_of_rank(p, 5), 0);
    assert_int_equal(wefti_plan_stage_of_rank(p, 6), 1);
    bad(weft_plan_pipeline(p, 4, 4, WEFT_PIPELINE_1F1B, 1), "number|first");
    bad(weft_plan_axis(p, "sp", 1), "axes|first");
    weft_plan_destroy(p);
}

/* Each allocation failed in turn: WEFT_E_NOMEM, nothing leaked, nothing half done. */
static weft_status fill(weft_plan **out) {
    weft_plan *p;
    int index[] = {20, 35};
    *out = NULL;
    WEFT_TRY(weft_plan_create(4, &p));
    *out = p;
    WEFT_TRY(weft_plan_axis(p, "dp", 4));
    WEFT_TRY(weft_plan_split_op(p, "a", "n0=dp"));
    WEFT_TRY(weft_plan_split_op(p, "b", "((4,1))"));
    WEFT_TRY(weft_plan_split_tensor(p, "c", "[dp]"));
    WEFT_TRY(weft_plan_stage(p, "d", 0));
    WEFT_TRY(weft_plan_recompute(p, WEFT_RECOMPUTE_FULL, "e", false));
    WEFT_TRY(weft_plan_offload(p, "f", WEFT_OFFLOAD_OPTIMIZER, WEFT_TIER_HOST));
    return weft_plan_fusion(p, "allreduce", WEFT_FUSION_INDEX, 0, 2, index);
}
static void test_no_memory(void **state) {
    (void)state;
    int64_t failures = 0;
    for (;; failures++) {
        weft_plan *plan = NULL, *copy = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, failures, false, 0);
        weft_status status = fill(&plan);
        if (status >= 0) status = wefti_plan_copy(plan, &copy);
        bool reached = wefti_fault_count(WEFTI_FAULT_ALLOC) > failures;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        weft_plan_destroy(plan);
        weft_plan_destroy(copy);
        if (!reached) {
            assert_int_equal(status, WEFT_OK);
            break;
        }
        assert_int_equal(status, WEFT_E_NOMEM);
    }
    assert_true(failures >= 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),         cmocka_unit_test(test_candidates),
        cmocka_unit_test(test_last_rule_counts), cmocka_unit_test(test_splits),
        cmocka_unit_test(test_refused_values),   cmocka_unit_test(test_checks),
        cmocka_unit_test(test_stage_meshes),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_offload),          cmocka_unit_test(test_place),
        cmocka_unit_test(test_server),           cmocka_unit_test(test_master),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
