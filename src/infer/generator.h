/* Inside a text generator, for the files of this folder.
 *
 * A generator has programs of several sizes, which share parameters and caches. A program takes
 * that many tokens. In a generator for one text they are consecutive: a single token, or a piece of
 * the prompt. In a generator for several texts they may belong to any texts (many.c). */
#ifndef WEFTI_INFER_GENERATOR_H
#define WEFTI_INFER_GENERATOR_H

#include "infer/generate.h"
#include "session/party.h"
#include "session/session.h"
#include "weft/data.h"

enum {
    GENERATE_PIECE = 64,    /* tokens of a piece of the prompt */
    GENERATE_LONGEST = 512, /* of a piece of a long prompt: a pass reads all weights */
    GENERATE_PROGRAMS = 5,  /* at most */
    GENERATE_MOST_ROWS = 4096
};

struct weft_generator {
    char *path, *note;
    weft_model_config config;
    weft_dtype precision; /* of weights, caches and activations */
    weft_tokenizer *tokenizer;
    bool bytes; /* tokens are bytes */
    weft_session *session;
    wefti_party party; /* rank 0 has the prompt and shows the text */
    int programs;
    int64_t sizes[GENERATE_PROGRAMS]; /* tokens of each program, ascending */
    weft_graph *graphs[GENERATE_PROGRAMS];
    int64_t piece;   /* tokens of the largest program */
    int64_t choices; /* tokens that have a text: the first ones of the vocabulary */
    int32_t *window; /* [context] tokens that the model sees */
    int64_t count, cached;
    int32_t *ids, *positions; /* [piece]; positions of several texts: pairs of row and position */
    int32_t *asked;           /* [answers] tokens of a pass whose logits are computed */
    int64_t answers;          /* most logits of a pass: 1, or one for each of several texts */
    float *logits;            /* [answers, vocab] */
    wefti_candidate *scratch; /* [choices] */
    bool *seen;               /* [choices] tokens of the prompt and the text */
    int64_t rows;             /* several texts at once: their number; 0: a generator for one text */
};

/* ---- generate.c ---- */

/* Adds the graph of a program for `batch` samples of `seq` tokens: the logits of `answers` of them,
 * or of all if these are fewer. Programs come in the order of their sizes. */
weft_status wefti_generator_add(weft_generator *g, int64_t batch, int64_t seq) WEFT_CHECKED;
/* Whether some rank was asked to stop. */
weft_status wefti_generator_stopped(const weft_generator *g, const weft_generate_options *o,
                                    bool *out) WEFT_CHECKED;
weft_status wefti_generate_take(const weft_generate_options *given,
                                weft_generate_options *o) WEFT_CHECKED;
/* Tokens of a prompt, with those that the tokenizer puts in front; 1 or more. wefti_free. */
weft_status wefti_generator_encode(const weft_generator *g, const char *prompt, int64_t bytes,
                                   int32_t **out, int64_t *out_count) WEFT_CHECKED;
bool wefti_generator_is_end(const weft_generator *g, int32_t token);
/* Rank 0's numbers, on all ranks. Fails on all with `status`, that of this rank, and if ranks have
 * unlike stop texts. */
weft_status wefti_generate_share(const weft_generator *g, weft_status status,
                                 weft_generate_options *o) WEFT_CHECKED;

/* ---- many.c ---- */

/* The graphs of a generator for several texts. config.cache_rows is set. */
weft_status wefti_many_build(weft_generator *g) WEFT_CHECKED;
/* Tokens that the longest prompt and its text take, at most the context. */
weft_status wefti_many_room(const weft_generator *g, const weft_prompt *prompts, int64_t count,
                            int64_t *out) WEFT_CHECKED;

#endif
