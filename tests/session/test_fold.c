/* Ranks of one class have programs of one form, and matching classes finds what matching all ranks
 * finds. Random plans of up to 32 ranks: uneven sizes, pipelines with unlike meshes, experts,
 * optimizer shards, all schedules. WEFT_TEST_SEED sets the first seed. weft-test: no threads */
#include "random_world.h"

#include "program/print.h"

static weft_status match_all(const world *w) {
    return wefti_programs_match((const wefti_program *const *)w->programs, w->ranks);
}

static weft_status match_classes(const world *w) {
    const wefti_match_classes classes = classes_of(w);
    return wefti_classes_match(&classes);
}

static int64_t received(const wefti_program *p) {
    int64_t bytes = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t i = 0; i < p->step_count[s]; i++) {
            wefti_step_transfer x;
            for (int32_t at = 0; wefti_step_transfer_next(p, &p->steps[s][i], &at, &x);)
                bytes += x.receives;
        }
    return bytes;
}

static void check_classes(const world *w, uint64_t seed) {
    int32_t count[MOST] = {0}, last = -1;
    for (int32_t r = 0; r < w->ranks; r++) {
        const wefti_rank_class *c = wefti_rank_class_of(w->classes, r);
        const wefti_program *p = w->programs[r], *q = c->programs[0];
        count[w->classes->class_of[r]]++;
        assert_true(c->rank <= r);
        assert_int_equal(c->stage, wefti_plan_stage_of_rank(w->t.plan, r));
        if (wefti_program_form(p) != wefti_program_form(q))
            fail_msg("seed %llu: rank %d is of the class of rank %d, but its program is another",
                     (unsigned long long)seed, r, c->rank);
        assert_int_equal(p->peak_bytes, q->peak_bytes);
        assert_int_equal(received(p), received(q));
    }
    for (int32_t c = 0; c < w->classes->count; c++) {
        assert_int_equal(count[c], w->classes->classes[c].count);
        assert_true(w->classes->classes[c].rank > last);
        last = w->classes->classes[c].rank;
    }
}

static void test_equal_ranks(void **state) {
    int64_t ranks = 0, classes = 0, plans = 0, folded = 0;
    (void)state;
    TEST_SEEDS(seed, 1, 200) {
        world w;
        if (open_world(seed, &w)) {
            check_classes(&w, seed);
            ASSERT_OK(match_all(&w));
            if (match_classes(&w) < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, weft_error_message());
            plans++;
            ranks += w.ranks;
            classes += w.classes->count;
            folded += w.classes->count < w.ranks;
        }
        close_world(&w);
    }
    print_message("%lld plans, %lld of them folded: %lld ranks in %lld classes\n", (long long)plans,
                  (long long)folded, (long long)ranks, (long long)classes);
    if (!test_one_seed()) assert_true(plans >= 150 && folded >= 40 && classes < ranks);
}

/* ---- faults that all ranks of a class have ---- */

typedef enum fault {
    RETYPED,
    OTHER_TAG,
    OTHER_KIND,
    RESIZED,
    MOVED, /* unless it is empty: then its place makes no difference */
    LOST_MEMBER,
    OTHER_NAME,
    DROPPED,
    SWAPPED,
    FAULTS
} fault;

/* A transfer that a program carries out: of a step, or of an instruction of its routine. Equal
 * programs have it at the same place. */
typedef struct spot {
    wefti_section section;
    int32_t step, code, other; /* code -1: the step's own; other: another transfer's instruction */
} spot;

/* What a fault has changed in one program. */
typedef struct undo {
    wefti_transfer *transfer, kept;
    wefti_region have;
    wefti_step *step, kept_step;
    wefti_instruction *code, *other, kept_code, kept_other;
} undo;

static bool find_spot(dice *d, const wefti_program *p, spot *out) {
    int count = 0;
    for (int s = 0; s < WEFTI_SECTIONS; s++)
        for (int32_t i = 0; i < p->step_count[s]; i++) {
            const wefti_step *step = &p->steps[s][i];
            if (step->kind == WEFTI_STEP_POST && roll(d, ++count) == 0)
                *out = (spot){(wefti_section)s, i, -1, -1};
            for (int32_t k = step->from; step->kind == WEFTI_STEP_CALL && k < step->to; k++) {
                const wefti_instruction *code = step->routine->code;
                if (code[k].transfer < 0 || roll(d, ++count)) continue;
                *out = (spot){(wefti_section)s, i, k, k};
                for (int32_t o = step->from, n = 0; o < step->to; o++)
                    if (code[o].transfer >= 0 && roll(d, ++n) == 0) out->other = o;
            }
        }
    return count > 0;
}

static void plant(wefti_program *p, fault kind, const spot *at, undo *u) {
    wefti_step *step = &p->steps[at->section][at->step];
    wefti_instruction *code = at->code < 0 ? NULL : &step->routine->code[at->code];
    wefti_instruction *other = at->code < 0 ? NULL : &step->routine->code[at->other];
    wefti_transfer *t = (wefti_transfer *)(uintptr_t)wefti_partition_transfer(
        p->partition, code ? code->transfer : wefti_step_transfer_of(p, step));
    *u = (undo){t, *t, t->have[t->me], step, *step, code, other, {0}, {0}};
    if (code) u->kept_code = *code, u->kept_other = *other;
    switch (kind) {
    case RETYPED:
        t->dtype = t->dtype == WEFT_BF16 ? WEFT_F32 : WEFT_BF16;
        break;
    case OTHER_TAG:
        t->tag += 1000003;
        break;
    case OTHER_KIND:
        t->kind = t->kind == WEFTI_TRANSFER_SEND ? WEFTI_TRANSFER_HALO : WEFTI_TRANSFER_SEND;
        break;
    case RESIZED:
        t->have[t->me].size[0] += 1;
        break;
    case MOVED:
        if (wefti_region_elems(&t->have[t->me], t->rank)) t->have[t->me].begin[0] += 1;
        break;
    case LOST_MEMBER:
        if (t->me < t->members - 1) t->members--;
        break;
    case OTHER_NAME:
        step->name = "another step";
        break;
    case DROPPED:
        if (code)
            code->transfer = -1;
        else
            step->kind = WEFTI_STEP_LOSS;
        break;
    case SWAPPED:
        if (code) {
            code->transfer = u->kept_other.transfer;
            other->transfer = u->kept_code.transfer;
        }
        break;
    case FAULTS:
        break;
    }
}

static void take_back(undo *u) {
    *u->step = u->kept_step;
    if (u->code) *u->other = u->kept_other, *u->code = u->kept_code;
    *u->transfer = u->kept;
    u->transfer->have[u->transfer->me] = u->have;
}

/* Both must find the fault, or both none: some faults harm nobody if all ranks of a class have
 * them. */
static bool compare_findings(world *w, uint64_t seed, fault kind) {
    undo of_rank[MOST], of_class;
    spot at;
    const int32_t c = (int32_t)roll(&w->t.dice, w->classes->count);
    wefti_rank_class *class = &w->classes->classes[c];
    if (!find_spot(&w->t.dice, class->programs[0], &at)) return false;
    plant(class->programs[0], kind, &at, &of_class);
    for (int32_t r = 0; r < w->ranks; r++)
        if (w->classes->class_of[r] == c) plant(w->programs[r], kind, &at, &of_rank[r]);
    const weft_status all = match_all(w), folded = match_classes(w);
    if (all != folded)
        fail_msg("seed %llu, fault %d in the class of rank %d: all ranks %d, classes %d: %s",
                 (unsigned long long)seed, (int)kind, class->rank, all, folded,
                 weft_error_message());
    take_back(&of_class);
    for (int32_t r = 0; r < w->ranks; r++)
        if (w->classes->class_of[r] == c) take_back(&of_rank[r]);
    return all == WEFT_E_MISMATCH;
}

static void test_planted_mismatches(void **state) {
    int64_t found[FAULTS] = {0}, folded = 0;
    (void)state;
    TEST_SEEDS(seed, 1, 120) {
        world w;
        if (open_world(seed, &w)) {
            folded += w.classes->count < w.ranks;
            for (int kind = 0; kind < FAULTS; kind++)
                for (int k = 0; k < 3; k++) found[kind] += compare_findings(&w, seed, (fault)kind);
        }
        close_world(&w);
    }
    for (int kind = 0; kind < FAULTS; kind++) {
        print_message("fault %d: found %lld times\n", kind, (long long)found[kind]);
        if (!test_one_seed()) assert_true(found[kind] >= 20);
    }
    if (!test_one_seed()) assert_true(folded >= 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_ranks),
                                       cmocka_unit_test(test_planted_mismatches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
