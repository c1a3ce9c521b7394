/* MindSpore's greedy sequence: its documented sequences and volumes, its exhaustive list of cases,
 * and that our routes never move more. */
#include "support.h"

#include "simulate.h"
#include "layout/greedy.h"
#include "layout/tensor_map.h"

/* "G(d0,a2)": moves as MindSpore writes them; dK a dimension of the tensor, aK an axis counted from
 * the right, A(to<-from, axis). */
static void name_move(const wefti_mesh *mesh, const wefti_layout *from, const wefti_move *move,
                      char *out, size_t room) {
    int gains = -1, loses = -1;
    for (int d = 0; d < from->rank; d++) {
        if (move->to.dim[d].count > from->dim[d].count) gains = d;
        if (move->to.dim[d].count < from->dim[d].count) loses = d;
    }
    int axis = mesh->axes - 1 - __builtin_ctz(move->axes);
    if (gains >= 0 && loses >= 0)
        (void)snprintf(out, room, "A(d%d<-d%d,a%d)", gains, loses, axis);
    else
        (void)snprintf(out, room, "%c(d%d,a%d)", gains >= 0 ? 'S' : 'G', gains >= 0 ? gains : loses,
                       axis);
}

static void name_route(const wefti_mesh *mesh, const wefti_layout *from, const wefti_route *route,
                       char *out, size_t room) {
    out[0] = 0;
    for (int i = 0; i < route->moves; i++) {
        char move[48];
        name_move(mesh, i ? &route->move[i - 1].to : from, &route->move[i], move, sizeof move);
        size_t used = strlen(out);
        (void)snprintf(out + used, room - used, "%s%s", i ? " " : "", move);
    }
}

static void documented_sequences(void **state) {
    (void)state;
    const struct {
        int32_t matrix[3];
        int k, rank;
        int32_t from[3], to[3];
        const char *gathers;
        int gathered; /* eighths of the tensor received */
        const char *exchanges;
        int exchanged, best; /* ours at most */
    } rows[] = {
        {{2, 2, 2}, 3, 2, {2, -1}, {-1, 2}, "G(d0,a2) S(d1,a2)", 4, "A(d1<-d0,a2)", 2, 2},
        {{2, 2, 2},
         3,
         2,
         {2, 1},
         {1, 2},
         "G(d0,a2) G(d1,a1) S(d0,a1) S(d1,a2)",
         6,
         "G(d0,a2) A(d0<-d1,a1) S(d1,a2)",
         4,
         2},
        {{2, 2, 2}, 3, 2, {2, 1}, {2, -1}, "G(d1,a1)", 2, "G(d1,a1)", 2, 2},
        {{2, 2, 2}, 3, 2, {2, 1}, {-1, -1}, "G(d0,a2) G(d1,a1)", 6, "G(d0,a2) G(d1,a1)", 6, 6},
        {{2, 2, 2}, 3, 2, {-1, -1}, {2, 0}, "S(d0,a2) S(d1,a0)", 0, "S(d0,a2) S(d1,a0)", 0, 0},
        {{2, 2, 2}, 3, 2, {2, 1}, {2, 0}, "G(d1,a1) S(d1,a0)", 2, "G(d1,a1) S(d1,a0)", 2, 2},
        {{2, 2, 2},
         3,
         3,
         {2, -1, 0},
         {2, 1, -1},
         "S(d1,a1) G(d2,a0)",
         1,
         "S(d1,a1) G(d2,a0)",
         1,
         1},
        {{2, 2, 2},
         3,
         3,
         {2, 1, 0},
         {0, 2, 1},
         "G(d0,a2) G(d2,a0) S(d0,a0) G(d1,a1) S(d2,a1) S(d1,a2)",
         5,
         "G(d0,a2) A(d0<-d2,a0) A(d2<-d1,a1) S(d1,a2)",
         3,
         1},
        {{4, 2},
         2,
         2,
         {1, 0},
         {0, 1},
         "G(d0,a1) G(d1,a0) S(d0,a0) S(d1,a1)",
         7,
         "G(d0,a1) A(d0<-d1,a0) S(d1,a1)",
         5,
         1},
    };
    const weft_desc whole = weft_desc_of(WEFT_F32, 3, (int64_t[]){8, 8, 8});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        wefti_mesh mesh;
        wefti_layout from, to;
        weft_desc tensor = whole;
        tensor.rank = rows[i].rank;
        assert_int_equal(
            layout_from_map(rows[i].matrix, rows[i].k, rows[i].from, rows[i].rank, &mesh, &from),
            WEFT_OK);
        assert_int_equal(
            layout_from_map(rows[i].matrix, rows[i].k, rows[i].to, rows[i].rank, &mesh, &to),
            WEFT_OK);
        int64_t eighth = weft_desc_bytes(&tensor) / 8;
        wefti_route route;
        char names[200];
        assert_int_equal(greedy_route(&mesh, &tensor, &from, &to, false, &route), WEFT_OK);
        name_route(&mesh, &from, &route, names, sizeof names);
        assert_string_equal(names, rows[i].gathers);
        assert_int_equal(route.bytes, rows[i].gathered * eighth);
        assert_int_equal(greedy_route(&mesh, &tensor, &from, &to, true, &route), WEFT_OK);
        name_route(&mesh, &from, &route, names, sizeof names);
        assert_string_equal(names, rows[i].exchanges);
        assert_int_equal(route.bytes, rows[i].exchanged * eighth);
        assert_int_equal(wefti_redistribute(&mesh, &tensor, &from, &to, 0, &route), WEFT_OK);
        assert_int_equal(route.bytes, rows[i].best * eighth);
    }
}

/* ---- all cases ---- */

enum { MAPS_MAX = 64 };

static int list_maps(int k, int rank, int32_t (*maps)[3]) {
    int count = 0, all = 1;
    for (int d = 0; d < rank; d++) all *= k + 1;
    for (int code = 0; code < all; code++) {
        int rest = code, used = 0;
        bool injective = true;
        for (int d = 0; d < rank; d++) {
            int axis = rest % (k + 1) - 1;
            rest /= k + 1;
            if (axis >= 0 && used >> axis & 1) injective = false;
            if (axis >= 0) used |= 1 << axis;
            maps[count][d] = axis;
        }
        count += injective;
    }
    return count;
}

/* Whether every dimension that `from` splits is split the same by `to`. */
static bool refines(const int32_t *from, const int32_t *to, int rank) {
    for (int d = 0; d < rank; d++)
        if (from[d] >= 0 && from[d] != to[d]) return false;
    return true;
}

typedef struct tally {
    int cases, less, free;
} tally;

static void all_maps(const int32_t *matrix, int k, int rank, const int64_t *shape, tally *tally) {
    static int32_t maps[MAPS_MAX][3];
    int count = list_maps(k, rank, maps);
    const weft_desc whole = weft_desc_of(WEFT_F32, rank, shape);
    for (int p = 0; p < count * count; p++) {
        const int32_t *a = maps[p / count], *b = maps[p % count];
        wefti_mesh mesh;
        wefti_layout from, to;
        wefti_route ours, greedy;
        assert_int_equal(layout_from_map(matrix, k, a, rank, &mesh, &from), WEFT_OK);
        assert_int_equal(layout_from_map(matrix, k, b, rank, &mesh, &to), WEFT_OK);
        for (int axis = 0; axis < k; axis++) mesh.axis[axis].link.seconds_per_byte = 1e-9;
        assert_int_equal(wefti_redistribute(&mesh, &whole, &from, &to, 0, &ours), WEFT_OK);
        assert_true(sim_route(&mesh, &whole, &from, &to, &ours));
        if (refines(a, b, rank)) {
            assert_true(ours.bytes == 0 && ours.moves <= 1);
            tally->free++;
        }
        for (int exchange = 0; exchange < 2; exchange++) {
            assert_int_equal(greedy_route(&mesh, &whole, &from, &to, exchange, &greedy), WEFT_OK);
            assert_true(sim_route(&mesh, &whole, &from, &to, &greedy));
            if (ours.bytes > greedy.bytes) {
                print_route(&mesh, &whole, &from, &to, &ours);
                print_route(&mesh, &whole, &from, &to, &greedy);
                fail_msg("the greedy sequence moves less");
            }
            bool swap = rank == 2 && a[0] >= 0 && a[1] >= 0 && a[0] == b[1] && a[1] == b[0];
            assert_true(!swap || ours.bytes < greedy.bytes);
            tally->less += ours.bytes < greedy.bytes;
            tally->cases++;
        }
    }
}

static void all_documented_cases(void **state) {
    (void)state;
    const struct {
        int k;
        int32_t matrix[3];
    } matrices[] = {
        {2, {2, 2}}, {2, {2, 3}}, {3, {2, 2, 2}}, {2, {4, 2}}, {3, {2, 3, 2}},
    };
    tally even = {0}, uneven = {0};
    for (size_t m = 0; m < sizeof matrices / sizeof *matrices; m++)
        for (int rank = 1; rank <= 3; rank++) {
            const int64_t cuts = matrices[m].matrix[1] == 3 || matrices[m].k == 3 ? 6 : 4;
            all_maps(matrices[m].matrix, matrices[m].k, rank,
                     (int64_t[]){cuts, cuts, rank > 2 ? cuts : 1}, &even);
            all_maps(matrices[m].matrix, matrices[m].k, rank, (int64_t[]){7, 5, 3}, &uneven);
        }
    assert_int_equal(even.cases, 6726);
    assert_true(even.less > 1000 && even.free > 300);
    printf("of %d cases %d move less than the greedy sequence (uneven sizes: %d)\n", even.cases,
           even.less, uneven.less);
}

static void not_for_the_greedy_sequence(void **state) {
    (void)state;
    wefti_mesh mesh = {.axes = 2, .axis = {{.name = "a", .size = 2}, {.name = "b", .size = 2}}};
    weft_desc whole = weft_desc_of(WEFT_F32, 1, (int64_t[]){8});
    const char *refused[] = {"[a+b]", "[-] sum(a)", "[-] max(a)"};
    wefti_layout none = wefti_layout_replicated(1), other;
    wefti_route route;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(wefti_layout_parse(refused[i], &mesh, &other), WEFT_OK);
        assert_int_equal(greedy_route(&mesh, &whole, &none, &other, true, &route), WEFT_E_NO_IMPL);
        assert_int_equal(greedy_route(&mesh, &whole, &other, &none, true, &route), WEFT_E_NO_IMPL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_sequences),
        cmocka_unit_test(all_documented_cases),
        cmocka_unit_test(not_for_the_greedy_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
