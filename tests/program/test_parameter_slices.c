/* Which slice of a parameter each of 8 ranks holds, against numbers published for MindSpore.
 * - Groups of ranks with equal slices ("Fault Recovery Based on Redundant Information"): {0, 4},
 *   {1, 5}, {2, 6}, {3, 7} for a weight with rows cut by ((2, 4), (4, 1)). Also the groups under
 *   other cuts and sharded optimizers.
 * - The slices that an entry of a strategy file names (parallel_layout_item: dev_matrix,
 *   tensor_map, param_split_shape, opt_weight_shard_size and _step), for a weight with columns cut
 *   by ((2, 1), (1, 2)).
 * - The dimension that sharded optimizers cut. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session.h"
#include "weft/ops.h"
#include "layout/tensor_map.h"

enum { RANKS = 8, BATCH = 16, ROWS = 784, COLUMNS = 512 };

/* How the products of the two layers are cut (NULL: the model has no such layer) and how the
 * optimizer is sharded. The sizes of the mesh end with 0. */
typedef struct network {
    const char *first, *second;
    int mesh[4];
    int level, shard;
} network;

static weft_graph *graph_of(const network *n) {
    weft_graph *g;
    weft_init init = {.kind = WEFT_INIT_NORMAL, .scale = 0.02};
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 2, (int64_t[]){BATCH, ROWS}));
    if (n->first) {
        weft_desc d = weft_desc_of(WEFT_F32, 2, (int64_t[]){ROWS, ROWS});
        weft_cell_begin(g, "fc1");
        x = weft_linear(g, x, weft_param(g, "weight", d, init), WEFT_NO_VALUE, false);
        x = weft_cell_end(g, weft_relu(g, x));
    }
    if (n->second) {
        weft_desc d = weft_desc_of(WEFT_F32, 2, (int64_t[]){ROWS, COLUMNS});
        weft_cell_begin(g, "fc2");
        x = weft_linear(g, x, weft_param(g, "weight", d, init), WEFT_NO_VALUE, false);
        x = weft_cell_end(g, x);
    }
    weft_loss(g, weft_mean(g, weft_mul(g, x, x), 0, NULL, false));
    return g;
}

static weft_session *session_of(const network *n, weft_graph *g) {
    static const char *const axes[] = {"a", "b", "c", "d"};
    weft_plan *plan;
    weft_session *s;
    ASSERT_OK(weft_plan_create(RANKS, &plan));
    for (int a = 0; a < 4 && n->mesh[a]; a++) ASSERT_OK(weft_plan_axis(plan, axes[a], n->mesh[a]));
    ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
    ASSERT_OK(weft_plan_dataset(plan, WEFT_DATASET_FULL_BATCH));
    if (n->first) ASSERT_OK(weft_plan_split_op(plan, "fc1:linear", n->first));
    if (n->second) ASSERT_OK(weft_plan_split_op(plan, "fc2:linear", n->second));
    if (n->level) ASSERT_OK(weft_plan_optimizer(plan, n->level, 0, n->shard));
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_SGD;
    o.threads = 2;
    o.plan = plan;
    ASSERT_OK(weft_session_create(g, &o, &s));
    weft_plan_destroy(plan);
    return s;
}

static int number_of(const weft_session *s, const char *name) {
    for (int t = 0; t < weft_session_tensors(s, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, 0, t, &info));
        if (!strcmp(info.name, name)) return t;
    }
    fail_msg("no tensor %s", name);
    return -1;
}

static void pieces_of(weft_session *s, const char *name, wefti_session_piece *out) {
    wefti_session_piece found[RANKS];
    int32_t count;
    ASSERT_OK(wefti_session_pieces(s, 0, number_of(s, name), found, &count));
    assert_int_equal(count, RANKS);
    for (int i = 0; i < RANKS; i++) out[found[i].rank] = found[i];
}

/* ---- groups of equal slices ---- */

/* Whether a piece's memory holds `want` from byte `at` on. */
static bool holds(const wefti_session_piece *piece, int64_t at, const void *want, int64_t bytes) {
    wefti_mapping m;
    ASSERT_OK(wefti_home_map(&piece->home, at, bytes, WEFTI_ACCESS_READ, &m));
    bool equal = memcmp(m.data, want, (size_t)bytes) == 0;
    ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
    return equal;
}

static bool equal_pieces(const wefti_session_piece *a, const wefti_session_piece *b) {
    int64_t bytes = wefti_region_elems(&a->box, 2) * (int64_t)sizeof(float);
    wefti_mapping m;
    if (memcmp(a->box.begin, b->box.begin, 2 * sizeof *a->box.begin) != 0 ||
        memcmp(a->box.size, b->box.size, 2 * sizeof *a->box.size) != 0)
        return false;
    ASSERT_OK(wefti_home_map(&a->home, 0, bytes, WEFTI_ACCESS_READ, &m));
    assert_true(holds(b, 0, m.data, bytes));
    ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
    return true;
}

/* "{0,4}{1,5}": groups of ranks that have equal slices of all parameters. */
static void check_groups(const network *n, const char *want) {
    weft_graph *g = graph_of(n);
    weft_session *s = session_of(n, g);
    wefti_session_piece pieces[2][RANKS];
    char text[128];
    size_t at = 0;
    int parameters = 0;
    if (n->first) pieces_of(s, "fc1.weight", pieces[parameters++]);
    if (n->second) pieces_of(s, "fc2.weight", pieces[parameters++]);
    bool told[RANKS] = {false};
    for (int r = 0; r < RANKS; r++) {
        if (told[r]) continue;
        for (int k = r; k < RANKS; k++) {
            bool same = true;
            for (int p = 0; p < parameters; p++)
                same = same && equal_pieces(&pieces[p][r], &pieces[p][k]);
            if (!same) continue;
            told[k] = true;
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%d", k == r ? "{" : ",", k);
        }
        at += (size_t)snprintf(text + at, sizeof text - at, "}");
    }
    assert_string_equal(text, want);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static void groups_of_equal_slices(void **state) {
    (void)state;
    static const char *const pairs = "{0,4}{1,5}{2,6}{3,7}";
    static const char *const alone = "{0}{1}{2}{3}{4}{5}{6}{7}";
    static const struct {
        network n;
        const char *groups;
    } cases[] = {
        {{"((2,4),(4,1))", NULL, {2, 2, 2}, 0, 0}, pairs},
        {{"((2,4),(4,1))", "((4,1),(1,2))", {2, 2, 2}, 0, 0}, pairs},
        {{NULL, "((4,1),(1,2))", {2, 2, 2}, 0, 0}, "{0,2,4,6}{1,3,5,7}"},
        /* sharded optimizer: all four replicas share, or every other two */
        {{NULL, "((4,1),(1,2))", {2, 2, 2}, 3, 0}, alone},
        {{NULL, "((4,1),(1,2))", {2, 2, 2}, 3, 2}, pairs},
        /* the same if no axis of the mesh has that size: neighbors along a part of one axis
         * share */
        {{NULL, "((4,1),(1,2))", {4, 2}, 3, 0}, alone},
        {{NULL, "((4,1),(1,2))", {4, 2}, 3, 2}, pairs},
        {{NULL, "((8,1),(1,1))", {8}, 3, 4}, pairs},
        {{NULL, "((8,1),(1,1))", {8}, 3, 2}, "{0,2,4,6}{1,3,5,7}"},
        {{NULL, "((8,1),(1,1))", {8}, 3, 1}, "{0,1,2,3,4,5,6,7}"},
        /* a weight that is cut over all ranks leaves no redundancy */
        {{"((1,8),(8,1))", "((4,1),(1,2))", {2, 2, 2}, 0, 0}, alone},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_groups(&cases[i].n, cases[i].groups);
}

/* ---- an entry of a strategy file ---- */

typedef struct entry {
    int32_t dev_matrix[4], tensor_map[2]; /* the repeated calculation first */
    int64_t param_split_shape[2];
    int32_t opt_weight_shard_size, opt_weight_shard_step;
} entry;

/* The part of dimension d by the device matrix alone. Axes are counted from the right. */
static int32_t part_of(const entry *e, int d, int32_t rank, int32_t *parts) {
    int32_t axis = e->tensor_map[d], below = 1;
    *parts = axis < 0 ? 1 : e->dev_matrix[3 - axis];
    for (int a = 0; a < axis; a++) below *= e->dev_matrix[3 - a];
    return axis < 0 ? 0 : rank / below % *parts;
}

/* The slice of a rank as a reader of the strategy file computes it. */
static void slice_of(const entry *e, int32_t rank, wefti_region *out) {
    *out = (wefti_region){0};
    for (int d = 0; d < 2; d++) {
        int32_t parts, part = part_of(e, d, rank, &parts);
        out->size[d] = e->param_split_shape[d] / parts;
        out->begin[d] = part * out->size[d];
    }
    int32_t shard = rank / e->opt_weight_shard_step % e->opt_weight_shard_size;
    out->size[0] /= e->opt_weight_shard_size;
    out->begin[0] += shard * out->size[0];
}

static const wefti_layout *layout_of(const wefti_program *p, const char *name) {
    for (int64_t t = 0; t < p->tensor_count; t++)
        if (!strcmp(p->tensors[t].name, name)) return &p->tensors[t].layout;
    fail_msg("no tensor %s", name);
    return NULL;
}

static void slices_of_a_strategy_file(void **state) {
    (void)state;
    static const entry e = {{2, 2, 1, 2}, {-1, 0}, {ROWS, COLUMNS}, 4, 2};
    /* the cuts use the axes of the matrix; the first axis repeats the calculation */
    network n = {NULL, "m0=b n0=d", {2, 2, 1, 2}, 0, 0};
    weft_graph *g = graph_of(&n);
    weft_session *s = session_of(&n, g);
    /* Without a sharded optimizer the layout is the entry's matrix and map. */
    const wefti_program *p = wefti_session_program_of(s, 0, 0);
    int32_t matrix[WEFTI_MAX_AXES], map[WEFT_MAX_RANK];
    ASSERT_OK(layout_to_map(layout_of(p, "fc2.weight"), &p->mesh, matrix, map));
    assert_memory_equal(matrix, e.dev_matrix, sizeof e.dev_matrix);
    assert_memory_equal(map, e.tensor_map, sizeof e.tensor_map);
    weft_session_destroy(s);
    weft_graph_destroy(g);

    n.level = 3;
    g = graph_of(&n);
    s = session_of(&n, g);
    float *whole = malloc(sizeof(float) * ROWS * COLUMNS);
    assert_non_null(whole);
    for (int i = 0; i < ROWS * COLUMNS; i++) whole[i] = (float)i; /* exact below 2^24 */
    ASSERT_OK(weft_session_write(s, 0, "fc2.weight", whole, sizeof(float) * ROWS * COLUMNS));
    wefti_session_piece pieces[RANKS];
    pieces_of(s, "fc2.weight", pieces);
    for (int r = 0; r < RANKS; r++) {
        wefti_region box;
        slice_of(&e, r, &box);
        assert_int_equal(box.size[0], 196);
        assert_int_equal(box.size[1], 256);
        for (int d = 0; d < 2; d++) {
            assert_int_equal(pieces[r].box.begin[d], box.begin[d]);
            assert_int_equal(pieces[r].box.size[d], box.size[d]);
        }
        int64_t row = box.size[1] * (int64_t)sizeof(float);
        for (int64_t i = 0; i < box.size[0]; i++)
            assert_true(holds(&pieces[r], i * row,
                              whole + (box.begin[0] + i) * COLUMNS + box.begin[1], row));
    }
    free(whole);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

/* ---- the dimension that a sharded optimizer cuts ---- */

/* A model of one parameter of the shape, over 8 ranks. */
static weft_session *session_of_shape(int rank, const int64_t *shape, int level, int64_t threshold,
                                      weft_graph **out) {
    weft_graph *g;
    weft_plan *plan;
    weft_session *s;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", weft_desc_of(WEFT_F32, 1, (int64_t[]){BATCH}));
    weft_cell_begin(g, "c");
    weft_value w = weft_param(g, "w", weft_desc_of(WEFT_F32, rank, shape),
                              (weft_init){.kind = WEFT_INIT_NORMAL, .scale = 1});
    weft_value y = weft_mul(g, weft_sum(g, weft_mul(g, w, w), 0, NULL, false), x);
    weft_loss(g, weft_cell_end(g, weft_mean(g, y, 0, NULL, false)));
    ASSERT_OK(weft_plan_create(RANKS, &plan));
    ASSERT_OK(weft_plan_axis(plan, "dp", RANKS));
    ASSERT_OK(weft_plan_mode(plan, WEFT_PARALLEL_SEMI));
    ASSERT_OK(weft_plan_optimizer(plan, level, threshold, 0));
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_ADAM;
    o.threads = 1;
    o.plan = plan;
    ASSERT_OK(weft_session_create(g, &o, &s));
    weft_plan_destroy(plan);
    *out = g;
    return s;
}

static void pieces_are_even(void **state) {
    (void)state;
    static const struct {
        int rank;
        int64_t shape[4];
        int dim;      /* that is cut */
        int64_t most; /* elements of the largest piece */
    } cases[] = {
        {2, {64, 5}, 0, 8 * 5},
        {2, {100, 64}, 0, 13 * 64}, /* nearly even, and contiguous */
        {2, {9, 64}, 1, 9 * 8},
        {3, {1, 197, 64}, 1, 25 * 64},
        {2, {1, 7 * 8}, 1, 7},
        {2, {3, 16}, 1, 3 * 2},
        {4, {3, 3, 16, 2}, 2, 3 * 3 * 4},
        {1, {3}, 0, 1}, /* some ranks have nothing */
        {2, {3, 5}, 1, 3},
        {2, {5, 3}, 0, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int level = 1; level <= 3; level++) {
            weft_graph *g;
            weft_session *s = session_of_shape(cases[i].rank, cases[i].shape, level, 0, &g);
            wefti_session_piece pieces[RANKS];
            int64_t most = 0, all = 0, whole = 1, peak = 0;
            pieces_of(s, level == 3 ? "c.w" : "c.w.m", pieces);
            for (int d = 0; d < cases[i].rank; d++) whole *= cases[i].shape[d];
            for (int r = 0; r < RANKS; r++) {
                int64_t elements = wefti_region_elems(&pieces[r].box, cases[i].rank), bytes,
                        observed;
                if (elements > most) most = elements;
                all += elements;
                for (int d = 0; d < cases[i].rank && elements; d++)
                    assert_true(d == cases[i].dim || pieces[r].box.size[d] == cases[i].shape[d]);
                ASSERT_OK(weft_session_device_memory(s, r, &bytes, &observed));
                if (bytes > peak) peak = bytes;
            }
            if (most != cases[i].most || all != whole)
                fail_msg("case %d, level %d: the largest piece has %lld elements, all %lld", (int)i,
                         level, (long long)most, (long long)all);
            weft_session_destroy(s);
            weft_graph_destroy(g);
            s = session_of_shape(cases[i].rank, cases[i].shape, 0, 0, &g);
            for (int r = 0; r < RANKS; r++) {
                int64_t bytes, observed;
                ASSERT_OK(weft_session_device_memory(s, r, &bytes, &observed));
                assert_true(peak < bytes ||
                            whole < 200); /* small pieces are in lines of 64 bytes */
            }
            weft_session_destroy(s);
            weft_graph_destroy(g);
        }
}

/* Parameters below the threshold stay whole on every rank, and so do their states. The size that is
 * compared does not depend on the number of ranks that share the parameter. */
static void small_parameters_stay_whole(void **state) {
    (void)state;
    static const struct {
        int rank;
        int64_t shape[2], threshold;
        bool cut;
    } cases[] = {
        {2, {784, 512}, 64 << 10, true},
        {2, {512, 10}, 64 << 10, false},
        {1, {10}, 64 << 10, false},
        {1, {10}, 0, true},
        {2, {512, 10}, 0, true},
        {2, {512, 10}, 512 * 10 * 4, true},
        {2, {512, 10}, 512 * 10 * 4 + 1, false},
        {2, {784, 512}, INT64_C(1) << 40, false},
        {2, {50257, 4}, 64 << 10, true}, /* 8 does not divide it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int level = 1; level <= 3; level++) {
            weft_graph *g;
            weft_session *s =
                session_of_shape(cases[i].rank, cases[i].shape, level, cases[i].threshold, &g);
            wefti_session_piece pieces[RANKS];
            int64_t whole = cases[i].shape[0] * (cases[i].rank > 1 ? cases[i].shape[1] : 1);
            for (int k = 0; k < (level == 3 ? 2 : 1); k++) {
                int64_t all = 0;
                pieces_of(s, k ? "c.w" : "c.w.m", pieces);
                for (int r = 0; r < RANKS; r++)
                    all += wefti_region_elems(&pieces[r].box, cases[i].rank);
                if (all != (cases[i].cut ? whole : RANKS * whole))
                    fail_msg("case %d, level %d: all ranks have %lld of %lld elements", (int)i,
                             level, (long long)all, (long long)whole);
            }
            weft_session_destroy(s);
            weft_graph_destroy(g);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_equal_slices),
        cmocka_unit_test(slices_of_a_strategy_file),
        cmocka_unit_test(pieces_are_even),
        cmocka_unit_test(small_parameters_stay_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
