/* Constraints of the joint search as text: see joint.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "search/joint/joint.h"

static const char *const names[WEFTI_JOINT_COUNT] = {
#define JOINT_NAME(name, text) [WEFTI_JOINT_##name] = text,
    WEFTI_JOINT_DIMENSIONS(JOINT_NAME)
#undef JOINT_NAME
};

const char *wefti_joint_dimension_text(wefti_joint_dimension dimension) {
    return (unsigned)dimension < WEFTI_JOINT_COUNT ? names[dimension] : "?";
}

wefti_joint_fix wefti_joint_free(void) {
    wefti_joint_fix fix;
    for (int d = 0; d < WEFTI_JOINT_COUNT; d++) fix.value[d] = -1;
    return fix;
}

static const char *const schedules[] = {
#define JOINT_SCHEDULE(name, text) [WEFT_PIPELINE_##name] = text,
    WEFT_PIPELINE_SCHEDULE_LIST(JOINT_SCHEDULE)
#undef JOINT_SCHEDULE
        NULL};
static const char *const recomputes[] = {
#define JOINT_RECOMPUTE(name, text) [WEFT_RECOMPUTE_##name] = text,
    WEFT_RECOMPUTE_LIST(JOINT_RECOMPUTE)
#undef JOINT_RECOMPUTE
        NULL};
/* By number in wefti_degrees.order. */
static const char *const axes[] = {"dp", "ep", "cp", "tp", NULL};
enum { LAST_AXIS = 3 };

enum { WORD = 64 };

static weft_status read_choice(const char *word, const char *value, const char *const *choices,
                               int32_t *out) {
    for (int32_t i = 0; choices[i]; i++)
        if (!strcmp(choices[i], value)) {
            *out = i;
            return WEFT_OK;
        }
    wefti_text known = {0};
    for (int i = 0; choices[i]; i++) wefti_text_add(&known, "%s%s", i ? ", " : "", choices[i]);
    char *list = wefti_text_take(&known);
    const weft_status status =
        WEFT_RAISE(WEFT_E_ARG, "the constraint '%s': unknown '%s'; known: %s", word, value,
                   list ? list : choices[0]);
    wefti_free(list);
    return status;
}

void wefti_joint_constraint_text(wefti_joint_dimension d, int32_t value, wefti_text *out) {
    const char *const *choices = d == WEFTI_JOINT_SCHEDULE    ? schedules
                                 : d == WEFTI_JOINT_RECOMPUTE ? recomputes
                                 : d == WEFTI_JOINT_INNER     ? axes
                                                              : NULL;
    if (choices)
        wefti_text_add(out, "%s=%s", names[d], choices[value]);
    else
        wefti_text_add(out, "%s=%d", names[d], value);
}

static weft_status read_number(const char *word, const char *value, int32_t least, int32_t most,
                               int32_t *out) {
    char *end;
    const long number = strtol(value, &end, 10);
    WEFT_REQUIRE(*value && !*end && number >= least && number <= most, WEFT_E_ARG,
                 "the constraint '%s': the value must be a whole number from %d to %d", word, least,
                 most);
    *out = (int32_t)number;
    return WEFT_OK;
}

static weft_status read_value(int dimension, const char *word, const char *value, int32_t *out) {
    switch (dimension) {
    case WEFTI_JOINT_SCHEDULE:
        return read_choice(word, value, schedules, out);
    case WEFTI_JOINT_RECOMPUTE:
        return read_choice(word, value, recomputes, out);
    case WEFTI_JOINT_INNER:
        return read_choice(word, value, axes, out);
    case WEFTI_JOINT_SEQUENCE:
        return read_number(word, value, 0, 1, out);
    case WEFTI_JOINT_LEVEL:
        return read_number(word, value, 0, 3, out);
    case WEFTI_JOINT_SHARD:
        return read_number(word, value, 0, 1 << 20, out);
    default:
        return read_number(word, value, 1, 1 << 20, out);
    }
}

static weft_status add_word(const char *word, wefti_joint_fix *fix) {
    const char *equals = strchr(word, '=');
    int d = 0;
    int32_t value;
    const size_t length = equals ? (size_t)(equals - word) : strlen(word);
    while (d < WEFTI_JOINT_COUNT &&
           (strlen(names[d]) != length || strncmp(names[d], word, length) != 0))
        d++;
    WEFT_REQUIRE(
        equals && d < WEFTI_JOINT_COUNT, WEFT_E_ARG,
        "the constraint '%s' must be NAME=VALUE, with one of the names dp, ep, cp, tp, sp, "
        "pp, chunks, microbatches, schedule, level, shard, recompute, inner",
        word);
    WEFT_TRY(read_value(d, word, equals + 1, &value));
    WEFT_REQUIRE(fix->value[d] < 0 || fix->value[d] == value, WEFT_E_ARG,
                 "contradicting constraints: '%s', and another one for %s with the value %d", word,
                 names[d], fix->value[d]);
    fix->value[d] = value;
    return WEFT_OK;
}

weft_status wefti_joint_fix_add(const char *text, wefti_joint_fix *fix) {
    for (const char *at = text + strspn(text, " ,"); *at; at += strspn(at, " ,")) {
        char word[WORD];
        const size_t length = strcspn(at, " ,");
        WEFT_REQUIRE(length < WORD, WEFT_E_ARG, "the constraint '%.40s...' is too long", at);
        memcpy(word, at, length);
        word[length] = '\0';
        WEFT_TRY(add_word(word, fix));
        at += length;
    }
    return WEFT_OK;
}

/* ---- pairs that exclude each other ---- */

static weft_status check_product(const wefti_joint_fix *fix, int32_t devices) {
    static const int degrees[] = {WEFTI_JOINT_DATA, WEFTI_JOINT_EXPERT, WEFTI_JOINT_CONTEXT,
                                  WEFTI_JOINT_TENSOR, WEFTI_JOINT_STAGES};
    int64_t product = 1, least = 1;
    int last = -1;
    bool all = true;
    /* First two that together need more devices than there are, whatever each divides. */
    for (int i = 0; i < (int)(sizeof degrees / sizeof *degrees); i++) {
        const int32_t value = fix->value[degrees[i]];
        if (value <= 1) continue;
        least *= value;
        WEFT_REQUIRE(last < 0 || least <= devices, WEFT_E_ARG,
                     "contradicting constraints: %s=%d and %s=%d need at least %lld devices, but "
                     "there are %d devices",
                     names[last], fix->value[last], names[degrees[i]], value, (long long)least,
                     devices);
        last = degrees[i];
    }
    last = -1;
    for (int i = 0; i < (int)(sizeof degrees / sizeof *degrees); i++) {
        const int32_t value = fix->value[degrees[i]];
        if (value < 0) all = false;
        if (value <= 1) continue;
        WEFT_REQUIRE(devices % value == 0, WEFT_E_ARG,
                     "contradicting constraints: %s=%d and %d devices, of which it is no divisor",
                     names[degrees[i]], value, devices);
        product *= value;
        WEFT_REQUIRE(devices % product == 0, WEFT_E_ARG,
                     "contradicting constraints: %s=%d and %s=%d need a multiple of %lld devices, "
                     "but there are %d",
                     names[last < 0 ? degrees[i] : last], fix->value[last < 0 ? degrees[i] : last],
                     names[degrees[i]], value, (long long)product, devices);
        last = degrees[i];
    }
    WEFT_REQUIRE(!all || product == devices, WEFT_E_ARG,
                 "contradicting constraints: all degrees are fixed, and their product, %lld, is "
                 "not the %d devices",
                 (long long)product, devices);
    return WEFT_OK;
}

/* States are shared out among replicas: there must be some. */
static weft_status check_level(const wefti_joint_fix *fix, int32_t devices) {
    const int32_t *v = fix->value;
    const int32_t level = v[WEFTI_JOINT_LEVEL];
    const int64_t tp = v[WEFTI_JOINT_TENSOR], pp = v[WEFTI_JOINT_STAGES];
    if (level <= 0) return WEFT_OK;
    WEFT_REQUIRE(devices > 1, WEFT_E_ARG,
                 "contradicting constraints: level=%d and one device, which shares with none",
                 level);
    WEFT_REQUIRE(
        v[WEFTI_JOINT_DATA] != 1 || v[WEFTI_JOINT_EXPERT] != 1 || v[WEFTI_JOINT_CONTEXT] != 1,
        WEFT_E_ARG,
        "contradicting constraints: level=%d and dp=1 ep=1 cp=1, which leave no replicas that "
        "share states",
        level);
    WEFT_REQUIRE(tp < 1 || pp < 1 || tp * pp != devices, WEFT_E_ARG,
                 "contradicting constraints: level=%d and tp=%lld pp=%lld, which leave no replicas "
                 "that share states: there are %d devices",
                 level, (long long)tp, (long long)pp, devices);
    return WEFT_OK;
}

weft_status wefti_joint_fix_check(const wefti_joint_fix *fix, int32_t devices, int64_t batch) {
    const int32_t *v = fix->value;
    const int32_t schedule = v[WEFTI_JOINT_SCHEDULE], chunks = v[WEFTI_JOINT_CHUNKS];
    const bool takes_chunks =
        schedule == WEFT_PIPELINE_INTERLEAVED || schedule == WEFT_PIPELINE_ZERO_BUBBLE;
    WEFT_TRY(check_product(fix, devices));
    WEFT_TRY(check_level(fix, devices));
    WEFT_REQUIRE(chunks <= 1 || schedule < 0 || takes_chunks, WEFT_E_ARG,
                 "contradicting constraints: chunks=%d and schedule=%s, which has one chunk",
                 chunks, schedules[schedule]);
    WEFT_REQUIRE(chunks <= 1 || v[WEFTI_JOINT_STAGES] != 1, WEFT_E_ARG,
                 "contradicting constraints: chunks=%d and pp=1: only pipelines have chunks",
                 chunks);
    WEFT_REQUIRE(
        v[WEFTI_JOINT_SEQUENCE] != 1 || v[WEFTI_JOINT_TENSOR] != 1, WEFT_E_ARG,
        "contradicting constraints: sp=1 and tp=1: the sequence is split over the axis tp");
    WEFT_REQUIRE(v[WEFTI_JOINT_SHARD] <= 0 || v[WEFTI_JOINT_LEVEL] != 0, WEFT_E_ARG,
                 "contradicting constraints: shard=%d and level=0: nothing is shared out",
                 v[WEFTI_JOINT_SHARD]);
    WEFT_REQUIRE(v[WEFTI_JOINT_MICROBATCHES] < 1 || !batch ||
                     batch % v[WEFTI_JOINT_MICROBATCHES] == 0,
                 WEFT_E_ARG,
                 "contradicting constraints: microbatches=%d and a batch of %lld samples, of which "
                 "it is no divisor",
                 v[WEFTI_JOINT_MICROBATCHES], (long long)batch);
    return WEFT_OK;
}

static void add_degrees(const wefti_degrees *d, bool whole, wefti_text *out) {
    wefti_text_add(out, "dp=%d ep=%d cp=%d tp=%d", d->data, d->expert, d->context, d->tensor);
    if (d->tensor > 1) wefti_text_add(out, " sp=%d", d->sequence);
    wefti_text_add(out, " pp=%d microbatches=%d", d->stages, d->microbatches);
    if (d->stages > 1 && whole)
        wefti_text_add(out, " schedule=%s chunks=%d", schedules[d->schedule], d->chunks);
    if (whole) wefti_text_add(out, " level=%d", d->level);
    if (d->level && whole) wefti_text_add(out, " shard=%d", d->shard);
    wefti_text_add(out, " recompute=%s", recomputes[d->recompute]);
    const bool usual = d->order[0] == d->order[1]; /* not decided */
    const int split = (d->data > 1) + (d->expert > 1) + (d->context > 1) + (d->tensor > 1);
    if (!usual && (split > 1 || d->order[LAST_AXIS] != LAST_AXIS))
        wefti_text_add(out, " inner=%s", axes[d->order[LAST_AXIS]]);
}

void wefti_joint_degrees_text(const wefti_degrees *d, wefti_text *out) {
    add_degrees(d, true, out);
}

void wefti_joint_split_text(const wefti_degrees *d, wefti_text *out) {
    add_degrees(d, false, out);
}

/* Whether a constraint's value is that of a plan without the dimension at all. */
static bool is_absence(int d, int32_t value) {
    if (d == WEFTI_JOINT_CHUNKS) return value == 1;
    return (d == WEFTI_JOINT_SEQUENCE || d == WEFTI_JOINT_SHARD) && value == 0;
}

weft_status wefti_joint_idle_text(const wefti_joint_fix *fix, const wefti_degrees *d,
                                  wefti_text *out) {
    wefti_text text = {0};
    wefti_text_add(&text, " ");
    add_degrees(d, true, &text);
    char *degrees = wefti_text_take(&text);
    WEFT_REQUIRE(degrees, WEFT_E_NOMEM, "no memory for a list of constraints");
    for (int i = 0; i < WEFTI_JOINT_COUNT; i++) {
        char word[WORD];
        (void)snprintf(word, sizeof word, " %s=", names[i]);
        if (fix->value[i] < 0 || is_absence(i, fix->value[i]) || strstr(degrees, word)) continue;
        wefti_text_add(out, "%s", out->used ? " " : "");
        wefti_joint_constraint_text((wefti_joint_dimension)i, fix->value[i], out);
    }
    wefti_free(degrees);
    return WEFT_OK;
}
