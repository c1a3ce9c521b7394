/* Outputs of a trained model, for the files of this folder. */
#ifndef WEFTI_INFER_INFER_H
#define WEFTI_INFER_INFER_H

#include "infer/trained.h"

struct weft_infer {
    wefti_trained model;
    weft_world *world;       /* NULL: all devices are in this process */
    weft_desc input, output; /* of a sample */
    bool language, causal;
    int64_t batch;
    void *in;     /* [batch] samples */
    void *logits; /* [batch], in the dtype of the graph's output */
    weft_dtype dtype;
};

#endif
