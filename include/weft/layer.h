/* Layers: operations together with the parameters they need, each a cell of its own. They use only
 * weft/graph.h and weft/ops.h. */
#ifndef WEFT_LAYER_H
#define WEFT_LAYER_H

#include <stdbool.h>

#include "weft/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options of a dense layer. {0} is a layer with a bias and without an activation. */
typedef struct weft_dense_options {
    double deviation; /* standard deviation of the weight's normal start values; 0: 1 / sqrt(in) */
    bool transposed;  /* the weight is [features, in], as in PyTorch; else [in, features] */
    bool no_bias;
    weft_value (*activation)(weft_graph *graph, weft_value x); /* weft_relu, ...; NULL: none */
} weft_dense_options;

/** x [..., in] -> [..., features]: x times "weight", plus "bias" [features], then the activation.
 * The bias starts at 0. Parameters are f64 if x is f64, else f32.
 * @param name  the layer's cell; NULL: the parameters belong to the open cell
 * @return WEFT_NO_VALUE after an error, which the graph keeps (weft_graph_status) */
WEFT_API weft_value weft_dense(weft_graph *graph, const char *name, weft_value x, int64_t features,
                               weft_dense_options options);

#ifdef __cplusplus
}
#endif
#endif
