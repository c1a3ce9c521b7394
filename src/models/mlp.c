/* A multilayer perceptron on the flattened image: `layers` hidden layers of `hidden` with relu,
 * each followed by dropout. Initial values: normal with variance 2 / inputs (He et al., "Delving
 * Deep into Rectifiers", ICCV 2015). */
#include "models/models.h"

void wefti_build_mlp(const wefti_model_build *b) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_value image = wefti_image(b), label = wefti_labels(b);
    int64_t in = c->image[0] * c->image[1] * c->image[2];
    weft_value x = weft_reshape(g, image, 2, (int64_t[]){b->batch, in});
    for (int64_t layer = 0; layer < c->layers; layer++) {
        weft_cell_begin(g, "layers.%d", (int)layer);
        x = wefti_dense_of(g, NULL, x, c->hidden, wefti_rectified(in));
        x = weft_cell_end(g, wefti_drop(b, x));
        in = c->hidden;
    }
    weft_cell_begin(g, "head");
    wefti_model_end(b, wefti_dense_of(g, NULL, x, c->classes, wefti_transposed(0)), label,
                    WEFT_NO_VALUE, WEFT_NO_VALUE);
}
