/* Data parallelism by hand: a classifier whose gradients are summed over the ranks of a job.
 *
 *     cc manual_parallel.c $(pkg-config --cflags --libs weft) -lm -o manual_parallel
 *     weft launch -n 4 -- ./manual_parallel t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz
 *
 * Everything but the communication is plain C: a 784-512-512-10 network with relu, forward and
 * backward. Each rank takes its own part of every batch. An all-reduce sums the gradients, so every
 * rank makes the same update. The program compares a checksum of the parameters over all ranks
 * after each step. (A program that averages only the loss prints the same numbers, but each rank
 * would train another model.) Without a launcher the program is a world of one and takes the same
 * steps, up to rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { BATCH = 32, PIXELS = 784, HIDDEN = 512, CLASSES = 10, STEPS = 200, LAYERS = 3 };
enum { WIDEST = PIXELS, PARAMS = 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10 };

static const int width[LAYERS + 1] = {PIXELS, HIDDEN, HIDDEN, CLASSES};
static float parameters[PARAMS], gradients[PARAMS];
static float value[LAYERS + 1][BATCH * WIDEST], delta[LAYERS + 1][BATCH * WIDEST];
static weft_world *world;

static void check(weft_status status) {
    if (status >= 0) return;
    fprintf(stderr, "manual_parallel: %s\n", weft_error_message());
    if (world)
        weft_world_fail(world, weft_error_message()); /* end the job on the other ranks too */
    exit(1);
}

/* Position of the weights [in, out] of a layer; its bias [out] follows. */
static int offset(int layer) {
    int at = 0;
    for (int l = 0; l < layer; l++) at += (width[l] + 1) * width[l + 1];
    return at;
}

static void forward(int rows, int layer) {
    int in = width[layer], out = width[layer + 1];
    const float *w = parameters + offset(layer), *bias = w + in * out;
    for (int r = 0; r < rows; r++) {
        float *y = value[layer + 1] + r * out;
        memcpy(y, bias, (size_t)out * sizeof *y);
        for (int i = 0; i < in; i++) {
            float x = value[layer][r * in + i];
            for (int o = 0; x != 0 && o < out; o++) y[o] += x * w[i * out + o];
        }
        for (int o = 0; layer + 1 < LAYERS && o < out; o++) y[o] = y[o] > 0 ? y[o] : 0;
    }
}

/* Reads delta[layer + 1]; adds to the gradients of `layer` and computes delta[layer]. */
static void backward(int rows, int layer) {
    int in = width[layer], out = width[layer + 1];
    const float *w = parameters + offset(layer);
    float *dw = gradients + offset(layer), *dbias = dw + in * out;
    for (int r = 0; r < rows; r++) {
        const float *dy = delta[layer + 1] + r * out;
        for (int o = 0; o < out; o++) dbias[o] += dy[o];
        for (int i = 0; i < in; i++) {
            float x = value[layer][r * in + i], sum = 0;
            for (int o = 0; x != 0 && o < out; o++) dw[i * out + o] += x * dy[o];
            for (int o = 0; x > 0 && o < out; o++) sum += w[i * out + o] * dy[o]; /* relu */
            delta[layer][r * in + i] = sum;
        }
    }
}

/* Returns the cross-entropy of the logits, summed over the rows. Stores its gradient with respect
 * to the logits, times `scale`. */
static double loss_of(int rows, const int32_t *label, float scale) {
    double loss = 0;
    for (int r = 0; r < rows; r++) {
        const float *y = value[LAYERS] + r * CLASSES;
        float *dy = delta[LAYERS] + r * CLASSES, top = y[0], sum = 0;
        for (int c = 1; c < CLASSES; c++) top = y[c] > top ? y[c] : top;
        for (int c = 0; c < CLASSES; c++) sum += expf(y[c] - top);
        for (int c = 0; c < CLASSES; c++)
            dy[c] = (expf(y[c] - top) / sum - (c == label[r] ? 1.0f : 0.0f)) * scale;
        loss += (double)(logf(sum) + top - y[label[r]]);
    }
    return loss;
}

/* Broadcasts rank 0's start values. */
static void start(void) {
    uint32_t state = 1;
    for (int layer = 0; layer < LAYERS; layer++) {
        float scale = sqrtf(2.0f / (float)width[layer]);
        for (int i = 0; i < width[layer] * width[layer + 1]; i++) {
            state = state * 1664525u + 1013904223u;
            parameters[offset(layer) + i] = scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
        }
    }
    check(weft_broadcast(world, NULL, parameters, PARAMS, WEFT_F32, 0));
}

/* Collective. Fails unless all ranks have equal parameters: the largest and the smallest checksum
 * must be equal. */
static void compare(int step) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < sizeof parameters; i++)
        sum = (sum ^ ((const unsigned char *)parameters)[i]) * 1099511628211u;
    int64_t mine = (int64_t)sum, most, least;
    check(weft_all_reduce(world, NULL, &mine, &most, 1, WEFT_I64, WEFT_REDUCE_MAX));
    check(weft_all_reduce(world, NULL, &mine, &least, 1, WEFT_I64, WEFT_REDUCE_MIN));
    if (most == least) return;
    fprintf(stderr, "manual_parallel: after step %d the ranks' parameters differ\n", step);
    weft_world_fail(world, "parameters differ");
    exit(1);
}

int main(int argc, char **argv) {
    static int32_t label[BATCH];
    weft_data *data;
    if (argc != 3) return fprintf(stderr, "usage: manual_parallel IMAGES LABELS\n"), 2;
    check(weft_world_join(NULL, &world));
    int rank = weft_world_rank(world), size = weft_world_size(world);
    int begin = BATCH * rank / size, rows = BATCH * (rank + 1) / size - begin;
    weft_data_options from =
        WEFT_STRUCT(weft_data_options, .format = "idx", .path = argv[1], .labels = argv[2]);
    from.vocab = CLASSES; /* refuses labels beyond */
    check(weft_data_open(&from, &data));
    weft_desc one = weft_data_input(data);
    if (weft_desc_elems(&one) != PIXELS)
        check(weft_error_raise(WEFT_E_SHAPE, "the images are not of 28 x 28 pixels"));
    start();
    for (int step = 0; step < STEPS; step++) {
        double loss, all;
        for (int r = 0; r < rows; r++) {
            int64_t n = weft_data_order(1, weft_data_samples(data, WEFT_DATA_TRAIN),
                                        (int64_t)step * BATCH + begin + r);
            check(weft_data_read(data, WEFT_DATA_TRAIN, n, value[0] + r * PIXELS, label + r));
        }
        for (int layer = 0; layer < LAYERS; layer++) forward(rows, layer);
        loss = loss_of(rows, label, 1.0f / BATCH);
        memset(gradients, 0, sizeof gradients);
        /* The all-reduce of a layer's gradients overlaps the backward pass of the layer before it.
         */
        weft_request *under_way[LAYERS];
        for (int layer = LAYERS - 1; layer >= 0; layer--) {
            float *g = gradients + offset(layer);
            backward(rows, layer);
            check(weft_all_reduce_start(world, NULL, g, g, offset(layer + 1) - offset(layer),
                                        WEFT_F32, WEFT_REDUCE_SUM, &under_way[layer]));
        }
        for (int layer = LAYERS - 1; layer >= 0; layer--)
            check(weft_request_wait(under_way[layer]));
        for (int i = 0; i < PARAMS; i++) parameters[i] -= 0.05f * gradients[i];
        compare(step);
        check(weft_reduce(world, NULL, &loss, &all, 1, WEFT_F64, WEFT_REDUCE_SUM, 0));
        if (rank == 0 && step % 20 == 0)
            printf("step %3d  loss %.4f\n", step, all / BATCH), fflush(stdout);
    }
    if (rank == 0)
        printf("%d rank%s, %d steps: parameters equal on all ranks after each\n", size,
               size == 1 ? "" : "s", STEPS);
    weft_data_close(data);
    weft_world_leave(world);
    return 0;
}
