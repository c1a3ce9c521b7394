/* Meshes, layouts, their text and their forms in MindSpore. */
#include "support.h"

#include <stdio.h>

#include "layout/layout.h"
#include "layout/tensor_map.h"

static wefti_mesh mesh_of(int axes, const int32_t *sizes, const char *const *names) {
    wefti_mesh mesh = {.axes = axes};
    for (int a = 0; a < axes; a++) {
        mesh.axis[a].size = sizes[a];
        (void)snprintf(mesh.axis[a].name, sizeof mesh.axis[a].name, "%s", names[a]);
    }
    return mesh;
}

static wefti_mesh dp_sp_tp(int32_t dp, int32_t sp, int32_t tp) {
    return mesh_of(3, (int32_t[]){dp, sp, tp}, (const char *[]){"dp", "sp", "tp"});
}

static weft_desc shape(int rank, int64_t a, int64_t b, int64_t c) {
    return weft_desc_of(WEFT_F32, rank, (int64_t[]){a, b, c});
}

static wefti_layout parse(const char *text, const wefti_mesh *mesh) {
    wefti_layout layout;
    assert_int_equal(wefti_layout_parse(text, mesh, &layout), WEFT_OK);
    return layout;
}

static void expect_region(const wefti_layout *layout, const wefti_mesh *mesh,
                          const weft_desc *whole, int32_t rank, int64_t r0, int64_t r1, int64_t c0,
                          int64_t c1) {
    wefti_region region;
    wefti_layout_region(layout, mesh, whole, rank, &region);
    assert_int_equal(region.begin[0], r0);
    assert_int_equal(region.begin[0] + region.size[0], r1);
    assert_int_equal(region.begin[1], c0);
    assert_int_equal(region.begin[1] + region.size[1], c1);
}

static void ranks_and_coordinates(void **state) {
    (void)state;
    wefti_mesh mesh = dp_sp_tp(2, 3, 4);
    mesh.first = 5;
    assert_int_equal(wefti_mesh_size(&mesh), 24);
    assert_int_equal(wefti_mesh_find(&mesh, "tp"), 2);
    assert_int_equal(wefti_mesh_find(&mesh, "pp"), -1);
    assert_int_equal(wefti_mesh_product(&mesh, 5), 8);
    for (int32_t rank = 5; rank < 29; rank++) {
        int32_t at[WEFTI_MAX_AXES];
        wefti_mesh_coordinates(&mesh, rank, at);
        assert_int_equal((at[0] * 3 + at[1]) * 4 + at[2], rank - 5);
        assert_int_equal(wefti_mesh_rank(&mesh, at), rank);
    }
    int32_t group[24];
    assert_int_equal(wefti_mesh_group(&mesh, 5 + 17, 0, group), 1);
    assert_int_equal(group[0], 22);
    assert_int_equal(wefti_mesh_group(&mesh, 5 + 17, 2, group), 3); /* (1, 1, 1) along sp */
    assert_true(group[0] == 5 + 13 && group[1] == 5 + 17 && group[2] == 5 + 21);
    assert_int_equal(wefti_mesh_group(&mesh, 5 + 17, 5, group), 8);
    for (int i = 0; i < 8; i++) assert_int_equal(group[i], 5 + (i / 4 * 3 + 1) * 4 + i % 4);
    assert_int_equal(wefti_mesh_group(&mesh, 9, 7, group), 24);
    for (int i = 0; i < 24; i++) assert_int_equal(group[i], 5 + i);
}

static void illegal_meshes(void **state) {
    (void)state;
    wefti_mesh good = dp_sp_tp(2, 1, 4), bad = good;
    assert_int_equal(wefti_mesh_check(&good), WEFT_OK);
    bad.axes = 0;
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
    bad.axes = 9;
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
    bad = good;
    bad.axis[1].size = 0;
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
    ASSERT_MESSAGE("sp|size 0");
    bad = good;
    strcpy(bad.axis[2].name, "dp");
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
    ASSERT_MESSAGE("dp");
    bad = good;
    strcpy(bad.axis[2].name, "t-p");
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
    bad = dp_sp_tp(1 << 16, 1 << 15, 1);
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
    bad = good;
    bad.first = -1;
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
    bad = good;
    bad.axis[0].link.latency = -1;
    assert_int_equal(wefti_mesh_check(&bad), WEFT_E_ARG);
}

/* The rule of uneven splits, against its definition; and nesting: part i of s1 s2 lies in part
 * i / s2 of s1. */
static void parts(void **state) {
    (void)state;
    for (int64_t n = 0; n <= 40; n++)
        for (int64_t unit = 1; unit <= 5; unit++) {
            if (n % unit) continue;
            for (int32_t s = 1; s <= 9; s++) {
                int64_t begin, size, end = 0;
                for (int32_t i = 0; i < s; i++) {
                    wefti_part(n, unit, s, i, &begin, &size);
                    assert_int_equal(begin, end);
                    assert_int_equal(begin, i * (n / unit) / s * unit);
                    end = begin + size;
                    for (int32_t s2 = 2; s2 <= 3; s2++) {
                        int64_t inner, ignored;
                        wefti_part(n, unit, s * s2, i * s2, &inner, &ignored);
                        assert_int_equal(inner, begin);
                    }
                }
                assert_int_equal(end, n);
            }
        }
    int64_t begin, size;
    wefti_part(50257, 0, 2, 1, &begin, &size);
    assert_true(begin == 25128 && size == 25129);
    wefti_part(INT64_MAX, 1, 1 << 30, (1 << 30) - 1, &begin, &size); /* no overflow */
    assert_true(size == (INT64_C(1) << 33) && begin + size == INT64_MAX);
}

/* Shazeer et al.'s notation on MindSpore's first example: [2, 1, 4], x (2, 1), w (1, 0), y (2, 0).
 */
static void slices_of_a_product(void **state) {
    (void)state;
    const int32_t matrix[] = {2, 1, 4};
    wefti_mesh mesh;
    wefti_layout x, w, y;
    assert_int_equal(layout_from_map(matrix, 3, (int32_t[]){2, 1}, 2, &mesh, &x), WEFT_OK);
    assert_int_equal(layout_from_map(matrix, 3, (int32_t[]){1, 0}, 2, &mesh, &w), WEFT_OK);
    assert_int_equal(layout_from_map(matrix, 3, (int32_t[]){2, 0}, 2, &mesh, &y), WEFT_OK);
    int32_t at[WEFTI_MAX_AXES];
    wefti_mesh_coordinates(&mesh, 5, at);
    assert_true(at[0] == 1 && at[1] == 0 && at[2] == 1);
    weft_desc dx = shape(2, 256, 784, 0), dw = shape(2, 784, 64, 0), dy = shape(2, 256, 64, 0);
    for (int32_t r = 0; r < 8; r++) {
        int64_t row = r / 4 * 128, column = r % 4 * 16;
        expect_region(&x, &mesh, &dx, r, row, row + 128, 0, 784);
        expect_region(&w, &mesh, &dw, r, 0, 784, column, column + 16);
        expect_region(&y, &mesh, &dy, r, row, row + 128, column, column + 16);
    }
    /* replicas of w: {0, 4}, {1, 5}, {2, 6}, {3, 7}; the replicas of the first row count */
    wefti_axes free_axes = ~wefti_layout_axes(&w) & 7u;
    for (int32_t r = 0; r < 8; r++) {
        int32_t group[8];
        assert_int_equal(wefti_mesh_group(&mesh, r, free_axes & ~2u, group), 2);
        assert_true(group[0] == r % 4 && group[1] == r % 4 + 4);
        assert_int_equal(wefti_layout_counts(&w, &mesh, r), r < 4);
    }
}

/* Several axes on one dimension: the first is the outermost. */
static void slices_of_several_axes(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(3, (int32_t[]){2, 2, 2}, (const char *[]){"dp", "sp", "mp"});
    wefti_layout x = parse("[mp, sp+dp]", &mesh), w = parse("[sp+dp, -]", &mesh);
    wefti_layout y = parse("[mp+sp+dp, -]", &mesh);
    weft_desc dx = shape(2, 32, 784, 0), dw = shape(2, 784, 512, 0), dy = shape(2, 32, 512, 0);
    for (int32_t r = 0; r < 8; r++) {
        int64_t dp = r / 4, sp = r / 2 % 2, mp = r % 2;
        int64_t column = (sp * 2 + dp) * 196, row = mp * 16, slice = (mp * 4 + sp * 2 + dp) * 4;
        expect_region(&x, &mesh, &dx, r, row, row + 16, column, column + 196);
        expect_region(&w, &mesh, &dw, r, column, column + 196, 0, 512);
        expect_region(&y, &mesh, &dy, r, slice, slice + 4, 0, 512);
    }
    /* rank (dp 0, sp 1) has columns 392:588, and parts 0 to 3 of row 0 lie on ranks 0, 4, 2, 6 */
    expect_region(&x, &mesh, &dx, 2, 0, 16, 392, 588);
    const int32_t order[] = {0, 4, 2, 6};
    for (int i = 0; i < 4; i++)
        expect_region(&x, &mesh, &dx, order[i], 0, 16, i * 196, i * 196 + 196);
}

/* Optimizer sharding: dimension 0 split further by the axes that a parameter does not use. */
static void shapes_of_shards(void **state) {
    (void)state;
    struct {
        weft_desc whole;
        const char *layout;
        int32_t op, replicas;
        int64_t rows, columns;
    } rows[] = {
        {shape(2, 784, 512, 0), "[r, -]", 1, 8, 98, 512},
        {shape(2, 784, 512, 0), "[r, op]", 2, 4, 196, 256},
        {shape(2, 512, 512, 0), "[op+r, -]", 4, 2, 64, 512},
    };
    for (int i = 0; i < 3; i++) {
        wefti_mesh mesh =
            mesh_of(2, (int32_t[]){rows[i].op, rows[i].replicas}, (const char *[]){"op", "r"});
        wefti_layout layout = parse(rows[i].layout, &mesh);
        for (int32_t r = 0; r < 8; r++) {
            weft_desc local = wefti_layout_local(&layout, &mesh, &rows[i].whole, r);
            assert_int_equal(local.dtype, WEFT_F32);
            assert_int_equal(local.shape[0], rows[i].rows);
            assert_int_equal(local.shape[1], rows[i].columns);
        }
    }
}

static void normal_form(void **state) {
    (void)state;
    wefti_mesh mesh = dp_sp_tp(2, 1, 3);
    weft_desc whole = shape(2, 768, 12, 0);
    wefti_layout a = parse("[tp+dp:64, sp]", &mesh);
    wefti_layout b = parse("[tp+dp, -]", &mesh);
    assert_false(wefti_layout_equal(&a, &b));
    wefti_layout_normal(&a, &mesh, &whole); /* 12 heads over 6, and an axis of size 1 */
    assert_true(wefti_layout_equal(&a, &b));
    whole.shape[0] = 512; /* 8 heads over 6 are no 512 elements over 6 */
    a = parse("[tp+dp:64, -] sum(sp)", &mesh);
    wefti_layout_normal(&a, &mesh, &whole);
    assert_int_equal(a.dim[0].unit, 64);
    assert_int_equal(a.sum, 0);
    /* whatever unit is asked for, equal parts have equal normal forms, and parts stay the same */
    for (int64_t n = 1; n <= 48; n++)
        for (int32_t s = 2; s <= 5; s++) {
            wefti_mesh line = mesh_of(1, &s, (const char *[]){"x"});
            wefti_layout forms[48];
            int64_t units[48];
            int count = 0;
            weft_desc one = shape(1, n, 0, 0);
            for (int64_t unit = 1; unit <= n; unit++) {
                if (n % unit) continue;
                forms[count] = parse("[x]", &line);
                forms[count].dim[0].unit = units[count] = unit;
                wefti_layout_normal(&forms[count++], &line, &one);
            }
            for (int i = 0; i < count; i++)
                for (int j = 0; j < count; j++) {
                    bool same = true, kept = true;
                    for (int32_t p = 0; p < s; p++) {
                        int64_t bi, bj, bn, ignored;
                        wefti_part(n, units[i], s, p, &bi, &ignored);
                        wefti_part(n, units[j], s, p, &bj, &ignored);
                        wefti_part(n, forms[i].dim[0].unit, s, p, &bn, &ignored);
                        same = same && bi == bj;
                        kept = kept && bi == bn;
                    }
                    assert_true(kept);
                    assert_int_equal(wefti_layout_equal(&forms[i], &forms[j]), same);
                }
        }
}

static void refuse(const wefti_layout *layout, const wefti_mesh *mesh, const weft_desc *whole,
                   const char *message) {
    assert_int_equal(wefti_layout_check(layout, mesh, whole), WEFT_E_ARG);
    if (!has_facts(weft_error_message(), message)) fail_msg("%s", weft_error_message());
}

static void illegal_layouts(void **state) {
    (void)state;
    wefti_mesh mesh = dp_sp_tp(2, 2, 4);
    weft_desc whole = shape(2, 12, 8, 0), cube = shape(3, 2, 2, 2);
    wefti_layout good = parse("[dp:3, tp] sum(sp)", &mesh), bad = good;
    assert_int_equal(wefti_layout_check(&good, &mesh, &whole), WEFT_OK);
    refuse(&good, &mesh, &cube, "2 dimensions|f32[2, 2, 2]|3");
    bad.dim[0].unit = 5;
    refuse(&bad, &mesh, &whole, "5|12");
    bad = good;
    bad.dim[1].axis[0] = 0;
    refuse(&bad, &mesh, &whole, "dp");
    bad = good;
    bad.sum |= 4;
    refuse(&bad, &mesh, &whole, "tp");
    bad = good;
    bad.dim[1].axis[0] = 3;
    refuse(&bad, &mesh, &whole, "axis 3|3");
    bad = good;
    bad.sum = 8;
    refuse(&bad, &mesh, &whole, "uses axis 3");
    bad = good;
    bad.dim[1].count = 4;
    refuse(&bad, &mesh, &whole, "split by 4 axes");
    bad = parse("[-, -] sum(dp) max(tp)", &mesh);
    refuse(&bad, &mesh, &whole, "sum|maximum");
}

static void text(void **state) {
    (void)state;
    wefti_mesh mesh = dp_sp_tp(2, 2, 4);
    const char *good[] = {"[]",
                          "[-]",
                          "[dp, tp+sp:64, -]",
                          "[dp, tp+sp:64, -] ",
                          "[-] sum(tp)",
                          "[] sum(dp, tp)",
                          "[sp] max(tp)",
                          "[-, -, -, -, -, -, -, tp+dp+sp:3]"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        wefti_layout layout = parse(good[i], &mesh), again;
        wefti_layout_words words = wefti_layout_text(&layout, &mesh);
        if (i != 3) assert_string_equal(words.text, good[i]);
        again = parse(words.text, &mesh);
        assert_true(wefti_layout_equal(&layout, &again));
    }
    wefti_layout tight = parse("[dp,tp+sp:64,-]", &mesh);
    wefti_layout wide = parse(" [ dp , tp + sp : 64 , - ] ", &mesh);
    assert_true(wefti_layout_equal(&tight, &wide));
}

/* Eight axes with the longest names, and units of the largest sizes. */
static void longest_text(void **state) {
    (void)state;
    wefti_mesh mesh = {.axes = WEFTI_MAX_AXES};
    wefti_layout layout = {.rank = WEFT_MAX_RANK};
    for (int a = 0; a < WEFTI_MAX_AXES; a++) {
        (void)snprintf(mesh.axis[a].name, sizeof mesh.axis[a].name, "axis_%d_of_eight", a);
        mesh.axis[a].size = 2;
        layout.dim[a] =
            (wefti_dim_split){.count = 1, .axis = {(int8_t)a}, .unit = INT64_MAX - 1 - a};
    }
    wefti_layout_words words = wefti_layout_text(&layout, &mesh);
    wefti_layout again = parse(words.text, &mesh);
    assert_true(wefti_layout_equal(&layout, &again));
}

static void illegal_text(void **state) {
    (void)state;
    wefti_mesh mesh = dp_sp_tp(2, 2, 4);
    const char *bad[][2] = {
        {"", "expected '['"},
        {"[dp", "','"},
        {"[pp]", "pp|2|4"},
        {"[dp, dp]", "dp"},
        {"[dp] sum(dp)", "dp"},
        {"[dp:0]", "not '0'"},
        {"[dp:x]", "not 'x'"},
        {"[dp:99999999999999999999]", "not '99999999999999999999'"},
        {"[dp+]", "expected|name"},
        {"[dp] min(tp)", "(...)|'min(tp)'"},
        {"[dp] sum(tp", "expected ')'"},
        {"[dp] sum()", "expected|name"},
        {"[-,-,-,-,-,-,-,-,-]", "more than 8 dimensions"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        wefti_layout layout;
        assert_int_equal(wefti_layout_parse(bad[i][0], &mesh, &layout), WEFT_E_ARG);
        if (!has_facts(weft_error_message(), bad[i][1])) fail_msg("%s", weft_error_message());
    }
}

static void maps(void **state) {
    (void)state;
    const int32_t matrix[] = {2, 3, 2};
    for (int32_t a = -1; a < 3; a++)
        for (int32_t b = -1; b < 3; b++) {
            int32_t map[2] = {a, b}, matrix_again[WEFTI_MAX_AXES], map_again[WEFT_MAX_RANK];
            wefti_mesh mesh;
            wefti_layout layout;
            weft_status status = layout_from_map(matrix, 3, map, 2, &mesh, &layout);
            if (a == b && a >= 0) {
                assert_int_equal(status, WEFT_E_ARG);
                ASSERT_MESSAGE("dimensions");
                continue;
            }
            assert_int_equal(status, WEFT_OK);
            assert_string_equal(mesh.axis[0].name, "d2");
            assert_string_equal(mesh.axis[2].name, "d0");
            assert_int_equal(layout_to_map(&layout, &mesh, matrix_again, map_again), WEFT_OK);
            assert_memory_equal(matrix_again, matrix, sizeof matrix);
            assert_memory_equal(map_again, map, sizeof map);
            /* every axis that is not in the map repeats the calculation */
            weft_desc whole = shape(2, 12, 12, 0);
            int32_t counting = 0;
            for (int32_t r = 0; r < 12; r++) counting += wefti_layout_counts(&layout, &mesh, r);
            assert_int_equal(counting, wefti_layout_parts(&layout, &mesh, 0) *
                                           wefti_layout_parts(&layout, &mesh, 1));
            assert_int_equal(wefti_layout_check(&layout, &mesh, &whole), WEFT_OK);
        }
    wefti_mesh mesh;
    wefti_layout layout;
    assert_int_equal(layout_from_map(matrix, 3, (int32_t[]){3}, 1, &mesh, &layout), WEFT_E_ARG);
    assert_int_equal(layout_from_map(matrix, 0, (int32_t[]){-1}, 1, &mesh, &layout), WEFT_E_ARG);
    assert_int_equal(layout_from_map(matrix, 3, (int32_t[]){-1}, 9, &mesh, &layout), WEFT_E_ARG);
    assert_int_equal(layout_from_map((int32_t[]){2, -2}, 2, (int32_t[]){-1}, 1, &mesh, &layout),
                     WEFT_E_ARG);
    mesh = dp_sp_tp(2, 2, 2);
    int32_t out_matrix[WEFTI_MAX_AXES], out_map[WEFT_MAX_RANK];
    const char *no[] = {"[dp+tp]", "[dp] sum(tp)", "[dp] max(tp)", "[dp:2]"};
    for (int i = 0; i < 4; i++) {
        layout = parse(no[i], &mesh);
        assert_int_equal(layout_to_map(&layout, &mesh, out_matrix, out_map), WEFT_E_NO_IMPL);
    }
}

static void cuts(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(4, (int32_t[]){2, 2, 1, 4}, (const char *[]){"a", "b", "one", "c"});
    struct {
        int64_t cuts;
        wefti_axes used, axes;
    } good[] = {{1, 0, 0}, {2, 0, 1},  {2, 1, 2},   {4, 0, 8}, {4, 8, 3},
                {8, 0, 9}, {8, 1, 10}, {16, 0, 11}, {1, 15, 0}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        wefti_axes used = good[i].used;
        wefti_dim_split split;
        assert_int_equal(wefti_cut_axes(&mesh, good[i].cuts, &used, &split), WEFT_OK);
        wefti_axes axes = 0;
        for (int k = 0; k < split.count; k++) {
            assert_true(k == 0 || split.axis[k] > split.axis[k - 1]);
            axes |= 1u << split.axis[k];
        }
        assert_int_equal(axes, good[i].axes);
        assert_int_equal(used, good[i].used | good[i].axes);
    }
    wefti_axes used = 0;
    wefti_dim_split split;
    assert_int_equal(wefti_cut_axes(&mesh, 3, &used, &split), WEFT_E_ARG);
    ASSERT_MESSAGE("3 cuts|1|2|4|8|16");
    used = 8;
    assert_int_equal(wefti_cut_axes(&mesh, 8, &used, &split), WEFT_E_ARG);
    ASSERT_MESSAGE("c=4 (used)");
    ASSERT_MESSAGE("allows 1, 2, 4");
    assert_int_equal(used, 8);
    assert_int_equal(wefti_cut_axes(&mesh, 0, &used, &split), WEFT_E_ARG);
    assert_int_equal(wefti_cut_axes(&mesh, -2, &used, &split), WEFT_E_ARG);
}

enum { WAYS_MOST = 64, CUTS_MOST = 4 };

typedef struct ways {
    int count, cuts;
    wefti_dim_split split[WAYS_MOST][CUTS_MOST];
} ways;

static weft_status one_way(void *context, const wefti_dim_split *splits) {
    ways *w = context;
    assert_true(w->count < WAYS_MOST);
    memcpy(w->split[w->count++], splits, (size_t)w->cuts * sizeof *splits);
    return WEFT_OK;
}

static weft_status cut_each(const wefti_mesh *mesh, int count, const int64_t *cuts, ways *out,
                            int *failed) {
    *out = (ways){.cuts = count};
    return wefti_cut_each(mesh, count, cuts, one_way, out, failed);
}

/* If factors chose axes one after the other, 16 would take the axes that 8 needs. */
static void cuts_together(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(4, (int32_t[]){2, 8, 4, 4}, (const char *[]){"a", "b", "c", "d"});
    ways w;
    int failed = -1;
    assert_int_equal(cut_each(&mesh, 4, (int64_t[]){16, 1, 8, 2}, &w, &failed), WEFT_OK);
    assert_int_equal(w.count, 1);
    static const int8_t axes[4][2] = {{2, 3}, {0}, {1}, {0}};
    static const int8_t counts[4] = {2, 0, 1, 1};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(w.split[0][i].count, counts[i]);
        assert_memory_equal(w.split[0][i].axis, axes[i], (size_t)counts[i]);
    }
    assert_int_equal(cut_each(&mesh, 0, NULL, &w, &failed), WEFT_OK);
    assert_int_equal(w.count, 1);
    assert_int_equal(cut_each(&mesh, 3, (int64_t[]){16, 1, 32}, &w, &failed), WEFT_E_ARG);
    assert_int_equal(failed, 2);
    ASSERT_MESSAGE("32 cuts|1|4|16");
}

/* Fewest axes first, then the outermost. */
static void ways_in_order(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(4, (int32_t[]){2, 4, 1, 2}, (const char *[]){"a", "b", "c", "d"});
    static const struct {
        int count;
        int64_t cuts[2];
        const char *all;
    } cases[] = {
        {1, {2}, "a; d; "},        {1, {4}, "b; ad; "},       {2, {2, 2}, "a,d; d,a; "},
        {2, {4, 2}, "b,a; b,d; "}, {2, {8, 1}, "ab,; bd,; "}, {2, {1, 16}, ",abd; "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ways w;
        int failed = -1;
        char text[128] = "";
        assert_int_equal(cut_each(&mesh, cases[i].count, cases[i].cuts, &w, &failed), WEFT_OK);
        for (int k = 0; k < w.count; k++)
            for (int f = 0; f < cases[i].count; f++) {
                for (int a = 0; a < w.split[k][f].count; a++)
                    strcat(text, mesh.axis[w.split[k][f].axis[a]].name);
                strcat(text, f + 1 < cases[i].count ? "," : "; ");
            }
        assert_string_equal(text, cases[i].all);
    }
}

static weft_status refuse_second(void *context, const wefti_dim_split *splits) {
    int *visits = context;
    (void)splits;
    return ++*visits == 2 ? WEFT_E_IO : WEFT_OK;
}

static void a_visit_that_fails_ends_it(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(3, (int32_t[]){2, 2, 2}, (const char *[]){"a", "b", "c"});
    int visits = 0, failed = -1;
    assert_int_equal(wefti_cut_each(&mesh, 1, (int64_t[]){2}, refuse_second, &visits, &failed),
                     WEFT_E_IO);
    assert_int_equal(visits, 2);
    assert_int_equal(failed, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_and_coordinates),
        cmocka_unit_test(illegal_meshes),
        cmocka_unit_test(parts),
        cmocka_unit_test(slices_of_a_product),
        cmocka_unit_test(slices_of_several_axes),
        cmocka_unit_test(shapes_of_shards),
        cmocka_unit_test(normal_form),
        cmocka_unit_test(illegal_layouts),
        cmocka_unit_test(text),
        cmocka_unit_test(longest_text),
        cmocka_unit_test(illegal_text),
        cmocka_unit_test(maps),
        cmocka_unit_test(cuts),
        cmocka_unit_test(cuts_together),
        cmocka_unit_test(ways_in_order),
        cmocka_unit_test(a_visit_that_fails_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
