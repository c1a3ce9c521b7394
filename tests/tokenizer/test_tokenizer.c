/* Tokenizers against Hugging Face tokenizers (tests/data/tokenizer_cases.json, written by
 * tools/tokenizer_fixtures.py), round trips of any bytes, and files that must be refused. */
#include "data/data_fixture.h"

#include "base/json/json.h"
#include "base/text.h"
#include "tokenizer/model/model.h"
#include "tokenizer/unicode.h"

static char *read_text(const char *name, int64_t *out_bytes) {
    char path[200], *text;
    (void)snprintf(path, sizeof path, "tests/data/%s", name);
    ASSERT_OK(wefti_file_read(path, 1 << 20, &text, out_bytes));
    return text;
}

/* All places of `from` in `text` replaced; the result takes the place of text. */
static char *replaced(char *text, const char *from, const char *by) {
    wefti_text out = {0};
    int found = 0;
    const char *at = text;
    for (const char *hit; (hit = strstr(at, from)); at = hit + strlen(from), found++) {
        wefti_text_add_bytes(&out, at, hit - at);
        wefti_text_add(&out, "%s", by);
    }
    wefti_text_add(&out, "%s", at);
    if (!found) fail_msg("\"%s\" is not in the file", from);
    wefti_free(text);
    return wefti_text_take(&out);
}

static weft_tokenizer *load(const char *name) {
    int64_t bytes;
    char *text = read_text(name, &bytes);
    weft_tokenizer *t;
    ASSERT_OK(wefti_tokenizer_parse(name, text, bytes, &t));
    wefti_free(text);
    return t;
}

static const char *text_in(const wefti_json *object, const char *key) {
    const char *text;
    ASSERT_OK(wefti_json_text(object, key, &text));
    return text;
}

static const wefti_json *list_in(const wefti_json *object, const char *key) {
    const wefti_json *list;
    ASSERT_OK(wefti_json_array(object, key, &list));
    return list;
}

static void check_case(const weft_tokenizer *t, const char *name, const wefti_json *each) {
    const char *text = text_in(each, "text"), *decoded = text_in(each, "decoded");
    const wefti_json *expected = list_in(each, "ids");
    int64_t bytes = (int64_t)strlen(text), count = 0, back = 0;
    int32_t *ids = calloc((size_t)bytes * 4 + 4, sizeof *ids);
    char *out = calloc((size_t)bytes * 4 + 4, 1);
    ASSERT_OK(weft_tokenizer_encode(t, text, bytes, ids, bytes * 4 + 4, &count));
    bool same = count == expected->count;
    int64_t at = 0;
    WEFTI_JSON_EACH(id, expected) same = same && ids[at++] == id->as.integer;
    if (!same) fail_msg("%s: \"%s\" gives other tokens", name, text);
    ASSERT_OK(weft_tokenizer_decode(t, ids, count, out, bytes * 4 + 4, &back));
    if ((size_t)back != strlen(decoded) || memcmp(out, decoded, (size_t)back))
        fail_msg("%s: \"%s\" decodes to \"%s\"", name, text, out);
    free(ids);
    free(out);
}

static void as_hugging_face(void **state) {
    (void)state;
    int64_t bytes;
    char *text = read_text("tokenizer_cases.json", &bytes);
    static const wefti_json_limits limits = {.depth = 8, .members = 8, .array_items = 10000};
    wefti_arena *arena;
    const wefti_json *variants;
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_json_parse(arena, text, bytes, &limits, &variants));
    wefti_free(text);
    assert_int_equal(variants->count, 10);
    WEFTI_JSON_EACH(variant, variants) {
        const char *name = text_in(variant, "name");
        text = read_text(text_in(variant, "file"), &bytes);
        WEFTI_JSON_EACH(pair, list_in(variant, "replace"))
        text = replaced(text, pair->as.child->as.text, pair->as.child->next->as.text);
        weft_tokenizer *t;
        ASSERT_OK(wefti_tokenizer_parse(name, text, (int64_t)strlen(text), &t));
        wefti_free(text);
        const wefti_json *cases = list_in(variant, "cases");
        assert_true(cases->count > 15);
        WEFTI_JSON_EACH(each, cases) check_case(t, name, each);
        weft_tokenizer_close(t);
    }
    wefti_arena_destroy(arena);
}

/* Random bytes, random pieces of UTF-8, long enough for the cache of words. */
static int64_t random_text(uint64_t seed, uint64_t stream, unsigned char *to, int64_t room) {
    static const char *const parts[] = {
        " ",       "  ", "\n", "the",      "'s",   "'LL", "123", "é",    "日本", "<|endoftext|>",
        "<|end|>", "a",  "Z",  "\xE2\x96", "\x80", "😀",   ".",   "\r\n", "xyz"};
    int64_t used = 0;
    for (uint64_t i = 0; used < room - 20; i++) {
        uint32_t word = wefti_philox_u32(seed, stream, i);
        if (stream % 2) {
            to[used++] = (unsigned char)word;
        } else {
            const char *part = parts[word % (sizeof parts / sizeof *parts)];
            memcpy(to + used, part, strlen(part));
            used += (int64_t)strlen(part);
        }
    }
    return used;
}

static void any_bytes_come_back(void **state) {
    (void)state;
    const uint64_t seed = test_seed(20240611);
    static const char *const files[] = {"tokenizer_gpt2.json", "tokenizer_llama3.json"};
    static unsigned char text[6000], back[6000];
    static int32_t ids[24004];
    for (int f = 0; f < 2; f++) {
        weft_tokenizer *t = load(files[f]);
        for (uint64_t stream = 0; stream < 40; stream++) {
            int64_t bytes = random_text(seed, stream, text, stream < 4 ? 6000 : 300), count, out;
            ASSERT_OK(weft_tokenizer_encode(t, (char *)text, bytes, ids, 24004, &count));
            assert_true(count <= bytes);
            ASSERT_OK(weft_tokenizer_decode(t, ids, count, (char *)back, sizeof back, &out));
            assert_int_equal(out, bytes);
            assert_memory_equal(back, text, (size_t)bytes);
            /* the cache changes nothing: the same text again, through one encoder */
            wefti_encoder *e;
            wefti_ids twice = {0};
            ASSERT_OK(wefti_encoder_create(t, &e));
            ASSERT_OK(wefti_encoder_add(e, text, bytes, &twice));
            ASSERT_OK(wefti_encoder_add(e, text, bytes, &twice));
            assert_int_equal(twice.count, 2 * count);
            assert_memory_equal(twice.ids + count, ids, (size_t)count * sizeof *ids);
            wefti_encoder_destroy(e);
            wefti_free(twice.ids);
        }
        weft_tokenizer_close(t);
    }
}

/* Merging by the definition: again and again the leftmost pair of lowest rank. */
static int64_t merge_slowly(const weft_tokenizer *t, const unsigned char *word, int64_t bytes,
                            int32_t *ids) {
    int64_t count = bytes;
    for (int64_t i = 0; i < bytes; i++) ids[i] = t->byte_ids[word[i]];
    for (;;) {
        const wefti_pair_slot *best = NULL;
        int64_t at = 0;
        for (int64_t i = 0; i + 1 < count; i++) {
            const wefti_pair_slot *m = wefti_pair_map_find(&t->merges, ids[i], ids[i + 1]);
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (!best) return count;
        ids[at] = best->id;
        memmove(ids + at + 1, ids + at + 2, (size_t)(count - at - 2) * sizeof *ids);
        count--;
    }
}

static void merging_is_as_defined(void **state) {
    (void)state;
    const uint64_t seed = test_seed(7);
    weft_tokenizer *t = load("tokenizer_gpt2.json");
    wefti_model_scratch scratch = {0};
    for (uint64_t stream = 0; stream < 300; stream++) {
        static const char letters[] = "thenisoaur e";
        unsigned char word[64];
        int32_t slow[64];
        int64_t bytes = 1 + wefti_philox_u32(seed, stream, 100) % 64;
        for (int64_t i = 0; i < bytes; i++)
            word[i] = (unsigned char)
                letters[wefti_philox_u32(seed, stream, (uint64_t)i) % (sizeof letters - 1)];
        wefti_ids fast = {0};
        ASSERT_OK(wefti_model_bpe(t, word, bytes, &scratch, &fast));
        int64_t count = merge_slowly(t, word, bytes, slow);
        assert_int_equal(fast.count, count);
        assert_memory_equal(fast.ids, slow, (size_t)count * sizeof *slow);
        wefti_free(fast.ids);
    }
    wefti_model_scratch_free(&scratch);
    weft_tokenizer_close(t);
}

/* A quadratic merge would take hours for a word of a megabyte. */
static void a_very_long_word(void **state) {
    (void)state;
    weft_tokenizer *t = load("tokenizer_gpt2.json");
    int64_t bytes = 1 << 20, count;
    char *text = malloc((size_t)bytes);
    int32_t *ids = malloc((size_t)bytes * sizeof *ids);
    for (int64_t i = 0; i < bytes; i++) text[i] = "theres"[i % 6];
    ASSERT_OK(weft_tokenizer_encode(t, text, bytes, ids, bytes, &count));
    assert_true(count < bytes / 2);
    char *back = malloc((size_t)bytes);
    int64_t out;
    ASSERT_OK(weft_tokenizer_decode(t, ids, count, back, bytes, &out));
    assert_int_equal(out, bytes);
    assert_memory_equal(back, text, (size_t)bytes);
    free(text);
    free(ids);
    free(back);
    weft_tokenizer_close(t);
}

static void tokens_by_name(void **state) {
    (void)state;
    weft_tokenizer *t = load("tokenizer_llama3.json");
    int64_t count, bytes;
    int32_t begin = weft_tokenizer_find(t, "<|begin_of_text|>");
    assert_true(begin >= 0);
    const int32_t *prefix = weft_tokenizer_prefix(t, &count);
    assert_int_equal(count, 1);
    assert_int_equal(prefix[0], begin);
    int32_t the = weft_tokenizer_find(t, " the");
    assert_true(the >= 0);
    const char *text = weft_tokenizer_token(t, the, &bytes);
    assert_int_equal(bytes, 4);
    assert_memory_equal(text, " the", 4);
    assert_int_equal(weft_tokenizer_find(t, "no such token"), -1);
    assert_null(weft_tokenizer_token(t, -1, &bytes));
    assert_null(weft_tokenizer_token(t, (int32_t)weft_tokenizer_vocab(t), &bytes));
    char out[4];
    ASSERT_FAILS(WEFT_E_ARG, "token",
                 weft_tokenizer_decode(t, &(int32_t){1 << 30}, 1, out, 4, &bytes));
    ASSERT_FAILS(WEFT_E_ARG, "room for 1", weft_tokenizer_decode(t, &the, 1, out, 1, &bytes));
    assert_int_equal(bytes, 4);
    ASSERT_FAILS(WEFT_E_ARG, "room for 0", weft_tokenizer_encode(t, "abc", 3, NULL, 0, &count));
    assert_true(count > 0);
    weft_tokenizer_close(t);
    t = load("tokenizer_llama2.json");
    assert_int_equal(t->split_count, 1);
    assert_int_equal(t->split[0].kind, WEFTI_SPLIT_PIECES);
    int32_t a = weft_tokenizer_find(t, "a"); /* not <0x61>, which decodes to the same */
    assert_true(a >= 0 && a != t->byte_ids['a']);
    prefix = weft_tokenizer_prefix(t, &count);
    assert_int_equal(count, 1);
    assert_int_equal(prefix[0], 1);
    weft_tokenizer_close(t);
}

/* Pieces cut in front of U+2581 are the same as the whole text merged at once. */
static void cutting_pieces_changes_nothing(void **state) {
    (void)state;
    weft_tokenizer *t = load("tokenizer_llama2.json");
    static const char text[] = "Before we proceed  any further, hear\nme speak.   ▁▁x é ";
    int32_t cut[300], whole[300];
    int64_t cut_count, whole_count;
    ASSERT_OK(weft_tokenizer_encode(t, text, sizeof text - 1, cut, 300, &cut_count));
    t->split_count = 0;
    ASSERT_OK(weft_tokenizer_encode(t, text, sizeof text - 1, whole, 300, &whole_count));
    assert_int_equal(cut_count, whole_count);
    assert_memory_equal(cut, whole, (size_t)cut_count * sizeof *cut);
    weft_tokenizer_close(t);
}

static void refuses(void **state) {
    (void)state;
    static const struct {
        const char *file, *from, *by;
        weft_status status;
        const char *says;
    } bad[] = {
        {"tokenizer_llama3.json", "\"type\": \"BPE\"", "\"type\": \"Unigram\"", WEFT_E_CORRUPT,
         "model.vocab"},
        {"tokenizer_llama3.json", "\"type\": \"BPE\"", "\"type\": \"Words\"", WEFT_E_NO_IMPL,
         "Words"},
        {"tokenizer_llama3.json", "\"normalizer\": null", "\"normalizer\": {\"type\": \"Other\"}",
         WEFT_E_NO_IMPL, "'Other'"},
        {"tokenizer_llama3.json", "\"normalizer\": null",
         "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"A?\"}",
         WEFT_E_CORRUPT, "precompiled_charsmap|base64"},
        {"tokenizer_llama3.json", "\"normalizer\": null",
         "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"////AAAAAAA=\"}",
         WEFT_E_CORRUPT, "precompiled_charsmap|8 bytes"},
        {"tokenizer_llama3.json", "{1,3}", "{3,1}", WEFT_E_NO_IMPL, "byte 64"},
        {"tokenizer_llama3.json", "(?!\\\\S)", "(?!\\\\S+)", WEFT_E_NO_IMPL, "lookaround"},
        {"tokenizer_llama3.json", "\"Isolated\"", "\"Doubled\"", WEFT_E_NO_IMPL, "Doubled"},
        {"tokenizer_llama3.json", "\"type\": \"ByteLevel\"", "\"type\": \"UnicodeScripts\"",
         WEFT_E_NO_IMPL, "UnicodeScripts"},
        {"tokenizer_llama3.json", "\"TemplateProcessing\"", "\"OtherProcessing\"", WEFT_E_NO_IMPL,
         "OtherProcessing"},
        {"tokenizer_llama3.json", "\"unk_token\": null", "\"unk_token\": \"<no>\"", WEFT_E_CORRUPT,
         "'<no>'"},
        {"tokenizer_llama2.json", "\"Fuse\"", "\"CTC\"", WEFT_E_NO_IMPL, "CTC"},
        {"tokenizer_llama2.json", "\"stop\": 0", "\"stop\": 1", WEFT_E_NO_IMPL, "Strip"},
        {"tokenizer_llama3.json", "\"dropout\": null", "\"dropout\": 0.1", WEFT_E_NO_IMPL,
         "dropout"},
        {"tokenizer_llama3.json", "\"TemplateProcessing\"", "\"BertProcessing\"", WEFT_E_CORRUPT,
         "cls"},
        {"tokenizer_bert.json", "\"unk_token\": \"[UNK]\"", "\"unk_token\": \"[UKN]\"",
         WEFT_E_CORRUPT, "'[UKN]'"},
        {"tokenizer_bert.json", "\"max_input_chars_per_word\": 20",
         "\"max_input_chars_per_word\": 0", WEFT_E_CORRUPT, "max_input_chars_per_word is 0"},
        {"tokenizer_llama3.json", "\"model\"", "\"modal\"", WEFT_E_CORRUPT, "no model"},
        {"tokenizer_llama3.json", "\"vocab\"", "\"vocal\"", WEFT_E_CORRUPT, "model.vocab"},
        {"tokenizer_llama3.json", "\"merges\"", "\"merged\"", WEFT_E_CORRUPT, "model.merges"},
        {"tokenizer_llama3.json", "\"!\": 0", "\"!\": -1", WEFT_E_CORRUPT, "number -1"},
        {"tokenizer_llama3.json", "\"!\": 0", "\"!\": 1", WEFT_E_CORRUPT, "number 1"},
        {"tokenizer_llama3.json", "\"!\": 0", "\"!\": 2000000000", WEFT_E_CORRUPT, "2000000000"},
        {"tokenizer_llama3.json", "\"!\": 0", "\"!\": \"a\"", WEFT_E_CORRUPT, "no number"},
        {"tokenizer_llama3.json", "\"!\": 0", "\"\\\"\": 0", WEFT_E_CORRUPT, "duplicate key"},
        {"tokenizer_llama3.json", "\"content\": \"Capulet\"", "\"content\": \"\"", WEFT_E_CORRUPT,
         "no content"},
        {"tokenizer_llama3.json", "\"merges\": [", "\"merges\": [[\"a\"], ", WEFT_E_CORRUPT,
         "merge 0"},
        {"tokenizer_llama3.json", "\"merges\": [", "\"merges\": [[\"a\", \"zzz\"], ",
         WEFT_E_CORRUPT, "'zzz'"},
        {"tokenizer_llama3.json", "\"merges\": [", "\"merges\": [[\"q\", \"q\"], ", WEFT_E_CORRUPT,
         "'q'"},
        {"tokenizer_gpt2.json", "\"merges\": [", "\"merges\": [\"abc\", ", WEFT_E_CORRUPT, "'abc'"},
        {"tokenizer_gpt2.json", "\"merges\": [", "\"merges\": [\"a b c\", ", WEFT_E_CORRUPT,
         "'a b c'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t bytes;
        char *text = replaced(read_text(bad[i].file, &bytes), bad[i].from, bad[i].by);
        weft_tokenizer *t;
        ASSERT_FAILS(bad[i].status, bad[i].says,
                     wefti_tokenizer_parse(bad[i].file, text, (int64_t)strlen(text), &t));
        ASSERT_MESSAGE(bad[i].file);
        wefti_free(text);
    }
}

static void truncations(void **state) {
    (void)state;
    /* a small file of the same kind, so that every byte can be tried */
    static const char text[] =
        "{\"added_tokens\": [{\"id\": 3, \"content\": \"<e>\"}],"
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
        "\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}}";
    weft_tokenizer *t;
    for (int64_t bytes = 0; bytes < (int64_t)sizeof text - 1; bytes++)
        assert_int_equal(wefti_tokenizer_parse("small", text, bytes, &t), WEFT_E_CORRUPT);
    ASSERT_OK(wefti_tokenizer_parse("small", text, sizeof text - 1, &t));
    int32_t ids[8];
    int64_t count;
    ASSERT_OK(weft_tokenizer_encode(t, "abba<e>", 7, ids, 8, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(ids, ((int32_t[]){2, 1, 0, 3}), 16);
    ASSERT_FAILS(WEFT_E_ARG, "0x63", weft_tokenizer_encode(t, "abc", 3, ids, 8, &count));
    weft_tokenizer_close(t);
}

static void faults_with(const char *path) {
    static char text[5000];
    memset(text, 'a', sizeof text);
    memcpy(text, "the cache of words", 18);
    for (int kind = 0; kind < WEFTI_FAULT_KINDS; kind++)
        for (int64_t n = 0, reached = 1; reached; n++) {
            wefti_fault_arm((wefti_fault_kind)kind, n, false, 0);
            weft_tokenizer *t;
            static int32_t ids[5000];
            int64_t count;
            weft_status status = weft_tokenizer_open(path, &t);
            if (status == WEFT_OK) {
                status = weft_tokenizer_encode(t, text, sizeof text, ids, 5000, &count);
                weft_tokenizer_close(t);
            }
            reached = wefti_fault_count((wefti_fault_kind)kind) > n;
            disarm_faults();
            /* a directory that cannot be looked at is taken for a file: the only call that may fail
             * in silence */
            if (!reached) assert_int_equal(status, WEFT_OK);
            if (status < 0) assert_true(weft_error_message()[0]);
            if (kind == WEFTI_FAULT_ALLOC) assert_int_equal(status < 0, reached);
        }
}

static void faults(void **state) {
    (void)state;
    faults_with("tests/data/tokenizer_gpt2.json");
    faults_with("tests/data/tokenizer_bert.json");
}

/* Any bytes have tokens, the same with and without the cache of words; words are found by the
 * names that they have in the vocabulary. */
static void any_bytes_are_word_pieces(void **state) {
    (void)state;
    const uint64_t seed = test_seed(5);
    static unsigned char text[6000];
    static int32_t ids[24004];
    weft_tokenizer *t = load("tokenizer_bert.json");
    for (uint64_t stream = 0; stream < 40; stream++) {
        int64_t bytes = random_text(seed, stream, text, stream < 4 ? 6000 : 300), count;
        ASSERT_OK(weft_tokenizer_encode(t, (char *)text, bytes, ids, 24004, &count));
        wefti_encoder *e;
        wefti_ids alone = {0};
        ASSERT_OK(wefti_encoder_create(t, &e));
        for (int64_t at = 0; at < bytes;) { /* cut at spaces, which end every word */
            int64_t end = at + 1;
            while (end < bytes && text[end] != ' ') end++;
            ASSERT_OK(wefti_encoder_add(e, text + at, end - at, &alone));
            at = end;
        }
        assert_int_equal(alone.count, count);
        assert_memory_equal(alone.ids, ids, (size_t)count * sizeof *ids);
        wefti_encoder_destroy(e);
        wefti_free(alone.ids);
    }
    int64_t count;
    assert_int_equal(weft_tokenizer_find(t, "[MASK]"), 4);
    assert_true(weft_tokenizer_find(t, "the") > 4);
    assert_true(weft_tokenizer_find(t, "##s") > 4);
    assert_int_equal(weft_tokenizer_find(t, " the"), -1);
    assert_int_equal(weft_tokenizer_prefix(t, &count)[0], 2);
    assert_int_equal(count, 1);
    weft_tokenizer_close(t);
}

static void bytes_are_tokens(void **state) {
    (void)state;
    weft_tokenizer *t;
    ASSERT_OK(weft_tokenizer_open(NULL, &t));
    weft_tokenizer_close(t);
    ASSERT_OK(weft_tokenizer_open("bytes", &t));
    assert_int_equal(weft_tokenizer_vocab(t), 256);
    int32_t ids[256];
    char text[256], back[256];
    int64_t count;
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    ASSERT_OK(weft_tokenizer_encode(t, text, 256, ids, 256, &count));
    for (int i = 0; i < 256; i++) assert_int_equal(ids[i], i);
    ASSERT_OK(weft_tokenizer_decode(t, ids, 256, back, 256, &count));
    assert_memory_equal(text, back, 256);
    assert_int_equal(weft_tokenizer_find(t, "a"), 'a');
    weft_tokenizer_close(t);
    weft_tokenizer_close(NULL);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "no/such", weft_tokenizer_open("no/such", &t));
}

static void utf8(void **state) {
    (void)state;
    uint32_t point;
    static const struct {
        const char *text;
        int length;
        uint32_t point;
    } cases[] = {{"a", 1, 'a'},
                 {"\xC3\xA9", 2, 0xE9},
                 {"\xE2\x96\x81", 3, 0x2581},
                 {"\xF0\x9F\x98\x80", 4, 0x1F600},
                 {"\xF4\x8F\xBF\xBF", 4, 0x10FFFF},
                 {"\xC3", 1, WEFTI_NO_CHARACTER},             /* cut short */
                 {"\xC0\x80", 1, WEFTI_NO_CHARACTER},         /* overlong */
                 {"\xE0\x80\x80", 1, WEFTI_NO_CHARACTER},     /* overlong */
                 {"\xED\xA0\x80", 1, WEFTI_NO_CHARACTER},     /* surrogate */
                 {"\xF4\x90\x80\x80", 1, WEFTI_NO_CHARACTER}, /* beyond the last */
                 {"\xE2\x96 ", 1, WEFTI_NO_CHARACTER},
                 {"\x80", 1, WEFTI_NO_CHARACTER},
                 {"\xFF", 1, WEFTI_NO_CHARACTER}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(wefti_utf8_next((const unsigned char *)cases[i].text,
                                         (int64_t)strlen(cases[i].text), &point),
                         cases[i].length);
        assert_int_equal(point, cases[i].point);
    }
}

static bool count_range(void *to, uint32_t first, uint32_t last) {
    *(int64_t *)to += last - first + 1;
    return true;
}

static int64_t members(const char *name) {
    int64_t count = 0;
    assert_true(wefti_unicode_class(name, count_range, &count));
    return count;
}

static void classes(void **state) {
    (void)state;
    int64_t digits = 0, spaces = 0;
    for (uint32_t p = 0; p < 0x110000; p++) {
        digits += wefti_unicode_digit(p);
        spaces += wefti_unicode_space(p);
        assert_true(wefti_unicode_digit(p) + wefti_unicode_space(p) <= 1);
    }
    /* as counted by Hugging Face tokenizers 0.23: Unicode 16 in regular expressions, 17 in Digits
     */
    assert_int_equal(members("L"), 141028);
    assert_int_equal(members("N"), 1911);
    assert_int_equal(members("Nd"), 760);
    assert_int_equal(members("Space"), 25);
    assert_int_equal(digits, 1924);
    assert_int_equal(spaces, 25);
    int64_t none = 0;
    assert_false(wefti_unicode_class("Klingon", count_range, &none));
    assert_true(wefti_unicode_word(0x4E2D) && wefti_unicode_word('_') && !wefti_unicode_word(0xBD));
    assert_true(wefti_unicode_digit(0xBD) && wefti_unicode_space(0x3000) &&
                !wefti_unicode_space(0x1C));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_tokens),
        cmocka_unit_test(utf8),
        cmocka_unit_test(classes),
        cmocka_unit_test(as_hugging_face),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(merging_is_as_defined),
        cmocka_unit_test(a_very_long_word),
        cmocka_unit_test(tokens_by_name),
        cmocka_unit_test(cutting_pieces_changes_nothing),
        cmocka_unit_test(refuses),
        cmocka_unit_test(truncations),
        cmocka_unit_test(faults),
        cmocka_unit_test(any_bytes_are_word_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
