/* Characters: see tokenizer/unicode.h. Normal forms: Unicode Standard Annex 15; Hangul: The Unicode
 * Standard, section 3.12. */
#include "tokenizer/unicode.h"

#include <string.h>

typedef struct category_run { /* up to the next run */
    uint32_t first;
    uint8_t category;
} category_run;

typedef struct class_run {
    wefti_code_range of;
    uint8_t combining;
} class_run;

typedef struct expansion {
    uint32_t point;
    uint16_t at; /* in the pool */
    uint8_t count;
} expansion;

typedef struct composition {
    uint32_t first, second, composed;
} composition;

/* Every `step`th character of a range moves by `by`. */
typedef struct shift {
    wefti_code_range of;
    int32_t step, by;
} shift;

#include "tokenizer/unicode_bert.inc"
#include "tokenizer/unicode_classes.inc"
#include "tokenizer/unicode_clusters.inc"
#include "tokenizer/unicode_normal.inc"

#define COUNT(table) (sizeof(table) / sizeof *(table))
/* The row whose range has the point, or NULL; rows begin with their ranges. */
#define ROW(type, table, point)                                                                    \
    ((const type *)range_of(table, COUNT(table), sizeof *(table), point))

static const void *range_of(const void *rows, size_t count, size_t bytes, uint32_t point) {
    const char *first = rows;
    size_t low = 0, high = count; /* the first range that does not end below the point */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (((const wefti_code_range *)(const void *)(first + middle * bytes))->last < point)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == count) return NULL;
    const wefti_code_range *found = (const void *)(first + low * bytes);
    return found->first <= point ? found : NULL;
}

bool wefti_in_ranges(const wefti_code_range *ranges, size_t count, uint32_t point) {
    return range_of(ranges, count, sizeof *ranges, point);
}

/* ---- classes ---- */

static bool is_alphanumeric(uint32_t point) {
    return (point >= '0' && point <= '9') || ((point | 32) >= 'a' && (point | 32) <= 'z');
}

bool wefti_unicode_space(uint32_t point) {
    if (point < 128) return point == ' ' || (point >= 9 && point <= 13);
    return wefti_in_ranges(white, COUNT(white), point);
}

static int category_of(uint32_t point) {
    size_t low = 0, high = COUNT(categories); /* the last run that begins at or below the point */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (categories[middle].first <= point)
            low = middle;
        else
            high = middle;
    }
    return categories[low].category;
}

bool wefti_unicode_digit(uint32_t point) {
    if (point < 128) return point >= '0' && point <= '9';
    if (point > 0x10FFFF) return false;
    return category_names[category_of(point)][0] == 'N' ||
           wefti_in_ranges(newer_digits, COUNT(newer_digits), point);
}

bool wefti_unicode_word(uint32_t point) {
    if (point < 128) return is_alphanumeric(point) || point == '_';
    if (point == 0x200C || point == 0x200D) return true; /* the joiners */
    if (point == 0xB2 || point == 0xB3 || point == 0xB9 || (point >= 0xBC && point <= 0xBE))
        return false; /* small numbers and fractions, which belong to \w of other patterns */
    return wefti_in_ranges(words, COUNT(words), point);
}

bool wefti_unicode_punctuation(uint32_t point) {
    if (point < 128) return point > 32 && point < 127 && !is_alphanumeric(point);
    return wefti_in_ranges(punctuation, COUNT(punctuation), point);
}

bool wefti_unicode_removed(uint32_t point) {
    if (point > 32 && point < 127) return false;
    return wefti_in_ranges(removed, COUNT(removed), point);
}

bool wefti_unicode_ideograph(uint32_t point) {
    return point >= 0x3400 && wefti_in_ranges(ideographs, COUNT(ideographs), point);
}

bool wefti_unicode_nonspacing(uint32_t point) {
    return point >= 0x300 && wefti_in_ranges(nonspacing, COUNT(nonspacing), point);
}

bool wefti_unicode_accent(uint32_t point) {
    return point >= 0x300 && wefti_in_ranges(accents, COUNT(accents), point);
}

int wefti_unicode_lower(uint32_t point, uint32_t out[2]) {
    out[0] = point;
    if (point < 128) {
        if (point >= 'A' && point <= 'Z') out[0] = point + 32;
        return 1;
    }
    if (point == 0x130) { /* I with a dot above: i with a combining one */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    const shift *move = ROW(shift, small, point);
    if (move && (point - move->of.first) % (uint32_t)move->step == 0)
        out[0] = (uint32_t)((int64_t)point + move->by);
    return 1;
}

wefti_cluster_part wefti_unicode_cluster(uint32_t point) {
    if (point < 0x7F) return point < ' ' ? WEFTI_CLUSTER_CONTROL : WEFTI_CLUSTER_OTHER;
    if (wefti_in_ranges(extends, COUNT(extends), point)) return WEFTI_CLUSTER_EXTEND;
    if (wefti_in_ranges(prepends, COUNT(prepends), point)) return WEFTI_CLUSTER_PREPEND;
    if (wefti_in_ranges(pictures, COUNT(pictures), point)) return WEFTI_CLUSTER_PICTURE;
    if (wefti_in_ranges(controls, COUNT(controls), point)) return WEFTI_CLUSTER_CONTROL;
    return WEFTI_CLUSTER_OTHER;
}

static bool add_ranges(const wefti_code_range *ranges, size_t count, wefti_add_range add,
                       void *to) {
    for (size_t i = 0; i < count; i++)
        if (!add(to, ranges[i].first, ranges[i].last)) return false;
    return true;
}

/* Categories whose name begins with `prefix`. */
static bool add_categories(const char *prefix, wefti_add_range add, void *to) {
    size_t length = strlen(prefix), count = COUNT(categories);
    bool found = false;
    for (size_t i = 0; i < count; i++) {
        if (strncmp(category_names[categories[i].category], prefix, length) != 0) continue;
        found = true;
        uint32_t last = i + 1 < count ? categories[i + 1].first - 1 : 0x10FFFF;
        if (!add(to, categories[i].first, last)) return false;
    }
    return found;
}

bool wefti_unicode_class(const char *name, wefti_add_range add, void *to) {
    static const struct {
        const char *name;
        const wefti_code_range *ranges;
        size_t count;
    } named[] = {{"Space", white, COUNT(white)},
                 {"Word", words, COUNT(words)},
                 {"Han", script_han, COUNT(script_han)},
                 {"Hiragana", script_hiragana, COUNT(script_hiragana)},
                 {"Katakana", script_katakana, COUNT(script_katakana)},
                 {"Hangul", script_hangul, COUNT(script_hangul)},
                 {"Latin", script_latin, COUNT(script_latin)},
                 {"Greek", script_greek, COUNT(script_greek)},
                 {"Cyrillic", script_cyrillic, COUNT(script_cyrillic)},
                 {"Arabic", script_arabic, COUNT(script_arabic)},
                 {"Hebrew", script_hebrew, COUNT(script_hebrew)},
                 {"Thai", script_thai, COUNT(script_thai)},
                 {"Devanagari", script_devanagari, COUNT(script_devanagari)}};
    static const char *const longer[][2] = {
        {"Letter", "L"},    {"Mark", "M"},   {"Number", "N"}, {"Punctuation", "P"}, {"Symbol", "S"},
        {"Separator", "Z"}, {"Digit", "Nd"}, {"Upper", "Lu"}, {"Lower", "Ll"}};
    for (size_t i = 0; i < COUNT(named); i++)
        if (!strcmp(name, named[i].name))
            return add_ranges(named[i].ranges, named[i].count, add, to);
    for (size_t i = 0; i < 7; i++)
        if (!strcmp(name, longer[i][0])) return add_categories(longer[i][1], add, to);
    return name[0] && strlen(name) <= 2 && add_categories(name, add, to);
}

/* ---- normal forms ---- */

enum {
    SYLLABLE = 0xAC00,
    LEADING = 0x1100,
    VOWEL = 0x1161,
    TRAILING = 0x11A7, /* the one before the first */
    LEADINGS = 19,
    VOWELS = 21,
    TRAILINGS = 28,
    SYLLABLES = LEADINGS * VOWELS * TRAILINGS,
};

int wefti_unicode_combining(uint32_t point) {
    if (point < 0x300) return 0;
    const class_run *run = ROW(class_run, classes, point);
    return run ? run->combining : 0;
}

static const expansion *expansion_of(const expansion *table, size_t count, uint32_t point) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle].point < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && table[low].point == point ? &table[low] : NULL;
}

int wefti_unicode_decompose(uint32_t point, bool compatibly, uint32_t out[WEFTI_DECOMPOSED]) {
    out[0] = point;
    if (point < 0xA0) return 1;
    if (point >= SYLLABLE && point < SYLLABLE + SYLLABLES) {
        uint32_t index = point - SYLLABLE, trailing = index % TRAILINGS;
        out[0] = LEADING + index / (VOWELS * TRAILINGS);
        out[1] = VOWEL + index % (VOWELS * TRAILINGS) / TRAILINGS;
        out[2] = TRAILING + trailing;
        return trailing ? 3 : 2;
    }
    const expansion *found = NULL;
    if (compatibly) found = expansion_of(compatible, COUNT(compatible), point);
    if (!found) found = expansion_of(canonical, COUNT(canonical), point);
    if (!found) return 1;
    memcpy(out, pool + found->at, found->count * sizeof *out);
    return found->count;
}

uint32_t wefti_unicode_compose(uint32_t first, uint32_t second) {
    if (first >= LEADING && first < LEADING + LEADINGS && second >= VOWEL &&
        second < VOWEL + VOWELS)
        return SYLLABLE + ((first - LEADING) * VOWELS + second - VOWEL) * TRAILINGS;
    if (first >= SYLLABLE && first < SYLLABLE + SYLLABLES && (first - SYLLABLE) % TRAILINGS == 0 &&
        second > TRAILING && second < TRAILING + TRAILINGS)
        return first + second - TRAILING;
    size_t low = 0, high = COUNT(compositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const composition *c = &compositions[middle];
        if (c->first < first || (c->first == first && c->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(compositions)) return 0;
    const composition *c = &compositions[low];
    return c->first == first && c->second == second ? c->composed : 0;
}

bool wefti_unicode_starts(uint32_t point) {
    if (point < 0x300) return true;
    if (wefti_unicode_combining(point)) return false;
    if (point >= VOWEL && point < TRAILING + TRAILINGS) return false;
    return !wefti_in_ranges(seconds, COUNT(seconds), point);
}
