/* A table with its look-up and its update on the host: the bits of a table on the device, for
 * optimizers, levels and numbers of devices. Device memory falls by the bytes of table, states and
 * dense gradient. What the host cannot run is refused by name. */
#include "session_models.h"

#include "base/number.h"
#include "session/parts.h"
#include "weft/plan.h"

enum { STEPS = 3, TABLE = 1001, DIM = 24, WIDE = 200, BATCH = 4, SEQ = 1 };
enum { TABLE_BYTES = TABLE * DIM * (int)sizeof(float) };

typedef struct trial {
    weft_optimizer_kind kind;
    int devices, level;
    double clip;
    bool recovery;
} trial;

static weft_graph *model(void) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    const weft_init init = {WEFT_INIT_NORMAL, 0.4};
    weft_value ids = weft_input(g, "ids", WEFT_DESC(WEFT_I32, BATCH, SEQ));
    weft_cell_begin(g, "embed");
    weft_cell_begin(g, "table");
    weft_value table = weft_param(g, "weight", WEFT_DESC(WEFT_F32, TABLE, DIM), init);
    weft_value x = weft_cell_end(g, weft_embedding(g, table, ids, WEFT_F32));
    x = weft_cell_end(g, weft_dropout(g, weft_tanh(g, x), 0.25));
    weft_cell_begin(g, "wide");
    weft_value w = weft_param(g, "weight", WEFT_DESC(WEFT_F32, DIM, WIDE), init);
    x = weft_cell_end(g, weft_linear(g, x, w, WEFT_NO_VALUE, false));
    weft_loss(g, weft_mean(g, weft_mul(g, x, x), 0, NULL, false));
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    return g;
}

static weft_status open(const trial *t, const char *place, weft_graph **g, weft_session **out) {
    weft_session_options o = plain_options(t->kind, t->clip);
    weft_plan *plan;
    *g = model();
    ASSERT_OK(weft_plan_create(t->devices, &plan));
    if (t->level) ASSERT_OK(weft_plan_optimizer(plan, t->level, 0, 0));
    if (place) ASSERT_OK(weft_op_place(plan, place, "host"));
    o.plan = plan;
    o.recovery = t->recovery;
    const weft_status status = weft_session_create(*g, &o, out);
    weft_plan_destroy(plan);
    return status;
}

static double step_of(weft_session *s, int step) {
    int32_t ids[BATCH * SEQ];
    double loss;
    dice d = {7, (uint64_t)step << 20};
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = (int32_t)roll(&d, roll(&d, 2) ? TABLE : 5);
    ASSERT_OK(weft_session_feed(s, 0, "ids", ids, sizeof ids));
    ASSERT_OK(weft_session_step(s, 0.1, &loss));
    const weft_session_memory m = weft_session_memory_of(s);
    assert_int_equal(m.predicted_peak_bytes, m.observed_peak_bytes);
    return loss;
}

static void same_tensors(const trial *t, weft_session *a, weft_session *b) {
    for (int k = 0; k < weft_session_tensors(a, 0); k++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, k, &info));
        if (info.role != WEFT_ROLE_PARAM && info.role != WEFT_ROLE_OPTIMIZER) continue;
        char *x = malloc((size_t)info.bytes), *y = malloc((size_t)info.bytes);
        ASSERT_OK(weft_session_read(a, 0, info.name, x, (size_t)info.bytes));
        ASSERT_OK(weft_session_read(b, 0, info.name, y, (size_t)info.bytes));
        if (memcmp(x, y, (size_t)info.bytes) != 0)
            fail_msg("optimizer %d, level %d, %d devices, clip %g: '%s' differs", t->kind, t->level,
                     t->devices, t->clip, info.name);
        free(x);
        free(y);
    }
}

static void compare(const trial *t, const char *place) {
    weft_session *plain, *placed;
    weft_graph *g[2];
    ASSERT_OK(open(t, NULL, &g[0], &plain));
    ASSERT_OK(open(t, place, &g[1], &placed));
    for (int n = 0; n < STEPS; n++) {
        assert_true(step_of(plain, n) == step_of(placed, n));
        same_tensors(t, plain, placed);
    }
    weft_session_destroy(plain);
    weft_session_destroy(placed);
    for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
}

static void a_table_on_the_host_changes_no_bit(void **state) {
    (void)state;
    static const weft_optimizer_kind kinds[] = {WEFT_SGD, WEFT_ADAMW, WEFT_LAMB};
    for (int k = 0; k < 3; k++)
        for (int devices = 1; devices <= 2; devices++)
            for (int level = 0; level <= (devices > 1 ? 3 : 0); level++)
                for (int rest = 0; rest < 3; rest++) {
                    const trial t = {kinds[k], devices, level, rest == 1 && devices == 1 ? 0.1 : 0,
                                     rest == 2};
                    if (devices > 1 && (rest == 1 || kinds[k] == WEFT_LAMB)) continue;
                    compare(&t, "*table*"); /* the look-up and the update */
                    compare(&t, "embed.table");
                }
}

/* The device memory that is in use when the wide parameter is updated: then all gradients are. */
static int64_t used_at_update(const wefti_program *p) {
    for (int32_t k = 0; k < p->step_count[WEFTI_SECTION_UPDATE]; k++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_UPDATE][k];
        if (step->tensor >= 0 && !strcmp(p->tensors[step->tensor].name, "wide.weight"))
            return step->alive_bytes - p->persistent_bytes;
    }
    fail_msg("no step updates the wide parameter");
    return -1;
}

/* 36(a): the persistent bytes of the device fall by the table and its states. Its transient bytes
 * fall by the dense gradient. A tensor begins at a multiple of 64 bytes. */
static void device_memory_falls(void **state) {
    (void)state;
    for (int devices = 1; devices <= 2; devices++) {
        const trial t = {WEFT_ADAMW, devices, 0, devices == 1 ? 0.1 : 0, devices == 2};
        weft_session *plain, *placed;
        weft_graph *g[2];
        ASSERT_OK(open(&t, NULL, &g[0], &plain));
        ASSERT_OK(open(&t, "*table*", &g[1], &placed));
        const wefti_program *a = plain->views[0]->programs[0], *b = placed->views[0]->programs[0];
        assert_int_equal(a->persistent_bytes - b->persistent_bytes, 3 * wefti_aligned(TABLE_BYTES));
        assert_int_equal(used_at_update(a) - used_at_update(b), TABLE_BYTES);
        assert_true(b->tier_bytes[WEFTI_SPACE_HOST][WEFTI_PERSISTENT] >= 3 * TABLE_BYTES);
        for (int n = 0; n < STEPS; n++) (void)step_of(placed, n);
        weft_session_destroy(plain);
        weft_session_destroy(placed);
        for (int k = 0; k < 2; k++) weft_graph_destroy(g[k]);
    }
}

/* Of a step that only copies ids, looked-up values and their gradient: those bytes. */
static void only_activations_move(void **state) {
    (void)state;
    const trial t = {.kind = WEFT_ADAMW, .devices = 1};
    weft_session *s;
    weft_graph *g;
    int64_t bytes = 0;
    ASSERT_OK(open(&t, "*table*", &g, &s));
    const wefti_program *p = s->views[0]->programs[0];
    for (int section = 0; section < WEFTI_SECTIONS; section++)
        for (int32_t k = 0; k < p->step_count[section]; k++) {
            const wefti_step *step = &p->steps[section][k];
            const wefti_program_move *move = wefti_step_copy(p, step);
            if (move && step->kind == WEFTI_STEP_POST) bytes += move->bytes;
        }
    assert_int_equal(bytes, BATCH * SEQ * (2 * sizeof(int32_t) + 2 * DIM * sizeof(float)));
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_table_on_the_host_changes_no_bit),
                                       cmocka_unit_test(device_memory_falls),
                                       cmocka_unit_test(only_activations_move)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
