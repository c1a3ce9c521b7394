/* The bytes of words: see server/words.h. */
#include "server/words.h"

#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "graph/text/text.h"

/* ---- numbers and texts, one behind the other ---- */

typedef struct word_writer {
    unsigned char *body;
    size_t used, room;
    bool full;
} word_writer;

static void put(word_writer *w, uint64_t x, int bytes) {
    w->full = w->full || w->room - w->used < (size_t)bytes;
    if (w->full) return;
    wefti_put_number(w->body + w->used, x, bytes);
    w->used += (size_t)bytes;
}

static void put_text(word_writer *w, const char *text) {
    const size_t bytes = strlen(text);
    put(w, bytes, 2);
    w->full = w->full || bytes > UINT16_MAX || w->room - w->used < bytes;
    if (w->full) return;
    memcpy(w->body + w->used, text, bytes);
    w->used += bytes;
}

static void put_desc(word_writer *w, const weft_desc *desc) {
    put(w, (uint64_t)desc->dtype, 1);
    put(w, (uint64_t)desc->rank, 1);
    for (int d = 0; d < desc->rank; d++) put(w, (uint64_t)desc->shape[d], 8);
}

typedef struct word_reader {
    const unsigned char *body;
    size_t left;
    bool wrong;
} word_reader;

static uint64_t take(word_reader *r, int bytes) {
    r->wrong = r->wrong || r->left < (size_t)bytes;
    if (r->wrong) return 0;
    const uint64_t x = wefti_get_number(r->body, bytes);
    r->body += bytes;
    r->left -= (size_t)bytes;
    return x;
}

/* A number from `least` to `most`. */
static int64_t take_within(word_reader *r, int bytes, int64_t least, int64_t most) {
    const uint64_t bits = take(r, bytes);
    const int64_t x = bytes == 4 ? (int32_t)(uint32_t)bits : (int64_t)bits;
    r->wrong = r->wrong || x < least || x > most;
    return r->wrong ? least : x;
}

/* "" if there is no memory, or no such text. */
static const char *take_text(word_reader *r, wefti_arena *arena) {
    const size_t bytes = (size_t)take(r, 2);
    r->wrong = r->wrong || bytes > r->left || memchr(r->body, 0, bytes);
    char *text = r->wrong ? NULL : wefti_arena_alloc(arena, bytes + 1);
    if (!text) {
        r->wrong = true;
        return "";
    }
    memcpy(text, r->body, bytes);
    r->body += bytes;
    r->left -= bytes;
    return text;
}

enum { MOST_BYTES_LOG = 46, MOST_TERMS = 1 << 20 };

/* Its bytes can be counted. */
static void take_desc(word_reader *r, weft_desc *out) {
    int64_t elems = 1;
    *out = (weft_desc){.dtype = (weft_dtype)take_within(r, 1, 0, WEFT_DTYPES - 1)};
    out->rank = (int)take_within(r, 1, 0, WEFT_MAX_RANK);
    for (int d = 0; d < out->rank; d++) {
        out->shape[d] = take_within(r, 8, 0, INT64_C(1) << MOST_BYTES_LOG);
        r->wrong = r->wrong || __builtin_mul_overflow(elems, out->shape[d], &elems) ||
                   elems > INT64_C(1) << MOST_BYTES_LOG;
    }
}

/* ---- BIND ---- */

static weft_status write_bind(word_writer *w, const wefti_bind_word *word) {
    const wefti_served *x = &word->served;
    wefti_text attrs = {0};
    put(w, word->session, 8);
    unsigned char probe[WEFTI_PROBE_BYTES];
    put(w, (uint64_t)word->rank, 4);
    wefti_probe_encode(&word->probe, probe);
    for (int i = 0; i < WEFTI_PROBE_BYTES; i++) put(w, probe[i], 1);
    put_text(w, x->name);
    put_desc(w, &x->whole);
    put_desc(w, &x->desc);
    for (int d = 0; d < x->desc.rank; d++) put(w, (uint64_t)x->region.begin[d], 8);
    put(w, (uint64_t)x->terms, 4);
    put(w, (uint64_t)x->term, 4);
    put(w, (uint64_t)x->square, 1);
    put_text(w, x->rule.op->name);
    if (x->rule.attrs) wefti_attrs_print(x->rule.op, x->rule.attrs, &attrs);
    char *text = wefti_text_take(&attrs);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for the description of '%s'", x->name);
    put_text(w, text);
    wefti_free(text);
    put(w, (uint64_t)x->rule.absent, 1);
    put(w, (uint64_t)x->rule.states, 1);
    for (int i = 0; i < x->rule.states; i++) {
        put_text(w, x->rule.state_names[i]);
        put_desc(w, &x->rule.state_descs[i]);
    }
    WEFT_REQUIRE(!w->full, WEFT_E_NO_IMPL, "the description of '%.100s' has more than %d bytes",
                 x->name, WEFTI_WORD_BIND_BYTES);
    return WEFT_OK;
}

weft_status wefti_bind_encode(const wefti_bind_word *word, unsigned char **out, size_t *out_bytes) {
    word_writer w = {.room = WEFTI_WORD_BIND_BYTES};
    WEFT_NEW_ARRAY(w.body, unsigned char, WEFTI_WORD_BIND_BYTES);
    const weft_status status = write_bind(&w, word);
    if (status < 0) {
        wefti_free(w.body);
        return status;
    }
    *out = w.body;
    *out_bytes = w.used;
    return WEFT_OK;
}

static weft_status read_rule(word_reader *r, const wefti_op_registry *ops, wefti_arena *arena,
                             wefti_update_rule *out) {
    wefti_attr *attrs;
    const char *op = take_text(r, arena), *text = take_text(r, arena);
    out->op = r->wrong ? NULL : wefti_op_find(ops, op);
    WEFT_REQUIRE(out->op, WEFT_E_CORRUPT, "no such op: '%.40s'", op);
    attrs = wefti_arena_alloc(arena, ((size_t)wefti_attr_count(out->op) + 1) * sizeof *attrs);
    WEFT_REQUIRE(attrs, WEFT_E_NOMEM, "no memory for an op");
    WEFT_REQUIRE(wefti_attrs_parse(out->op, text, arena, attrs) >= 0, WEFT_E_CORRUPT,
                 "attributes of '%s' that it does not have", op);
    out->attrs = out->op->attrs ? attrs : NULL;
    out->absent = (int)take_within(r, 1, 0, 2);
    out->states = (int)take_within(r, 1, 0, WEFTI_SERVED_PARTS - 1);
    for (int i = 0; i < out->states; i++) {
        out->state_names[i] = take_text(r, arena);
        take_desc(r, &out->state_descs[i]);
    }
    return WEFT_OK;
}

/* The pieces of a region lie within the whole. */
static bool is_region(const wefti_served *x) {
    if (x->desc.rank != x->whole.rank || x->desc.dtype != x->whole.dtype) return false;
    for (int d = 0; d < x->desc.rank; d++)
        if (x->region.begin[d] > x->whole.shape[d] - x->desc.shape[d]) return false;
    return true;
}

weft_status wefti_bind_decode(const wefti_op_registry *ops, const unsigned char *body, size_t bytes,
                              wefti_arena *arena, wefti_bind_word *out) {
    word_reader r = {body, bytes, false};
    unsigned char probe[WEFTI_PROBE_BYTES];
    wefti_served *x = &out->served;
    *out = (wefti_bind_word){.session = take(&r, 8)};
    out->rank = (int32_t)take_within(&r, 4, 0, INT32_MAX);
    for (int i = 0; i < WEFTI_PROBE_BYTES; i++) probe[i] = (unsigned char)take(&r, 1);
    wefti_probe_decode(probe, &out->probe);
    x->name = take_text(&r, arena);
    take_desc(&r, &x->whole);
    take_desc(&r, &x->desc);
    for (int d = 0; d < x->desc.rank; d++) {
        x->region.begin[d] = take_within(&r, 8, 0, INT64_C(1) << MOST_BYTES_LOG);
        x->region.size[d] = x->desc.shape[d];
    }
    x->terms = (int32_t)take_within(&r, 4, 1, MOST_TERMS);
    x->term = (int32_t)take_within(&r, 4, -1, INT32_MAX);
    x->square = (weft_dtype)take_within(&r, 1, 0, WEFT_DTYPES - 1);
    WEFT_TRY(read_rule(&r, ops, arena, &x->rule));
    const bool floats = x->desc.dtype == WEFT_F32 || x->desc.dtype == WEFT_F64;
    WEFT_REQUIRE(!r.wrong && !r.left && floats && is_region(x) && x->term < x->terms &&
                     (x->square == WEFT_F32 || x->square == WEFT_F64),
                 WEFT_E_CORRUPT, "this is no description of a parameter");
    x->part_bytes[0] = weft_desc_bytes(&x->desc);
    for (int i = 0; i < x->rule.states; i++)
        x->part_bytes[1 + i] = weft_desc_bytes(&x->rule.state_descs[i]);
    return WEFT_OK;
}

/* ---- others ---- */

size_t wefti_failed_encode(const wefti_failed_word *word,
                           unsigned char out[WEFTI_FAILED_HEAD + WEFTI_WORD_TEXT]) {
    const size_t bytes = strlen(word->text);
    wefti_put_number(out, word->shard, 4);
    wefti_put_number(out + 4, (uint64_t)word->status, 4);
    wefti_put_number(out + 8, (uint64_t)word->rank, 4);
    memcpy(out + WEFTI_FAILED_HEAD, word->text, bytes);
    return WEFTI_FAILED_HEAD + bytes;
}

weft_status wefti_failed_decode(const unsigned char *body, size_t bytes, wefti_failed_word *out) {
    const size_t text = bytes - WEFTI_FAILED_HEAD;
    WEFT_REQUIRE(bytes >= WEFTI_FAILED_HEAD && text <= WEFTI_WORD_TEXT, WEFT_E_CORRUPT,
                 "a failure of %zu bytes", bytes);
    out->shard = (uint32_t)wefti_get_number(body, 4);
    out->status = (weft_status)(int32_t)wefti_get_number(body + 4, 4);
    out->rank = (int32_t)wefti_get_number(body + 8, 4);
    for (size_t i = 0; i < text; i++) {
        const unsigned char c = body[WEFTI_FAILED_HEAD + i];
        out->text[i] = (char)(c < 0x20 || c == 0x7f ? '?' : c);
    }
    out->text[text] = 0;
    WEFT_REQUIRE(out->status < 0, WEFT_E_CORRUPT, "a failure without a reason");
    return WEFT_OK;
}

void wefti_scalars_encode(const wefti_step_block *scalars, unsigned char out[WEFTI_WORD_SCALARS]) {
    uint32_t f32[WEFTI_STEP_SCALARS];
    uint64_t f64[WEFTI_STEP_SCALARS];
    memcpy(f32, &scalars->f32, sizeof f32);
    memcpy(f64, &scalars->f64, sizeof f64);
    for (int i = 0; i < WEFTI_STEP_SCALARS; i++) {
        wefti_put_number(out + 12 * i, f32[i], 4);
        wefti_put_number(out + 12 * i + 4, f64[i], 8);
    }
}

void wefti_scalars_decode(const unsigned char body[WEFTI_WORD_SCALARS], wefti_step_block *out) {
    uint32_t f32[WEFTI_STEP_SCALARS];
    uint64_t f64[WEFTI_STEP_SCALARS];
    for (int i = 0; i < WEFTI_STEP_SCALARS; i++) {
        f32[i] = (uint32_t)wefti_get_number(body + 12 * i, 4);
        f64[i] = wefti_get_number(body + 12 * i + 4, 8);
    }
    memcpy(&out->f32, f32, sizeof f32);
    memcpy(&out->f64, f64, sizeof f64);
}
