/* Parts that the families share. */
#include <math.h>
#include <stdio.h>

#include "models/models.h"

weft_init wefti_normal(double deviation) {
    return (weft_init){WEFT_INIT_NORMAL, deviation};
}
weft_init wefti_zeros(void) {
    return (weft_init){WEFT_INIT_ZEROS, 0};
}
weft_init wefti_ones(void) {
    return (weft_init){WEFT_INIT_CONSTANT, 1};
}

weft_dense_options wefti_transposed(double deviation) {
    return WEFT_STRUCT(weft_dense_options, .deviation = deviation, .transposed = true);
}
weft_dense_options wefti_plain(double deviation) {
    return WEFT_STRUCT(weft_dense_options, .deviation = deviation, .transposed = true,
                       .no_bias = true);
}

weft_dense_options wefti_rectified(int64_t in) {
    return WEFT_STRUCT(weft_dense_options, .deviation = sqrt(2.0 / (double)in), .transposed = true,
                       .activation = weft_relu);
}

weft_value wefti_look_up(const wefti_model_build *b, weft_value table, weft_value tokens) {
    return weft_embedding_padded(b->g, table, tokens, b->c->has_pad ? b->c->pad : -1, b->dtype);
}

static weft_value param_of(const wefti_model_build *b, const char *name, weft_dtype dtype,
                           weft_init init, const int64_t shape[4]) {
    int rank = 0;
    while (rank < 4 && shape[rank]) rank++;
    return weft_param(b->g, name, weft_desc_of(dtype, rank, shape), init);
}

weft_value wefti_param(const wefti_model_build *b, const char *name, weft_init init, int64_t d0,
                       int64_t d1, int64_t d2, int64_t d3) {
    return param_of(b, name, b->param, init, (int64_t[]){d0, d1, d2, d3});
}

weft_value wefti_weight(const wefti_model_build *b, const char *name, weft_init init, int64_t d0,
                        int64_t d1, int64_t d2, int64_t d3) {
    return param_of(b, name, b->weight, init, (int64_t[]){d0, d1, d2, d3});
}

weft_value wefti_logits(const wefti_model_build *b, weft_value x, weft_value head) {
    if (b->use == WEFT_USE_DECODE && b->dtype != b->param) x = weft_cast(b->g, x, b->param);
    return weft_linear(b->g, x, head, WEFT_NO_VALUE, true);
}

const char *wefti_model_join(char out[WEFTI_MODEL_NAME_BYTES], const char *name, const char *part) {
    (void)snprintf(out, WEFTI_MODEL_NAME_BYTES, "%s.%s", name, part);
    return out;
}

weft_value wefti_layer_norm(const wefti_model_build *b, weft_value x, const char *name,
                            int64_t dim) {
    char full[WEFTI_MODEL_NAME_BYTES];
    weft_value gamma =
        wefti_param(b, wefti_model_join(full, name, "weight"), wefti_ones(), dim, 0, 0, 0);
    weft_value beta =
        wefti_param(b, wefti_model_join(full, name, "bias"), wefti_zeros(), dim, 0, 0, 0);
    return weft_layer_norm(b->g, x, gamma, beta, b->c->norm_eps);
}

weft_value wefti_attend_all(const wefti_model_build *b, weft_value x, const char *query,
                            const char *key, const char *value) {
    weft_graph *g = b->g;
    int64_t hidden = b->c->hidden, heads = b->c->heads;
    weft_desc desc = weft_value_desc(g, x);
    if (desc.rank != 3) return WEFT_NO_VALUE; /* the graph has failed before */
    int64_t shape[4] = {desc.shape[0], desc.shape[1], heads, hidden / heads};
    const char *names[3] = {query, key, value};
    weft_value part[3];
    for (int i = 0; i < 3; i++) {
        part[i] = wefti_dense(b, names[i], x, hidden,
                              b->c->no_qkv_bias ? wefti_plain(0.02) : wefti_transposed(0.02));
        part[i] = weft_reshape(g, part[i], 4, shape);
    }
    weft_attention_options o = weft_attention_defaults();
    o.dropout = wefti_attention_dropout(b);
    weft_value y = weft_attention(g, part[0], part[1], part[2], &o);
    return weft_reshape(g, y, 3, desc.shape);
}

weft_value wefti_drop(const wefti_model_build *b, weft_value x) {
    return b->use == WEFT_USE_TRAIN ? weft_dropout(b->g, x, b->c->dropout) : x;
}

weft_value wefti_drop_embedding(const wefti_model_build *b, weft_value x) {
    const double rate = b->c->dropout_apart ? b->c->embedding_dropout : b->c->dropout;
    return b->use == WEFT_USE_TRAIN ? weft_dropout(b->g, x, rate) : x;
}

double wefti_attention_dropout(const wefti_model_build *b) {
    if (b->use != WEFT_USE_TRAIN) return 0;
    return b->c->dropout_apart ? b->c->attention_dropout : b->c->dropout;
}

static bool has_loss(const wefti_model_build *b) {
    return b->use == WEFT_USE_TRAIN || b->use == WEFT_USE_EVAL;
}

weft_value wefti_tokens(const wefti_model_build *b) {
    return weft_input(b->g, "tokens", WEFT_DESC(WEFT_I32, b->batch, b->seq));
}

weft_value wefti_targets(const wefti_model_build *b) {
    if (!has_loss(b)) return WEFT_NO_VALUE;
    return weft_input(b->g, "targets", WEFT_DESC(WEFT_I32, b->batch, b->seq));
}

weft_value wefti_model_position(const wefti_model_build *b) {
    if (b->use != WEFT_USE_DECODE) return WEFT_NO_VALUE;
    if (b->c->cache_rows) return weft_input(b->g, "position", WEFT_DESC(WEFT_I32, b->batch, 2));
    return weft_input(b->g, "position", WEFT_DESC(WEFT_I32, b->batch));
}

weft_value wefti_positions(const wefti_model_build *b, weft_value position) {
    if (b->use != WEFT_USE_DECODE) return WEFT_NO_VALUE;
    if (b->c->cache_rows) return weft_slice(b->g, position, 1, 1, 2);
    if (b->seq == 1) return weft_reshape(b->g, position, 2, (int64_t[]){b->batch, 1});
    return weft_input(b->g, "positions", WEFT_DESC(WEFT_I32, b->batch, b->seq));
}

weft_value wefti_asked(const wefti_model_build *b) {
    if (b->use != WEFT_USE_DECODE || !b->c->asked) return WEFT_NO_VALUE;
    return weft_input(b->g, "asked", WEFT_DESC(WEFT_I32, b->c->asked));
}

weft_value wefti_take_asked(const wefti_model_build *b, weft_value x, weft_value asked) {
    if (asked.id < 0) return x;
    x = weft_reshape(b->g, x, 3, (int64_t[]){1, b->batch * b->seq, b->c->hidden});
    return weft_take(b->g, x, asked, 1);
}

weft_value wefti_cached(const wefti_model_build *b, weft_value x, const char *which,
                        weft_value position, int64_t heads, int64_t dim) {
    if (b->use != WEFT_USE_DECODE) return x;
    char name[64];
    (void)snprintf(name, sizeof name, "cache.%s", which);
    const int64_t room = b->c->cache ? b->c->cache : b->c->context;
    const int64_t rows = b->c->cache_rows ? b->c->cache_rows : b->batch;
    weft_desc desc = WEFT_DESC(b->dtype, rows, room, heads, dim);
    weft_value cache = weft_state(b->g, name, desc, wefti_zeros());
    weft_value next = weft_cache_write(b->g, cache, x, position);
    weft_state_update(b->g, cache, next);
    return next;
}

weft_value wefti_labels(const wefti_model_build *b) {
    if (!has_loss(b)) return WEFT_NO_VALUE;
    return weft_input(b->g, "label", WEFT_DESC(WEFT_I32, b->batch));
}

weft_value wefti_share(const wefti_model_build *b) {
    if (b->use != WEFT_USE_TRAIN) return WEFT_NO_VALUE;
    return weft_input(b->g, "share", weft_desc_of(b->param, 0, NULL));
}

weft_value wefti_image(const wefti_model_build *b) {
    int64_t shape[4] = {b->batch, b->c->image[0], b->c->image[1], b->c->image[2]};
    weft_dtype fed = b->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
    weft_value x = weft_input(b->g, "image", weft_desc_of(fed, 4, shape));
    return fed == b->dtype ? x : weft_cast(b->g, x, b->dtype);
}

void wefti_model_end(const wefti_model_build *b, weft_value logits, weft_value targets,
                     weft_value share, weft_value further) {
    weft_graph *g = b->g;
    if (!has_loss(b)) {
        weft_output(g, "logits", weft_cell_end(g, logits));
        return;
    }
    weft_value loss = weft_cross_entropy(g, logits, targets, -1, 0);
    if (b->use == WEFT_USE_EVAL && !weft_family_is_language(b->c->family)) {
        weft_value end[2] = {loss, logits};
        weft_cell_end_many(g, 2, end);
        weft_loss(g, end[0]);
        weft_output(g, "logits", end[1]);
        return;
    }
    if (share.id >= 0) loss = weft_mul(g, loss, share);
    if (further.id >= 0) loss = weft_add(g, loss, further);
    weft_loss(g, weft_cell_end(g, loss));
}
