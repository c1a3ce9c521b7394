/* Random bodies as compiled routines on the executor, against the interpreter in double. Results
 * may be inputs, given twice, reshaped, accumulated, saved for later, or written in place. Memory
 * between operands is guarded, and memory not yet written holds NaN. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"
#include "graph/build_random.h"
#include "rewrite/rewrite.h"
#include "tensor/tensor.h"

enum { MOST = 128, GUARD = 128, ROWS = 3, COLUMNS = 8 };

static const wefti_random stream = {.seed = 4, .step = 2, .call_stream = 5};
static const wefti_backend *const reference_only[] = {&wefti_backend_reference, NULL};

/* One routine with its memory: arguments one behind the other, guards between them. */
typedef struct bench {
    weft_body *body;
    wefti_routine *routine;
    int64_t offset[MOST], bytes[MOST];
    int64_t in_saved[MOST], out_saved[MOST];
    bool accumulate[MOST];
    int64_t saved_bytes;
    double *in[MOST], *before[MOST], *want[MOST];
} bench;

static int64_t round64(int64_t bytes) {
    return (bytes + 63) & ~(int64_t)63;
}

static const weft_desc *in_desc(const weft_body *b, int64_t i) {
    return &b->values[b->in[i]].desc;
}
static const weft_desc *out_desc(const weft_body *b, int64_t o) {
    return &b->values[b->out[o]].desc;
}

/* A random cell, with further results: inputs, values that are results already, any others. */
static weft_body *random_body(weft_graph *g, dice *d, bool fuse) {
    weft_value x = weft_input(g, "x", matrix(ROWS, COLUMNS)), results[2];
    weft_body *body;
    random_cell(g, d, "cell", x, 1 + (int)roll(d, 12), results);
    if (weft_graph_status(g) < 0) fail_msg("%s", weft_graph_message(g));
    assert_int_equal(wefti_body_clone(g, g->cells[0], "body", &body), WEFT_OK);
    for (int64_t more = roll(d, 4); more > 0; more--) {
        int32_t value = (int32_t)roll(d, body->value_count);
        assert_int_equal(wefti_body_output(body, value), WEFT_OK);
    }
    if (!fuse) return body;
    weft_body *fused;
    if (wefti_fuse(g, NULL, body, &fused) < 0) fail_msg("%s", weft_error_message());
    wefti_body_destroy(body);
    return fused;
}

/* Some inputs come from the saved block, the last results go there, and others are accumulated. */
static void choose_bindings(bench *t, dice *d) {
    const weft_body *b = t->body;
    t->saved_bytes = 0;
    bool load = roll(d, 3) == 0, store = !load && roll(d, 2), add = !store && roll(d, 2);
    int64_t saved_from = store ? 1 + roll(d, b->out_count) : b->out_count;
    for (int64_t i = 0; i < b->in_count; i++) {
        t->in_saved[i] = -1;
        if (!load || roll(d, 2)) continue;
        t->in_saved[i] = t->saved_bytes;
        t->saved_bytes += round64(weft_desc_bytes(in_desc(b, i)));
    }
    for (int64_t o = 0; o < b->out_count; o++) {
        t->accumulate[o] = add && wefti_dtype_is_float(out_desc(b, o)->dtype) && roll(d, 2);
        t->out_saved[o] = -1;
        if (o < saved_from) continue;
        t->out_saved[o] = t->saved_bytes;
        t->saved_bytes += round64(weft_desc_bytes(out_desc(b, o)));
    }
}

static void compile(bench *t, const wefti_backend *const *backends) {
    wefti_routine_spec spec = {.body = t->body,
                               .in_saved = t->in_saved,
                               .out_saved = t->out_saved,
                               .saved_bytes = t->saved_bytes,
                               .accumulate = t->accumulate,
                               .prepare = {.threads = 2, .bf16 = WEFTI_BF16_AS_F32},
                               .backends = backends};
    if (wefti_routine_compile(&spec, &t->routine) < 0) fail_msg("%s", weft_error_message());
}

static double number(uint64_t seed, int64_t stream_, int64_t element) {
    return (double)wefti_philox_normal(seed, (uint64_t)stream_, (uint64_t)element);
}

/* Operands, what accumulated results hold before, and the results wanted. */
static void expect(bench *t, uint64_t seed) {
    const weft_body *b = t->body;
    assert_true(b->in_count < MOST && b->out_count < MOST);
    for (int64_t i = 0; i < b->in_count; i++) {
        int64_t elems = weft_desc_elems(in_desc(b, i));
        t->in[i] = malloc((size_t)elems * sizeof(double));
        for (int64_t e = 0; e < elems; e++)
            t->in[i][e] = in_desc(b, i)->dtype == WEFT_I32 ? 2 : number(seed, i, e);
    }
    for (int64_t o = 0; o < b->out_count; o++) {
        int64_t elems = weft_desc_elems(out_desc(b, o));
        t->before[o] = calloc((size_t)elems, sizeof(double));
        t->want[o] = malloc((size_t)elems * sizeof(double));
        for (int64_t e = 0; t->accumulate[o] && e < elems; e++)
            t->before[o][e] = number(seed, 1000 + o, e);
    }
    if (wefti_interpret(b, &stream, (const double *const *)t->in, t->want) < 0)
        fail_msg("%s", weft_error_message());
}

static void discard(bench *t) {
    for (int64_t i = 0; i < t->body->in_count; i++) free(t->in[i]);
    for (int64_t o = 0; o < t->body->out_count; o++) {
        free(t->before[o]);
        free(t->want[o]);
    }
    wefti_routine_destroy(t->routine);
    wefti_body_destroy(t->body);
}

/* Where argument a begins; returns the size of all. */
static int64_t lay_out(bench *t, int64_t *frame) {
    const wefti_routine *r = t->routine;
    int64_t at = GUARD;
    for (int32_t a = 0; a < r->args; a++) {
        int64_t bytes = a < r->inputs ? weft_desc_bytes(in_desc(t->body, a))
                        : a < r->inputs + r->outputs
                            ? weft_desc_bytes(out_desc(t->body, a - r->inputs))
                            : r->saved_bytes;
        t->offset[a] = at;
        t->bytes[a] = bytes;
        at += round64(bytes) + GUARD;
    }
    for (int32_t o = 0; o < r->outputs; o++)
        if (r->alias[o] >= 0) t->offset[r->inputs + o] = t->offset[r->alias[o]];
    *frame = at;
    return at + round64(r->frame_bytes) + GUARD;
}

static unsigned char *in_place_of(const bench *t, unsigned char *memory, int64_t i) {
    const wefti_routine *r = t->routine;
    return memory + (t->in_saved[i] >= 0 ? t->offset[r->saved_arg] + t->in_saved[i] : t->offset[i]);
}
static unsigned char *out_place_of(const bench *t, unsigned char *memory, int64_t o) {
    const wefti_routine *r = t->routine;
    return memory + (t->out_saved[o] >= 0 ? t->offset[r->saved_arg] + t->out_saved[o]
                                          : t->offset[r->inputs + o]);
}

static bool guard_is_whole(const unsigned char *at, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        if (at[i] != 0xFF) return false;
    return true;
}

static weft_status map_arena(wefti_rank_device *device, int64_t bytes, wefti_mapping *out) {
    const wefti_home home = wefti_rank_device_home(device, (wefti_location){0}, bytes);
    return wefti_home_map(&home, 0, bytes, WEFTI_ACCESS_UPDATE, out);
}

/* Run it once in memory of all ones (NaN), then compare. `written[i]`: input i is written in place.
 */
static void run_and_compare(bench *t, const bool *written, double tolerance, const char *what) {
    const weft_body *b = t->body;
    const wefti_routine *r = t->routine;
    int64_t frame, total = lay_out(t, &frame);
    wefti_rank_device *device;
    assert_int_equal(
        wefti_rank_device_create(2, (wefti_footprint){{{total, 0}}}, NULL, NULL, &device), WEFT_OK);
    wefti_mapping m;
    assert_int_equal(map_arena(device, total, &m), WEFT_OK);
    unsigned char *memory = m.data;
    memset(memory, 0xFF, (size_t)total);
    for (int64_t o = 0; o < b->out_count; o++)
        for (int64_t e = 0; t->accumulate[o] && e < weft_desc_elems(out_desc(b, o)); e++)
            wefti_store(out_desc(b, o)->dtype, out_place_of(t, memory, o), e, t->before[o][e]);
    for (int64_t i = 0; i < b->in_count; i++)
        for (int64_t e = 0; e < weft_desc_elems(in_desc(b, i)); e++)
            wefti_store(in_desc(b, i)->dtype, in_place_of(t, memory, i), e, t->in[i][e]);
    assert_int_equal(wefti_home_unmap(&m, WEFT_OK), WEFT_OK);
    wefti_location args[MOST];
    for (int32_t a = 0; a < r->args; a++)
        args[a] = wefti_location_of(WEFTI_SPACE_DEVICE, WEFTI_PERSISTENT, t->offset[a]);
    wefti_step step = {.kind = WEFTI_STEP_CALL,
                       .name = "cell",
                       .routine = r,
                       .args = args,
                       .frame = {frame},
                       .stream = stream.call_stream,
                       .tensor = -1,
                       .to = r->code_count,
                       .parts = 1};
    wefti_program program = {.steps = {&step}, .step_count = {1}, .persistent_bytes = total};
    wefti_exec_options o = {.random = stream};
    if (wefti_rank_device_run(device, &program, WEFTI_SECTION_FIRST, &o) < 0)
        fail_msg("%s: %s", what, weft_error_message());
    assert_int_equal(map_arena(device, total, &m), WEFT_OK);
    memory = m.data;
    for (int64_t k = 0; k < b->out_count; k++) {
        int64_t elems = weft_desc_elems(out_desc(b, k));
        double largest = 1e-3;
        for (int64_t e = 0; e < elems; e++) largest = fmax(largest, fabs(t->want[k][e]));
        for (int64_t e = 0; e < elems; e++) {
            double is = wefti_load(out_desc(b, k)->dtype, out_place_of(t, memory, k), e);
            double want = t->want[k][e] + t->before[k][e];
            if (!(fabs(is - want) <= tolerance * largest))
                fail_msg("%s: result %d of %d, element %d is %g, not %g", what, (int)k,
                         (int)b->out_count, (int)e, is, want);
        }
    }
    for (int64_t i = 0; i < b->in_count; i++) /* inputs are as they were */
        for (int64_t e = 0; !written[i] && e < weft_desc_elems(in_desc(b, i)); e++)
            if ((float)wefti_load(in_desc(b, i)->dtype, in_place_of(t, memory, i), e) !=
                (float)t->in[i][e])
                fail_msg("%s: input %d was changed", what, (int)i);
    for (int32_t a = 0; a < r->args; a++)
        if ((a < r->inputs || a >= r->inputs + r->outputs || r->alias[a - r->inputs] < 0) &&
            !guard_is_whole(memory + t->offset[a], round64(t->bytes[a]),
                            round64(t->bytes[a]) + GUARD))
            fail_msg("%s: bytes behind argument %d were written", what, (int)a);
    assert_true(guard_is_whole(memory, frame + r->frame_bytes, total));
    assert_int_equal(wefti_home_unmap(&m, WEFT_OK), WEFT_OK);
    assert_true(wefti_rank_device_observed_peak(device, WEFTI_SPACE_DEVICE) <=
                frame + r->frame_bytes);
    wefti_rank_device_destroy(device);
}

static void random_bodies(void **state) {
    (void)state;
    static const bool none[MOST];
    int64_t copies = 0, additions = 0, direct = 0;
    TEST_SEEDS(seed, 0, 400) {
        dice d = {seed, 0};
        weft_graph *g;
        bench t = {0};
        char what[64];
        (void)snprintf(what, sizeof what, "seed %d", (int)seed);
        assert_int_equal(weft_graph_create(&g), WEFT_OK);
        t.body = random_body(g, &d, seed & 1);
        choose_bindings(&t, &d);
        compile(&t, seed % 4 < 2 ? reference_only : wefti_kind_backends(wefti_kind_of(0)));
        expect(&t, seed);
        run_and_compare(&t, none, 1e-3, what);
        for (int32_t k = 0; k < t.routine->code_count; k++) {
            const wefti_instruction *x = &t.routine->code[k];
            copies += !x->node && !x->add;
            additions += !x->node && x->add;
        }
        for (int64_t o = 0; o < t.body->out_count; o++) direct += t.accumulate[o];
        discard(&t);
        weft_graph_destroy(g);
    }
    assert_true(test_one_seed() || (copies > 50 && additions > 20 && direct > additions));
}

/* ---- by hand ---- */

typedef struct sketch {
    weft_graph *g;
    weft_body *body;
} sketch;

static sketch new_sketch(void) {
    sketch s;
    assert_int_equal(weft_graph_create(&s.g), WEFT_OK);
    assert_int_equal(wefti_body_create(s.g, "body", &s.body), WEFT_OK);
    return s;
}
static int32_t input(const sketch *s, weft_desc desc, wefti_value_kind kind) {
    int32_t v;
    assert_int_equal(wefti_body_input(s->body, desc, kind, NULL, &v), WEFT_OK);
    return v;
}
static int32_t node(const sketch *s, const char *op, int count, const int32_t *in,
                    const wefti_attr *attrs) {
    int32_t n;
    const weft_op_def *def = wefti_op_find(s->g->ops, op);
    assert_non_null(def);
    if (wefti_body_add(s->body, def, NULL, count, in, attrs, "", &n) < 0)
        fail_msg("%s", weft_error_message());
    return s->body->nodes[n].out[0];
}
static int32_t reshaped(const sketch *s, int32_t v, int rank, int64_t a, int64_t b, int64_t c,
                        int64_t d) {
    wefti_ints shape = {rank, {a, b, c, d}};
    const weft_op_def *def = wefti_op_find(s->g->ops, "reshape");
    wefti_attr attrs[4] = {def->attrs[0]};
    attrs[0].ints = shape;
    return node(s, "reshape", 1, &v, attrs);
}
static void result(const sketch *s, int32_t v) {
    assert_int_equal(wefti_body_output(s->body, v), WEFT_OK);
}

static void check_by_hand(const sketch *s, const char *what, const bool *written,
                          const bool *accumulate) {
    static const bool none[MOST];
    for (int backends = 0; backends < 2; backends++) {
        bench t = {.body = s->body};
        for (int i = 0; i < MOST; i++) t.in_saved[i] = t.out_saved[i] = -1;
        for (int64_t o = 0; accumulate && o < s->body->out_count; o++)
            t.accumulate[o] = accumulate[o];
        assert_int_equal(wefti_body_clone(s->body->graph, s->body, "copy", &t.body), WEFT_OK);
        compile(&t, backends ? wefti_kind_backends(wefti_kind_of(0)) : reference_only);
        expect(&t, 17);
        run_and_compare(&t, written ? written : none, 1e-5, what);
        discard(&t);
    }
}

static void drop(const sketch *s) {
    wefti_body_destroy(s->body);
    weft_graph_destroy(s->g);
}

/* All roles that one buffer can have at once. */
static void shared_results(void **state) {
    (void)state;
    sketch s = new_sketch();
    int32_t x = input(&s, matrix(4, 6), WEFTI_VALUE_INPUT);
    int32_t flat = reshaped(&s, x, 1, 24, 0, 0, 0), back = reshaped(&s, flat, 3, 2, 3, 4, 0);
    int32_t y = node(&s, "tanh", 1, &back, NULL), z = reshaped(&s, y, 2, 8, 3, 0, 0);
    int32_t zz = reshaped(&s, z, 1, 24, 0, 0, 0);
    result(&s, x);    /* an input */
    result(&s, back); /* the input, reshaped */
    result(&s, y);
    result(&s, zz); /* the same memory as y */
    result(&s, y);  /* twice */
    result(&s, x);
    check_by_hand(&s, "shared results", NULL, NULL);
    for (int mask = 0; mask < 64; mask++) {
        bool add[6];
        for (int o = 0; o < 6; o++) add[o] = mask >> o & 1;
        char what[40];
        (void)snprintf(what, sizeof what, "shared results, added: %d", mask);
        check_by_hand(&s, what, NULL, add);
    }
    drop(&s);
}

/* Caches written in place: as an input (its memory is the result), twice, and as a result of the
 * body itself. */
static void written_in_place(void **state) {
    (void)state;
    weft_desc cache = weft_desc_of(WEFT_F32, 4, (int64_t[]){1, 8, 2, 3});
    weft_desc row = weft_desc_of(WEFT_F32, 4, (int64_t[]){1, 1, 2, 3});
    weft_desc scalar = weft_desc_of(WEFT_I32, 0, NULL);
    for (int own = 0; own < 2; own++) {
        sketch s = new_sketch();
        int32_t c = input(&s, cache, WEFTI_VALUE_STATE), x = input(&s, row, WEFTI_VALUE_INPUT);
        int32_t at = input(&s, scalar, WEFTI_VALUE_INPUT);
        if (own) c = node(&s, "tanh", 1, &c, NULL);
        int32_t y = node(&s, "tanh", 1, &x, NULL);
        int32_t before = node(&s, "exp", 1, &c, NULL); /* read before it is written: legal */
        int32_t once = node(&s, "cache_write", 3, (int32_t[]){c, y, at}, NULL);
        int32_t seen = node(&s, "exp", 1, &once, NULL);
        int32_t twice = node(&s, "cache_write", 3, (int32_t[]){once, x, at}, NULL);
        result(&s, before);
        result(&s, seen);
        result(&s, twice);
        check_by_hand(&s, own ? "own cache" : "state", (bool[]){!own, false, false}, NULL);
        drop(&s);
    }
}

/* A value that is read after it was overwritten would be wrong, so it is refused. */
static void late_reads_are_refused(void **state) {
    (void)state;
    weft_desc cache = weft_desc_of(WEFT_F32, 4, (int64_t[]){1, 8, 2, 3});
    weft_desc row = weft_desc_of(WEFT_F32, 4, (int64_t[]){1, 1, 2, 3});
    for (int variant = 0; variant < 3; variant++) {
        sketch s = new_sketch();
        int32_t c = input(&s, cache, WEFTI_VALUE_STATE), x = input(&s, row, WEFTI_VALUE_INPUT);
        int32_t at = input(&s, weft_desc_of(WEFT_I32, 0, NULL), WEFTI_VALUE_INPUT);
        int32_t old = reshaped(&s, c, 2, 8, 6, 0, 0);
        int32_t next = node(&s, "cache_write", 3, (int32_t[]){c, x, at}, NULL);
        result(&s, next);
        if (variant == 0) result(&s, node(&s, "exp", 1, &c, NULL));
        if (variant == 1) result(&s, node(&s, "exp", 1, &old, NULL));
        if (variant == 2) result(&s, old);
        wefti_routine_spec spec = {.body = s.body,
                                   .prepare = {.threads = 1, .bf16 = WEFTI_BF16_AS_F32},
                                   .backends = reference_only};
        wefti_routine *r = NULL;
        assert_int_equal(wefti_routine_compile(&spec, &r), WEFT_E_NO_IMPL);
        ASSERT_MESSAGE("overwritten");
        drop(&s);
    }
}

/* Sums that grow in place: of terms with kernels that add themselves, of other terms, and of terms
 * that other nodes read. Also sums that are read on the way, that begin in an input, and that are
 * added to an accumulated result. */
static void growing_sums(void **state) {
    (void)state;
    for (int variant = 0; variant < 32; variant++) {
        bool plain = variant & 1, kept = variant & 2, read = variant & 4, given = variant & 8;
        bool written[MOST] = {false}, add[3] = {variant & 16};
        sketch s = new_sketch();
        int32_t x = input(&s, matrix(4, 6), WEFTI_VALUE_INPUT);
        int32_t dy = input(&s, matrix(4, 5), WEFTI_VALUE_INPUT);
        int32_t z = input(&s, matrix(6, 5), WEFTI_VALUE_INPUT);
        int32_t product = node(&s, "linear_grad_weight", 2, (int32_t[]){x, dy}, NULL);
        int32_t sum = given ? z : plain ? node(&s, "tanh", 1, &z, NULL) : product, side = product;
        written[2] = given;
        for (int k = 0; k < 4; k++) {
            int32_t factor = node(&s, k % 2 ? "relu" : "tanh", 1, &x, NULL), term;
            if (k == 2)
                term = node(&s, "abs", 1, (int32_t[]){product}, NULL);
            else
                term = node(&s, "linear_grad_weight", 2, (int32_t[]){factor, dy}, NULL);
            if (kept && k == 1) side = term;
            if (read && k == 3) side = node(&s, "exp", 1, &sum, NULL);
            if (!given && !plain && k == 0) /* otherwise the abs reads an overwritten value */
                sum = node(&s, "add", 2, (int32_t[]){sum, term}, NULL);
            else
                sum = node(&s, "accumulate", 2, (int32_t[]){sum, term}, NULL);
        }
        result(&s, sum);
        if (side != product) result(&s, side);
        char what[40];
        (void)snprintf(what, sizeof what, "growing sums, variant %d", variant);
        check_by_hand(&s, what, written, add);
        drop(&s);
    }
    /* The plain case needs no additions of the routine's own, and no memory for terms. */
    sketch s = new_sketch();
    int32_t x = input(&s, matrix(4, 6), WEFTI_VALUE_INPUT),
            dy = input(&s, matrix(4, 5), WEFTI_VALUE_INPUT);
    int32_t sum = node(&s, "linear_grad_weight", 2, (int32_t[]){x, dy}, NULL);
    for (int k = 0; k < 3; k++) {
        int32_t term = node(&s, "linear_grad_weight", 2, (int32_t[]){x, dy}, NULL);
        sum = node(&s, "accumulate", 2, (int32_t[]){sum, term}, NULL);
    }
    result(&s, sum);
    bool add[1] = {true};
    wefti_routine_spec spec = {.body = s.body,
                               .accumulate = add,
                               .prepare = {.threads = 2, .bf16 = WEFTI_BF16_AS_F32},
                               .backends = wefti_kind_backends(wefti_kind_of(0))};
    wefti_routine *r;
    assert_int_equal(wefti_routine_compile(&spec, &r), WEFT_OK);
    assert_int_equal(r->code_count, 4);
    for (int32_t k = 0; k < 4; k++) {
        assert_non_null(r->code[k].kernel);
        assert_int_equal(r->code[k].out[0].arg, 2);
    }
    wefti_routine_destroy(r);
    drop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_bodies),          cmocka_unit_test(shared_results),
        cmocka_unit_test(growing_sums),           cmocka_unit_test(written_in_place),
        cmocka_unit_test(late_reads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
