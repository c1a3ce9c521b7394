/* Pipelines of the structure of published tokenizers, on texts of everything that tokenizers have
 * got wrong, against Hugging Face tokenizers (tests/data/tokenizers, written by
 * tools/tokenizer_fixtures.py). */
#include "data/data_fixture.h"

#include "base/json/json.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

enum { TEXTS = 200, PIPELINES = 47 };

typedef struct nasty_text {
    const char *text;
    int64_t bytes;
} nasty_text;

static char *read_file(const char *name, int64_t *out_bytes) {
    char path[200], *text;
    (void)snprintf(path, sizeof path, "tests/data/tokenizers/%s", name);
    ASSERT_OK(wefti_file_read(path, 1 << 20, &text, out_bytes));
    return text;
}

/* Each text: its number of bytes, a newline, the text, a newline. */
static void find_texts(char *file, int64_t bytes, nasty_text out[TEXTS]) {
    char *at = file, *end = file + bytes;
    for (int i = 0; i < TEXTS; i++) {
        assert_true(at < end);
        out[i].bytes = strtoll(at, &at, 10);
        out[i].text = at + 1;
        at += out[i].bytes + 2;
    }
    assert_true(at == end);
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

/* The tokenizer.json of a pipeline: its parts, and its model with a few options replaced. */
static weft_tokenizer *open_pipeline(const wefti_json *pipeline) {
    int64_t bytes;
    char *model = read_file(text_in(pipeline, "model"), &bytes);
    wefti_text out = {0};
    wefti_text_add(&out, "{%s, \"model\": ", text_in(pipeline, "parts"));
    const char *rest = model;
    WEFTI_JSON_EACH(pair, list_in(pipeline, "replace")) {
        const char *from = pair->as.child->as.text, *to = pair->as.child->next->as.text;
        const char *hit = strstr(rest, from); /* in the order of the file */
        assert_non_null(hit);
        wefti_text_add_bytes(&out, rest, hit - rest);
        wefti_text_add(&out, "%s", to);
        rest = hit + strlen(from);
    }
    wefti_text_add(&out, "%s}", rest);
    weft_tokenizer *t;
    ASSERT_OK(wefti_tokenizer_parse(text_in(pipeline, "name"), out.data, out.used, &t));
    wefti_text_free(&out);
    wefti_free(model);
    return t;
}

static uint32_t digest(const void *data, int64_t bytes) { /* FNV-1a */
    uint32_t value = 0x811C9DC5;
    for (int64_t i = 0; i < bytes; i++)
        value = (value ^ ((const unsigned char *)data)[i]) * 0x01000193;
    return value;
}

static void check_text(const weft_tokenizer *t, const char *name, int number, nasty_text text,
                       const char *expected) {
    static int32_t ids[1 << 16];
    static char decoded[1 << 18];
    char found[17];
    int64_t count, bytes;
    weft_status status = weft_tokenizer_encode(t, text.text, text.bytes, ids, 1 << 16, &count);
    if (status < 0) fail_msg("%s, text %d: %s", name, number, weft_error_message());
    ASSERT_OK(weft_tokenizer_decode(t, ids, count, decoded, sizeof decoded, &bytes));
    (void)snprintf(found, sizeof found, "%08x%08x", digest(ids, count * (int64_t)sizeof *ids),
                   digest(decoded, bytes));
    if (memcmp(found, expected, 8) != 0) fail_msg("%s: text %d gives other tokens", name, number);
    if (strcmp(found, expected) != 0)
        fail_msg("%s: text %d decodes to \"%.*s\"", name, number, (int)bytes, decoded);
}

static void as_hugging_face(void **state) {
    (void)state;
    static const wefti_json_limits limits = {.depth = 8, .members = 8, .array_items = 1000};
    int64_t bytes, text_bytes;
    char *file = read_file("pipelines.json", &bytes), *texts = read_file("texts", &text_bytes);
    nasty_text nasty[TEXTS];
    wefti_arena *arena;
    const wefti_json *pipelines;
    find_texts(texts, text_bytes, nasty);
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_json_parse(arena, file, bytes, &limits, &pipelines));
    assert_true(pipelines->count >= PIPELINES);
    WEFTI_JSON_EACH(pipeline, pipelines) {
        weft_tokenizer *t = open_pipeline(pipeline);
        const wefti_json *digests = list_in(pipeline, "digests");
        int number = 0;
        assert_int_equal(digests->count, TEXTS);
        WEFTI_JSON_EACH(each, digests) {
            check_text(t, text_in(pipeline, "name"), number, nasty[number], each->as.text);
            number++;
        }
        weft_tokenizer_close(t);
    }
    wefti_arena_destroy(arena);
    wefti_free(file);
    wefti_free(texts);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_hugging_face)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
