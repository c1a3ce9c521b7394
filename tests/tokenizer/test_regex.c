/* Regular expressions: matches as Oniguruma finds them, refusals with their place, and time. */
#include "data/data_fixture.h"

#include "base/text.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

static const wefti_regex *compiled(wefti_arena *arena, const char *pattern) {
    const wefti_regex *r;
    ASSERT_OK(wefti_regex_compile(arena, pattern, &r));
    return r;
}

/* The matches of a text, each in brackets. */
static char *marked(const wefti_regex *r, const char *text) {
    const unsigned char *bytes = (const unsigned char *)text;
    int64_t count = (int64_t)strlen(text), last = 0;
    wefti_regex_search search = {0};
    wefti_text out = {0};
    while (wefti_regex_next(r, bytes, count, &search)) {
        wefti_text_add_bytes(&out, text + last, search.first - last);
        wefti_text_add(&out, "[%.*s]", (int)(search.behind - search.first), text + search.first);
        last = search.behind;
    }
    wefti_text_add(&out, "%s", text + last);
    return wefti_text_take(&out);
}

static void finds(void **state) {
    (void)state;
    /* as tokenizers 0.23, Split by Regex, finds them */
    static const struct {
        const char *pattern, *text, *expected;
    } cases[] = {
        {"a|ab", "abab", "[a]b[a]b"}, /* the first alternative, not the longest */
        {"ab|a", "aba", "[ab][a]"},
        {"(a|ab)(c|bcd)(d*)", "abcd", "[abcd]"},
        {"a*?b", "aab", "[aab]"},
        {"[a-c]{2,}?", "abcab", "[ab][ca]b"},
        {"x*", "axxb", "[]a[xx]b[]"},
        {"(?:a?){3}b", "aaaab", "a[aaab]"},
        {"\\s+(?!\\S)|\\s+", "a   b  ", "a[  ][ ]b[  ]"},
        {"\\p{N}{1,3}", "1234½", "[123][4½]"},
        {"(?i:'s|k)", "'S 'ſ K k", "['S] ['ſ] [K] [k]"},
        {"a(?i)b|c", "aB C c", "[aB] C c"},
        {"[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+", "-a b\n--c", "[-a][ b]\n-[-c]"},
        {"[^\\s\\p{L}]++[\\r\\n]*", "..\r\n", "[..\r\n]"},
        {"a++a", "aaa", "aaa"},
        {"[a-z&&[^b]]+", "abc", "[a]b[c]"},
        {"[^(\\s|[.,])]+", "ab.c d,e", "[ab].[c] [d],[e]"},
        {"[]a]+", "a]b", "[a]]b"},
        {"[\\d\\-x]+|\\x41|\\u0042|\\x{1F600}", "1-xAB😀", "[1-x][A][B][😀]"},
        {"(?<=\\s)a|b(?=c)|\\bthe\\b", "a a bc b the they", "a [a] [b]c b [the] they"},
        {"^\\w|\\d+$", "a1\nb22\n", "[a][1]\n[b][22]\n"},
        {"\\Aa|a\\z", "a\naa", "[a]\na[a]"},
        {".\\B.", "ab cd", "[ab] [cd]"},
        {"\\P{L}\\p{^L}", "a12b", "a[12]b"},
        {"\\p{Han}+", "漢字かな", "[漢字]かな"},
        {"\\w", "²a", "[²][a]"}, /* a number of Latin-1 is in \w, but not in a set of it */
        {"[\\w]", "²a", "²[a]"},
        {"a{,2}b", "aaab", "a[aab]"},
        {"a{b", "a{b", "[a{b]"},
        {"\\p{N}{2}+", "12345", "[1234]5"}, /* behind braces + is a second repeat */
    };
    wefti_arena *arena;
    ASSERT_OK(wefti_arena_create(&arena));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *found = marked(compiled(arena, cases[i].pattern), cases[i].text);
        if (strcmp(found, cases[i].expected) != 0)
            fail_msg("'%s' finds \"%s\"", cases[i].pattern, found);
        wefti_free(found);
    }
    const wefti_regex *literal;
    ASSERT_OK(wefti_regex_literal(arena, "a.", &literal));
    char *found = marked(literal, "aba.a.a");
    assert_string_equal(found, "ab[a.][a.]a");
    wefti_free(found);
    wefti_arena_destroy(arena);
}

/* Bytes that are no character are in sets that are given by what they leave out. */
static void finds_bytes(void **state) {
    (void)state;
    wefti_arena *arena;
    ASSERT_OK(wefti_arena_create(&arena));
    char *found = marked(compiled(arena, "[^\\s\\p{L}]+|\\p{L}+"), "a\xFF\xC3 \xE2\x96z");
    assert_string_equal(found, "[a][\xFF\xC3] [\xE2\x96][z]");
    wefti_free(found);
    wefti_arena_destroy(arena);
}

static void refuses(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *says;
    } bad[] = {
        {"(a", "'(a', byte 2"},
        {"a)", "byte 1"},
        {"[a", "byte 2"},
        {"*a", "byte 0"},
        {"a{3,1}", "byte 6"},
        {"a{2000}", "1000"},
        {"(?=ab)", "byte 3"},
        {"(?>a+)", "byte 2"},
        {"(ab)++", "byte 6"},
        {"(a)\\1", "byte 4"},
        {"\\p{Klingon}", "byte 10"},
        {"\\pL", "byte 2"},
        {"\\xC3", "byte 4"},
        {"[z-a]", "byte 4"},
        {"(?i)é", "byte 6"},
        {"(?i:\\p{Lu})", "byte 9"},
        {"[[:punct:]]", "byte 3"},
        {"a{2}?", "byte 5"},
        {"(?x: a)", "byte 2"},
        {"a\xFF", "byte 1"},
        {"((a{1000}){1000}){1000}", "large"},
        {"\\x{110000}", "byte 9"},
    };
    wefti_arena *arena;
    ASSERT_OK(wefti_arena_create(&arena));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const wefti_regex *r;
        ASSERT_FAILS(WEFT_E_NO_IMPL, bad[i].says, wefti_regex_compile(arena, bad[i].pattern, &r));
    }
    wefti_arena_destroy(arena);
}

/* A matcher that tries again from each place, or that backtracks, would take hours. */
static void takes_linear_time(void **state) {
    (void)state;
    static const char *const patterns[] = {"(a+)+b", "(a|a)*c", "a{20,}b", "[^\\n]*z", "(a*)*\\n"};
    enum { BYTES = 1 << 22 };
    unsigned char *text = malloc(BYTES);
    memset(text, 'a', BYTES);
    wefti_arena *arena;
    ASSERT_OK(wefti_arena_create(&arena));
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        wefti_regex_search search = {0};
        assert_false(wefti_regex_next(compiled(arena, patterns[i]), text, BYTES, &search));
    }
    wefti_arena_destroy(arena);
    free(text);
}

/* The normal forms of single characters, by their definition: decomposing again changes nothing,
 * and what has a canonical pair composes to the character or not at all. */
static void normal_forms(void **state) {
    (void)state;
    int64_t canonical = 0, compatible = 0, marks = 0;
    for (uint32_t p = 0; p < 0x110000; p++) {
        uint32_t once[WEFTI_DECOMPOSED], again[WEFTI_DECOMPOSED];
        marks += wefti_unicode_combining(p) != 0;
        for (int compatibly = 0; compatibly < 2; compatibly++) {
            int count = wefti_unicode_decompose(p, compatibly, once);
            *(compatibly ? &compatible : &canonical) += count != 1 || once[0] != p;
            for (int i = 0; i < count; i++) {
                assert_int_equal(wefti_unicode_decompose(once[i], compatibly, again), 1);
                assert_int_equal(again[0], once[i]);
            }
            if (!compatibly && count == 2 && p >= 0xAC00 && p < 0xD7A4)
                assert_int_equal(wefti_unicode_compose(once[0], once[1]), p);
        }
    }
    assert_int_equal(canonical, 13232); /* 11172 syllables among them */
    assert_true(compatible > canonical + 3000 && marks > 800);
    assert_int_equal(wefti_unicode_compose('e', 0x301), 0xE9);
    assert_int_equal(wefti_unicode_compose('e', 'e'), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds), cmocka_unit_test(finds_bytes), cmocka_unit_test(refuses),
        cmocka_unit_test(takes_linear_time), cmocka_unit_test(normal_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
