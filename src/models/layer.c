/* Layers that families use and other programs may use: weft/layer.h. */
#include <math.h>

#include "models/models.h"

weft_value weft_dense(weft_graph *g, const char *name, weft_value x, int64_t features,
                      weft_dense_options o) {
    return wefti_dense_of(g, name, x, features, WEFT_F32, o);
}

weft_value wefti_dense_of(weft_graph *g, const char *name, weft_value x, int64_t features,
                          weft_dtype weight_dtype, weft_dense_options o) {
    weft_desc desc = weft_value_desc(g, x);
    int64_t in = desc.rank > 0 ? desc.shape[desc.rank - 1] : 1; /* weft_linear refuses a scalar */
    const weft_dtype dtype = desc.dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
    const weft_dtype of_weight = dtype == WEFT_F64 ? dtype : weight_dtype;
    double deviation = o.deviation > 0 || in < 1 ? o.deviation : 1 / sqrt((double)in);
    if (name) weft_cell_begin(g, "%s", name);
    weft_value weight = weft_param(g, "weight",
                                   o.transposed ? WEFT_DESC(of_weight, features, in)
                                                : WEFT_DESC(of_weight, in, features),
                                   (weft_init){WEFT_INIT_NORMAL, deviation});
    weft_value bias = WEFT_NO_VALUE;
    if (!o.no_bias)
        bias = weft_param(g, "bias", WEFT_DESC(dtype, features), (weft_init){WEFT_INIT_ZEROS, 0});
    weft_value y = weft_linear(g, x, weight, bias, o.transposed);
    if (o.activation) y = o.activation(g, y);
    return name ? weft_cell_end(g, y) : y;
}
