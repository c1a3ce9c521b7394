/* Random cells for property tests: smooth ops over values [rows, columns], so that gradients can be
 * checked by finite differences. Everything follows from one seed. */
#ifndef WEFT_TESTS_BUILD_RANDOM_H
#define WEFT_TESTS_BUILD_RANDOM_H

#include "base/philox.h"
#include "graph/graph.h"
#include "weft/ops.h"

typedef struct dice {
    uint64_t seed, at;
} dice;

static inline int64_t roll(dice *d, int64_t sides) {
    return (int64_t)(wefti_philox_u32(d->seed, 7, d->at++) % (uint32_t)sides);
}

static inline weft_desc matrix(int64_t rows, int64_t columns) {
    return weft_desc_of(WEFT_F32, 2, (int64_t[]){rows, columns});
}

static inline weft_desc vector(int64_t size) {
    return weft_desc_of(WEFT_F32, 1, &size);
}

static inline weft_init normal_init(void) {
    return (weft_init){WEFT_INIT_NORMAL, 0.02};
}

enum { RANDOM_KINDS = 15 };

/* One more value of the shape [rows, columns] from two others. `number` names parameters. */
static inline weft_value random_step(weft_graph *g, dice *d, weft_value a, weft_value b,
                                     int64_t rows, int64_t columns, int number) {
    char name[32];
    (void)snprintf(name, sizeof name, "p%d", number);
    switch (roll(d, RANDOM_KINDS)) {
    case 0:
        return weft_add(g, a, b);
    case 1:
        return weft_mul(g, a, b);
    case 2:
        return weft_tanh(g, a);
    case 3:
        return weft_sigmoid(g, weft_sub(g, a, b));
    case 4:
        return weft_gelu(g, a);
    case 5:
        return weft_silu(g, weft_scale(g, a, 0.5));
    case 6: {
        weft_value w = weft_param(g, name, matrix(columns, columns), normal_init());
        return weft_linear(g, a, w, WEFT_NO_VALUE, roll(d, 2));
    }
    case 7: {
        weft_value bias = weft_param(g, name, vector(columns), normal_init());
        return weft_linear(g, a, weft_matmul(g, a, b, true, false), bias, false);
    }
    case 8:
        return weft_softmax(g, a, (int)roll(d, 2));
    case 9: {
        weft_value gamma = weft_param(g, name, vector(columns), normal_init());
        return weft_layer_norm(g, a, gamma, WEFT_NO_VALUE, 1e-2);
    }
    case 10: {
        weft_value gamma = weft_param(g, name, vector(columns), normal_init());
        return weft_rms_norm(g, a, gamma, 1e-2);
    }
    case 11: {
        weft_value turned = weft_reshape(g, a, 2, (int64_t[]){columns, rows});
        return weft_add(g, weft_transpose(g, turned, 2, (int[]){1, 0}), b);
    }
    case 12:
        return weft_dropout(g, a, 0.3);
    case 13:
        return weft_matmul(g, weft_matmul(g, a, b, false, true), weft_tanh(g, b), false, false);
    default:
        return weft_mul(g, weft_mean(g, a, 1, (int[]){1}, true), b);
    }
}

/* A cell of `steps` steps over the graph's value x; several values may be results. Returns how
 * many. */
static inline int random_cell(weft_graph *g, dice *d, const char *name, weft_value x, int steps,
                              weft_value results[2]) {
    weft_value pool[64];
    weft_desc shape = weft_value_desc(g, x);
    int count = 1;
    pool[0] = x;
    weft_cell_begin(g, "%s", name);
    for (int i = 0; i < steps; i++) {
        weft_value a = pool[roll(d, count)], b = pool[count - 1];
        pool[count] = random_step(g, d, a, b, shape.shape[0], shape.shape[1], i);
        count++;
    }
    results[0] = pool[count - 1];
    results[1] = pool[1 + roll(d, count - 1)];
    weft_cell_end_many(g, 2, results);
    return 2;
}

#endif
