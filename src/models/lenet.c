/* LeNet-5: two convolutions with pooling, three dense layers. Source: LeCun et al., "Gradient-Based
 * Learning Applied to Document Recognition", 1998. It has relu and max pooling in place of tanh and
 * averages, as usual today. The paper places 28 x 28 digits in 32 x 32 images. So images smaller
 * than 32 are padded by 2 on each side. */
#include <math.h>

#include "models/models.h"

enum { KERNEL = 5, MAPS_1 = 6, MAPS_2 = 16, DENSE_1 = 120, DENSE_2 = 84 };

static int64_t padding(int64_t size) {
    return size < 32 ? 2 : 0;
}

static weft_value convolve(const wefti_model_build *b, weft_value x, const char *name, int64_t in,
                           int64_t out, const int64_t pad[2]) {
    weft_graph *g = b->g;
    weft_cell_begin(g, "%s", name);
    weft_init init = wefti_normal(sqrt(2.0 / (double)(in * KERNEL * KERNEL)));
    weft_value weight = wefti_param(b, "weight", init, out, in, KERNEL, KERNEL);
    weft_value bias = wefti_param(b, "bias", wefti_zeros(), out, 0, 0, 0);
    weft_conv_options o = weft_conv_defaults();
    for (int i = 0; i < 2; i++) o.padding[i] = pad[i];
    const int64_t two[2] = {2, 2}, none[2] = {0, 0};
    x = weft_relu(g, weft_conv2d(g, x, weight, bias, &o));
    return weft_cell_end(g, weft_max_pool2d(g, x, two, two, none));
}

void wefti_build_lenet(const wefti_model_build *b) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_value x = wefti_image(b), label = wefti_labels(b);
    int64_t pad[2], none[2] = {0, 0}, flat = MAPS_2;
    for (int i = 0; i < 2; i++) {
        pad[i] = padding(c->image[1 + i]);
        int64_t size = (c->image[1 + i] + 2 * pad[i] - KERNEL + 1) / 2;
        flat *= (size - KERNEL + 1) / 2;
    }
    x = convolve(b, x, "conv1", c->image[0], MAPS_1, pad);
    x = convolve(b, x, "conv2", MAPS_1, MAPS_2, none);
    weft_cell_begin(g, "fc1");
    x = weft_reshape(g, x, 2, (int64_t[]){b->batch, flat});
    x = weft_cell_end(g, wefti_dense_of(g, NULL, x, DENSE_1, wefti_rectified(flat)));
    x = wefti_dense_of(g, "fc2", x, DENSE_2, wefti_rectified(DENSE_1));
    weft_cell_begin(g, "fc3");
    wefti_model_end(b, wefti_dense_of(g, NULL, x, c->classes, wefti_transposed(0)), label,
                    WEFT_NO_VALUE, WEFT_NO_VALUE);
}
