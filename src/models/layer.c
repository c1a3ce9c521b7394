/* Layers that families use and other programs may use: weft/layer.h. */
#include <math.h>

#include "models/models.h"
#include "ops/common.h"

weft_value wefti_product(const wefti_model_build *b, weft_value x, weft_value weight,
                         weft_value bias, bool transposed) {
    return wefti_op_linear(b->g, x, weight, bias, transposed, b->f8);
}

/* Without `b`, the weight is f32. */
static weft_value dense(weft_graph *g, const wefti_model_build *b, const char *name, weft_value x,
                        int64_t features, weft_dense_options o) {
    weft_desc desc = weft_value_desc(g, x);
    int64_t in = desc.rank > 0 ? desc.shape[desc.rank - 1] : 1; /* weft_linear refuses a scalar */
    const weft_dtype dtype = desc.dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
    const weft_dtype of_weight = dtype == WEFT_F64 || !b ? dtype : b->weight;
    double deviation = o.deviation > 0 || in < 1 ? o.deviation : 1 / sqrt((double)in);
    if (name) weft_cell_begin(g, "%s", name);
    weft_value weight = weft_param(g, "weight",
                                   o.transposed ? WEFT_DESC(of_weight, features, in)
                                                : WEFT_DESC(of_weight, in, features),
                                   (weft_init){WEFT_INIT_NORMAL, deviation});
    weft_value bias = WEFT_NO_VALUE;
    if (!o.no_bias)
        bias = weft_param(g, "bias", WEFT_DESC(dtype, features), (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value y = b ? wefti_product(b, x, weight, bias, o.transposed)
                     : weft_linear(g, x, weight, bias, o.transposed);
    if (b && name) y = wefti_lora(b, name, "", x, y, 1, &features);
    if (o.activation) y = o.activation(g, y);
    return name ? weft_cell_end(g, y) : y;
}

weft_value weft_dense(weft_graph *g, const char *name, weft_value x, int64_t features,
                      const weft_dense_options *options) {
    weft_dense_options own = weft_dense_defaults();
    if (!wefti_graph_take(g, "weft_dense_options", options, &own)) return WEFT_NO_VALUE;
    return dense(g, NULL, name, x, features, own);
}

weft_value wefti_dense_of(weft_graph *g, const char *name, weft_value x, int64_t features,
                          weft_dense_options o) {
    return dense(g, NULL, name, x, features, o);
}

weft_value wefti_dense(const wefti_model_build *b, const char *name, weft_value x, int64_t features,
                       weft_dense_options o) {
    return dense(b->g, b, name, x, features, o);
}
