/* Layers: operations together with the parameters they need, each a cell of its own. They are
 * written with what weft/graph.h and weft/ops.h offer. */
#ifndef WEFT_LAYER_H
#define WEFT_LAYER_H

#include <stdbool.h>

#include "weft/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a dense layer; {0} is a layer with a bias and without an activation. */
typedef struct weft_dense_options {
    double deviation; /* the weight starts normal with this standard deviation; 0: 1 / sqrt(in) */
    bool transposed;  /* the weight is [features, in], as PyTorch's are; else [in, features] */
    bool no_bias;
    weft_value (*activation)(weft_graph *graph, weft_value x); /* weft_relu, ...; NULL: none */
} weft_dense_options;

/** x [..., in] -> [..., features]: a cell `name` (NULL: the one that is open) with the parameters
 * "weight" and "bias" [features], which starts at 0; then the activation. Parameters are f64 where
 * x is, else f32. */
WEFT_API weft_value weft_dense(weft_graph *graph, const char *name, weft_value x, int64_t features,
                               weft_dense_options options);

#ifdef __cplusplus
}
#endif
#endif
