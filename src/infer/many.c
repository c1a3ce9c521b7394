/* Text generation for many prompts at once.
 *
 * The caches have `rows` texts. A pass takes a number of tokens, each with its text and its
 * position: one of every text that is being written, and as many of the prompts that wait as fit.
 * So a pass over the weights serves all texts, and prompts of any lengths leave no gaps. Source:
 * Agrawal et al., "Sarathi: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills",
 * 2023; a text that ends makes room for the next prompt at once: Yu et al., "Orca", OSDI 2022. */
#include "infer/generator.h"

#include <string.h>

#include "base/clock.h"
#include "base/text.h"

/* A text in the making. */
typedef struct text_row {
    int64_t prompt; /* its number; -1: the row is free */
    int32_t *window;
    int64_t count, cached;
    int64_t answer; /* number of its logits among those of the pass; -1: none */
    bool *seen;
    weft_generate_options how;
    weft_generation done;
    wefti_stops stops;
    wefti_text text;
    double start, ready; /* first pass; first new token */
} text_row;

typedef struct made_text {
    char *text; /* NULL: not complete */
    int64_t bytes;
    weft_generation generation;
} made_text;

typedef struct many_texts {
    weft_generator *g;
    const weft_prompt *prompts;
    int64_t count, next, shown; /* prompts; not yet begun; given to the caller */
    const weft_generate_options *options;
    void (*done)(void *context, const weft_generated *text);
    text_row *rows;
    made_text *results;
} many_texts;

/* ---- opening ---- */

/* Logits of a program: a text needs those of one token at most. */
static int64_t answers_of(const weft_generator *g, int program) {
    return g->sizes[program] < g->rows ? g->sizes[program] : g->rows;
}

weft_status wefti_many_build(weft_generator *g) {
    static const int64_t sizes[] = {1, 8, 32, GENERATE_PIECE};
    g->answers = g->rows;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        WEFT_TRY(wefti_generator_add(g, sizes[i], 1));
    return g->rows > GENERATE_PIECE ? wefti_generator_add(g, g->rows, 1) : WEFT_OK;
}

weft_status wefti_many_room(const weft_generator *g, const weft_prompt *prompts, int64_t count,
                            int64_t *out) {
    int64_t most = 1;
    for (int64_t i = 0; i < count; i++) {
        int32_t *ids;
        int64_t tokens;
        WEFT_REQUIRE(prompts[i].tokens >= 1, WEFT_E_ARG, "prompt %lld: how many tokens?",
                     (long long)i);
        WEFT_TRY(wefti_generator_encode(g, prompts[i].text, prompts[i].bytes, &ids, &tokens));
        wefti_free(ids);
        if (prompts[i].tokens >= g->config.context) tokens = g->config.context;
        tokens += prompts[i].tokens;
        if (tokens > most) most = tokens;
    }
    *out = most < g->config.context ? most : g->config.context;
    return WEFT_OK;
}

/* ---- ranks ---- */

/* Rank 0's prompts on all ranks, as one block: numbers, then texts. *out NULL: this rank's own. */
static weft_status share(weft_generator *g, const weft_prompt *prompts, int64_t *count,
                         weft_prompt **out) {
    int64_t sizes[2] = {*count, 0};
    *out = NULL;
    if (!g->party.agreement) return WEFT_OK;
    for (int64_t i = 0; !g->party.follows && i < *count; i++) sizes[1] += prompts[i].bytes;
    WEFT_TRY(wefti_party_broadcast(&g->party, WEFT_OK, sizes, sizeof sizes));
    const size_t head = (size_t)sizes[0] * sizeof **out, bytes = head + (size_t)sizes[1];
    weft_prompt *all = wefti_calloc(bytes + 1, 1);
    *out = all;
    WEFT_TRY(
        wefti_party_agree(&g->party, all ? WEFT_OK
                                         : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %lld prompts",
                                                      (long long)sizes[0])));
    char *to = (char *)all + head;
    for (int64_t i = 0; !g->party.follows && i < *count; i++) {
        all[i] = prompts[i];
        if (prompts[i].bytes) memcpy(to, prompts[i].text, (size_t)prompts[i].bytes);
        to += prompts[i].bytes;
    }
    if (bytes) WEFT_TRY(wefti_party_broadcast(&g->party, WEFT_OK, all, bytes));
    to = (char *)all + head;
    for (int64_t i = 0; i < sizes[0]; i++) {
        all[i].text = to;
        all[i].id = NULL;
        to += all[i].bytes;
    }
    *count = sizes[0];
    return WEFT_OK;
}

/* ---- rows ---- */

static weft_status open_rows(many_texts *m) {
    const weft_generator *g = m->g;
    WEFT_NEW_ARRAY(m->results, made_text, m->count + 1);
    WEFT_NEW_ARRAY(m->rows, text_row, g->rows);
    for (int64_t r = 0; r < g->rows; r++) m->rows[r].prompt = -1;
    for (int64_t r = 0; r < g->rows; r++) {
        WEFT_NEW_ARRAY(m->rows[r].window, int32_t, g->config.cache);
        WEFT_NEW_ARRAY(m->rows[r].seen, bool, g->choices);
    }
    return WEFT_OK;
}

static void close_rows(many_texts *m) {
    for (int64_t r = 0; m->rows && r < m->g->rows; r++) {
        wefti_free(m->rows[r].window);
        wefti_free(m->rows[r].seen);
        wefti_stops_close(&m->rows[r].stops);
        wefti_text_free(&m->rows[r].text);
    }
    for (int64_t i = 0; m->results && i < m->count; i++) wefti_free(m->results[i].text);
    wefti_free(m->rows);
    wefti_free(m->results);
}

/* Puts the tokens of a prompt into the row. */
static weft_status fill_window(many_texts *m, text_row *r, const int32_t *ids, int64_t count) {
    const weft_generator *g = m->g;
    const int64_t dropped = count > g->config.context ? count - g->config.context : 0,
                  room = g->config.cache;
    WEFT_REQUIRE(room == g->config.context || count + r->how.tokens <= room, WEFT_E_ARG,
                 "prompt %lld has %lld tokens and its text up to %lld: the caches have room for "
                 "%lld",
                 (long long)r->prompt, (long long)count, (long long)r->how.tokens, (long long)room);
    r->count = count - dropped;
    r->cached = 0;
    memcpy(r->window, ids + dropped, (size_t)r->count * sizeof *ids);
    memset(r->seen, 0, (size_t)g->choices * sizeof *r->seen);
    for (int64_t i = 0; i < count; i++) r->seen[ids[i]] = true;
    r->done.prompt_tokens = r->count;
    r->done.dropped_tokens = dropped;
    return WEFT_OK;
}

static weft_status begin(many_texts *m, text_row *r) {
    const weft_prompt *p = &m->prompts[m->next];
    int32_t *ids;
    int64_t count;
    r->prompt = m->next++;
    r->how = *m->options;
    if (p->tokens) r->how.tokens = p->tokens;
    if (p->has_seed) r->how.seed = p->seed;
    r->done = (weft_generation){.stop_text = -1};
    r->stops = (wefti_stops){0};
    r->start = wefti_now_s();
    WEFT_REQUIRE(p->tokens >= 0 && p->bytes >= 0 && (p->text || !p->bytes), WEFT_E_ARG,
                 "prompt %lld is not valid", (long long)r->prompt);
    WEFT_TRY(wefti_stops_open(&r->stops, r->how.stop_texts, r->how.stop_count, p->text, p->bytes));
    WEFT_TRY(wefti_generator_encode(m->g, p->text, p->bytes, &ids, &count));
    weft_status status = fill_window(m, r, ids, count);
    wefti_free(ids);
    return status;
}

/* Gives complete texts to the caller, in the order of the prompts. */
static void show(many_texts *m) {
    for (; m->shown < m->count && m->results[m->shown].text; m->shown++) {
        made_text *r = &m->results[m->shown];
        const weft_generated text = {m->shown, r->text, r->bytes, r->generation};
        if (m->done) m->done(m->options->context, &text);
        wefti_free(r->text);
        r->text = NULL;
    }
}

static weft_status end(many_texts *m, text_row *r) {
    made_text *to = &m->results[r->prompt];
    r->done.prompt_seconds = r->ready - r->start;
    r->done.seconds = wefti_now_s() - r->ready;
    to->generation = r->done;
    wefti_text_add_bytes(&r->text, "", 0); /* no token may have a text */
    to->bytes = r->text.used;
    to->text = wefti_text_take(&r->text);
    WEFT_REQUIRE(to->text, WEFT_E_NOMEM, "no memory for a text");
    wefti_stops_close(&r->stops);
    r->prompt = -1;
    show(m);
    return WEFT_OK;
}

/* A full window keeps its last half, as that of a generator for one text. */
static void append(const weft_generator *g, text_row *r, int32_t token) {
    if (r->count == g->config.context) {
        const int64_t kept = g->config.context / 2;
        memmove(r->window, r->window + r->count - kept, (size_t)kept * sizeof *r->window);
        r->count = kept;
        r->cached = 0;
    }
    r->window[r->count++] = token;
}

static weft_status choose(many_texts *m, text_row *r, const float *logits) {
    weft_generator *g = m->g;
    int32_t token;
    int64_t bytes = 0;
    if (r->done.tokens == 0) r->ready = wefti_now_s();
    WEFT_TRY(wefti_choose_token(logits, g->choices, r->seen, &r->how, r->done.tokens, g->scratch,
                                &token));
    r->done.tokens++;
    r->done.ended = wefti_generator_is_end(g, token);
    if (r->done.ended) return end(m, r);
    const char *text = weft_tokenizer_token(g->tokenizer, token, &bytes);
    if (text) wefti_text_add_bytes(&r->text, text, bytes);
    r->seen[token] = true;
    WEFT_TRY(wefti_stops_add(&r->stops, text, text ? bytes : 0, &r->done.stop_text));
    if (r->done.stop_text >= 0 || r->done.tokens == r->how.tokens) return end(m, r);
    append(g, r, token);
    return WEFT_OK;
}

/* ---- passes ---- */

/* A pass in the making. */
typedef struct pass_size {
    int64_t tokens, answers;
} pass_size;

/* Adds the next `count` tokens of a row. Behind the last token of its window a text goes on. */
static void take(weft_generator *g, int64_t number, text_row *r, int64_t count, pass_size *p) {
    for (int64_t i = 0; i < count; i++, p->tokens++) {
        g->ids[p->tokens] = r->window[r->cached];
        g->positions[2 * p->tokens] = (int32_t)number;
        g->positions[2 * p->tokens + 1] = (int32_t)r->cached++;
    }
    if (r->cached < r->count) return;
    r->answer = p->answers++;
    g->asked[r->answer] = (int32_t)(p->tokens - 1);
}

/* One token of each text that is being written, then tokens of prompts. */
static pass_size gather(many_texts *m) {
    weft_generator *g = m->g;
    pass_size p = {0, 0};
    for (int64_t n = 0; n < g->rows; n++) {
        text_row *r = &m->rows[n];
        r->answer = -1;
        if (r->prompt >= 0 && r->count - r->cached == 1) take(g, n, r, 1, &p);
    }
    for (int64_t n = 0; n < g->rows && p.tokens < g->piece; n++) {
        text_row *r = &m->rows[n];
        if (r->prompt < 0 || r->answer >= 0) continue;
        const int64_t left = r->count - r->cached, room = g->piece - p.tokens;
        take(g, n, r, left < room ? left : room, &p);
    }
    return p;
}

/* The smallest program that takes the tokens. Samples that are left over repeat the last one, whose
 * keys and values they write once more. Logits that are left over are those of sample 0. */
static int program_for(weft_generator *g, const pass_size *p) {
    int k = 0;
    while (g->sizes[k] < p->tokens) k++;
    for (int64_t i = p->tokens; i < g->sizes[k]; i++) {
        g->ids[i] = g->ids[p->tokens - 1];
        g->positions[2 * i] = g->positions[2 * p->tokens - 2];
        g->positions[2 * i + 1] = g->positions[2 * p->tokens - 1];
    }
    for (int64_t i = p->answers; i < answers_of(g, k); i++) g->asked[i] = 0;
    return k;
}

static weft_status pass(many_texts *m) {
    weft_generator *g = m->g;
    const pass_size p = gather(m);
    const int k = program_for(g, &p);
    const size_t samples = (size_t)g->sizes[k], answers = (size_t)answers_of(g, k);
    WEFT_TRY(weft_session_feed(g->session, k, "tokens", g->ids, samples * 4));
    WEFT_TRY(weft_session_feed(g->session, k, "position", g->positions, samples * 8));
    WEFT_TRY(weft_session_feed(g->session, k, "asked", g->asked, answers * 4));
    WEFT_TRY(weft_session_forward(g->session, k, NULL));
    if (!p.answers) return WEFT_OK;
    WEFT_TRY(weft_session_read(g->session, k, "logits", g->logits,
                               answers * (size_t)g->config.vocab * sizeof *g->logits));
    for (int64_t n = 0; n < g->rows; n++) {
        text_row *r = &m->rows[n];
        if (r->answer >= 0) WEFT_TRY(choose(m, r, g->logits + r->answer * g->config.vocab));
    }
    return WEFT_OK;
}

static weft_status run(many_texts *m) {
    while (m->shown < m->count) {
        bool stopped;
        WEFT_TRY(wefti_generator_stopped(m->g, m->options, &stopped));
        WEFT_REQUIRE(!stopped, WEFT_E_STOPPED, "stopped after %lld of %lld texts",
                     (long long)m->shown, (long long)m->count);
        for (int64_t n = 0; n < m->g->rows && m->next < m->count; n++)
            if (m->rows[n].prompt < 0) WEFT_TRY(begin(m, &m->rows[n]));
        WEFT_TRY(pass(m));
    }
    return WEFT_OK;
}

static weft_status run_shared(weft_generator *g, const weft_prompt *prompts, int64_t count,
                              const weft_generate_options *options,
                              void (*done)(void *context, const weft_generated *text)) {
    weft_prompt *shared = NULL;
    many_texts m = {.g = g, .options = options, .done = done};
    weft_status status = share(g, prompts, &count, &shared);
    m.prompts = shared ? shared : prompts;
    m.count = count;
    if (status >= 0) {
        status = wefti_party_agree(&g->party, open_rows(&m));
        if (status >= 0) status = run(&m);
        close_rows(&m);
    }
    wefti_free(shared);
    return status;
}

static weft_status take_call(const weft_generator *g, const weft_prompt *prompts, int64_t count,
                             const weft_generate_options *options, weft_generate_options *own) {
    WEFT_REQUIRE(options && count >= 0 && (prompts || count == 0), WEFT_E_ARG,
                 "generating needs a generator, prompts and options");
    WEFT_REQUIRE(g->rows, WEFT_E_ARG,
                 "the generator was opened for one text at a time: set `rows` to 1 or more");
    WEFT_TRY(wefti_generate_take(options, own));
    WEFT_REQUIRE(!own->text, WEFT_E_ARG,
                 "texts of many prompts are given whole: `text` must be NULL");
    return WEFT_OK;
}

weft_status weft_generator_run_many(weft_generator *g, const weft_prompt *prompts, int64_t count,
                                    const weft_generate_options *options,
                                    void (*done)(void *context, const weft_generated *text)) {
    weft_generate_options own = weft_generate_defaults();
    WEFT_REQUIRE(g, WEFT_E_ARG, "generating needs a generator");
    const weft_status taken = take_call(g, prompts, count, options, &own);
    WEFT_TRY(wefti_party_tell(&g->party, wefti_generate_share(g, taken, &own)));
    return wefti_party_tell(&g->party, run_shared(g, prompts, count, &own, done));
}
