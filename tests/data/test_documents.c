/* Documents as JSON lines: texts in order, ends of documents, broken lines named by file and line.
 * Files of another structure are refused by name or by their first bytes. */
#include "data_fixture.h"

#include "base/text.h"
#include "data/jsonl.h"
#include "data/source.h"
#include "weft/data.h"

static weft_status try_data(const char *format, const char *path, const char *tokenizer,
                            weft_data **out) {
    weft_data_options o = WEFT_STRUCT(weft_data_options, .format = format, .path = path,
                                      .context = 1, .tokenizer = tokenizer);
    return weft_data_open(&o, out);
}

/* All tokens of a data set as bytes. */
static void assert_bytes(const char *format, const char *path, const char *expected) {
    weft_data *data;
    int32_t in, out;
    ASSERT_OK(try_data(format, path, NULL, &data));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), strlen(expected) - 1);
    for (size_t i = 0; i + 1 < strlen(expected); i++) {
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, (int64_t)i, &in, &out));
        assert_int_equal(in, (unsigned char)expected[i]);
        assert_int_equal(out, (unsigned char)expected[i + 1]);
    }
    weft_data_close(data);
}

static const char *put_text(const char *name, const char *text) {
    return put_file(name, text, strlen(text));
}

static void lines_are_documents(void **state) {
    (void)state;
    const char *text = "\xEF\xBB\xBF{\"text\": \"one\", \"id\": [1, {\"text\": 2}]}\r\n"
                       "\n  \t\r\n"
                       "{\"id\": null, \"text\": \"tw\\u00f6\\n\"}\n"
                       "{\"text\": \"\"}\n"
                       "{\"text\": \"three\"}"; /* no newline at the end */
    const char *expected = "one\ntw\xC3\xB6\n\n\nthree\n";
    assert_bytes("text", put_text("a.jsonl", text), expected);
    assert_bytes("text", put_text("b.NDJSON", text), expected);
    assert_bytes("jsonl", put_text("c.json", text), expected);
    assert_bytes("raw", put_text("d.jsonl", "{\"text\""), "{\"text\"");
}

/* Lines around the borders of the pieces that the file is read in. */
static void lines_of_every_length(void **state) {
    (void)state;
    const int64_t lengths[] = {0, 1, (1 << 20) - 13, (1 << 20) - 12, (1 << 20) - 11, 3 << 20, 5};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    char *text = malloc(8 << 20);
    int64_t used = 0, total = 0;
    for (int i = 0; i < COUNT; i++) {
        used += sprintf(text + used, "{\"text\": \"");
        memset(text + used, 'a' + i, (size_t)lengths[i]);
        used += lengths[i];
        used += sprintf(text + used, "\"}\n");
        total += lengths[i] + 1;
    }
    weft_data *data;
    ASSERT_OK(try_data("jsonl", put_file("long.jsonl", text, (size_t)used), NULL, &data));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), total - 1);
    int64_t at = 0;
    for (int i = 0; i < COUNT; at += lengths[i] + 1, i++) {
        int32_t in, out;
        if (lengths[i]) {
            ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, at, &in, &out));
            assert_int_equal(in, 'a' + i);
        }
        if (at + lengths[i] >= total - 1) break;
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, at + lengths[i], &in, &out));
        assert_int_equal(in, '\n');
    }
    weft_data_close(data);
    free(text);
}

static void ends_follow_documents(void **state) {
    (void)state;
    weft_data *data;
    const char *path =
        put_text("words.jsonl", "{\"text\": \"hello there\"}\n{\"text\": \"hello there\"}\n");
    ASSERT_OK(try_data("text", path, "tests/data/tokenizer_gpt2.json", &data));
    const weft_tokenizer *t = weft_data_tokenizer(data);
    int32_t ids[20], in, out;
    int64_t count;
    ASSERT_OK(weft_tokenizer_encode(t, "hello there", 11, ids, 19, &count));
    ids[count++] = weft_tokenizer_find(t, "<|endoftext|>");
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 2 * count - 1);
    for (int64_t i = 0; i < 2 * count - 1; i++) {
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, i, &in, &out));
        assert_int_equal(in, ids[i % count]);
        assert_int_equal(out, ids[(i + 1) % count]);
    }
    weft_data_close(data);
}

static void broken_lines_are_named(void **state) {
    (void)state;
    const struct {
        const char *line, *facts;
    } cases[] = {
        {"{\"text\": \"a\"", "line 3"},
        {"[\"text\"]", "line 3|object"},
        {"\"text\"", "line 3|object"},
        {"{\"content\": \"a\", \"id\": 4}", "line 3|content|id"},
        {"{}", "line 3"},
        {"{\"text\": 5}", "line 3|string"},
        {"{\"text\": null}", "line 3|string"},
        {"{\"text\": \"\xff\"}", "line 3"},
        {"{\"text\": \"\\u00g0\"}", "line 3"},
        {"{\"text\": \"\\q\"}", "line 3"},
        {"{\"text\": \"a\"} x", "line 3"},
        {"{\"id\": [1, \"text\": \"b\"}", "line 3"},
    };
    weft_data *data;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], facts[100];
        (void)snprintf(text, sizeof text, "{\"text\": \"good\"}\n\n%s\n{\"text\": \"good\"}\n",
                       cases[i].line);
        (void)snprintf(facts, sizeof facts, "bad.jsonl|%s", cases[i].facts);
        const char *path = put_text("bad.jsonl", text);
        ASSERT_FAILS(WEFT_E_CORRUPT, facts, try_data("text", path, NULL, &data));
    }
    /* A line without end: refused at the limit, not when memory is gone. */
    size_t bytes = ((size_t)WEFTI_JSONL_LINE_BYTES * 2) + 100;
    char *text = malloc(bytes);
    memset(text, ' ', bytes);
    const char *path = put_file("bad.jsonl", text, bytes);
    free(text);
    ASSERT_FAILS(WEFT_E_CORRUPT, "bad.jsonl|line 1|67108864", try_data("text", path, NULL, &data));
    ASSERT_OK(wefti_remove_tree(in_root("bad.jsonl")));
    /* Nothing but blank lines holds no token. */
    ASSERT_FAILS(WEFT_E_SHAPE, "0 tokens",
                 try_data("text", put_text("blank.jsonl", "\n \n"), NULL, &data));
}

/* What is not used is not judged: corpora have all of this. */
static void other_members_may_hold_anything(void **state) {
    (void)state;
    static char text[300000];
    enum { DEEP = 100000 };
    int used =
        snprintf(text, sizeof text,
                 "{\"loss\": NaN, \"text\": \"a\", \"score\": -Infinity}\n"
                 "{\"n\": 1e400, \"n\": 2, \"n\": \"\\u0000\", \"text\": \"b\"}\n"
                 "{\"half\": \"\\ud800\", \"te\\u0078t\": \"c\"}\n"
                 "{\"text\": \"first\", \"text\": \"d\"}\n"
                 "{\"meta\": {\"text\": \"no\", \"x\": [\"}\", \"\\\"\"]}, \"text\": \"e\"}\n"
                 "{\"deep\": ");
    memset(text + used, '[', DEEP);
    memset(text + used + DEEP, ']', DEEP);
    used += 2 * DEEP;
    used += snprintf(text + used, sizeof text - (size_t)used,
                     ", \"text\": \"\\ud83d\\ude00\\udc00\"}\n");
    assert_bytes("text", put_file("any.jsonl", text, (size_t)used),
                 "a\nb\nc\nd\ne\n\xf0\x9f\x98\x80\xef\xbf\xbd\n");
    /* An escape of NUL in a text stands for it. */
    weft_data *data;
    int32_t in, out;
    ASSERT_OK(try_data("text", put_text("nul.jsonl", "{\"text\": \"x\\u0000y\"}\n"), NULL, &data));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 3);
    ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 1, &in, &out));
    assert_int_equal(in, 0);
    assert_int_equal(out, 'y');
    weft_data_close(data);
}

/* data.field and data.bad_lines. */
static void bad_lines_are_counted(void **state) {
    (void)state;
    weft_data *data;
    wefti_text text = {0};
    int64_t good = 0;
    for (int i = 0; i < 1000; i++) {
        const bool bad = i % 7 == 3;
        wefti_text_add(&text, bad ? (i % 2 ? "{\"content\": 5}\n" : "{\"content\": \"x\n")
                                  : "{\"content\": \"y\"}\n");
        good += !bad;
    }
    const char *path = put_file("some.jsonl", text.data, (size_t)text.used);
    wefti_text_free(&text);
    weft_data_options o = WEFT_STRUCT(weft_data_options, .format = "text", .path = path,
                                      .context = 1, .field = "content");
    ASSERT_FAILS(WEFT_E_CORRUPT, "some.jsonl|line 4|content", weft_data_open(&o, &data));
    o.skip_bad_lines = true;
    ASSERT_OK(weft_data_open(&o, &data));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 2 * good - 1);
    char facts[100];
    (void)snprintf(facts, sizeof facts, "%d|1000|some.jsonl|line 4|data.bad_lines",
                   (int)(1000 - good));
    if (!has_facts(wefti_data_notes(data), facts)) fail_msg("%s", wefti_data_notes(data));
    weft_data_close(data);
    /* A lack of memory is no bad line. */
    wefti_fault_arm(WEFTI_FAULT_ALLOC, 6, true, 0);
    const weft_status status = weft_data_open(&o, &data);
    disarm_faults();
    assert_int_equal(status, WEFT_E_NOMEM);
    o.skip_bad_lines = false;
    o.field = "missing";
    ASSERT_FAILS(WEFT_E_CORRUPT, "line 1|missing|content|data.field", weft_data_open(&o, &data));
}

/* Each way in which a model says which token ends a text. */
static void ends_have_many_names(void **state) {
    (void)state;
    static const struct {
        const char *added, *file, *json; /* the file beside the tokenizer; NULL: none */
        bool found;
    } cases[] = {
        {"<eos>", NULL, NULL, true},
        {"<|im_end|>", NULL, NULL, true},
        {"<|endoftext|>", NULL, NULL, true},
        {"<fin>", NULL, NULL, false},
        {"<fin>", "tokenizer_config.json", "{\"eos_token\": \"<fin>\", \"x\": NaN}", true},
        {"<fin>", "tokenizer_config.json",
         "{\"eos_token\": {\"content\": \"<fin>\", \"lstrip\": false}}", true},
        {"<fin>", "tokenizer_config.json", "{\"eos_token\": null}", false},
        {"<fin>", "special_tokens_map.json", "{\"eos_token\": \"<fin>\"}", true},
        {"<fin>", "generation_config.json", "{\"eos_token_id\": [2, 0]}", true},
        {"<fin>", "config.json", "{\"eos_token_id\": 2}", true},
        {"<eos>", "config.json", "{\"eos_token_id\": 9999}", true}, /* no such token: by name */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[600], name[64];
        ASSERT_OK(wefti_dir_make(in_root("t")));
        (void)snprintf(json, sizeof json,
                       "{\"added_tokens\": [{\"id\": 2, \"content\": \"%s\", \"special\": true, "
                       "\"single_word\": false, "
                       "\"lstrip\": false, \"rstrip\": false, \"normalized\": false}], "
                       "\"pre_tokenizer\": {\"type\": "
                       "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, "
                       "\"decoder\": {\"type\": "
                       "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, "
                       "\"b\": 1, \"%s\": 2}, "
                       "\"merges\": []}}",
                       cases[i].added, cases[i].added);
        (void)put_text("t/tokenizer.json", json);
        (void)snprintf(name, sizeof name, "t/%s", cases[i].file ? cases[i].file : "none");
        (void)put_text(name, cases[i].json ? cases[i].json : "");
        const char *path =
            put_text("docs.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"ba\"}\n{\"text\": \"b\"}\n");
        weft_data *data;
        int32_t in, out;
        for (int whole = 0; whole < 2; whole++) { /* its directory, or the file */
            ASSERT_OK(try_data("text", path, in_root(whole ? "t" : "t/tokenizer.json"), &data));
            assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN),
                             4 + (cases[i].found ? 3 : 0));
            ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 1, &in, &out));
            assert_int_equal(out, cases[i].found ? 2 : 1);
            if (has_facts(wefti_data_notes(data), "3|eos_token") == cases[i].found)
                fail_msg("case %d: notes: %s", (int)i, wefti_data_notes(data));
            weft_data_close(data);
        }
        ASSERT_OK(wefti_remove_tree(in_root("t")));
    }
}

/* The same text in each encoding: a tokenizer refuses it by name, bytes give a note; a mark of
 * UTF-8 is no token. */
static void other_encodings_are_named(void **state) {
    (void)state;
    static const char text[] =
        "Weft trains models. \u00dcber Stock und Stein, caf\u00e9 \u00e0 la cr\u00e8me.\n";
    static const struct {
        const char *name;
        int bytes; /* of a character */
        bool big, mark;
    } encodings[] = {{"UTF-16 (little endian)", 2, false, true},
                     {"UTF-16 (little endian)", 2, false, false},
                     {"UTF-16 (big endian)", 2, true, true},
                     {"UTF-16 (big endian)", 2, true, false},
                     {"UTF-32 (little endian)", 4, false, true},
                     {"UTF-32 (little endian)", 4, false, false},
                     {"UTF-32 (big endian)", 4, true, true},
                     {"UTF-32 (big endian)", 4, true, false},
                     {"Latin-1", 1, false, false}};
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        buffer b = {.count = 0};
        const unsigned char *p = (const unsigned char *)text, *end = p + sizeof text - 1;
        for (bool mark = encodings[i].mark; p < end; mark = false) {
            uint32_t point = 0xfeff;
            if (!mark) p += wefti_utf8_next(p, end - p, &point);
            for (int k = 0; k < encodings[i].bytes; k++) {
                const int at = encodings[i].big ? encodings[i].bytes - 1 - k : k;
                put_bytes(&b, &(unsigned char){(unsigned char)(point >> 8 * at)}, 1);
            }
        }
        const char *path = put_file("coded.txt", b.bytes, (size_t)b.count);
        weft_data *data;
        ASSERT_FAILS(WEFT_E_NO_IMPL, encodings[i].name,
                     try_data("text", path, "tests/data/tokenizer_gpt2.json", &data));
        ASSERT_OK(try_data("text", path, NULL, &data));
        if (!has_facts(wefti_data_notes(data), encodings[i].name))
            fail_msg("%s", wefti_data_notes(data));
        weft_data_close(data);
        ASSERT_OK(try_data("raw", path, "tests/data/tokenizer_gpt2.json", &data));
        weft_data_close(data);
    }
    assert_bytes("text", put_text("marked.txt", "\xEF\xBB\xBFhello"), "hello");
    assert_bytes("raw", in_root("marked.txt"), "\xEF\xBB\xBFhello");
    weft_data *data;
    int32_t ids[8], in, out;
    int64_t count;
    ASSERT_OK(try_data("text", in_root("marked.txt"), "tests/data/tokenizer_gpt2.json", &data));
    ASSERT_OK(weft_tokenizer_encode(weft_data_tokenizer(data), "hello", 5, ids, 8, &count));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), count - 1);
    if (count > 1) {
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 0, &in, &out));
        assert_int_equal(in, ids[0]);
    }
    weft_data_close(data);
    assert_null(wefti_other_encoding(text, sizeof text - 1));
    assert_null(wefti_other_encoding("", 0));
}

static void structures_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"a.json", "b.CSV", "c.tsv",      "d.parquet",
                                        "e.xml",  "f.gz",  "g.jsonl.gz", "h.zip",
                                        "i.npy",  "j.pdf", "k.zst",      "l.arrow"};
    weft_data *data;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *path = put_text(names[i], "plain text");
        ASSERT_FAILS(WEFT_E_NO_IMPL, names[i], try_data("text", path, NULL, &data));
        assert_bytes("raw", path, "plain text");
    }
    static const char *const begins[] = {"PAR1....",      "\x1f\x8b......", "PK\003\004....",
                                         "<?xml version", "%PDF-1.7",       "\x93NUMPY..."};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        const char *path = put_text("noname", begins[i]);
        ASSERT_FAILS(WEFT_E_NO_IMPL, "noname|raw", try_data("text", path, NULL, &data));
    }
    const unsigned char png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 26, '\n', 0, 0, 0, 13};
    ASSERT_FAILS(WEFT_E_NO_IMPL, "noname|PNG|npy",
                 try_data("text", put_file("noname", png, sizeof png), NULL, &data));
    const unsigned char shard[] = {0x88, 0xd8, 0x34, 1, 1, 0, 0, 0, 9, 9};
    ASSERT_FAILS(WEFT_E_NO_IMPL, "noname|tokens",
                 try_data("text", put_file("noname", shard, sizeof shard), NULL, &data));
    /* Names that only look alike, and text of every other name, are text. */
    static const char *const texts[] = {"a.md",   "csv",    "json", ".json", "b.c",
                                        "c.yaml", "d.html", "e.j",  "f.jso", "g.jsonx"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_bytes("text", put_text(texts[i], "[text]"), "[text]");
}

static void faults(void **state) {
    (void)state;
    const char *path = put_text("f.jsonl", "{\"text\": \"hello\"}\n{\"text\": \"there\"}\n");
    static const char *const tokenizers[] = {
        "bytes",
        "tests/data/tokenizer_llama2.json",
    };
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++)
        for (int kind = 0; kind < WEFTI_FAULT_KINDS; kind++)
            for (int64_t n = 0, reached = 1; reached; n++) {
                weft_data *data;
                wefti_fault_arm((wefti_fault_kind)kind, n, false, 0);
                weft_status status = try_data("text", path, tokenizers[i], &data);
                reached = wefti_fault_count((wefti_fault_kind)kind) > n;
                disarm_faults();
                if (status >= 0) weft_data_close(data);
                if (status < 0) assert_true(weft_error_message()[0]);
                if (!reached) assert_int_equal(status, WEFT_OK);
                if (kind == WEFTI_FAULT_ALLOC && status >= 0) assert_false(reached);
            }
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, data_setup, data_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_ROOT(lines_are_documents),
        IN_ROOT(lines_of_every_length),
        IN_ROOT(other_members_may_hold_anything),
        IN_ROOT(bad_lines_are_counted),
        IN_ROOT(ends_have_many_names),
        IN_ROOT(other_encodings_are_named),
        IN_ROOT(ends_follow_documents),
        IN_ROOT(broken_lines_are_named),
        IN_ROOT(structures_are_refused),
        IN_ROOT(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
