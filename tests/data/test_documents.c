/* Documents as JSON lines: texts in order, ends of documents, broken lines named by file and line.
 * Files of another structure are refused by name or by their first bytes. */
#include "data_fixture.h"

#include "data/jsonl.h"
#include "weft/data.h"

static weft_status try_data(const char *format, const char *path, const char *tokenizer,
                            weft_data **out) {
    weft_data_options o = {.format = format, .path = path, .context = 1, .tokenizer = tokenizer};
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
        {"{\"text\": \"\\u0000\"}", "line 3"},
        {"{\"text\": \"a\"} x", "line 3"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "line 3"},
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
        IN_ROOT(lines_are_documents),    IN_ROOT(lines_of_every_length),
        IN_ROOT(ends_follow_documents),  IN_ROOT(broken_lines_are_named),
        IN_ROOT(structures_are_refused), IN_ROOT(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
