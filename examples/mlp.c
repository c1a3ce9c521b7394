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

static weft_value dense(weft_graph *g, weft_value x, const char *name, int64_t in, int64_t out) {
    weft_cell_begin(g, "%s", name);
    weft_value w = weft_param(g, "weight", weft_desc_of(WEFT_F32, 2, (int64_t[]){in, out}),
                              (weft_init){WEFT_INIT_NORMAL, 0.05});
    weft_value b =
        weft_param(g, "bias", weft_desc_of(WEFT_F32, 1, &out), (weft_init){WEFT_INIT_ZEROS, 0});
    return weft_cell_end(g, weft_linear(g, x, w, b, false));
}

static weft_graph *model(void) {
    weft_graph *g;
    check(weft_graph_create(&g));
    weft_value x = weft_input(g, "image", weft_desc_of(WEFT_F32, 2, (int64_t[]){BATCH, PIXELS}));
    weft_value label = weft_input(g, "label", weft_desc_of(WEFT_I32, 1, (int64_t[]){BATCH}));
    weft_value logits =
        dense(g, weft_relu(g, dense(g, x, "hidden", PIXELS, HIDDEN)), "out", HIDDEN, CLASSES);
    weft_output(g, "guess", weft_argmax(g, logits, 1));
    weft_loss(g, weft_cross_entropy(g, logits, label, -1, 0));
    check(weft_graph_status(g));
    return g;
}

int main(int argc, char **argv) {
    static float image[BATCH * PIXELS];
    int32_t label[BATCH], guess[BATCH], right = 0, seen = 0, eval;
    if (argc != 3) return fprintf(stderr, "usage: mlp IMAGES LABELS\n"), 2;
    weft_data *data;
    check(weft_data_open(
        &(weft_data_options){
            .format = "idx", .path = argv[1], .labels = argv[2], .validation_fraction = 0.1},
        &data));
    weft_graph *train = model(), *test = model();
    weft_session_options options = weft_session_defaults();
    weft_session *s;
    check(weft_session_create(train, &options, &s));
    check(weft_session_add(s, test, &eval));
    for (int64_t step = 0; step < STEPS; step++) {
        double loss;
        for (int64_t i = 0; i < BATCH; i++) {
            int64_t n =
                weft_data_order(1, weft_data_samples(data, WEFT_DATA_TRAIN), step * BATCH + i);
            check(weft_data_read(data, WEFT_DATA_TRAIN, n, image + i * PIXELS, label + i));
        }
        check(weft_session_feed(s, 0, "image", image, sizeof image));
        check(weft_session_feed(s, 0, "label", label, sizeof label));
        check(weft_session_step(s, 1e-3, &loss));
        if (step % 100 == 0) printf("step %3d  loss %.4f\n", (int)step, loss);
    }
    for (int64_t n = 0; n + BATCH <= weft_data_samples(data, WEFT_DATA_VALIDATION);
         n += BATCH, seen += BATCH) {
        for (int64_t i = 0; i < BATCH; i++)
            check(weft_data_read(data, WEFT_DATA_VALIDATION, n + i, image + i * PIXELS, label + i));
        check(weft_session_feed(s, eval, "image", image, sizeof image));
        check(weft_session_feed(s, eval, "label", label, sizeof label));
        check(weft_session_forward(s, eval, NULL));
        check(weft_session_read(s, eval, "guess", guess, sizeof guess));
        for (int i = 0; i < BATCH; i++) right += guess[i] == label[i];
    }
    printf("accuracy %.2f %% on %d held-out images\n", 100.0 * right / seen, (int)seen);
    weft_session_destroy(s);
    weft_graph_destroy(train);
    weft_graph_destroy(test);
    weft_data_close(data);
    return 0;
}
