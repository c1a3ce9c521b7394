/* Particular routes: the expected collectives, units, bounds, refused requests, cached routes, and
 * failing allocations. */
#include "support.h"

#include "base/fault.h"
#include "simulate.h"

static uint64_t random_seed;

static wefti_mesh mesh_of(int32_t dp, int32_t sp, int32_t tp) {
    const wefti_link link = {1e-6, 1e-9};
    return (wefti_mesh){.axes = 3, .axis = {{"dp", dp, link}, {"sp", sp, link}, {"tp", tp, link}}};
}

static wefti_layout parse(const char *text, const wefti_mesh *mesh) {
    wefti_layout layout;
    if (wefti_layout_parse(text, mesh, &layout) < 0) fail_msg("%s", weft_error_message());
    return layout;
}

static const char *kind_text(const wefti_move *move) {
    if (move->kind == WEFTI_MOVE_SLICE) return "slice";
    if (move->kind == WEFTI_MOVE_TO_PARTIAL) return "to_partial";
    return wefti_transfer_kind_text(move->transfer);
}

/* "all_gather(tp) [dp, -]; slice(sp) [dp, sp]" */
static void expect(const wefti_mesh *mesh, const weft_desc *whole, const char *from_text,
                   const char *to_text, const char *moves, int64_t bytes) {
    wefti_layout from = parse(from_text, mesh), to = parse(to_text, mesh);
    wefti_route route;
    if (wefti_redistribute(mesh, whole, &from, &to, 0, &route) < 0)
        fail_msg("%s", weft_error_message());
    char text[1000] = "";
    for (int i = 0; i < route.moves; i++) {
        const wefti_move *move = &route.move[i];
        size_t used = strlen(text);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s(", i ? "; " : "",
                                 kind_text(move));
        for (int a = 0; a < mesh->axes; a++)
            if (move->axes >> a & 1u)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                         text[used - 1] == '(' ? "" : " ", mesh->axis[a].name);
        (void)snprintf(text + used, sizeof text - used, ") %s",
                       wefti_layout_text(&move->to, mesh).text);
    }
    assert_string_equal(text, moves);
    assert_int_equal(route.bytes, bytes);
    assert_true(sim_route(mesh, whole, &from, &to, &route));
}

static void expected_collectives(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(2, 2, 2);
    weft_desc whole = weft_desc_of(WEFT_F32, 3, (int64_t[]){4, 8, 16}); /* 2048 bytes */
    /* Megatron: row-parallel product, and the same with the sequence split */
    expect(&mesh, &whole, "[dp, -, -] sum(tp)", "[dp, -, -]", "all_reduce(tp) [dp, -, -]", 1024);
    expect(&mesh, &whole, "[dp, -, -] sum(tp)", "[dp, tp, -]", "reduce_scatter(tp) [dp, tp, -]",
           512);
    expect(&mesh, &whole, "[dp, tp, -]", "[dp, -, -]", "all_gather(tp) [dp, -, -]", 512);
    /* Ulysses: the sequence for the heads */
    expect(&mesh, &whole, "[dp, sp, -]", "[dp, -, sp]", "all_to_all(sp) [dp, -, sp]", 256);
    /* data-parallel gradients; sharded */
    expect(&mesh, &whole, "[-, -, tp] sum(dp, sp)", "[-, -, tp]", "all_reduce(dp sp) [-, -, tp]",
           1536);
    expect(&mesh, &whole, "[-, -, tp] sum(dp, sp)", "[dp+sp, -, tp]",
           "reduce_scatter(dp sp) [dp+sp, -, tp]", 768);
    expect(&mesh, &whole, "[dp, sp, tp]", "[-, -, -]", "all_gather(dp sp tp) [-, -, -]", 1792);
    expect(&mesh, &whole, "[-, -, -] max(tp)", "[-, -, -]", "all_reduce(tp) [-, -, -]", 2048);
    /* order of axes, one axis for another, two dimensions' axes exchanged */
    expect(&mesh, &whole, "[dp+sp, -, -]", "[sp+dp, -, -]", "permute(dp sp) [sp+dp, -, -]", 512);
    expect(&mesh, &whole, "[dp, -, -]", "[tp, -, -]", "permute(dp) [tp, -, -]", 1024);
    expect(&mesh, &whole, "[dp, tp, -]", "[tp, dp, -]", "permute(dp tp) [tp, dp, -]", 512);
    /* nothing to send */
    expect(&mesh, &whole, "[dp, -, -]", "[dp, -, -]", "", 0);
    expect(&mesh, &whole, "[dp, -, -]", "[dp+sp, -, tp]", "slice(sp tp) [dp+sp, -, tp]", 0);
    expect(&mesh, &whole, "[-, -, -]", "[-, -, -] sum(dp, tp)",
           "to_partial(dp tp) [-, -, -] sum(dp, tp)", 0);
    expect(&mesh, &whole, "[-, tp, -]", "[-, tp, -] max(sp)", "to_partial(sp) [-, tp, -] max(sp)",
           0);
    /* where the cheaper plain collectives do as well as the general exchange */
    expect(&mesh, &whole, "[dp, -, -]", "[-, tp, -]",
           "slice(tp) [dp, tp, -]; all_gather(dp) [-, "
           "tp, -]",
           512);
    /* axes of size 1 are nothing at all */
    wefti_mesh flat = mesh_of(2, 1, 2);
    expect(&flat, &whole, "[sp, -, -]", "[-, sp, -]", "", 0);
    expect(&flat, &whole, "[-, -, -] sum(sp)", "[-, -, -]", "", 0);
}

/* A slow outer axis transfers only data that the fast inner axes have reduced already. */
static void slow_links(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(2, 1, 4);
    mesh.axis[0].link = (wefti_link){1e-9, 1e-8};
    mesh.axis[2].link = (wefti_link){1e-9, 1e-10};
    weft_desc whole = weft_desc_of(WEFT_F32, 1, (int64_t[]){400});
    expect(&mesh, &whole, "[-] sum(dp, tp)", "[-]",
           "reduce_scatter(tp) [tp] sum(dp); all_reduce(dp) [tp]; all_gather(tp) [-]",
           1200 + 400 + 1200);
    mesh.axis[0].link.latency = mesh.axis[2].link.latency = 1; /* now it is better to go once */
    expect(&mesh, &whole, "[-] sum(dp, tp)", "[-]", "all_reduce(dp tp) [-]", 2800);
}

/* Layouts in units: the right data for all pairs, at no more bytes than gathering and slicing. */
static void units(void **state) {
    (void)state;
    const int32_t sizes[][2] = {{2, 2}, {2, 3}, {3, 2}, {2, 4}};
    const int64_t shapes[][2] = {{12, 5}, {18, 6}, {30, 4}};
    for (int m = 0; m < 4; m++)
        for (int w = 0; w < 3; w++) {
            wefti_mesh mesh = mesh_of(sizes[m][0], 1, sizes[m][1]);
            weft_desc whole = weft_desc_of(WEFT_F32, 2, shapes[w]);
            const char *forms[] = {"[-, -]",     "[dp, -]",         "[tp, -]",       "[dp+tp, -]",
                                   "[tp+dp, -]", "[dp, tp]",        "[tp, dp]",      "[-, dp+tp]",
                                   "[-, tp]",    "[tp, -] sum(dp)", "[-, -] max(tp)"};
            enum { FORMS = sizeof forms / sizeof *forms, UNITS = 4 };
            const int64_t unit[UNITS] = {1, 2, 3, 6};
            for (int p = 0; p < FORMS * UNITS * FORMS * UNITS; p++) {
                if (wefti_philox_u32(random_seed, (uint64_t)(m * 3 + w), (uint64_t)p) % 4) continue;
                wefti_layout from = parse(forms[p % FORMS], &mesh);
                wefti_layout to = parse(forms[p / FORMS % FORMS], &mesh);
                from.dim[0].unit = unit[p / FORMS / FORMS % UNITS];
                to.dim[0].unit = unit[p / FORMS / FORMS / UNITS];
                wefti_route route;
                if (wefti_redistribute(&mesh, &whole, &from, &to, 0, &route) < 0)
                    fail_msg("%s", weft_error_message());
                wefti_layout end = to;
                wefti_layout_normal(&end, &mesh, &whole);
                assert_true(!route.moves ||
                            wefti_layout_equal(&end, &route.move[route.moves - 1].to));
                if (!sim_route(&mesh, &whole, &from, &to, &route))
                    fail_msg("another result than by the plain copy");
            }
        }
    /* 5 heads over 2: the split by elements lies 1.5 heads off the split by heads */
    wefti_mesh mesh = mesh_of(1, 1, 2);
    weft_desc heads = weft_desc_of(WEFT_F32, 1, (int64_t[]){40});
    expect(&mesh, &heads, "[tp:8]", "[tp]", "all_to_all(tp) [tp]", 4 * 4);
    expect(&mesh, &heads, "[tp]", "[tp:8]", "all_to_all(tp) [tp:8]", 4 * 4);
    heads.shape[0] = 48; /* 6 heads: no difference */
    expect(&mesh, &heads, "[tp:8]", "[tp]", "", 0);
    /* the outer axis cuts alike in units and without: only the inner is gathered */
    mesh = mesh_of(2, 1, 3);
    heads.shape[0] = 64;
    expect(&mesh, &heads, "[dp+tp:8]", "[dp]", "all_gather(tp) [dp]", 4 * 24);
    expect(&mesh, &heads, "[dp]", "[dp+tp:8]", "slice(tp) [dp+tp:8]", 0);
}

static int64_t largest_on_the_way(const wefti_mesh *mesh, const weft_desc *whole,
                                  const wefti_route *route) {
    int64_t most = 0;
    for (int i = 0; i < route->moves; i++)
        for (int32_t r = 0; r < wefti_mesh_size(mesh); r++) {
            weft_desc local = wefti_layout_local(&route->move[i].to, mesh, whole, r);
            if (weft_desc_bytes(&local) > most) most = weft_desc_bytes(&local);
        }
    return most;
}

static void bounds(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(2, 2, 2);
    mesh.axis[0].link.latency = mesh.axis[1].link.latency = mesh.axis[2].link.latency = 1;
    weft_desc whole = weft_desc_of(WEFT_F32, 2, (int64_t[]){8, 8}); /* 256 bytes */
    wefti_layout from = parse("[dp, -] sum(tp)", &mesh), to = parse("[-, dp] max(sp)", &mesh);
    wefti_route free_route, route;
    assert_int_equal(wefti_redistribute(&mesh, &whole, &from, &to, 0, &free_route), WEFT_OK);
    assert_true(sim_route(&mesh, &whole, &from, &to, &free_route));
    assert_int_equal(wefti_redistribute(&mesh, &whole, &from, &to, 128, &route), WEFT_OK);
    assert_true(largest_on_the_way(&mesh, &whole, &route) <= 128);
    assert_true(sim_route(&mesh, &whole, &from, &to, &route));
    assert_int_equal(wefti_redistribute(&mesh, &whole, &from, &to, 127, &route), WEFT_E_NOMEM);
    ASSERT_MESSAGE("at most 127 bytes");
    ASSERT_MESSAGE("itself needs 128");
    /* from split to partial one must pass the whole */
    from = parse("[dp, -]", &mesh);
    to = parse("[sp+tp, -] sum(dp)", &mesh);
    assert_int_equal(wefti_redistribute(&mesh, &whole, &from, &to, 64, &route), WEFT_OK);
    assert_true(largest_on_the_way(&mesh, &whole, &route) <= 64);
    assert_true(sim_route(&mesh, &whole, &from, &to, &route));
    /* equal layouts need nothing, whatever the bound */
    assert_int_equal(wefti_redistribute(&mesh, &whole, &from, &from, 1, &route), WEFT_OK);
    assert_int_equal(route.moves, 0);
}

static void refused(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(2, 2, 2);
    weft_desc whole = weft_desc_of(WEFT_F32, 2, (int64_t[]){8, 9});
    wefti_layout good = parse("[dp, -]", &mesh), bad = parse("[dp, tp:2]", &mesh);
    wefti_route route;
    assert_int_equal(wefti_redistribute(&mesh, &whole, &good, &bad, 0, &route), WEFT_E_ARG);
    ASSERT_MESSAGE("2|9");
    assert_int_equal(wefti_redistribute(&mesh, &whole, &bad, &good, 0, &route), WEFT_E_ARG);
    bad = parse("[dp]", &mesh);
    assert_int_equal(wefti_redistribute(&mesh, &whole, &good, &bad, 0, &route), WEFT_E_ARG);
    bad = parse("[-, -]", &mesh);
    assert_int_equal(wefti_redistribute(&mesh, &whole, &bad, &good, 0, &route), WEFT_OK);
    wefti_transfer *t;
    assert_int_equal(wefti_move_transfer(&mesh, &whole, &bad, &route.move[0], 0, &t), WEFT_E_ARG);
    ASSERT_MESSAGE("transferred");
}

static void kept(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(2, 2, 2);
    wefti_route_cache *cache;
    assert_int_equal(wefti_route_cache_create(&cache), WEFT_OK);
    const wefti_route *first[200], *again;
    wefti_layout from = parse("[dp, tp]", &mesh), to = parse("[tp, dp]", &mesh);
    for (int round = 0; round < 2; round++)
        for (int64_t n = 0; n < 200; n++) {
            weft_desc whole = weft_desc_of(WEFT_F32, 2, (int64_t[]){4 + n, 8});
            assert_int_equal(
                wefti_route_find(cache, &mesh, &whole, &from, &to, 0, round ? &again : &first[n]),
                WEFT_OK);
            if (round) assert_ptr_equal(again, first[n]);
            wefti_route fresh;
            assert_int_equal(wefti_redistribute(&mesh, &whole, &from, &to, 0, &fresh), WEFT_OK);
            assert_true(fresh.moves == first[n]->moves && fresh.bytes == first[n]->bytes &&
                        fresh.seconds == first[n]->seconds);
        }
    weft_desc whole = weft_desc_of(WEFT_F32, 2, (int64_t[]){4, 8});
    weft_desc half = weft_desc_of(WEFT_BF16, 2, (int64_t[]){4, 8});
    assert_int_equal(wefti_route_find(cache, &mesh, &whole, &to, &from, 0, &again), WEFT_OK);
    assert_ptr_not_equal(again, first[0]);
    assert_int_equal(wefti_route_find(cache, &mesh, &half, &from, &to, 0, &again), WEFT_OK);
    assert_int_equal(2 * again->bytes, first[0]->bytes);
    assert_int_equal(wefti_route_find(cache, &mesh, &whole, &from, &to, 1, &again), WEFT_E_NOMEM);
    wefti_mesh slower = mesh;
    slower.axis[0].link.latency = 1;
    assert_int_equal(wefti_route_find(cache, &slower, &whole, &from, &to, 0, &again), WEFT_OK);
    assert_true(again->seconds > 1);
    /* the same mesh elsewhere, and other forms of the same layouts */
    wefti_mesh moved = mesh;
    moved.first = 8;
    from.dim[0].unit = 2;
    assert_int_equal(wefti_route_find(cache, &moved, &whole, &from, &to, 0, &again), WEFT_OK);
    assert_ptr_equal(again, first[0]);
    assert_int_equal(wefti_route_find(cache, &mesh, &whole, &to, &to, 0, &again), WEFT_OK);
    assert_int_equal(again->moves, 0);
    wefti_route_cache_destroy(cache);
    wefti_route_cache_destroy(NULL);
}

/* A mesh that does not begin at rank 0. */
static void later_ranks(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(2, 1, 3);
    mesh.first = 10;
    weft_desc whole = weft_desc_of(WEFT_F32, 2, (int64_t[]){7, 6});
    expect(&mesh, &whole, "[dp, tp]", "[-, tp]", "all_gather(dp) [-, tp]", 4 * 4 * 2);
}

static weft_status use_memory(const wefti_mesh *mesh, const weft_desc *whole,
                              const wefti_layout *from, const wefti_layout *to) {
    wefti_route_cache *cache;
    WEFT_TRY(wefti_route_cache_create(&cache));
    const wefti_route *route;
    wefti_transfer *t = NULL, *copy = NULL;
    weft_status status = wefti_route_find(cache, mesh, whole, from, to, 0, &route);
    if (status >= 0) status = wefti_move_transfer(mesh, whole, from, &route->move[0], 3, &t);
    if (status >= 0) status = wefti_transfer_check(t);
    if (status >= 0) status = wefti_transfer_clone(t, &copy);
    wefti_free(copy);
    wefti_free(t);
    wefti_route_cache_destroy(cache);
    return status;
}

static void memory_runs_out(void **state) {
    (void)state;
    wefti_mesh mesh = mesh_of(2, 2, 2);
    weft_desc whole = weft_desc_of(WEFT_F32, 2, (int64_t[]){7, 6});
    wefti_layout from = parse("[dp, sp] sum(tp)", &mesh), to = parse("[tp+sp, -] max(dp)", &mesh);
    int failures = 0;
    for (int64_t n = 0;; n++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        weft_status status = use_memory(&mesh, &whole, &from, &to);
        int64_t calls = wefti_fault_count(WEFTI_FAULT_ALLOC);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (calls <= n) break; /* nothing failed any more */
        assert_int_equal(status, WEFT_E_NOMEM);
        failures++;
    }
    assert_true(failures >= 6);
}

int main(void) {
    random_seed = test_seed(99);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expected_collectives),
        cmocka_unit_test(slow_links),
        cmocka_unit_test(units),
        cmocka_unit_test(bounds),
        cmocka_unit_test(refused),
        cmocka_unit_test(kept),
        cmocka_unit_test(later_ranks),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
