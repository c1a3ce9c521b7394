/* Layers: operations together with the parameters they need, each a cell of its own. They use only
 * weft/graph.h and weft/ops.h. */
#ifndef WEFT_LAYER_H
#define WEFT_LAYER_H

#include <stdbool.h>

#include "weft/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options of a dense layer. The default has a bias and no activation. */
typedef struct weft_dense_options {
    size_t struct_bytes;
    double deviation; /* standard deviation of the weight's normal start values; 0: 1 / sqrt(in) */
    bool transposed;  /* the weight is [features, in], as in PyTorch; else [in, features] */
    bool no_bias;
    weft_value (*activation)(weft_graph *graph, weft_value x); /* weft_relu, ...; NULL: none */
} weft_dense_options;
WEFTI_ZERO_DEFAULTS(weft_dense_options, weft_dense_defaults)

/** x [..., in] -> [..., features]: x times "weight", plus "bias" [features], then the activation.
 * The bias starts at 0. Parameters are f64 if x is f64, else f32.
 * @param name  the layer's cell; NULL: the parameters belong to the open cell
 * @param options  NULL: the defaults
 * @return WEFT_NO_VALUE after an error, which the graph keeps (weft_graph_status) */
WEFT_API weft_value weft_dense(weft_graph *graph, const char *name, weft_value x, int64_t features,
                               const weft_dense_options *options);

#ifdef __cplusplus
}
#endif
#endif
