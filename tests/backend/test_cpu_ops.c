/* The cpu backend against the reference on every op: its cases, and larger and odder shapes
 * (cpu_ops_cases.h). They run in f32 and with every legal mix of bf16 operands, on every path
 * (paths.h). */
#include "backend/cpu_ops_driver.h"
#include "sanitized.h"

/* ---- all cases ---- */

static void note_fallback(const op_setup *s, bool plain) {
    for (size_t i = 0; i < sizeof fallbacks / sizeof *fallbacks; i++)
        if (name_fits(fallbacks[i].op, s->op->name) && fallbacks[i].when(s)) {
            if (!plain) return;
            char *text = text_of(s);
            print_message("reference runs %s: %s\n", text, fallbacks[i].why);
            wefti_free(text);
            return;
        }
    complain(s, "prepare", "falls to the reference, which no row of `fallbacks` allows");
}

/* Large shapes take many minutes under a sanitizer. There, only the best kernels of this processor
 * run them, and only the dtype mixes in which all operands are bf16 or f64. Emulated kernels
 * are slow everywhere: they run the ops' own cases with operands of one dtype. */
static bool runs_here(bool mixed, bool large) {
    if (path_is_emulated(path)) return !mixed && !large;
    const wefti_isa isa = path_isa(path);
    bool best = isa + 1 == WEFTI_ISAS || !wefti_isa_has((wefti_isa)(isa + 1));
    return !large || !SANITIZED || best;
}

/* All paths, the native ones first and the best first, because oneDNN keeps its first setting. */
static int path_number(int i) {
    return i < WEFTI_ISAS ? WEFTI_ISAS - 1 - i : i;
}

/* The reference runs once. The kernels of every path are compared with it. */
static void check_setup(const op_setup *s, double *const *values, bool plain, bool mixed,
                        bool large) {
    op_graph g;
    if (op_graph_open_with(s, values, &g) < 0) return; /* a mix of dtypes that the op refuses */
    subject subject;
    subject_open(s, &g, &subject);
    bool runs_kernels = !(s->op->flags & WEFTI_OP_RESHAPE), falls = false;
    if (plain && runs_kernels) check_reference(&subject);
    for (int i = 0; i < PATHS && runs_kernels; i++) {
        if (!use_path(path_number(i)) || !runs_here(mixed, large) || check_subject(&subject))
            continue;
        if (!falls) note_fallback(s, plain);
        falls = true;
    }
    subject_close(&subject);
    op_graph_close(&g);
}

/* The case as it stands, then with every subset of its f32 operands in another dtype. */
static void check_case(const weft_op_def *op, const wefti_op_case *c, bool large) {
    op_setup s;
    double *values[WEFTI_MAX_IN] = {0};
    if (!setup_case(op, c, &s)) {
        print_error("%s: a case cannot be read: %s\n", op->name, weft_error_message());
        failures++;
        return;
    }
    draw_values(&s, 17, values);
    static const weft_dtype others[] = {WEFT_BF16, WEFT_F64, WEFT_F16};
    check_setup(&s, values, true, false, large);
    for (size_t t = 0; t < sizeof others / sizeof *others; t++)
        for (uint32_t mask = 1; mask < 1u << s.inputs; mask++) {
            op_setup other = s;
            bool all = true, fits = true;
            for (int i = 0; i < s.inputs; i++) {
                bool is_f32 = s.in[i].style != '-' && s.in[i].desc.dtype == WEFT_F32;
                if (mask >> i & 1u) {
                    fits = fits && is_f32;
                    other.in[i].desc.dtype = others[t];
                } else if (is_f32) {
                    all = false;
                }
            }
            /* Every mix of bf16. Of the other dtypes: each operand alone, and all together. */
            bool wanted = t == 0 || !(mask & (mask - 1));
            const bool rare = large && SANITIZED;
            if (fits && (rare ? all && others[t] != WEFT_F16 : all || wanted))
                check_setup(&other, values, false, !all, large);
        }
    for (int i = 0; i < s.inputs; i++) free(values[i]);
}

static void every_op(void **state) {
    const wefti_op_registry *ops = wefti_builtin_ops();
    const char *only = getenv("WEFT_TEST_OP");
    (void)state;
    failures = 0;
    for (int i = 0; i < WEFTI_ISAS; i++)
        if (!wefti_isa_has((wefti_isa)i))
            print_message("SKIPPED: this processor has no %s\n", wefti_isa_text((wefti_isa)i));
    for (int i = 0; i < ops->count; i++) {
        const weft_op_def *op = ops->ops[i];
        if (only && strcmp(only, op->name)) continue;
        for (const wefti_op_case *c = op->cases; c && (c->inputs[0] || c->attrs); c++)
            check_case(op, c, false);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            if (!strcmp(shapes[k].op, op->name)) check_case(op, &shapes[k].c, true);
    }
    print_message("%d kernel runs\n", runs);
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op)};
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
