/* JSON: the grammar, strictness, limits, numbers to the last bit, failing allocations. */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/json/json.h"
#include "base/philox.h"

static const wefti_json_limits limits = {.depth = 4, .members = 4, .array_items = 5};

static wefti_arena *arena;

static int begin(void **state) {
    (void)state;
    return wefti_arena_create(&arena);
}

static int end(void **state) {
    (void)state;
    wefti_arena_destroy(arena);
    return 0;
}

static const wefti_json *accept(const char *text) {
    const wefti_json *value = NULL;
    /* from memory of exactly this size, so that a sanitizer sees a byte too far */
    size_t bytes = strlen(text);
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    if (wefti_json_parse(arena, copy, (int64_t)bytes, &limits, &value) < 0)
        fail_msg("%s: %s", text, weft_error_message());
    free(copy);
    return value;
}

static void refuse_bytes(const char *text, size_t bytes, const char *why) {
    const wefti_json *value = NULL;
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    weft_status status = wefti_json_parse(arena, copy, (int64_t)bytes, &limits, &value);
    free(copy);
    if (status != WEFT_E_CORRUPT) fail_msg("%s was not refused", text);
    if (!has_facts(weft_error_message(), why))
        fail_msg("%s: \"%s\" does not say \"%s\"", text, weft_error_message(), why);
    assert_null(value);
}
static void refuse(const char *text, const char *why) {
    refuse_bytes(text, strlen(text), why);
}

static void values(void **state) {
    (void)state;
    assert_int_equal(accept("null")->kind, WEFTI_JSON_NULL);
    assert_true(accept(" true\n")->as.boolean);
    assert_false(accept("false")->as.boolean);
    assert_int_equal(accept("[]")->count, 0);
    assert_int_equal(accept("{ }")->count, 0);
    const wefti_json *list = accept("[1,[2 , 3], {\"a\":4} ]");
    assert_int_equal(list->count, 3);
    assert_int_equal(list->as.child->as.integer, 1);
    assert_int_equal(list->as.child->next->as.child->next->as.integer, 3);
    const wefti_json *object = accept("{\"b\":\"x\",\"a\":-7,\"h\":\"0x0f\",\"c\":[]}");
    const char *text = NULL;
    int64_t integer = 0;
    uint64_t bits = 0;
    const wefti_json *found = NULL;
    assert_int_equal(wefti_json_text(object, "b", &text), WEFT_OK);
    assert_string_equal(text, "x");
    assert_int_equal(wefti_json_int(object, "a", &integer), WEFT_OK);
    assert_int_equal(integer, -7);
    assert_int_equal(wefti_json_hex(object, "h", "0x", &bits), WEFT_OK);
    assert_int_equal(bits, 15);
    assert_int_equal(wefti_json_array(object, "c", &found), WEFT_OK);
    assert_int_equal(wefti_json_object(object, "c", &found), WEFT_E_CORRUPT);
    assert_int_equal(wefti_json_int(object, "b", &integer), WEFT_E_CORRUPT);
    assert_int_equal(wefti_json_text(object, "absent", &text), WEFT_E_CORRUPT);
    int64_t sizes[3] = {0};
    const wefti_json *lists = accept("{\"s\":[4,0,9],\"n\":[1,-1,2],\"r\":[1,2.5,3],\"c\":[]}");
    assert_int_equal(wefti_json_sizes(lists, "s", 3, sizes), WEFT_OK);
    assert_true(sizes[0] == 4 && sizes[1] == 0 && sizes[2] == 9);
    assert_int_equal(wefti_json_sizes(lists, "c", 0, sizes), WEFT_OK);
    assert_int_equal(wefti_json_sizes(lists, "s", 2, sizes), WEFT_E_CORRUPT);
    assert_int_equal(wefti_json_sizes(lists, "n", 3, sizes), WEFT_E_CORRUPT);
    assert_int_equal(wefti_json_sizes(lists, "r", 3, sizes), WEFT_E_CORRUPT);
    assert_int_equal(wefti_json_hex(object, "b", "", &bits), WEFT_E_CORRUPT);
    assert_int_equal(wefti_json_hex(object, "h", "", &bits), WEFT_E_CORRUPT);
    assert_null(wefti_json_get(list, "a"));
    assert_string_equal(object->as.child->key, "b"); /* the order of the text */
}

static void texts(void **state) {
    (void)state;
    assert_string_equal(accept("\"\"")->as.text, "");
    assert_string_equal(accept("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"")->as.text, "\"\\/\b\f\n\r\t");
    assert_string_equal(accept("\"\\u0041\\u00e9\\u20AC\\ud83d\\ude00\"")->as.text,
                        "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    assert_string_equal(accept("\"\xf0\x9f\x98\x80\x7f\"")->as.text, "\xf0\x9f\x98\x80\x7f");
    refuse("\"", "end");
    refuse("\"\\", "end");
    refuse("\"\\\"", "end");
    refuse("\"\\x41\"", "unknown escape");
    refuse("\"\\u12\"", "no character");
    refuse("\"\\u12g4\"", "no character");
    refuse("\"\\u0000\"", "NUL");
    refuse("\"\\ud83d\"", "no character");
    refuse("\"\\ud83d\\u0041\"", "no character");
    refuse("\"\\ude00\"", "no character");
    refuse("\"a\nb\"", "control character");
    refuse_bytes("\"a\0b\"", 5, "control character");
    const char *broken[] = {"\"\x80\"",         "\"\xc3\"",         "\"\xc0\xaf\"",
                            "\"\xe0\x80\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
                            "\"\xff\"",         "\"\xf0\x9f\x98\""};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        refuse(broken[i], "not UTF-8");
        char inner[16] = {0};
        memcpy(inner, broken[i] + 1, strlen(broken[i]) - 2);
        assert_false(wefti_utf8_valid(inner));
    }
    assert_true(wefti_utf8_valid("\xc2\x80\xe0\xa0\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
}

static void numbers(void **state) {
    (void)state;
    assert_true(accept("9223372036854775807")->as.integer == INT64_MAX);
    assert_true(accept("-9223372036854775808")->as.integer == INT64_MIN);
    assert_int_equal(accept("9223372036854775808")->kind, WEFTI_JSON_REAL);
    assert_true(accept("1000000000000000019884624838656")->as.real == 1e30);
    assert_int_equal(accept("-0")->kind, WEFTI_JSON_INT);
    assert_true(accept("-1.5e+2")->as.real == -150.0);
    assert_true(accept("1E-2")->as.real == 0.01);
    assert_int_equal(accept("1.0")->kind, WEFTI_JSON_REAL);
    const char *broken[] = {"-",   "+1",   "01",  "1.",       ".5", "1e",
                            "1e+", "0x10", "nan", "Infinity", "--1"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) refuse(broken[i], "not valid JSON");
    refuse("1e999", "beyond|range");
}

/* Random bits, printed and read back, under whichever locale there is with a decimal comma. */
static void reals_round_trip(void **state) {
    (void)state;
    (void)(setlocale(LC_NUMERIC, "de_DE.UTF-8") || setlocale(LC_NUMERIC, "fr_FR.UTF-8"));
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t bits = (uint64_t)wefti_philox_u32(11, 0, i) << 32 | wefti_philox_u32(11, 1, i);
        double value;
        memcpy(&value, &bits, sizeof value);
        wefti_text t = {0};
        wefti_json_real(&t, value);
        char *text = wefti_text_take(&t);
        const wefti_json *read = accept(text);
        if (value - value != 0) {
            assert_int_equal(read->kind, WEFTI_JSON_NULL);
        } else {
            double again = read->kind == WEFTI_JSON_INT ? (double)read->as.integer : read->as.real;
            assert_true(again == value);
        }
        wefti_free(text);
    }
    (void)setlocale(LC_NUMERIC, "C");
}

static void broken_structure(void **state) {
    (void)state;
    const char *broken[] = {"",          " ",
                            "[",         "{",
                            "]",         "[1,]",
                            "[,1]",      "[1 2]",
                            "{\"a\"}",   "{\"a\":}",
                            "{a:1}",     "{\"a\":1,}",
                            "[1}",       "{\"a\":1]",
                            "tru",       "nulll",
                            "1 1",       "{} {}",
                            "[1]x",      "{,}",
                            "{\"a\" 1}", "\xef\xbb\xbf{}",
                            "/*c*/1",    "'a'"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) refuse(broken[i], "not valid JSON");
    refuse("{\"a\":1,\n  \"b\":x}", "line 2, column 7");
    refuse("{\"a\":1,\"b\":2,\"a\":3}", "duplicate key \"a\"");
    refuse("{\"a\":1,\"\\u0061\":3}", "duplicate key \"a\"");
}

static void within_limits(void **state) {
    (void)state;
    accept("[[[[1]]]]");
    refuse("[[[[[1]]]]]", "4");
    refuse("{\"a\":[{\"b\":[{}]}]}", "4");
    accept("[1,2,3,4,5]");
    refuse("[1,2,3,4,5,6]", "5");
    accept("{\"a\":1,\"b\":1,\"c\":1,\"d\":1}");
    refuse("{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1}", "4");
}

static void quoting(void **state) {
    (void)state;
    char all[256] = {0};
    for (int i = 1; i < 128; i++) all[i - 1] = (char)i;
    strcat(all, "\xc3\xa9\xf0\x9f\x98\x80\xc2\x80\xc2\x9f\xc2\xa0\xdf\x80");
    wefti_text t = {0};
    wefti_json_quote(&t, all);
    char *text = wefti_text_take(&t);
    assert_string_equal(accept(text)->as.text, all);
    wefti_free(text);
}

/* Names of files need not be UTF-8, and messages may end within a character. */
static void quoting_of_other_bytes(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"\xff", "\"\\ufffd\""},
        {"a\xc3", "\"a\\ufffd\""},
        {"a\xe2\x82/b", "\"a\\ufffd\\ufffd/b\""},
        {"\xc3\"", "\"\\ufffd\\\"\""},
        {"", "\"\""},
        {"\x7f\xc2", "\"\\u007f\\ufffd\""}, /* and what terminals act by */
        {"\xc2\x80\xc2\x9b]\xc2\x9f", "\"\\u0080\\u009b]\\u009f\""},
        {"\xc2\xa0\xc3\x80\xe0\xa0\x80", "\"\xc2\xa0\xc3\x80\xe0\xa0\x80\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        wefti_text t = {0};
        wefti_json_quote(&t, rows[i][0]);
        char *text = wefti_text_take(&t);
        assert_string_equal(text, rows[i][1]);
        accept(text);
        wefti_free(text);
    }
}

static void allocations_fail(void **state) {
    (void)state;
    const char *text = "{\"a\":[1,2.5,\"x\"],\"b\":{\"c\":null,\"d\":\"e\"}}";
    int64_t nth = 0;
    for (weft_status status = WEFT_E_NOMEM; status < 0; nth++) {
        wefti_arena *own = NULL;
        const wefti_json *value = NULL;
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        status = wefti_arena_create(&own);
        if (status >= 0)
            status = wefti_json_parse(own, text, (int64_t)strlen(text), &limits, &value);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        assert_true(status == WEFT_E_NOMEM || status == WEFT_OK);
        wefti_arena_destroy(own);
    }
    assert_true(nth > 3);
}

/* Random and mutated objects: what the strict reader accepts, the lenient one finds, with the same
 * text; it reads no byte beyond the end. */
static void lenient_agrees_with_strict(void **state) {
    (void)state;
    static const wefti_json_limits wide = {.depth = 64, .members = 1000, .array_items = 1000};
    static const char *const parts[] = {
        "{",        "}",       "[",     "]",   ",",    ":", "\"",      "\\",  "\"k\"",
        "\"k\":",   "\"ab\":", "\"x\"", "1e9", "null", " ", "\\u00e9", "\\n", "\\ud83d\\ude00",
        "\xc3\xa9", "\\\"",    "\"\":"};
    enum { PARTS = sizeof parts / sizeof *parts };
    int accepted = 0, texts = 0;
    wefti_text decoded = {0};
    TEST_SEEDS(seed, 1, 40000) {
        char line[400] = "{";
        uint64_t at = 0;
        const int members = 1 + (int)(wefti_philox_u32(seed, 0, at++) % 4);
        for (int i = 0; i < members; i++) {
            const uint32_t r = wefti_philox_u32(seed, 0, at++);
            static const char *const keys[] = {"k", "ab", "\\u006b", "", "c"};
            static const char *const values[] = {"\"x\"", "\"a\\\"b\\\\\"", "[1, {\"k\": \"}\"}]",
                                                 "{}",    "-1.5e3",         "\"\\ud83d\\ude00\"",
                                                 "true"};
            (void)snprintf(line + strlen(line), sizeof line - strlen(line), "%s\"%s\"%s:%s",
                           i ? ", " : "", keys[r % 5], r & 256 ? " " : "", values[(r >> 10) % 7]);
        }
        strcat(line, "}");
        if (seed % 3 == 0) { /* one part in place of a byte */
            const size_t place = wefti_philox_u32(seed, 0, at++) % strlen(line);
            const char *part = parts[wefti_philox_u32(seed, 0, at++) % PARTS];
            memmove(line + place + strlen(part), line + place + 1, strlen(line + place + 1) + 1);
            memcpy(line + place, part, strlen(part));
        }
        const size_t bytes = strlen(line);
        char *copy = malloc(bytes);
        memcpy(copy, line, bytes);
        const wefti_json *object = NULL;
        wefti_json_member member;
        const weft_status strict = wefti_json_parse(arena, copy, (int64_t)bytes, &wide, &object);
        const weft_status lenient = wefti_json_find(copy, (int64_t)bytes, "k", &member);
        const bool found = lenient >= 0 && member.value;
        const bool is_text = found && wefti_json_decode(member.value, member.bytes, &decoded);
        if (strict >= 0 && object->kind == WEFTI_JSON_OBJECT) {
            const wefti_json *k = wefti_json_get(object, "k");
            if (lenient < 0 || found != (k != NULL) || is_text != (k && k->kind == WEFTI_JSON_TEXT))
                fail_msg("seed %d: %s", (int)seed, line);
            if (is_text && ((size_t)decoded.used != strlen(k->as.text) ||
                            memcmp(decoded.data, k->as.text, strlen(k->as.text))))
                fail_msg("seed %d: another text: %s", (int)seed, line);
            accepted++;
            texts += is_text;
        }
        free(copy);
    }
    wefti_text_free(&decoded);
    assert_true(test_one_seed() || (accepted > 10000 && texts > 3000));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(values),           TEST(texts),
                                       TEST(numbers),          TEST(reals_round_trip),
                                       TEST(broken_structure), TEST(within_limits),
                                       TEST(quoting),          TEST(quoting_of_other_bytes),
                                       TEST(allocations_fail), TEST(lenient_agrees_with_strict)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
