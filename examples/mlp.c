/* A classifier for MNIST-format files, in one page:
 *
 *     cc mlp.c $(pkg-config --cflags --libs weft) -o mlp
 *     ./mlp t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz
 *
 * The last tenth of the images is held out; the accuracy on it is printed. */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { BATCH = 50, PIXELS = 784, HIDDEN = 256, CLASSES = 10, STEPS = 900 };

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "mlp: %s\n", weft_error_message());
    exit(1);
}

int main(int argc, char **argv) {
    static float image[BATCH][PIXELS];
    int32_t label[BATCH], guess[BATCH], right = 0, seen = 0, test;
    if (argc != 3) return fprintf(stderr, "usage: mlp IMAGES LABELS\n"), 2;
    weft_data *data;
    weft_data_options from = WEFT_STRUCT(weft_data_options, .format = "idx", .path = argv[1],
                                         .labels = argv[2], .validation_fraction = 0.1);
    from.vocab = CLASSES; /* refuses labels beyond */
    check(weft_data_open(&from, &data));
    weft_desc one = weft_data_input(data);
    if (weft_desc_elems(&one) != PIXELS) return fprintf(stderr, "mlp: not of 28 x 28 pixels\n"), 1;

    weft_graph *g; /* keeps its first error, which weft_session_create returns */
    check(weft_graph_create(&g));
    weft_value x = weft_input(g, "image", WEFT_DESC(WEFT_F32, BATCH, PIXELS));
    x = weft_dense(g, "hidden", x, HIDDEN,
                   &WEFT_STRUCT(weft_dense_options, .activation = weft_relu));
    x = weft_dense(g, "out", x, CLASSES, NULL);
    weft_output(g, "guess", weft_argmax(g, x, 1));
    weft_value answer = weft_input(g, "label", WEFT_DESC(WEFT_I32, BATCH));
    weft_loss(g, weft_cross_entropy(g, x, answer, -1, 0));
    weft_session *s;
    check(weft_session_create(g, NULL, &s)); /* program 0: it trains, with AdamW */
    check(weft_session_add(s, g, &test));    /* forward only, with the same parameters */

    int64_t samples = weft_data_samples(data, WEFT_DATA_TRAIN);
    for (int64_t step = 0; step < STEPS; step++) {
        double loss;
        for (int64_t i = 0; i < BATCH; i++) {
            int64_t n = weft_data_order(1, samples, step * BATCH + i);
            check(weft_data_read(data, WEFT_DATA_TRAIN, n, image[i], label + i));
        }
        check(weft_session_feed(s, 0, "image", image, sizeof image));
        check(weft_session_feed(s, 0, "label", label, sizeof label));
        check(weft_session_step(s, 1e-3, &loss));
        if (step % 100 == 0) printf("step %3d  loss %.4f\n", (int)step, loss);
    }
    for (; seen + BATCH <= weft_data_samples(data, WEFT_DATA_VALIDATION); seen += BATCH) {
        for (int64_t i = 0; i < BATCH; i++)
            check(weft_data_read(data, WEFT_DATA_VALIDATION, seen + i, image[i], label + i));
        check(weft_session_feed(s, test, "image", image, sizeof image));
        check(weft_session_feed(s, test, "label", label, sizeof label));
        check(weft_session_forward(s, test, NULL));
        check(weft_session_read(s, test, "guess", guess, sizeof guess));
        for (int i = 0; i < BATCH; i++) right += guess[i] == label[i];
    }
    if (seen == 0) return fprintf(stderr, "mlp: fewer than %d held-out images\n", BATCH), 1;
    printf("accuracy %.2f %% on %d held-out images\n", 100.0 * right / seen, (int)seen);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    weft_data_close(data);
    return 0;
}
