/* BERT with its masked-language head: post-norm blocks, full attention without a mask. All token
 * types are 0. Source: Devlin et al., "BERT", NAACL 2019. Names and initial values (normal 0.02)
 * follow Hugging Face's BertForMaskedLM. The loss covers targets that are not -1, the masked
 * positions. Their number differs between microbatches, so each microbatch's loss is weighted by
 * its share of them. */
#include "models/models.h"

static weft_value embed(const wefti_model_build *b, weft_value tokens, weft_value words) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_init init = wefti_normal(0.02);
    weft_cell_begin(g, "embeddings");
    weft_value rows =
        wefti_param(b, "position_embeddings.weight", init, c->context, c->hidden, 0, 0);
    weft_value types = wefti_param(b, "token_type_embeddings.weight", init, 2, c->hidden, 0, 0);
    if (b->seq != c->context) rows = weft_slice(g, rows, 0, 0, b->seq);
    weft_value x = weft_add(g, wefti_look_up(b, words, tokens), rows);
    x = weft_add(g, x, weft_slice(g, types, 0, 0, 1));
    x = wefti_layer_norm(b, x, "LayerNorm", c->hidden);
    return weft_cell_end(g, wefti_drop_embedding(b, x));
}

/* The end of both halves of a block: projection, dropout, residual, norm. */
static weft_value output(const wefti_model_build *b, weft_value y, weft_value x, const char *name) {
    int64_t hidden = b->c->hidden;
    weft_cell_begin(b->g, "%s", name);
    y = wefti_dense(b, "dense", y, hidden, wefti_transposed(0.02));
    y = weft_add(b->g, x, wefti_drop(b, y));
    return weft_cell_end(b->g, wefti_layer_norm(b, y, "LayerNorm", hidden));
}

static weft_value block(const wefti_model_build *b, weft_value x, int64_t layer) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_cell_begin(g, "encoder.layer.%d", (int)layer);
    weft_value y = wefti_attend_all(b, x, "attention.self.query", "attention.self.key",
                                    "attention.self.value");
    x = output(b, y, x, "attention.output");
    y = wefti_dense(b, "intermediate.dense", x, c->ffn, wefti_transposed(0.02));
    x = output(b, weft_gelu_erf(g, y), x, "output");
    return weft_cell_end(g, x);
}

void wefti_build_bert(const wefti_model_build *b) {
    weft_graph *g = b->g;
    const weft_model_config *c = b->c;
    weft_value tokens = wefti_tokens(b), targets = wefti_targets(b), share = wefti_share(b);
    weft_value words = wefti_weight(b, "embeddings.word_embeddings.weight", wefti_normal(0.02),
                                    c->vocab, c->hidden, 0, 0);
    weft_value x = embed(b, tokens, words);
    for (int64_t layer = 0; layer < c->layers; layer++) x = block(b, x, layer);
    weft_cell_begin(g, "cls.predictions");
    x = wefti_dense_of(g, "transform.dense", x, c->hidden, wefti_transposed(0.02));
    x = wefti_layer_norm(b, weft_gelu_erf(g, x), "transform.LayerNorm", c->hidden);
    weft_value shift = wefti_param(b, "bias", wefti_zeros(), c->vocab, 0, 0, 0);
    weft_value head =
        c->untied ? wefti_weight(b, "decoder.weight", wefti_normal(0.02), c->vocab, c->hidden, 0, 0)
                  : words;
    wefti_model_end(b, weft_linear(g, x, head, shift, true), targets, share, WEFT_NO_VALUE);
}
