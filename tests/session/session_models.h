/* What the tests of sessions share: random models, the tiny gpt2, reading and comparing tensors. */
#ifndef WEFT_TESTS_SESSION_MODELS_H
#define WEFT_TESTS_SESSION_MODELS_H

#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "graph/build_random.h"
#include "tensor/tensor.h"
#include "session/session.h"
#include "weft/model.h"

enum { ROWS = 4, COLUMNS = 6 };

/* Two to four random cells in a row over x [4, 6]. A shared parameter joins some cells, and some
 * parts lie outside of cells. Loss: the mean square of the difference to `target`, plus a part
 * taken from the middle. */
static inline weft_graph *random_model(uint64_t seed) {
    dice d = {seed, 0};
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(ROWS, COLUMNS));
    weft_value target = weft_input(g, "target", matrix(ROWS, COLUMNS)), results[2], side = x;
    weft_init init = {WEFT_INIT_NORMAL, 0.4};
    weft_value shared = weft_param(g, "shared", matrix(COLUMNS, COLUMNS), init);
    int64_t cells = 2 + roll(&d, 3);
    for (int64_t c = 0; c < cells; c++) {
        char name[16];
        (void)snprintf(name, sizeof name, "cell%d", (int)c);
        random_cell(g, &d, name, x, 2 + (int)roll(&d, 5), results);
        x = results[0];
        if (roll(&d, 2)) side = results[1];
        if (roll(&d, 2)) {
            weft_cell_begin(g, "shared%d", (int)c);
            x = weft_cell_end(g, weft_tanh(g, weft_linear(g, x, shared, WEFT_NO_VALUE, false)));
        }
        if (roll(&d, 3) == 0)
            x = weft_layer_norm(g, x, weft_param(g, name, vector(COLUMNS), init), WEFT_NO_VALUE,
                                1e-2);
    }
    x = weft_tanh(g, weft_linear(g, x, shared, WEFT_NO_VALUE, true)); /* bounded */
    weft_value loss = weft_mse(g, x, target);
    weft_loss(
        g, weft_add(g, loss, weft_scale(g, weft_mean(g, weft_tanh(g, side), 0, NULL, false), 0.1)));
    if (weft_graph_status(g) < 0) fail_msg("seed %d: %s", (int)seed, weft_graph_message(g));
    return g;
}

static inline weft_graph *tiny_gpt2(weft_model_use use, int64_t batch, double dropout,
                                    weft_dtype dtype) {
    weft_model_config c = {.family = WEFT_FAMILY_GPT2,
                           .layers = 2,
                           .hidden = 32,
                           .heads = 4,
                           .ffn = 64,
                           .context = 16,
                           .vocab = 50,
                           .dropout = dropout};
    weft_graph *g;
    ASSERT_OK(weft_model_build(&c, use, batch, 0, dtype, &g));
    return g;
}

/* A chain of cells. The logarithm in cell `bad` has a negative operand when "x" is negative. A
 * state counts the steps. */
static inline weft_graph *chain_with_logarithm(int bad) {
    weft_graph *g;
    ASSERT_OK(weft_graph_create(&g));
    weft_value x = weft_input(g, "x", matrix(ROWS, COLUMNS));
    weft_value count = weft_state(g, "count", vector(1), (weft_init){WEFT_INIT_ZEROS, 0});
    for (int c = 0; c < 4; c++) {
        weft_cell_begin(g, "h.%d", c);
        weft_value w =
            weft_param(g, "w", matrix(COLUMNS, COLUMNS), (weft_init){WEFT_INIT_NORMAL, 0.3});
        x = weft_add(g, weft_tanh(g, weft_linear(g, x, w, WEFT_NO_VALUE, false)), x);
        if (c == bad) {
            weft_cell_begin(g, "inner");
            x = weft_cell_end(g, weft_log(g, x));
        }
        x = weft_cell_end(g, x);
    }
    weft_state_update(g, count, weft_shift(g, count, 1));
    weft_loss(g, weft_mean(g, weft_tanh(g, x), 0, NULL, false));
    ASSERT_OK(weft_graph_status(g));
    return g;
}

static inline weft_session *session_of(weft_graph *g, weft_session_options o) {
    weft_session *s;
    ASSERT_OK(weft_session_create(g, &o, &s));
    return s;
}

static inline weft_session_options plain_options(weft_optimizer_kind kind, double clip) {
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = kind;
    o.clip = clip;
    o.threads = 2;
    return o;
}

/* Feeds every input of a program: normal numbers, and tokens below 50. Rows start at `first_row` of
 * one long list, so that a test can cut microbatches from a batch. */
static inline void feed_rows(weft_session *s, int program, uint64_t seed, int64_t first_row) {
    for (int t = 0; t < weft_session_tensors(s, program); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(s, program, t, &info));
        if (info.role != WEFT_ROLE_INPUT) continue;
        int64_t elems = weft_desc_elems(&info.desc), rows = info.desc.rank ? info.desc.shape[0] : 1;
        uint64_t stream = wefti_stream_of(info.name),
                 at = (uint64_t)(first_row * (rows ? elems / rows : 0));
        void *data = malloc((size_t)info.bytes);
        for (int64_t i = 0; i < elems; i++) {
            uint64_t place = at + (uint64_t)i;
            if (info.desc.dtype == WEFT_I32)
                ((int32_t *)data)[i] = (int32_t)(wefti_philox_u32(seed, stream, place) % 50);
            else if (info.desc.dtype == WEFT_F64)
                ((double *)data)[i] = wefti_philox_normal(seed, stream, place);
            else
                ((float *)data)[i] = wefti_philox_normal(seed, stream, place);
        }
        ASSERT_OK(weft_session_feed(s, program, info.name, data, (size_t)info.bytes));
        free(data);
    }
}

static inline float *read_tensor(weft_session *s, int program, const char *name,
                                 int64_t *out_count) {
    weft_tensor_info info;
    ASSERT_OK(weft_session_find(s, program, name, &info));
    float *data = malloc((size_t)info.bytes);
    ASSERT_OK(weft_session_read(s, program, name, data, (size_t)info.bytes));
    *out_count = info.bytes / (int64_t)sizeof *data;
    return data;
}

/* Largest difference of all tensors of a role between two sessions, divided by the largest value. 0
 * when all bits are equal. */
static inline double difference(weft_session *a, weft_session *b, int role) {
    double most = 0;
    for (int t = 0; t < weft_session_tensors(a, 0); t++) {
        weft_tensor_info info;
        ASSERT_OK(weft_session_tensor(a, 0, t, &info));
        if ((int)info.role != role) continue;
        int64_t count, same;
        float *x = read_tensor(a, 0, info.name, &count), *y = read_tensor(b, 0, info.name, &same);
        assert_int_equal(count, same);
        if (memcmp(x, y, (size_t)count * sizeof *x)) {
            double largest = 1e-3, apart = 1e-30;
            for (int64_t i = 0; i < count; i++) {
                largest = fmax(largest, fabs((double)x[i]));
                apart = fmax(apart, fabs((double)x[i] - (double)y[i]));
            }
            if (!(apart / largest <= most)) most = apart / largest;
        }
        free(x);
        free(y);
    }
    return most;
}

#endif
