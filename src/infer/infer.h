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

/* All ranks get the same status. One process: returns `status`. */
weft_status wefti_infer_agree(const weft_infer *infer, weft_status status) WEFT_CHECKED;
/* On rank 0 `status` is that of the input, which the others do not know. Sends rank 0's input to
 * all ranks, in place. One process: returns `status`. */
weft_status wefti_infer_share(weft_infer *infer, weft_status status, void *data,
                              size_t bytes) WEFT_CHECKED;

#endif
