/* Redistribution on every pair of layouts of small meshes. The route carries the right data to
 * every rank, and its cost is the least possible. The test finds the least cost in another way. It
 * lists all layouts and classifies every pair by the definition of each move. It prices a pair by
 * traversing the regions of all devices, and relaxes shortest paths over the whole list. */
#include "support.h"

#include "simulate.h"

enum { LAYOUTS_MAX = 400 };
static uint64_t random_seed;

static wefti_layout layouts[LAYOUTS_MAX];
static int count;
static double edge[LAYOUTS_MAX][LAYOUTS_MAX]; /* seconds from layout i to j in one move */

/* ---- all layouts ---- */

static void list_layouts(const wefti_mesh *mesh, const weft_desc *whole, wefti_layout *layout,
                         int first_dim, wefti_axes left) {
    /* the axes left are partial, or not used */
    for (wefti_axes some = left;; some = (some - 1) & left) {
        for (int max = 0; max <= (some != 0); max++) {
            wefti_layout next = *layout;
            if (max)
                next.max = some;
            else
                next.sum = some;
            assert_true(count < LAYOUTS_MAX);
            layouts[count++] = next;
        }
        if (!some) break;
    }
    for (int d = first_dim; d < whole->rank; d++)
        for (int8_t a = 0; a < mesh->axes; a++) {
            if (!(left >> a & 1u)) continue;
            wefti_layout next = *layout;
            next.dim[d].axis[next.dim[d].count++] = a;
            list_layouts(mesh, whole, &next, d, left & ~(1u << a));
        }
}

/* ---- all edges, by definition ---- */

/* Axes that list b has beyond list a when b begins with a; -1: it does not. */
static int beyond(const wefti_dim_split *a, const wefti_dim_split *b, wefti_axes *axes) {
    if (b->count < a->count) return -1;
    for (int i = 0; i < a->count; i++)
        if (a->axis[i] != b->axis[i]) return -1;
    for (int i = a->count; i < b->count; i++) *axes |= 1u << b->axis[i];
    return b->count - a->count;
}

/* Whether the axes of each dimension of b begin with the axes of the same dimension of a. */
static bool begins(const wefti_layout *a, const wefti_layout *b, wefti_axes *axes) {
    for (int d = 0; d < a->rank; d++)
        if (beyond(&a->dim[d], &b->dim[d], axes) < 0) return false;
    return true;
}

static double over(const wefti_mesh *mesh, wefti_axes axes, int64_t bytes) {
    double latency = 0, slope = 0;
    for (int a = 0; a < mesh->axes; a++)
        if (axes >> a & 1u) {
            latency = fmax(latency, mesh->axis[a].link.latency);
            slope = fmax(slope, mesh->axis[a].link.seconds_per_byte);
        }
    return latency + (double)bytes * slope;
}

typedef struct pair {
    const wefti_mesh *mesh;
    const weft_desc *whole;
    int32_t ranks;
    const wefti_region *a, *b;           /* of all ranks, before and after */
    const wefti_region *grid_a, *grid_b; /* the same for a tensor so large that no part is empty */
} pair;

static bool equal_regions(const wefti_region *a, const wefti_region *b, int rank) {
    return !memcmp(a->begin, b->begin, (size_t)rank * sizeof *a->begin) &&
           !memcmp(a->size, b->size, (size_t)rank * sizeof *a->size);
}

/* Whether each rank finds its whole region with one rank that differs along `axes` only. */
static bool permutes_along(const pair *p, wefti_axes axes) {
    for (int32_t r = 0; r < p->ranks; r++) {
        int32_t group[SIM_RANKS], members = wefti_mesh_group(p->mesh, r, axes, group);
        bool found = false;
        for (int32_t m = 0; m < members && !found; m++)
            found = equal_regions(&p->grid_a[group[m]], &p->grid_b[r], p->whole->rank);
        if (!found) return false;
    }
    return true;
}

/* Whether each rank finds all parts of its region with ranks that differ along `axes` only. Regions
 * of one layout are equal or do not overlap. */
static bool found_along(const pair *p, wefti_axes axes) {
    for (int32_t r = 0; r < p->ranks; r++) {
        int32_t group[SIM_RANKS], members = wefti_mesh_group(p->mesh, r, axes, group);
        int64_t found = 0;
        for (int32_t m = 0; m < members; m++) {
            const wefti_region *have = &p->grid_a[group[m]];
            wefti_region both;
            bool again = false;
            for (int32_t k = 0; k < m && !again; k++)
                again = equal_regions(&p->grid_a[group[k]], have, p->whole->rank);
            if (!again && wefti_region_intersect(have, &p->grid_b[r], p->whole->rank, &both))
                found += wefti_region_elems(&both, p->whole->rank);
        }
        if (found < wefti_region_elems(&p->grid_b[r], p->whole->rank)) return false;
    }
    return true;
}

/* The most bytes of its region that any rank lacks. */
static int64_t lacking(const pair *p) {
    int64_t most = 0;
    for (int32_t r = 0; r < p->ranks; r++) {
        wefti_region both;
        int64_t wanted = wefti_region_elems(&p->b[r], p->whole->rank);
        if (wefti_region_intersect(&p->a[r], &p->b[r], p->whole->rank, &both))
            wanted -= wefti_region_elems(&both, p->whole->rank);
        if (wanted > most) most = wanted;
    }
    return most * (int64_t)weft_dtype_bytes(p->whole->dtype);
}

static int64_t largest(const pair *p) {
    int64_t most = 0;
    for (int32_t r = 0; r < p->ranks; r++) {
        int64_t size = wefti_region_elems(&p->b[r], p->whole->rank);
        if (size > most) most = size;
    }
    return most * (int64_t)weft_dtype_bytes(p->whole->dtype);
}

static double permutation(const pair *p) {
    double best = INFINITY;
    for (wefti_axes axes = 1; axes < 1u << p->mesh->axes; axes++)
        if (permutes_along(p, axes)) best = fmin(best, over(p->mesh, axes, lacking(p)));
    return best;
}

/* Every rank gets what it lacks. */
static double general_exchange(const pair *p) {
    double best = INFINITY;
    for (wefti_axes axes = 1; axes < 1u << p->mesh->axes; axes++) {
        double here = over(p->mesh, axes, lacking(p));
        if (here < best && found_along(p, axes)) best = here;
    }
    return best;
}

/* An axis list leaves the end of one dimension for the end of another. */
static double exchange(const pair *p, const wefti_layout *a, const wefti_layout *b) {
    int from = -1, to = -1;
    wefti_axes left = 0, arrived = 0;
    for (int d = 0; d < a->rank; d++) {
        wefti_axes here = 0;
        if (beyond(&a->dim[d], &b->dim[d], &here) == 0) continue;
        if (beyond(&a->dim[d], &b->dim[d], &here) > 0) {
            if (to >= 0) return INFINITY;
            to = d;
            arrived = here;
        } else if (beyond(&b->dim[d], &a->dim[d], &here) > 0) {
            if (from >= 0) return INFINITY;
            from = d;
            left = here;
        } else
            return INFINITY;
    }
    if (from < 0 || to < 0 || left != arrived) return INFINITY;
    const int8_t *gone = a->dim[from].axis + b->dim[from].count;
    if (memcmp(gone, b->dim[to].axis + a->dim[to].count, (size_t)__builtin_popcount(left)))
        return INFINITY;
    return over(p->mesh, left, lacking(p));
}

static double price(const pair *p, const wefti_layout *a, const wefti_layout *b) {
    wefti_axes had = a->sum | a->max, has = b->sum | b->max, longer = 0, shorter = 0;
    bool extends = begins(a, b, &longer), gathers = begins(b, a, &shorter);
    bool same_dims = extends && gathers, same_sum = a->sum == b->sum, same_max = a->max == b->max;
    if (same_sum && same_max) {
        if (extends) return 0;
        if (gathers) return over(p->mesh, shorter, lacking(p));
        double best = exchange(p, a, b);
        for (int d = 0; d < a->rank; d++)
            if (wefti_layout_parts(a, p->mesh, d) != wefti_layout_parts(b, p->mesh, d)) return best;
        return fmin(best, permutation(p));
    }
    if (!same_sum && !same_max) return INFINITY;
    if (same_dims && (has & had) == had) return 0; /* zeros along the new axes */
    wefti_axes gone = had & ~has;
    if ((has & had) != has) return INFINITY;
    int64_t g = wefti_mesh_product(p->mesh, gone);
    if (same_dims) return over(p->mesh, gone, (2 * (g - 1) * largest(p) + g - 1) / g);
    if (extends && longer == gone) return over(p->mesh, gone, (g - 1) * largest(p));
    return INFINITY;
}

static wefti_region regions[LAYOUTS_MAX][SIM_RANKS], grid[LAYOUTS_MAX][SIM_RANKS];
static double last[LAYOUTS_MAX][LAYOUTS_MAX]; /* of the general exchange; negative: not known yet */

static void list_edges(const wefti_mesh *mesh, const weft_desc *whole) {
    weft_desc large = *whole;
    for (int d = 0; d < whole->rank; d++) large.shape[d] = 5040;
    int32_t ranks = wefti_mesh_size(mesh);
    for (int i = 0; i < count; i++)
        for (int32_t r = 0; r < ranks; r++) {
            wefti_layout_region(&layouts[i], mesh, whole, r, &regions[i][r]);
            wefti_layout_region(&layouts[i], mesh, &large, r, &grid[i][r]);
        }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            pair p = {mesh, whole, ranks, regions[i], regions[j], grid[i], grid[j]};
            last[i][j] = -1;
            edge[i][j] = i == j ? 0 : price(&p, &layouts[i], &layouts[j]);
        }
}

/* ---- shortest paths from layout `from` to all others, over layouts that use axes of both ends
 * only, and partial values of their kinds only ---- */

static int before[LAYOUTS_MAX];

/* One move from layout i to the goal. */
static double last_move(const wefti_mesh *mesh, const weft_desc *whole, int i, int to) {
    if (layouts[i].sum != layouts[to].sum || layouts[i].max != layouts[to].max) return edge[i][to];
    if (last[i][to] < 0) {
        pair p = {mesh, whole, wefti_mesh_size(mesh), regions[i], regions[to], grid[i], grid[to]};
        last[i][to] = general_exchange(&p);
    }
    return fmin(edge[i][to], last[i][to]);
}

static double shortest(const wefti_mesh *mesh, const weft_desc *whole, int from, int to) {
    static double best[LAYOUTS_MAX];
    static bool done[LAYOUTS_MAX];
    wefti_axes axes = wefti_layout_axes(&layouts[from]) | wefti_layout_axes(&layouts[to]);
    wefti_axes sum = layouts[from].sum | layouts[to].sum, max = layouts[from].max | layouts[to].max;
    for (int i = 0; i < count; i++) {
        best[i] = i == from ? 0 : INFINITY;
        done[i] = wefti_layout_axes(&layouts[i]) & ~axes || layouts[i].sum & ~sum ||
                  layouts[i].max & ~max;
    }
    for (;;) {
        int near = -1;
        for (int i = 0; i < count; i++)
            if (!done[i] && (near < 0 || best[i] < best[near])) near = i;
        if (near == to) return best[to];
        done[near] = true;
        for (int i = 0; i < count; i++) {
            if (done[i]) continue;
            double cost = i == to ? last_move(mesh, whole, near, to) : edge[near][i];
            if (best[near] + cost >= best[i]) continue;
            best[i] = best[near] + cost;
            before[i] = near;
        }
    }
}

static wefti_mesh mesh_of(int axes, const int32_t *sizes) {
    wefti_mesh mesh = {.axes = axes};
    for (int a = 0; a < axes; a++) {
        mesh.axis[a].size = sizes[a];
        (void)snprintf(mesh.axis[a].name, sizeof mesh.axis[a].name, "%c", 'a' + a);
    }
    return mesh;
}

/* Bandwidth only; the outer axis slow; latency that decides; latency and bandwidth of one size. */
static void link_mesh(wefti_mesh *mesh, int kind) {
    for (int a = 0; a < mesh->axes; a++) {
        wefti_link *link = &mesh->axis[a].link;
        if (kind == 0) *link = (wefti_link){0, 1e-9};
        if (kind == 1) *link = (wefti_link){1e-6 * (mesh->axes - a), 1e-7 / (1 + 2 * a)};
        if (kind == 2) *link = (wefti_link){1e-3, 1e-9};
        if (kind == 3) *link = (wefti_link){2e-8, 1e-9 * (1 + a)};
    }
}

static void check_pair(const wefti_mesh *mesh, const weft_desc *whole, int from, int to) {
    wefti_route route;
    weft_status status = wefti_redistribute(mesh, whole, &layouts[from], &layouts[to], 0, &route);
    if (status < 0) fail_msg("%s", weft_error_message());
    double best = shortest(mesh, whole, from, to);
    if (fabs(route.seconds - best) > 1e-9 * best + 1e-14) {
        print_route(mesh, whole, &layouts[from], &layouts[to], &route);
        printf("better, backwards:\n");
        for (int i = to; i != from; i = before[i])
            printf("  %s, %g s\n", wefti_layout_text(&layouts[i], mesh).text,
                   last_move(mesh, whole, before[i], i));
        fail_msg("the route takes %g s, the best %g s", route.seconds, best);
    }
    if (!sim_route(mesh, whole, &layouts[from], &layouts[to], &route)) fail_msg("wrong data");
}

static void complete_and_cheapest(void **state) {
    (void)state;
    const struct {
        int axes;
        int32_t size[3];
    } meshes[] = {{1, {2}},    {1, {3}},    {1, {4}},    {1, {8}},       {2, {2, 2}},
                  {2, {2, 3}}, {2, {2, 4}}, {2, {4, 2}}, {3, {2, 2, 2}}, {3, {2, 3, 2}}};
    const weft_desc shapes[] = {
        weft_desc_of(WEFT_F32, 0, NULL),
        weft_desc_of(WEFT_F32, 1, (int64_t[]){7}),
        weft_desc_of(WEFT_BF16, 1, (int64_t[]){24}),
        weft_desc_of(WEFT_F32, 2, (int64_t[]){4, 8}),
        weft_desc_of(WEFT_F32, 2, (int64_t[]){5, 7}),
        weft_desc_of(WEFT_F32, 3, (int64_t[]){8, 2, 4}),
        weft_desc_of(WEFT_F32, 3, (int64_t[]){5, 1, 7}),
    };
    enum { PAIRS = 1500 }; /* of each mesh and shape: all, or as many drawn */
    int64_t pairs = 0, drawn = 0;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (size_t w = 0; w < sizeof shapes / sizeof *shapes; w++) {
            wefti_mesh mesh = mesh_of(meshes[m].axes, meshes[m].size);
            link_mesh(&mesh, (int)(m + w) % 4);
            wefti_layout none = wefti_layout_replicated(shapes[w].rank);
            count = 0;
            list_layouts(&mesh, &shapes[w], &none, 0, (1u << mesh.axes) - 1);
            list_edges(&mesh, &shapes[w]);
            int64_t all = (int64_t)count * count, step = all <= PAIRS ? all : PAIRS;
            pairs += all;
            drawn += step;
            for (int64_t i = 0; i < step; i++) {
                int64_t p = all <= PAIRS ? i
                                         : (int64_t)wefti_philox_permute(
                                               random_seed, m * 16 + w, (uint64_t)all, (uint64_t)i);
                check_pair(&mesh, &shapes[w], (int)(p / count), (int)(p % count));
            }
        }
    printf("%lld of %lld pairs of layouts\n", (long long)drawn, (long long)pairs);
}

int main(void) {
    random_seed = test_seed(20240611);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(complete_and_cheapest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
