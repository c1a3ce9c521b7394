/* Tensors with rows that are longer than WEFTI_HOME_BLOCK, in a world of four. They are written,
 * fed, read, saved, loaded and moved to another plan, block by block, and keep their bits.
 * (weft-test: threads) */
#include "session_models.h"

#include "base/io.h"
#include "device/home.h"
#include "session/session.h"
#include "world_fixture.h"

enum { RANKS = 4, HEIGHT = 2, WIDTH = WEFTI_HOME_BLOCK / 4 + 1000 };

typedef struct member {
    const char *dir;
    int rank;
} member;

static weft_status make_graph(weft_graph **out) {
    WEFT_TRY(weft_graph_create(out));
    weft_value x = weft_input(*out, "x", WEFT_DESC(WEFT_F32, RANKS, HEIGHT)),
               z = weft_input(*out, "z", WEFT_DESC(WEFT_F32, RANKS, WIDTH));
    weft_cell_begin(*out, "c");
    weft_value w =
        weft_param(*out, "w", WEFT_DESC(WEFT_F32, HEIGHT, WIDTH), (weft_init){WEFT_INIT_NORMAL, 1});
    x = weft_linear(*out, x, w, WEFT_NO_VALUE, false);
    x = weft_cell_end(*out, weft_add(*out, x, z));
    weft_loss(*out, weft_mean(*out, x, 0, NULL, false));
    return weft_graph_status(*out);
}

/* way 0: w is split by columns, and rows by "dp"; 1: w is split by rows. */
static weft_status make_session(const weft_graph *g, weft_world *world, int way,
                                weft_session **out) {
    weft_session_options o = weft_session_defaults();
    weft_plan *plan;
    o.world = world;
    o.threads = 1;
    o.optimizer.kind = WEFT_SGD;
    WEFT_TRY(weft_plan_create(RANKS, &plan));
    weft_status status = weft_plan_axis(plan, "dp", 2);
    if (status >= 0) status = weft_plan_axis(plan, "tp", 2);
    if (status >= 0)
        status = weft_plan_split_op(plan, "c:linear", way ? "m0=dp k=tp" : "m0=dp n0=tp");
    o.plan = plan;
    if (status >= 0) status = weft_session_create((weft_graph *)(uintptr_t)g, &o, out);
    weft_plan_destroy(plan);
    return status;
}

static float value(int64_t row, int64_t column) {
    return (float)(row * 3 + column % 9973);
}

static weft_status same_rows(weft_session *s, const char *name, int64_t first, int64_t rows,
                             float *room) {
    const size_t bytes = (size_t)(rows * WIDTH) * sizeof *room;
    memset(room, 0, bytes);
    TRY(first || rows < (*name == 'z' ? RANKS : HEIGHT)
            ? weft_session_read_rows(s, 0, name, first, rows ? room : NULL, bytes)
            : weft_session_read(s, 0, name, room, bytes));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < WIDTH; c++)
            if (room[r * WIDTH + c] != value(first + r, c)) return WEFT_E_BUG;
    return WEFT_OK;
}

static weft_status use(const member *m, const weft_graph *g, weft_world *world, float *room,
                       weft_session **s) {
    bool whole = false;
    TRY(make_session(g, world, 0, &s[0]));
    TRY(make_session(g, world, 1, &s[1]));
    for (int64_t i = 0; i < HEIGHT * WIDTH; i++) room[i] = value(i / WIDTH, i % WIDTH);
    TRY(weft_session_write(s[0], 0, "c.w", room, sizeof *room * HEIGHT * WIDTH));
    TRY(same_rows(s[0], "c.w", 0, HEIGHT, room));
    TRY(same_rows(s[0], "c.w", m->rank % HEIGHT, m->rank < 3, room));
    /* rank r feeds row r, wherever it is wanted */
    for (int64_t c = 0; c < WIDTH; c++) room[c] = value(m->rank, c);
    TRY(weft_session_feed_rows(s[0], 0, "z", room, sizeof *room * WIDTH));
    TRY(same_rows(s[0], "z", 0, RANKS, room));
    TRY(weft_session_check_replicas(s[0]));
    TRY(wefti_session_move(s[1], s[0], 0, &whole));
    if (!whole) return WEFT_E_BUG;
    TRY(same_rows(s[1], "c.w", 0, HEIGHT, room));
    memset(room, 0, sizeof *room * HEIGHT * WIDTH);
    TRY(weft_session_save(s[0], m->dir, NULL));
    TRY(weft_session_write(s[1], 0, "c.w", room, sizeof *room * HEIGHT * WIDTH));
    TRY(weft_session_load(s[1], m->dir, -1, NULL));
    return same_rows(s[1], "c.w", 0, HEIGHT, room);
}

static weft_status run_member(void *context, weft_world *world) {
    weft_graph *g = NULL;
    weft_session *s[2] = {NULL, NULL};
    float *room = malloc(sizeof *room * RANKS * WIDTH);
    weft_status status = make_graph(&g);
    if (status >= 0) status = use(context, g, world, room, s);
    for (int k = 0; k < 2; k++) weft_session_destroy(s[k]);
    weft_graph_destroy(g);
    free(room);
    return status;
}

static void rows_are_longer_than_a_block(void **state) {
    (void)state;
    member members[RANKS];
    rank_of_world ranks[RANKS];
    for (int r = 0; r < RANKS; r++) members[r] = (member){*state, r};
    run_world(RANKS, run_member, members, sizeof *members, ranks);
    assert_all_ok(ranks, RANKS, "large rows");
}

static char folder[64];

static int make_folder(void **state) {
    (void)snprintf(folder, sizeof folder, "/tmp/weft-rows-XXXXXX");
    *state = folder;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return wefti_remove_tree(folder) < 0 ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_are_longer_than_a_block, make_folder, remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
