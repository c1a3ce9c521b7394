/* Names of transfers in texts: what a transfer moves is read from its node, never from its name. */
#include "support.h"

#include <string.h>

#include "graph/lower/lower.h"
#include "program/print.h"

static void assert_name(wefti_moved moved, const char *scope, const char *step_name,
                        const char *expected) {
    wefti_attr attrs[] = {
        WEFTI_I(index, 0), WEFTI_N(shape, (wefti_ints){0}), WEFTI_I(moves, moved), {0}};
    const weft_node node = {.op = &wefti_op_transfer, .attrs = attrs, .scope = scope};
    const wefti_instruction code = {.node = &node};
    const wefti_step step = {.name = step_name};
    const wefti_transfer transfer = {0};
    char name[128];
    assert_string_equal(wefti_transfer_name(&step, &code, &transfer, name, sizeof name), expected);
    assert_string_equal(wefti_transfer_what(&step, &code, &transfer), scope);
}

static void what_moves_stands_before_the_step(void **state) {
    (void)state;
    assert_name(WEFTI_MOVED_VALUE, "attn.c_proj:linear", "h.3", "h.3.attn.c_proj:linear");
    assert_name(WEFTI_MOVED_VALUE, ":add", "h.3", "h.3:add");
    assert_name(WEFTI_MOVED_GRADIENT, "gradient of mlp.c_fc.weight", "h.3",
                "gradient of h.3.mlp.c_fc.weight");
    assert_name(WEFTI_MOVED_OPERAND, "operand of ln_1:layer_norm", "h.3",
                "operand of h.3.ln_1:layer_norm");
    assert_name(WEFTI_MOVED_GRADIENT, "gradient of wte.weight", "", "gradient of wte.weight");
}

/* A cell of the user may have any name. */
static void names_have_no_meaning(void **state) {
    (void)state;
    assert_name(WEFTI_MOVED_VALUE, "gradient of x:linear", "h.3", "h.3.gradient of x:linear");
    assert_name(WEFTI_MOVED_VALUE, "operand of x:linear", "h.3", "h.3.operand of x:linear");
    assert_name(WEFTI_MOVED_GRADIENT, "gradient of operand of w", "h.3",
                "gradient of h.3.operand of w");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_moves_stands_before_the_step),
                                       cmocka_unit_test(names_have_no_meaning)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
