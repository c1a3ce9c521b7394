/* Text generation: choosing tokens, and whole texts against a model that computes every token from
 * scratch. */
#include "generate_fixture.h"

#include <math.h>

/* ---- choosing ---- */

static weft_status choose(const float *logits, int64_t count, double temperature, int64_t top_k,
                          uint64_t seed, int64_t position, int32_t *out) {
    wefti_candidate scratch[1000];
    weft_generate_options o = WEFT_STRUCT(weft_generate_options, .temperature = temperature,
                                          .top_k = top_k, .seed = seed);
    return wefti_choose_token(logits, count, NULL, &o, position, scratch, out);
}

static void greedy_takes_the_largest(void **state) {
    (void)state;
    const float logits[] = {-1, 3, 2, 3, -INFINITY};
    int32_t token = -1;
    ASSERT_OK(choose(logits, 4, 0, 0, 5, 0, &token));
    assert_int_equal(token, 1); /* the lowest of equals */
    ASSERT_FAILS(WEFT_E_NUMERIC, "token 4 is -inf", choose(logits, 5, 0, 0, 5, 0, &token));
    const float bad[] = {1, copysignf(NAN, -1)};
    ASSERT_FAILS(WEFT_E_NUMERIC, "token 1 is nan", choose(bad, 2, 0, 0, 5, 0, &token));
}

/* Frequencies against softmax(logits / temperature), each within five standard deviations. */
static void frequencies_follow_the_softmax(void **state) {
    (void)state;
    enum { DRAWS = 20000, TOKENS = 7 };
    const float logits[TOKENS] = {0.5F, -1, 2, 1.5F, 2, -3, 0};
    const double temperatures[] = {0.5, 1, 2.5};
    for (int t = 0; t < 3; t++)
        for (int64_t k = 0; k <= TOKENS; k += 3) {
            double weight[TOKENS], sum = 0;
            int count[TOKENS] = {0};
            for (int i = 0; i < TOKENS; i++) {
                int larger = 0; /* and equal ones before it */
                for (int j = 0; j < TOKENS; j++)
                    larger += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
                weight[i] = k && larger >= k ? 0 : exp((double)logits[i] / temperatures[t]);
                sum += weight[i];
            }
            for (int64_t d = 0; d < DRAWS; d++) {
                int32_t token = -1;
                ASSERT_OK(choose(logits, TOKENS, temperatures[t], k, 9, d, &token));
                count[token]++;
            }
            for (int i = 0; i < TOKENS; i++) {
                double p = weight[i] / sum, deviation = sqrt(p * (1 - p) * DRAWS);
                if (fabs(count[i] - p * DRAWS) > 5 * deviation)
                    fail_msg("temperature %g, top-k %d: token %d was drawn %d times, not about %g",
                             temperatures[t], (int)k, i, count[i], p * DRAWS);
            }
        }
}

/* The k most likely of many, with many equals: against a plain count of the larger ones. */
static void top_k_selects_in_order(void **state) {
    (void)state;
    TEST_SEEDS(round, 0, 60) {
        float logits[1000];
        int64_t count = 1 + (int64_t)(wefti_philox_u32(round, 1, 0) % 1000);
        int64_t k = 1 + (int64_t)(wefti_philox_u32(round, 1, 1) % (uint32_t)count);
        uint32_t values = round % 3 == 0 ? 1 : round % 3 == 1 ? 8 : 100000;
        for (int64_t i = 0; i < count; i++)
            logits[i] = (float)(wefti_philox_u32(round, 2, (uint64_t)i) % values);
        for (int64_t draw = 0; draw < 20; draw++) {
            int32_t token = -1;
            int64_t larger = 0;
            ASSERT_OK(choose(logits, count, 1e5, k, round, draw, &token));
            for (int64_t j = 0; j < count; j++)
                larger += logits[j] > logits[token] || (logits[j] == logits[token] && j < token);
            if (larger >= k)
                fail_msg("round %d: token %d has %d before it, k is %d", (int)round, token,
                         (int)larger, (int)k);
        }
    }
}

static void copy_file(const char *from, const char *to, const char *name) {
    char path[600], *data;
    int64_t bytes;
    (void)snprintf(path, sizeof path, "%s/%s", from, name);
    ASSERT_OK(wefti_file_read(path, 1 << 28, &data, &bytes));
    (void)snprintf(path, sizeof path, "%s/%s", to, name);
    ASSERT_OK(wefti_file_write(path, data, (size_t)bytes));
    wefti_free(data);
}

/* ---- texts ---- */

static weft_generator *open_with(const char *path, int threads) {
    weft_generator *g;
    ASSERT_OK(
        weft_generator_open(path, &WEFT_STRUCT(weft_generator_options, .threads = threads), &g));
    return g;
}

/* The definition: the whole window through the model for every token, its last half kept when it
 * is full. */
static void from_scratch(weft_session *s, const weft_model_config *c, const char *prompt,
                         int64_t bytes, const weft_generate_options *o, text *out) {
    int32_t *window = calloc((size_t)c->context, sizeof *window), token = 0;
    float *logits = malloc((size_t)(c->context * c->vocab) * sizeof *logits);
    int64_t dropped = bytes > c->context ? bytes - c->context : 0, count = bytes - dropped;
    for (int64_t i = 0; i < count; i++) window[i] = (unsigned char)prompt[dropped + i];
    out->used = 0;
    for (int64_t n = 0; n < o->tokens; n++) {
        ASSERT_OK(weft_session_feed(s, 0, "tokens", window, (size_t)c->context * 4));
        ASSERT_OK(weft_session_forward(s, 0, NULL));
        ASSERT_OK(weft_session_read(s, 0, "logits", logits, (size_t)(c->context * c->vocab) * 4));
        ASSERT_OK(choose(logits + (count - 1) * c->vocab, c->vocab, o->temperature, o->top_k,
                         o->seed, n, &token));
        out->data[out->used++] = (char)token;
        if (count == c->context) {
            int64_t kept = c->context / 2;
            memmove(window, window + count - kept, (size_t)kept * sizeof *window);
            count = kept;
        }
        window[count++] = token;
    }
    free(window);
    free(logits);
}

/* Contexts shorter and longer than a piece, prompts around every border, texts that slide,
 * attention windows. */
static void texts_equal_those_from_scratch(void **state) {
    (void)state;
    const int64_t contexts[] = {1, 2, 7, 64, 90},
                  lengths[] = {1, 2, 4, 6, 7, 8, 60, 64, 65, 68, 89, 90, 91, 200};
    char prompt[200];
    for (int i = 0; i < 200; i++) prompt[i] = (char)(i * 37 + i / 5);
    for (int f = 0; f < (int)WEFT_FAMILIES; f++)
        for (size_t x = 0; x < sizeof contexts / sizeof *contexts; x++) {
            if (!wefti_family_has((weft_family)f, WEFTI_GENERATES)) continue;
            weft_model_config c = config_of((weft_family)f, contexts[x], 256);
            if (c.family == WEFT_FAMILY_MISTRAL) c.window = 5;
            if (c.family == WEFT_FAMILY_QWEN2) c.window = 66, c.window_from = 1;
            weft_graph *graph;
            weft_session *s = reference_of(&c, &graph);
            char name[64];
            (void)snprintf(name, sizeof name, "scratch-%d-%d", f, (int)contexts[x]);
            save(s, &c, in_root(name), 1, NULL);
            weft_generator *g = open_with(in_root(name), 1);
            for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
                weft_generate_options o =
                    WEFT_STRUCT(weft_generate_options, .tokens = 12, .temperature = n % 3 ? 1 : 0,
                                .top_k = n % 2 ? 20 : 0, .seed = n);
                text is, want;
                weft_generation done = run(g, prompt, lengths[n], o, &is);
                from_scratch(s, &c, prompt, lengths[n], &o, &want);
                int64_t dropped = lengths[n] > c.context ? lengths[n] - c.context : 0;
                assert_int_equal(done.dropped_tokens, dropped);
                assert_int_equal(done.prompt_tokens, lengths[n] - dropped);
                assert_int_equal(done.tokens, o.tokens);
                assert_false(done.ended);
                if (is.used != want.used || memcmp(is.data, want.data, (size_t)is.used))
                    fail_msg("%s, context %d, prompt of %d: the text differs",
                             weft_family_text(c.family), (int)contexts[x], (int)lengths[n]);
            }
            weft_generator_close(g);
            weft_session_destroy(s);
            weft_graph_destroy(graph);
        }
}

/* Prompts around the borders of long pieces, and of the short ones behind them. */
static void long_prompts_equal_those_from_scratch(void **state) {
    (void)state;
    enum { CONTEXT = 330, LONGEST = 400 };
    const weft_family families[] = {WEFT_FAMILY_GPT2, WEFT_FAMILY_LLAMA};
    const int64_t lengths[] = {255, 256, 257, 260, 319, 324, 330, LONGEST};
    char prompt[LONGEST];
    for (int i = 0; i < LONGEST; i++) prompt[i] = (char)(i * 37 + i / 5);
    for (int f = 0; f < 2; f++) {
        weft_model_config c = config_of(families[f], CONTEXT, 256);
        weft_graph *graph;
        weft_session *s = reference_of(&c, &graph);
        save(s, &c, in_root(weft_family_text(families[f])), 1, NULL);
        weft_generator *g = open_with(in_root(weft_family_text(families[f])), 1);
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
            const weft_generate_options o =
                WEFT_STRUCT(weft_generate_options, .tokens = 3, .temperature = 1, .seed = n);
            text is, want;
            run(g, prompt, lengths[n], o, &is);
            from_scratch(s, &c, prompt, lengths[n], &o, &want);
            if (is.used != want.used || memcmp(is.data, want.data, (size_t)is.used) != 0)
                fail_msg("%s, prompt of %d: the text differs", weft_family_text(families[f]),
                         (int)lengths[n]);
        }
        weft_generator_close(g);
        weft_session_destroy(s);
        weft_graph_destroy(graph);
    }
}

/* How far the token of a greedy text is from the likeliest one, in logits of the exact model, as a
 * share of their standard deviation: the largest over the text. */
static double regret(weft_session *s, const weft_model_config *c, const char *prompt,
                     const text *is) {
    int32_t *window = calloc((size_t)c->context, sizeof *window);
    float *logits = malloc((size_t)(c->context * c->vocab) * sizeof *logits);
    const int64_t begin = (int64_t)strlen(prompt);
    double most = 0;
    for (int64_t i = 0; i < begin; i++) window[i] = (unsigned char)prompt[i];
    for (int64_t i = 0; i < is->used; i++) window[begin + i] = (unsigned char)is->data[i];
    ASSERT_OK(weft_session_feed(s, 0, "tokens", window, (size_t)c->context * 4));
    ASSERT_OK(weft_session_forward(s, 0, NULL));
    ASSERT_OK(weft_session_read(s, 0, "logits", logits, (size_t)(c->context * c->vocab) * 4));
    for (int64_t i = 0; i < is->used; i++) {
        const float *row = logits + (begin + i - 1) * c->vocab;
        double best = -INFINITY, sum = 0, squares = 0;
        for (int64_t k = 0; k < c->vocab; k++) {
            best = fmax(best, (double)row[k]);
            sum += (double)row[k];
            squares += (double)row[k] * (double)row[k];
        }
        const double mean = sum / (double)c->vocab,
                     deviation = sqrt(squares / (double)c->vocab - mean * mean);
        most = fmax(most, (best - (double)row[window[begin + i]]) / deviation);
    }
    free(window);
    free(logits);
    return most;
}

/* In bf16, each token is the likeliest one up to rounding, and weights and caches take half the
 * memory. */
static void bf16_halves_memory(void **state) {
    (void)state;
    const weft_family families[] = {WEFT_FAMILY_GPT2, WEFT_FAMILY_LLAMA, WEFT_FAMILY_QWEN2};
    const char prompt[] = "Once upon a time";
    for (int f = 0; f < 3; f++) {
        weft_model_config c = config_of(families[f], 80, 256);
        c.ffn = 1024, c.layers = 8; /* more bytes than a product needs as work space */
        weft_graph *graph;
        weft_session *s = reference_of(&c, &graph);
        char name[64];
        (void)snprintf(name, sizeof name, "half-%d", f);
        save(s, &c, in_root(name), 1, NULL);
        int64_t peak[2];
        text is;
        for (int half = 0; half < 2; half++) {
            const weft_generator_options open =
                WEFT_STRUCT(weft_generator_options, .threads = 1, .tokenizer = "bytes",
                            .precision = half ? WEFT_BF16 : WEFT_F32);
            weft_generator *g;
            ASSERT_OK(weft_generator_open(in_root(name), &open, &g));
            peak[half] = weft_generator_info_of(g).peak_bytes;
            run(g, prompt, (int64_t)strlen(prompt),
                WEFT_STRUCT(weft_generate_options, .tokens = 60), &is);
            assert_int_equal(is.used, 60);
            const double off = regret(s, &c, prompt, &is), limit = half ? 0.1 : 1e-4;
            if (!(off <= limit))
                fail_msg("%s%s: a token is %.4f deviations below the likeliest",
                         weft_family_text(families[f]), half ? " in bf16" : "", off);
            weft_generator_close(g);
        }
        const double share = (double)peak[1] / (double)peak[0];
        if (!(share > 0.45 && share < 0.6)) /* biases, norms and one row of logits stay f32 */
            fail_msg("%s: %.3f of the memory", weft_family_text(families[f]), share);
        weft_session_destroy(s);
        weft_graph_destroy(graph);
    }
}

/* Caches are no longer than the requested text needs, and the text is the same. */
static void a_short_text_needs_short_caches(void **state) {
    (void)state;
    weft_family families[] = {WEFT_FAMILY_LLAMA, WEFT_FAMILY_MIXTRAL, WEFT_FAMILY_GPT2};
    for (int f = 0; f < 3; f++) {
        weft_model_config c = config_of(families[f], 5000, 256);
        c.rope_scaling = (weft_rope_scaling){
            .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 100};
        weft_graph *graph;
        weft_session *s = reference_of(&c, &graph);
        char name[64];
        (void)snprintf(name, sizeof name, "short-%d", f);
        save(s, &c, in_root(name), 1, NULL);
        weft_session_destroy(s);
        weft_graph_destroy(graph);
        weft_generate_options o =
            WEFT_STRUCT(weft_generate_options, .tokens = 60, .temperature = 1, .seed = 3);
        text whole, part;
        weft_generator *g = open_with(in_root(name), 1);
        int64_t most = weft_generator_info_of(g).peak_bytes;
        run(g, "Once upon a time", 16, o, &whole);
        weft_generator_close(g);
        weft_generator_options open =
            WEFT_STRUCT(weft_generator_options, .threads = 1, .context = 76);
        ASSERT_OK(weft_generator_open(in_root(name), &open, &g));
        if (families[f] == WEFT_FAMILY_GPT2) /* its positions are parameters */
            assert_int_equal(weft_generator_info_of(g).peak_bytes, most);
        else
            assert_true(weft_generator_info_of(g).peak_bytes * 2 < most);
        run(g, "Once upon a time", 16, o, &part);
        assert_int_equal(part.used, 60);
        assert_memory_equal(part.data, whole.data, 60);
        weft_generator_close(g);
    }
}

static void same_seed_same_text(void **state) {
    (void)state;
    weft_model_config c = config_of(WEFT_FAMILY_GPT2, 70, 256);
    weft_graph *graph;
    weft_session *s = reference_of(&c, &graph);
    save(s, &c, in_root("seeds"), 1, NULL);
    weft_generate_options o =
        WEFT_STRUCT(weft_generate_options, .tokens = 60, .temperature = 1, .seed = 11);
    text first, again, other;
    weft_generator *g = open_with(in_root("seeds"), 1);
    run(g, "Once", 4, o, &first);
    run(g, "something else in between", 25, o, &other);
    run(g, "Once", 4, o, &again);
    assert_int_equal(first.used, 60);
    assert_memory_equal(first.data, again.data, 60);
    o.seed = 12;
    run(g, "Once", 4, o, &other);
    assert_memory_not_equal(first.data, other.data, 60);
    o.seed = 11;
    run(g, NULL, 0, o, &other); /* an empty prompt is a newline */
    run(g, "\n", 1, o, &again);
    assert_memory_equal(other.data, again.data, 60);
    volatile int stop = 1;
    o.stop = &stop;
    assert_int_equal(run(g, "Once", 4, o, &other).tokens, 0);
    o.stop = NULL;
    weft_generator_close(g);
    for (int threads = 2; threads <= 3; threads++) {
        g = open_with(in_root("seeds"), threads);
        run(g, "Once", 4, o, &again);
        assert_memory_equal(first.data, again.data, 60);
        weft_generator_close(g);
    }
    weft_session_destroy(s);
    weft_graph_destroy(graph);
}

/* A run, its step and a Hugging Face directory made from it give one text. A damaged step gives no
 * text, and its run falls back to the step before. */
static void all_kinds_of_directories(void **state) {
    (void)state;
    weft_model_config c = config_of(WEFT_FAMILY_LLAMA, 16, 256);
    weft_graph *graph;
    weft_session *s = reference_of(&c, &graph);
    save(s, &c, in_root("kinds"), 1, NULL);
    save(s, &c, in_root("kinds"), 2, NULL);
    const char *step = in_root("kinds/step-000000000002"), *plain = in_root("plain");
    ASSERT_OK(wefti_dir_make(plain));
    copy_file(step, plain, "config.json");
    copy_file(step, plain, "model.safetensors");
    const char *paths[] = {in_root("kinds"), step, plain};
    weft_generate_options o = WEFT_STRUCT(weft_generate_options, .tokens = 20);
    text first, is;
    for (int i = 0; i < 3; i++) {
        weft_generator *g = open_with(paths[i], 1);
        weft_generator_info info = weft_generator_info_of(g);
        assert_string_equal(info.path, i == 2 ? plain : step);
        assert_true(info.bytes && info.tokens == 256 && info.config.family == c.family);
        run(g, "text", 4, o, i ? &is : &first);
        if (i) assert_memory_equal(is.data, first.data, 20);
        assert_null(info.note);
        weft_generator_close(g);
    }
    char path[600], *data;
    int64_t bytes;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", step);
    ASSERT_OK(wefti_file_read(path, 1 << 28, &data, &bytes));
    data[bytes - 100] ^= 1;
    ASSERT_OK(wefti_file_write(path, data, (size_t)bytes));
    wefti_free(data);
    weft_generator *g;
    weft_generator_options open = WEFT_STRUCT(weft_generator_options, .threads = 1);
    ASSERT_FAILS(WEFT_E_CORRUPT, "step-000000000002", weft_generator_open(step, &open, &g));
    g = open_with(in_root("kinds"), 1);
    assert_non_null(strstr(weft_generator_info_of(g).path, "step-000000000001"));
    assert_non_null(strstr(weft_generator_info_of(g).note, "skipped step 2: "));
    run(g, "text", 4, o, &is);
    assert_memory_equal(is.data, first.data, 20);
    weft_generator_close(g);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
}

/* ---- tokenizers ---- */

static char *tokenizer_text(const char *name) {
    char path[100], *data;
    int64_t bytes;
    (void)snprintf(path, sizeof path, "tests/data/tokenizer_%s.json", name);
    ASSERT_OK(wefti_file_read(path, 1 << 24, &data, &bytes));
    return data;
}

/* The end-of-text token stops the text and is not part of it. Tokens without text are not
 * generated. Begin-of-text counts as part of the prompt. */
static void tokenizers_are_used(void **state) {
    (void)state;
    const char *const names[] = {"gpt2", "llama2"};
    for (int i = 0; i < 2; i++) {
        char *tokenizer = tokenizer_text(names[i]);
        weft_model_config c = config_of(i ? WEFT_FAMILY_LLAMA : WEFT_FAMILY_GPT2, 32, 1024);
        weft_graph *graph;
        weft_session *s = reference_of(&c, &graph);
        char name[64];
        (void)snprintf(name, sizeof name, "tokenizer-%s", names[i]);
        save(s, &c, in_root(name), 1, tokenizer);
        weft_generator *g = open_with(in_root(name), 1);
        weft_generator_info info = weft_generator_info_of(g);
        assert_false(info.bytes);
        assert_int_equal(info.tokens, i ? 900 : 1000);
        text is;
        weft_generation done = run(g, "", 0, WEFT_STRUCT(weft_generate_options, .tokens = 1), &is);
        assert_int_equal(done.prompt_tokens, 1);
        int ended = 0;
        for (uint64_t seed = 0; seed < 40; seed++) {
            weft_generate_options o =
                WEFT_STRUCT(weft_generate_options, .tokens = 60, .temperature = 30, .seed = seed);
            done = run(g, "the", 3, o, &is);
            ended += done.ended;
            assert_true(done.ended ? done.tokens <= 60 : done.tokens == 60);
            is.data[is.used] = '\0';
            assert_null(strstr(is.data, i ? "</s>" : "<|endoftext|>"));
        }
        assert_true(ended > 0 && ended < 40); /* expected: 1 - (999 / 1000)^60 of them, 2.3 of 40 */
        weft_generator_close(g);
        weft_session_destroy(s);
        weft_graph_destroy(graph);
        wefti_free(tokenizer);
    }
}

/* config.json, and before it generation_config.json, gives the tokens that end a text. If neither
 * does, the names in the tokenizer decide. This holds even if tokens are bytes. */
static void ends_are_those_of_the_configuration(void **state) {
    (void)state;
    weft_model_config c = config_of(WEFT_FAMILY_LLAMA, 32, 256);
    weft_graph *graph;
    weft_session *s = reference_of(&c, &graph);
    save(s, &c, in_root("endless"), 1, NULL);
    weft_generator *g = open_with(in_root("endless"), 1);
    weft_generate_options o = WEFT_STRUCT(weft_generate_options, .tokens = 12);
    text whole, is;
    assert_false(run(g, "ab", 2, o, &whole).ended);
    weft_generator_close(g);
    /* The text up to where its last token first comes. */
    unsigned char last = (unsigned char)whole.data[11];
    int64_t before = (char *)memchr(whole.data, last, 12) - whole.data;
    c.end_count = 2;
    while (memchr(whole.data, c.ends[0], 12)) c.ends[0]++; /* one that does not come */
    c.ends[1] = last;
    save(s, &c, in_root("ending"), 1, NULL);
    g = open_with(in_root("ending"), 1);
    weft_generation done = run(g, "ab", 2, o, &is);
    assert_true(done.ended);
    assert_int_equal(done.tokens, before + 1);
    assert_int_equal(is.used, before);
    weft_generator_close(g);
    /* Beside the files of others. */
    char *directory = wefti_strdup(in_root("ending-beside"));
    ASSERT_OK(wefti_dir_make(directory));
    copy_file(in_root("endless/step-000000000001"), directory, "config.json");
    copy_file(in_root("endless/step-000000000001"), directory, "model.safetensors");
    char path[600], text[100];
    (void)snprintf(path, sizeof path, "%s/generation_config.json", directory);
    (void)snprintf(text, sizeof text, "{\"eos_token_id\": [%d]}", (int)last);
    ASSERT_OK(wefti_file_write(path, text, strlen(text)));
    g = open_with(directory, 1);
    assert_int_equal(run(g, "ab", 2, o, &is).tokens, before + 1);
    weft_generator_close(g);
    weft_generator_options open = WEFT_STRUCT(weft_generator_options, .threads = 1);
    ASSERT_OK(wefti_file_write(path, "{", 1));
    ASSERT_FAILS(WEFT_E_CORRUPT, "ending-beside: generation_config.json",
                 weft_generator_open(directory, &open, &g));
    wefti_free(directory);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
}

/* ---- what goes wrong ---- */

static void failures_are_named(void **state) {
    (void)state;
    weft_generator *g = NULL;
    weft_generator_options open = WEFT_STRUCT(weft_generator_options, .threads = 1);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "directory", weft_generator_open(in_root("none"), &open, &g));
    ASSERT_OK(wefti_dir_make(in_root("empty")));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "config.json", weft_generator_open(in_root("empty"), &open, &g));
    ASSERT_OK(wefti_file_write(in_root("file"), "x", 1));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "directory", weft_generator_open(in_root("file"), &open, &g));

    weft_graph *graph;
    weft_model_config c = config_of(WEFT_FAMILY_BERT, 8, 256);
    weft_session *s = reference_of(&c, &graph);
    save(s, &c, in_root("bert"), 1, NULL);
    ASSERT_FAILS(WEFT_E_NO_IMPL, "bert|generate", weft_generator_open(in_root("bert"), &open, &g));
    weft_session_destroy(s);
    weft_graph_destroy(graph);

    c = (weft_model_config){
        .family = WEFT_FAMILY_MLP, .layers = 1, .hidden = 4, .classes = 3, .image = {1, 2, 2}};
    ASSERT_OK(weft_model_complete(&c));
    s = reference_of(&c, &graph);
    save(s, &c, in_root("mlp"), 1, NULL);
    ASSERT_FAILS(WEFT_E_NO_IMPL, "holds|mlp", weft_generator_open(in_root("mlp"), &open, &g));
    weft_session_destroy(s);
    weft_graph_destroy(graph);

    char *tokenizer = tokenizer_text("gpt2");
    c = config_of(WEFT_FAMILY_GPT2, 8, 400);
    s = reference_of(&c, &graph);
    save(s, &c, in_root("large"), 1, tokenizer);
    ASSERT_FAILS(WEFT_E_SHAPE, "999|400", weft_generator_open(in_root("large"), &open, &g));
    save(s, &c, in_root("without"), 1, NULL);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "tokenizer.json|400",
                 weft_generator_open(in_root("without"), &open, &g));
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    wefti_free(tokenizer);

    c = config_of(WEFT_FAMILY_GPT2, 8, 256);
    s = reference_of(&c, &graph);
    save(s, &c, in_root("good"), 1, NULL);
    open.memory_bytes = 4096;
    ASSERT_FAILS(WEFT_E_NOMEM, "model|alone", weft_generator_open(in_root("good"), &open, &g));
    open.memory_bytes = 0;
    open.precision = WEFT_F16;
    ASSERT_FAILS(WEFT_E_ARG, "f32 or in bf16, not in f16",
                 weft_generator_open(in_root("good"), &open, &g));
    open.precision = WEFT_F32;
    ASSERT_OK(weft_generator_open(in_root("good"), &open, &g));
    weft_generate_options o = WEFT_STRUCT(weft_generate_options, .tokens = 0);
    ASSERT_FAILS(WEFT_E_ARG, "tokens", weft_generator_run(g, "a", 1, &o, NULL));
    o = WEFT_STRUCT(weft_generate_options, .tokens = 1, .temperature = -1);
    ASSERT_FAILS(WEFT_E_ARG, "temperature", weft_generator_run(g, "a", 1, &o, NULL));
    o = WEFT_STRUCT(weft_generate_options, .tokens = 1, .top_k = -1);
    ASSERT_FAILS(WEFT_E_ARG, "top_k must be", weft_generator_run(g, "a", 1, &o, NULL));
    o = WEFT_STRUCT(weft_generate_options, .tokens = 1);
    ASSERT_FAILS(WEFT_E_ARG, "a prompt", weft_generator_run(g, NULL, 1, &o, NULL));
    weft_generator_close(g);

    float nan = NAN;
    float *bias = malloc(32 * sizeof *bias);
    ASSERT_OK(weft_session_read(s, 0, "ln_f.bias", bias, 32 * sizeof *bias));
    bias[5] = nan;
    ASSERT_OK(weft_session_write(s, 0, "ln_f.bias", bias, 32 * sizeof *bias));
    free(bias);
    save(s, &c, in_root("good"), 2, NULL);
    ASSERT_OK(weft_generator_open(in_root("good"), &open, &g));
    ASSERT_FAILS(WEFT_E_NUMERIC, "token 0", weft_generator_run(g, "a", 1, &o, NULL));
    weft_generator_close(g);
    weft_generator_close(NULL);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
}

/* A stop text ends the text behind the token that completes it, also where it begins in the prompt;
 * a penalty makes tokens of the prompt rarer; a tokenizer may be named. */
static void stops_and_penalties(void **state) {
    (void)state;
    weft_model_config c = config_of(WEFT_FAMILY_GPT2, 70, 256);
    weft_graph *graph;
    weft_session *s = reference_of(&c, &graph);
    save(s, &c, in_root("stops"), 1, NULL);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    weft_generator *g = open_with(in_root("stops"), 1);
    weft_generate_options o =
        WEFT_STRUCT(weft_generate_options, .tokens = 40, .temperature = 1, .seed = 5);
    text whole, part;
    weft_generation done = run(g, "Once", 4, o, &whole);
    assert_int_equal(whole.used, 40);
    assert_int_equal(done.stop_text, -1);
    char stop[5] = {0}, none[] = "Once upon";
    const char *const list[] = {none, stop};
    memcpy(stop, whole.data + 20, 4);
    for (int i = 0; i < 4; i++) assert_int_not_equal(stop[i], 0);
    o.stop_texts = list;
    o.stop_count = 2;
    done = run(g, "Once", 4, o, &part);
    assert_int_equal(part.used, 24);
    assert_memory_equal(part.data, whole.data, 24);
    assert_int_equal(done.stop_text, 1);
    assert_int_equal(done.tokens, 24);
    assert_false(done.ended);
    memcpy(stop, "ce", 2);
    memcpy(stop + 2, whole.data, 2);
    done = run(g, "Once", 4, o, &part);
    assert_int_equal(part.used, 2);
    assert_int_equal(done.stop_text, 1);
    stop[0] = '\0';
    ASSERT_FAILS(WEFT_E_ARG, "stop text 1", weft_generator_run(g, "a", 1, &o, NULL));
    o = WEFT_STRUCT(weft_generate_options, .tokens = 20, .repetition_penalty = 1e6);
    run(g, "Once", 4, o, &part); /* positive logits come down to 0 once used */
    bool seen[256] = {['O'] = true, ['n'] = true, ['c'] = true, ['e'] = true};
    for (int64_t i = 0; i < part.used; i++) {
        unsigned char byte = (unsigned char)part.data[i];
        if (seen[byte]) fail_msg("byte %d comes again at %d", byte, (int)i);
        seen[byte] = true;
    }
    o = WEFT_STRUCT(weft_generate_options, .tokens = 1, .top_p = 1.5);
    ASSERT_FAILS(WEFT_E_ARG, "top_p", weft_generator_run(g, "a", 1, &o, NULL));
    o = WEFT_STRUCT(weft_generate_options, .tokens = 1, .min_p = -0.5);
    ASSERT_FAILS(WEFT_E_ARG, "min_p", weft_generator_run(g, "a", 1, &o, NULL));
    o = WEFT_STRUCT(weft_generate_options, .tokens = 1, .repetition_penalty = -1);
    ASSERT_FAILS(WEFT_E_ARG, "repetition_penalty", weft_generator_run(g, "a", 1, &o, NULL));
    weft_generator_close(g);
}

/* Every allocation of opening and of one run failed in turn: an error, and nothing is lost. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    weft_model_config c = config_of(WEFT_FAMILY_GPT2, 8, 256);
    weft_graph *graph;
    weft_session *s = reference_of(&c, &graph);
    save(s, &c, in_root("faults"), 1, NULL);
    weft_session_destroy(s);
    weft_graph_destroy(graph);
    const char *step = in_root("faults/step-000000000001");
    weft_generator_options open = WEFT_STRUCT(weft_generator_options, .threads = 1);
    weft_generate_options o = WEFT_STRUCT(weft_generate_options, .tokens = 3);
    weft_generator *g = NULL;
    int64_t calls;
    wefti_fault_arm(WEFTI_FAULT_ALLOC, INT64_MAX, false, 0);
    ASSERT_OK(weft_generator_open(step, &open, &g));
    ASSERT_OK(weft_generator_run(g, "ab", 2, &o, NULL));
    calls = wefti_fault_count(WEFTI_FAULT_ALLOC);
    weft_generator_close(g);
    assert_true(calls > 100);
    int64_t stride = calls / 400 + 1;
    for (int64_t n = 0; n < calls; n += n < 100 ? 1 : stride) {
        g = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, n, false, 0);
        weft_status status = weft_generator_open(step, &open, &g);
        if (status == WEFT_OK) status = weft_generator_run(g, "ab", 2, &o, NULL);
        disarm_faults();
        if (status != WEFT_E_NOMEM && status != WEFT_OK)
            fail_msg("allocation %d failed: %s: %s", (int)n, weft_status_text(status),
                     weft_error_message());
        weft_generator_close(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(top_k_selects_in_order),
        cmocka_unit_test(texts_equal_those_from_scratch),
        cmocka_unit_test(long_prompts_equal_those_from_scratch),
        cmocka_unit_test(bf16_halves_memory),
        cmocka_unit_test(a_short_text_needs_short_caches),
        cmocka_unit_test(same_seed_same_text),
        cmocka_unit_test(all_kinds_of_directories),
        cmocka_unit_test(tokenizers_are_used),
        cmocka_unit_test(ends_are_those_of_the_configuration),
        cmocka_unit_test(failures_are_named),
        cmocka_unit_test(stops_and_penalties),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
