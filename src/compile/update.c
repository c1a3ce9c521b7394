/* The body of an update. */
#include "compile/update.h"

#include <string.h>

weft_dtype wefti_update_scalars(const weft_desc *param) {
    return param->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

weft_status wefti_update_body(weft_graph *g, const weft_desc *desc, const wefti_update_rule *rule,
                              bool copies, weft_body **out) {
    weft_body *body;
    int32_t in[8], node;
    WEFT_TRY(wefti_body_create(g, "update", &body));
    weft_status status = wefti_body_input(body, *desc, WEFTI_VALUE_INPUT, "param", &in[0]);
    for (int i = 0; i < rule->states && status == WEFT_OK; i++)
        status = wefti_body_input(body, rule->state_descs[i], WEFTI_VALUE_INPUT,
                                  rule->state_names[i], &in[1 + i]);
    if (status == WEFT_OK)
        status =
            wefti_body_input(body, *desc, WEFTI_VALUE_INPUT, "gradient", &in[1 + rule->states]);
    weft_desc scalars =
        weft_desc_of(wefti_update_scalars(desc), 1, (int64_t[]){WEFTI_STEP_SCALARS});
    if (status == WEFT_OK)
        status =
            wefti_body_input(body, scalars, WEFTI_VALUE_INPUT, "scalars", &in[2 + rule->states]);
    int operands = 3 + rule->states, absent = rule->absent;
    if (absent) { /* between the states and the gradient */
        memmove(&in[operands - 2 + absent], &in[operands - 2], 2 * sizeof in[0]);
        for (int i = 0; i < absent; i++) in[1 + rule->states + i] = -1;
    }
    if (status == WEFT_OK)
        status =
            wefti_body_add(body, rule->op, NULL, operands + absent, in, rule->attrs, "", &node);
    for (int o = 0; status == WEFT_OK && o < body->nodes[node].outputs; o++)
        status = wefti_body_output(body, body->nodes[node].out[o]);
    if (status == WEFT_OK && copies) {
        int32_t copy;
        status =
            wefti_body_add(body, wefti_op_find(g->ops, "cast"), NULL, 1, &body->nodes[node].out[0],
                           (wefti_attr[]){WEFTI_I(dtype, WEFT_BF16), {0}}, "", &copy);
        if (status == WEFT_OK) status = wefti_body_output(body, body->nodes[copy].out[0]);
    }
    if (status < 0) {
        wefti_body_destroy(body);
        return status;
    }
    *out = body;
    return WEFT_OK;
}
