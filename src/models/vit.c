/* ViT: an image as a sequence of patches with a class token first, in pre-norm blocks. The class
 * token's last state is classified. Source: Dosovitskiy et al., "An Image is Worth 16x16 Words",
 * ICLR 2021. Names follow Hugging Face's ViTForImageClassification. */
#include "models/models.h"

static weft_value embed(const wefti_model_build *b, weft_value image) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    int64_t rows = c->image[1] / c->patch, columns = c->image[2] / c->patch;
    int64_t patches = rows * columns;
    weft_init init = wefti_normal(0.02);
    weft_cell_begin(g, "embeddings");
    weft_value weight = wefti_param(b, "patch_embeddings.projection.weight", init, c->hidden,
                                    c->image[0], c->patch, c->patch);
    weft_value bias =
        wefti_param(b, "patch_embeddings.projection.bias", wefti_zeros(), c->hidden, 0, 0, 0);
    weft_conv_options o = weft_conv_defaults();
    o.stride[0] = o.stride[1] = c->patch;
    weft_value x = weft_conv2d(g, image, weight, bias, &o);
    x = weft_reshape(g, x, 3, (int64_t[]){b->batch, c->hidden, patches});
    x = weft_transpose(g, x, 3, (int[]){0, 2, 1});
    /* the class token once per image: [1, 1, hidden] -> [batch, 1, hidden] */
    weft_value first = weft_constant(g, WEFT_DESC(b->dtype, b->batch, 1, c->hidden), 0);
    first = weft_add(g, first, wefti_param(b, "cls_token", init, 1, 1, c->hidden, 0));
    x = weft_concat(g, 2, (weft_value[]){first, x}, 1);
    weft_value places = wefti_param(b, "position_embeddings", init, 1, patches + 1, c->hidden, 0);
    return weft_cell_end(g, wefti_drop_embedding(b, weft_add(g, x, places)));
}

static weft_value block(const wefti_model_build *b, weft_value x, int64_t layer) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_cell_begin(g, "encoder.layer.%d", (int)layer);
    weft_value y = wefti_layer_norm(b, x, "layernorm_before", c->hidden);
    y = wefti_attend_all(b, y, "attention.attention.query", "attention.attention.key",
                         "attention.attention.value");
    y = wefti_dense(b, "attention.output.dense", y, c->hidden, wefti_transposed(0.02));
    x = weft_add(g, x, wefti_drop(b, y));
    y = wefti_layer_norm(b, x, "layernorm_after", c->hidden);
    y = wefti_dense(b, "intermediate.dense", y, c->ffn, wefti_transposed(0.02));
    y = wefti_dense(b, "output.dense", weft_gelu_erf(g, y), c->hidden, wefti_transposed(0.02));
    return weft_cell_end(g, weft_add(g, x, wefti_drop(b, y)));
}

void wefti_build_vit(const wefti_model_build *b) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_value image = wefti_image(b), label = wefti_labels(b);
    weft_value x = embed(b, image);
    for (int64_t layer = 0; layer < c->layers; layer++) x = block(b, x, layer);
    weft_value scale = wefti_param(b, "layernorm.weight", wefti_ones(), c->hidden, 0, 0, 0);
    weft_value shift = wefti_param(b, "layernorm.bias", wefti_zeros(), c->hidden, 0, 0, 0);
    weft_cell_begin(g, "classifier");
    x = weft_slice(g, x, 1, 0, 1); /* norm after picking the class token: the others go unused */
    x = weft_reshape(g, x, 2, (int64_t[]){b->batch, c->hidden});
    x = weft_layer_norm(g, x, scale, shift, c->norm_eps);
    wefti_model_end(b, wefti_dense_of(g, NULL, x, c->classes, wefti_transposed(0.02)), label,
                    WEFT_NO_VALUE, WEFT_NO_VALUE);
}
