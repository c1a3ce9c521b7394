/* The model Unigram: the cut of a word into pieces whose scores have the largest sum. A character
 * without a piece is unknown, at a score below all others; neighbouring unknown ones are one token,
 * or the tokens of their bytes.
 *
 * Source: Kudo, "Subword Regularization", ACL 2018; the order of ties follows encode_optimized of
 * huggingface/tokenizers, models/unigram. */
#include "tokenizer/model/model.h"

/* The best way to reach a place of the word. */
typedef struct wefti_unigram_node {
    double score;
    int64_t from; /* where its last piece begins; -1: not reached */
    int32_t id;
} node;

static const double UNKNOWN_PENALTY = 10.0;

static void reach(node *nodes, int64_t from, int64_t to, double score, int32_t id) {
    score += nodes[from].score;
    if (nodes[to].from < 0 || score > nodes[to].score) nodes[to] = (node){score, from, id};
}

static weft_status find_path(const weft_tokenizer *t, const unsigned char *word, int64_t bytes,
                             node *nodes) {
    for (int64_t i = 0; i <= bytes; i++) nodes[i] = (node){.from = -1};
    for (int64_t at = 0; at < bytes;) {
        int length = wefti_model_character(t, word + at, bytes - at);
        bool single = false;
        int32_t place = 0;
        for (int64_t end = at; end < bytes;) {
            place = wefti_trie_next(&t->pieces, place, word[end++]);
            if (place < 0) break;
            int32_t id = t->pieces.ids[place];
            if (id < 0) continue;
            reach(nodes, at, end, t->scores[id], id);
            single |= end - at == length;
        }
        WEFT_REQUIRE(single || t->unknown >= 0, WEFT_E_ARG,
                     "the tokenizer has no token for the byte 0x%02x, and none for unknown text",
                     word[at]);
        if (!single) reach(nodes, at, at + length, t->least_score - UNKNOWN_PENALTY, t->unknown);
        at += length;
    }
    return WEFT_OK;
}

static weft_status add_piece(const weft_tokenizer *t, const unsigned char *text, int64_t bytes,
                             wefti_ids *ids) {
    int32_t place = 0;
    bool known = true;
    for (int64_t i = 0; i < bytes && place >= 0; i++)
        place = wefti_trie_next(&t->pieces, place, text[i]);
    if (place >= 0 && t->pieces.ids[place] >= 0) return wefti_ids_add(ids, t->pieces.ids[place]);
    for (int64_t i = 0; i < bytes; i++) known &= t->byte_ids[text[i]] >= 0;
    if (!t->byte_fallback || !known) return wefti_ids_add(ids, t->unknown);
    for (int64_t i = 0; i < bytes; i++) WEFT_TRY(wefti_ids_add(ids, t->byte_ids[text[i]]));
    return WEFT_OK;
}

weft_status wefti_model_unigram(const weft_tokenizer *t, const unsigned char *word, int64_t bytes,
                                wefti_model_scratch *scratch, wefti_ids *ids) {
    WEFT_TRY(wefti_model_room((void **)&scratch->nodes, &scratch->node_capacity, bytes + 1,
                              sizeof(node)));
    node *nodes = scratch->nodes;
    WEFT_TRY(find_path(t, word, bytes, nodes));
    int64_t next = -1; /* turns the links around: `from` becomes where the next piece begins */
    for (int64_t at = bytes; at >= 0;) {
        int64_t from = nodes[at].from;
        nodes[at].from = next;
        next = at;
        at = at ? from : -1;
    }
    for (int64_t at = 0; at < bytes;) {
        int64_t end = nodes[at].from;
        if (nodes[end].id == t->unknown)
            while (end < bytes && nodes[nodes[end].from].id == t->unknown) end = nodes[end].from;
        WEFT_TRY(add_piece(t, word + at, end - at, ids));
        at = end;
    }
    return WEFT_OK;
}
