/* ResNet-18 and ResNet-50. Source: He et al., "Deep Residual Learning", CVPR 2016. Architecture,
 * names and initial values follow torchvision: the stride of a bottleneck lies in its 3 x 3
 * convolution; convolutions start normal with variance 2 / (outputs * kernel). Images smaller than
 * 64 get the paper's stem for CIFAR-10: a 3 x 3 convolution of stride 1 without pooling. `hidden`
 * is the width of the first stage, 64 in the paper. */
#include <math.h>
#include <stdio.h>

#include "models/models.h"

static const double momentum = 0.1; /* of the running statistics */

static weft_value conv_weight(const wefti_model_build *b, const char *name, int64_t in, int64_t out,
                              int64_t kernel) {
    weft_init init = wefti_normal(sqrt(2.0 / (double)(out * kernel * kernel)));
    return wefti_param(b, name, init, out, in, kernel, kernel);
}

static weft_value convolve(const wefti_model_build *b, weft_value x, weft_value weight,
                           int64_t kernel, int64_t stride) {
    weft_conv_options o = weft_conv_defaults();
    o.stride[0] = o.stride[1] = stride;
    o.padding[0] = o.padding[1] = kernel / 2;
    return weft_conv2d(b->g, x, weight, WEFT_NO_VALUE, &o);
}

/* The four tensors of a batch norm. */
typedef struct statistics {
    weft_value gamma, beta, mean, var;
} statistics;

static statistics norm_tensors(const wefti_model_build *b, const char *name, int64_t channels) {
    char full[WEFTI_MODEL_NAME_BYTES];
    weft_desc desc = weft_desc_of(b->param, 1, &channels);
    statistics s;
    s.gamma = weft_param(b->g, wefti_model_join(full, name, "weight"), desc, wefti_ones());
    s.beta = weft_param(b->g, wefti_model_join(full, name, "bias"), desc, wefti_zeros());
    s.mean = weft_state(b->g, wefti_model_join(full, name, "running_mean"), desc, wefti_zeros());
    s.var = weft_state(b->g, wefti_model_join(full, name, "running_var"), desc, wefti_ones());
    return s;
}

static weft_value norm(const wefti_model_build *b, weft_value x, const statistics *s) {
    return weft_batch_norm(b->g, x, s->gamma, s->beta, s->mean, s->var, momentum, b->c->norm_eps,
                           b->use == WEFT_USE_TRAIN);
}

/* Convolution CONV.weight without bias, then batch norm NORM. */
static weft_value conv_norm(const wefti_model_build *b, weft_value x, const char *conv,
                            const char *norm_name, int64_t in, int64_t out, int64_t kernel,
                            int64_t stride) {
    char full[WEFTI_MODEL_NAME_BYTES];
    weft_value weight = conv_weight(b, wefti_model_join(full, conv, "weight"), in, out, kernel);
    statistics s = norm_tensors(b, norm_name, out);
    return norm(b, convolve(b, x, weight, kernel, stride), &s);
}

static weft_value shortcut(const wefti_model_build *b, weft_value x, int64_t in, int64_t out,
                           int64_t stride) {
    if (in == out && stride == 1) return x;
    return conv_norm(b, x, "downsample.0", "downsample.1", in, out, 1, stride);
}

/* Two 3 x 3 convolutions (ResNet-18). */
static weft_value basic(const wefti_model_build *b, weft_value x, int64_t in, int64_t width,
                        int64_t stride) {
    weft_graph *g = b->g;
    weft_value y = weft_relu(g, conv_norm(b, x, "conv1", "bn1", in, width, 3, stride));
    y = conv_norm(b, y, "conv2", "bn2", width, width, 3, 1);
    return weft_relu(g, weft_add(g, y, shortcut(b, x, in, width, stride)));
}

/* 1 x 1 down, 3 x 3, 1 x 1 up to four times the width (ResNet-50). */
static weft_value bottleneck(const wefti_model_build *b, weft_value x, int64_t in, int64_t width,
                             int64_t stride) {
    weft_graph *g = b->g;
    weft_value y = weft_relu(g, conv_norm(b, x, "conv1", "bn1", in, width, 1, 1));
    y = weft_relu(g, conv_norm(b, y, "conv2", "bn2", width, width, 3, stride));
    y = conv_norm(b, y, "conv3", "bn3", width, 4 * width, 1, 1);
    return weft_relu(g, weft_add(g, y, shortcut(b, x, in, 4 * width, stride)));
}

static weft_value stem(const wefti_model_build *b, weft_value x) {
    weft_graph *g = b->g;
    const int64_t *image = b->c->image;
    bool large = image[1] >= 64 && image[2] >= 64;
    int64_t kernel = large ? 7 : 3;
    /* named outside of the cell, so that tensors' names have no "stem" in front */
    weft_value weight = conv_weight(b, "conv1.weight", image[0], b->c->hidden, kernel);
    statistics s = norm_tensors(b, "bn1", b->c->hidden);
    weft_cell_begin(g, "stem");
    x = weft_relu(g, norm(b, convolve(b, x, weight, kernel, large ? 2 : 1), &s));
    const int64_t three[2] = {3, 3}, two[2] = {2, 2}, one[2] = {1, 1};
    if (large) x = weft_max_pool2d(g, x, three, two, one);
    return weft_cell_end(g, x);
}

void wefti_build_resnet(const wefti_model_build *b) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    bool deep = c->family == WEFT_FAMILY_RESNET50;
    const int blocks[2][4] = {{2, 2, 2, 2}, {3, 4, 6, 3}};
    weft_value image = wefti_image(b), label = wefti_labels(b);
    weft_value x = stem(b, image);
    int64_t in = c->hidden;
    for (int stage = 0; stage < 4; stage++) {
        int64_t width = c->hidden << stage;
        for (int i = 0; i < blocks[deep][stage]; i++) {
            int64_t stride = stage > 0 && i == 0 ? 2 : 1;
            weft_cell_begin(g, "layer%d.%d", stage + 1, i);
            x = deep ? bottleneck(b, x, in, width, stride) : basic(b, x, in, width, stride);
            x = weft_cell_end(g, x);
            in = deep ? 4 * width : width;
        }
    }
    weft_cell_begin(g, "fc");
    x = weft_mean(g, x, 2, (int[]){2, 3}, false);
    weft_init init = {WEFT_INIT_UNIFORM, 1.0 / sqrt((double)in)};
    weft_value weight = wefti_param(b, "weight", init, c->classes, in, 0, 0);
    weft_value bias = wefti_param(b, "bias", init, c->classes, 0, 0, 0);
    wefti_model_end(b, weft_linear(g, x, weight, bias, true), label, WEFT_NO_VALUE, WEFT_NO_VALUE);
}
