/* Transfers: legality, bytes, copies of regions. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/philox.h"
#include "layout/transfer.h"

enum { MEMBERS = 3 };
static uint64_t random_seed;

static int64_t draw(uint64_t *position, int64_t bound) {
    return wefti_philox_u32(random_seed, 1, (*position)++) % (uint32_t)bound;
}

/* Copies of random regions between random regions of 0 to 5 dimensions, element by element. */
static void copies_of_regions(void **state) {
    (void)state;
    uint64_t position = 0;
    const size_t widths[] = {1, 2, 4, 8, 16, 6};
    static unsigned char from_data[16 * 4096], to_data[16 * 4096], want[16 * 4096];
    for (int trial = 0; trial < 4000; trial++) {
        int rank = (int)draw(&position, 6);
        size_t width = widths[draw(&position, 6)];
        wefti_region part = {0}, from = {0}, to = {0};
        for (int d = 0; d < rank; d++) {
            part.begin[d] = 3 + draw(&position, 3);
            part.size[d] = draw(&position, 12) ? 1 + draw(&position, 3) : 0;
            bool whole = draw(&position, 2); /* often, so that dimensions merge */
            from.begin[d] = part.begin[d] - (whole ? 0 : draw(&position, 2));
            to.begin[d] = part.begin[d] - (whole ? 0 : draw(&position, 2));
            int64_t end = part.begin[d] + part.size[d];
            from.size[d] = end - from.begin[d] + (whole ? 0 : draw(&position, 2));
            to.size[d] = end - to.begin[d] + (whole ? 0 : draw(&position, 2));
        }
        int64_t from_elems = wefti_region_elems(&from, rank),
                to_elems = wefti_region_elems(&to, rank);
        assert_true(from_elems <= 4096 && to_elems <= 4096);
        for (int64_t i = 0; i < from_elems * (int64_t)width; i++)
            from_data[i] = (unsigned char)draw(&position, 256);
        memset(to_data, 0xee, (size_t)to_elems * width);
        memset(want, 0xee, (size_t)to_elems * width);
        for (int64_t c = 0; c < wefti_region_elems(&part, rank); c++) {
            int64_t rest = c, source = 0, target = 0, source_stride = 1, target_stride = 1;
            for (int d = rank - 1; d >= 0; d--) {
                int64_t at = part.begin[d] + rest % part.size[d];
                rest /= part.size[d];
                source += (at - from.begin[d]) * source_stride;
                target += (at - to.begin[d]) * target_stride;
                source_stride *= from.size[d];
                target_stride *= to.size[d];
            }
            memcpy(want + (size_t)target * width, from_data + (size_t)source * width, width);
        }
        wefti_region_copy(&part, &from, from_data, &to, to_data, rank, width);
        assert_memory_equal(to_data, want, (size_t)to_elems * width);
    }
}

static wefti_region row(int64_t begin, int64_t size) {
    return (wefti_region){.begin = {begin, 0}, .size = {size, size ? 4 : 0}};
}

typedef struct group {
    wefti_transfer t;
    int32_t ranks[MEMBERS];
    wefti_region have[MEMBERS], want[MEMBERS];
} group;

/* Rows 0:2, 2:5 and 5:6 of [6, 4] on ranks 1, 4 and 9; all want all. */
static void make_gather(group *g) {
    *g = (group){.ranks = {1, 4, 9}};
    const int64_t begin[] = {0, 2, 5}, size[] = {2, 3, 1};
    for (int m = 0; m < MEMBERS; m++) {
        g->have[m] = row(begin[m], size[m]);
        g->want[m] = row(0, 6);
    }
    g->t = (wefti_transfer){.kind = WEFTI_TRANSFER_ALL_GATHER,
                            .dtype = WEFT_F32,
                            .rank = 2,
                            .members = MEMBERS,
                            .ranks = g->ranks,
                            .have = g->have,
                            .want = g->want,
                            .name = "h.3.attn.c_proj"};
}

static void refuse(const group *g, weft_status status, const char *message) {
    assert_int_equal(wefti_transfer_check(&g->t), status);
    if (!has_facts(weft_error_message(), message)) fail_msg("%s", weft_error_message());
}

static void legality(void **state) {
    (void)state;
    group g;
    make_gather(&g);
    assert_int_equal(wefti_transfer_check(&g.t), WEFT_OK);
    g.have[1] = row(2, 2);
    refuse(&g, WEFT_E_MISMATCH, "h.3.attn.c_proj|rank 1|elements 4|5|dimension 0");
    g.have[0] = row(0, 6); /* one that has all is enough */
    assert_int_equal(wefti_transfer_check(&g.t), WEFT_OK);
    make_gather(&g);
    g.have[2].begin[1] = 1; /* a corner is missing */
    g.have[2].size[1] = 3;
    refuse(&g, WEFT_E_MISMATCH, "member");
    make_gather(&g);
    g.ranks[2] = 4;
    refuse(&g, WEFT_E_ARG, "member 2|rank 4|4");
    make_gather(&g);
    g.ranks[0] = -1;
    refuse(&g, WEFT_E_ARG, "ranks ascend");
    make_gather(&g);
    g.t.me = 3;
    refuse(&g, WEFT_E_ARG, "member 3 of 3");
    make_gather(&g);
    g.want[1].size[0] = -1;
    refuse(&g, WEFT_E_ARG, "rank 4|dimension 0");
    make_gather(&g);
    g.t.rank = 9;
    refuse(&g, WEFT_E_ARG, "0 to 8");
    make_gather(&g);
    g.t.members = 0;
    refuse(&g, WEFT_E_ARG, "has 0 members");
    make_gather(&g);
    g.t.kind = WEFTI_TRANSFER_KINDS;
    refuse(&g, WEFT_E_ARG, "unknown|transfer");
}

static void legality_of_reductions(void **state) {
    (void)state;
    group g;
    make_gather(&g);
    g.t.kind = WEFTI_TRANSFER_ALL_REDUCE;
    g.t.reduction = WEFTI_REDUCE_SUM;
    refuse(&g, WEFT_E_MISMATCH, "rank 1");
    for (int m = 0; m < MEMBERS; m++) g.have[m] = row(0, 6);
    assert_int_equal(wefti_transfer_check(&g.t), WEFT_OK);
    g.t.kind = WEFTI_TRANSFER_REDUCE_SCATTER;
    g.want[1] = row(1, 2);
    assert_int_equal(wefti_transfer_check(&g.t), WEFT_OK);
    g.have[2] = row(2, 4);
    refuse(&g, WEFT_E_MISMATCH, "rank 9");
    g.t.kind = WEFTI_TRANSFER_HALO; /* whoever has an element adds to it */
    assert_int_equal(wefti_transfer_check(&g.t), WEFT_OK);
}

/* ---- checks against a definition ---- */

enum { MANY = 24, SIDE = 6, DIMENSIONS = 3 };

typedef struct many {
    wefti_transfer t;
    int32_t ranks[MANY];
    wefti_region have[MANY], want[MANY];
} many;

static wefti_region random_region(uint64_t *position, int rank) {
    wefti_region x = {.begin = {0}};
    for (int d = 0; d < rank; d++) {
        x.begin[d] = draw(position, SIDE);
        x.size[d] = draw(position, 8) ? 1 + draw(position, SIDE - x.begin[d]) : 0;
    }
    return x;
}

/* The begin of part `i` of `parts` of a dimension. */
static int64_t part_begin(int64_t i, int64_t parts) {
    return i * SIDE / parts;
}

/* Pieces of a grid, each on a random member, some of them twice; then a few random regions. */
static void have_grid(uint64_t *position, many *x) {
    int64_t parts[DIMENSIONS] = {1, 1, 1}, pieces = 1;
    for (int d = 0; d < x->t.rank; d++) {
        parts[d] = 1 + draw(position, 3);
        while (pieces * parts[d] > x->t.members) parts[d]--;
        pieces *= parts[d];
    }
    int64_t first = draw(position, x->t.members), step = 1;
    while (step < x->t.members && draw(position, 3)) step += 2; /* may leave pieces out */
    for (int32_t m = 0; m < x->t.members; m++) {
        int64_t rest = (first + m * step) % x->t.members % pieces;
        for (int d = x->t.rank - 1; d >= 0; rest /= parts[d--]) {
            int64_t at = rest % parts[d];
            x->have[m].begin[d] = part_begin(at, parts[d]);
            x->have[m].size[d] = part_begin(at + 1, parts[d]) - x->have[m].begin[d];
        }
        if (!draw(position, 12)) x->have[m] = random_region(position, x->t.rank);
    }
}

static void make_many(uint64_t *position, many *x) {
    *x = (many){.t = {.dtype = WEFT_F32, .kind = WEFTI_TRANSFER_ALL_TO_ALL, .name = "x"}};
    x->t.rank = (int)draw(position, DIMENSIONS + 1);
    x->t.members = 1 + (int32_t)draw(position, MANY);
    x->t.me = (int32_t)draw(position, x->t.members);
    x->t.ranks = x->ranks;
    x->t.have = x->have;
    x->t.want = x->want;
    for (int32_t m = 0; m < x->t.members; m++) x->ranks[m] = 2 * m;
    have_grid(position, x);
    const bool equal = draw(position, 2);
    for (int32_t m = 0; m < x->t.members; m++)
        x->want[m] = equal && m ? x->want[m - 1] : random_region(position, x->t.rank);
    if (draw(position, 4)) return;
    x->t.kind = WEFTI_TRANSFER_REDUCE_SCATTER;
    x->t.reduction = WEFTI_REDUCE_SUM;
    for (int32_t m = 0; m < x->t.members; m++) /* often, all have what is wanted */
        if (draw(position, 8))
            for (int d = 0; d < x->t.rank; d++) x->have[m].begin[d] = 0, x->have[m].size[d] = SIDE;
}

static bool holds(const wefti_region *x, int rank, const int64_t *at) {
    for (int d = 0; d < rank; d++)
        if (at[d] < x->begin[d] || at[d] >= x->begin[d] + x->size[d]) return false;
    return true;
}

/* The first member that wants an element that none has, or with a reduction not all have; -1. */
static int32_t first_that_lacks(const many *x) {
    for (int32_t m = 0; m < x->t.members; m++)
        for (int64_t e = 0; e < wefti_region_elems(&x->want[m], x->t.rank); e++) {
            int64_t at[DIMENSIONS], rest = e;
            int32_t holders = 0;
            for (int d = x->t.rank - 1; d >= 0; rest /= x->want[m].size[d--])
                at[d] = x->want[m].begin[d] + rest % x->want[m].size[d];
            for (int32_t from = 0; from < x->t.members; from++)
                holders += holds(&x->have[from], x->t.rank, at);
            if (holders < (x->t.reduction ? x->t.members : 1)) return m;
        }
    return -1;
}

static void checks_are_of_elements(void **state) {
    (void)state;
    const uint64_t before = random_seed;
    int legal = 0, refused = 0;
    TEST_SEEDS(seed, 0, 6000) {
        many x;
        uint64_t position = 0;
        random_seed = seed;
        make_many(&position, &x);
        const int32_t lacks = first_that_lacks(&x);
        const weft_status status = wefti_transfer_check(&x.t);
        char fact[64];
        (void)snprintf(fact, sizeof fact, "rank %d wants", 2 * lacks);
        if (status != (lacks < 0 ? WEFT_OK : WEFT_E_MISMATCH) ||
            (lacks >= 0 && !has_facts(weft_error_message(), fact)))
            fail_msg("seed %d: member %d lacks something, the check says %d %s", (int)seed, lacks,
                     (int)status, status < 0 ? weft_error_message() : "");
        *(lacks < 0 ? &legal : &refused) += 1;
    }
    random_seed = before;
    print_message("%d legal, %d refused\n", legal, refused);
    assert_true(test_one_seed() || (legal > 1000 && refused > 1000));
}

/* Rows become columns, among as many members as a world may have. Every piece meets every other
 * one, in any order of members. */
static void many_members(void **state) {
    (void)state;
    enum { ROWS = 16384 };
    wefti_transfer t = {.kind = WEFTI_TRANSFER_ALL_TO_ALL,
                        .dtype = WEFT_F32,
                        .rank = 2,
                        .members = ROWS,
                        .ranks = calloc(ROWS, sizeof *t.ranks),
                        .have = calloc(ROWS, sizeof *t.have),
                        .want = calloc(ROWS, sizeof *t.want)};
    assert_true(t.ranks && t.have && t.want);
    for (int32_t m = 0; m < ROWS; m++) {
        t.ranks[m] = m;
        t.have[m] = (wefti_region){.begin = {m * 4099LL % ROWS, 0}, .size = {1, ROWS}};
        t.want[m] = (wefti_region){.begin = {0, m}, .size = {ROWS, 1}};
    }
    ASSERT_OK(wefti_transfer_check(&t));
    t.have[77].size[1]--;
    assert_int_equal(wefti_transfer_check(&t), WEFT_E_MISMATCH);
    if (!has_facts(weft_error_message(), "rank 16383")) fail_msg("%s", weft_error_message());
    free(t.ranks);
    free(t.have);
    free(t.want);
}

static void bytes(void **state) {
    (void)state;
    group g;
    make_gather(&g);
    const int64_t gathered[] = {64, 48, 80};
    for (g.t.me = 0; g.t.me < MEMBERS; g.t.me++)
        assert_int_equal(wefti_transfer_bytes(&g.t), gathered[g.t.me]);
    for (int m = 0; m < MEMBERS; m++) g.have[m] = row(0, 6);
    g.t.me = 1;
    assert_int_equal(wefti_transfer_bytes(&g.t), 0);
    g.t.reduction = WEFTI_REDUCE_MAX;
    g.t.kind = WEFTI_TRANSFER_ALL_REDUCE;
    assert_int_equal(wefti_transfer_bytes(&g.t), 96 * 2 * 2 / 3);
    g.t.kind = WEFTI_TRANSFER_REDUCE_SCATTER;
    g.want[1] = row(1, 2);
    assert_int_equal(wefti_transfer_bytes(&g.t), 2 * 32);
    g.t.kind = WEFTI_TRANSFER_HALO;
    g.have[0] = row(0, 2); /* has one of the two rows */
    assert_int_equal(wefti_transfer_bytes(&g.t), 16 + 32);
    g.t.kind = WEFTI_TRANSFER_SEND;
    g.t.reduction = WEFTI_REDUCE_NONE;
    g.want[1] = row(0, 0);
    assert_int_equal(wefti_transfer_bytes(&g.t), 0);
    assert_int_equal(wefti_transfer_check(&g.t), WEFT_OK);
}

static void clones(void **state) {
    (void)state;
    group g;
    make_gather(&g);
    g.t.tag = 5;
    wefti_transfer *copy, *nameless;
    assert_int_equal(wefti_transfer_clone(&g.t, &copy), WEFT_OK);
    assert_true(wefti_transfer_equal(&g.t, copy));
    assert_string_equal(copy->name, "h.3.attn.c_proj");
    assert_int_equal(copy->tag, 5);
    assert_true(copy->have != g.have && copy->want != g.want && copy->ranks != g.ranks &&
                copy->name != g.t.name);
    copy->me = 2;
    copy->tag = 6;
    copy->name = NULL;
    assert_true(wefti_transfer_equal(&g.t, copy));
    assert_int_equal(wefti_transfer_clone(copy, &nameless), WEFT_OK);
    assert_null(nameless->name);
    copy->have[1].size[1] = 3;
    assert_false(wefti_transfer_equal(&g.t, copy));
    wefti_free(nameless);
    wefti_free(copy);
    group other = g;
    other.t.ranks = other.ranks;
    other.t.have = other.have;
    other.t.want = other.want;
    other.want[2].begin[0] = 1;
    assert_false(wefti_transfer_equal(&g.t, &other.t));
    other.want[2] = g.want[2];
    assert_true(wefti_transfer_equal(&g.t, &other.t));
    other.ranks[1] = 5;
    assert_false(wefti_transfer_equal(&g.t, &other.t));
    other.ranks[1] = 4;
    other.t.dtype = WEFT_BF16;
    assert_false(wefti_transfer_equal(&g.t, &other.t));
    other.t.dtype = WEFT_F32;
    other.t.reduction = WEFTI_REDUCE_SUM;
    assert_false(wefti_transfer_equal(&g.t, &other.t));
    assert_string_equal(wefti_transfer_kind_text(WEFTI_TRANSFER_REDUCE_SCATTER), "reduce_scatter");
    assert_string_equal(wefti_transfer_kind_text(WEFTI_TRANSFER_KINDS), "?");
}

int main(void) {
    random_seed = test_seed(7);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_regions),
        cmocka_unit_test(legality),
        cmocka_unit_test(legality_of_reductions),
        cmocka_unit_test(checks_are_of_elements),
        cmocka_unit_test(many_members),
        cmocka_unit_test(bytes),
        cmocka_unit_test(clones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
