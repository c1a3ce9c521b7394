/* MindSpore's strategy files in protobuf. See layouts.h.
 *
 * The wire format (protobuf.dev/programming-guides/encoding) is small: a message is a list of
 * fields, each with a key (number << 3 | type) and a varint, 4 or 8 bytes, or a length and bytes.
 * Fields of these files:
 *
 *   ParallelStrategyMap   1 current_stage, 2 parallel_strategy_item*, 3 parallel_layout_item*
 *   ParallelStrategyItem  1 node_name, 2 parallel_strategys {1 stage, 2 parallel_strategy* {1
 * dim*}} ParallelLayoutItem    1 param_name, 2 parallel_layouts ParallelLayouts       1 dev_matrix*
 * {1 dim*}, 2 tensor_map* {1 dim*}, 3 param_split_shape*, 4 indices_offset*, 5 field, 6
 * opt_weight_shard_step, 7 opt_weight_shard_size
 *
 * Repeated numbers come packed or one by one; both forms are read. Other fields are skipped. */
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "reshard/layouts.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { WIRE_INPUTS_MAX = 1024 };

typedef struct wire_reader {
    const unsigned char *at, *end;
} wire_reader;

typedef struct wire_field {
    uint32_t number;
    int type;
    uint64_t value;    /* of a varint */
    wire_reader bytes; /* of WIRE_BYTES */
} wire_field;

static weft_status read_varint(wire_reader *r, uint64_t *out) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        WEFT_REQUIRE(r->at < r->end, WEFT_E_CORRUPT, "a number is cut off");
        const unsigned char byte = *r->at++;
        WEFT_REQUIRE(shift < 63 || byte <= 1, WEFT_E_CORRUPT, "a number has more than 64 bits");
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *out = value;
            return WEFT_OK;
        }
    }
    WEFT_FAIL(WEFT_E_CORRUPT, "a number has more than 10 bytes");
}

static weft_status read_field(wire_reader *r, wire_field *out) {
    uint64_t key, length = 0;
    *out = (wire_field){0};
    WEFT_TRY(read_varint(r, &key));
    out->type = (int)(key & 7);
    WEFT_REQUIRE(key >> 3 >= 1 && key >> 3 < 1u << 29, WEFT_E_CORRUPT, "a field has no number");
    out->number = (uint32_t)(key >> 3);
    if (out->type == WIRE_VARINT) return read_varint(r, &out->value);
    if (out->type == WIRE_BYTES)
        WEFT_TRY(read_varint(r, &length));
    else if (out->type == WIRE_64 || out->type == WIRE_32)
        length = out->type == WIRE_64 ? 8 : 4;
    else
        WEFT_FAIL(WEFT_E_CORRUPT, "field %u has the unknown type %d", out->number, out->type);
    WEFT_REQUIRE(length <= (uint64_t)(r->end - r->at), WEFT_E_CORRUPT,
                 "field %u has %llu bytes, but only %lld follow", out->number,
                 (unsigned long long)length, (long long)(r->end - r->at));
    out->bytes = (wire_reader){r->at, r->at + length};
    r->at += length;
    return WEFT_OK;
}

static weft_status need(const wire_field *f, int type) {
    WEFT_REQUIRE(f->type == type, WEFT_E_CORRUPT, "field %u has the type %d instead of %d",
                 f->number, f->type, type);
    return WEFT_OK;
}

static weft_status read_text(wefti_layouts *l, const wire_field *f, const char **out) {
    WEFT_TRY(need(f, WIRE_BYTES));
    const size_t length = (size_t)(f->bytes.end - f->bytes.at);
    WEFT_REQUIRE(length <= 8192 && !memchr(f->bytes.at, 0, length), WEFT_E_CORRUPT,
                 "a name has %zu bytes or contains NUL", length);
    char *text = wefti_arena_alloc(l->arena, length + 1);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for a name");
    memcpy(text, f->bytes.at, length);
    WEFT_REQUIRE(wefti_utf8_valid(text), WEFT_E_CORRUPT, "a name is not UTF-8");
    *out = text;
    return WEFT_OK;
}

/* The numbers of field 1 of a message, after those that `out` has already. */
static weft_status read_dims(wire_reader r, int most, int64_t *out, int *count) {
    while (r.at < r.end) {
        wire_field f;
        WEFT_TRY(read_field(&r, &f));
        if (f.number != 1) continue;
        WEFT_REQUIRE(f.type == WIRE_VARINT || f.type == WIRE_BYTES, WEFT_E_CORRUPT,
                     "a list has the type %d", f.type);
        wire_reader packed = f.bytes;
        do {
            uint64_t value = f.value;
            if (f.type == WIRE_BYTES) {
                if (packed.at == packed.end) break;
                WEFT_TRY(read_varint(&packed, &value));
            }
            WEFT_REQUIRE(*count < most, WEFT_E_CORRUPT, "a list has more than %d elements", most);
            out[(*count)++] = (int64_t)value;
        } while (f.type == WIRE_BYTES && packed.at < packed.end);
    }
    return WEFT_OK;
}

/* Reads int32 numbers, which the wire format extends to 64 bits. */
static weft_status read_int(const wire_field *f, int64_t *out) {
    WEFT_TRY(need(f, WIRE_VARINT));
    *out = (int64_t)f->value;
    return WEFT_OK;
}

static weft_status read_layouts(wire_reader r, wefti_strategy_layout *x) {
    int64_t offsets[1024];
    while (r.at < r.end) {
        wire_field f;
        WEFT_TRY(read_field(&r, &f));
        if (f.number >= 1 && f.number <= 4) WEFT_TRY(need(&f, WIRE_BYTES));
        if (f.number == 1) WEFT_TRY(read_dims(f.bytes, 64, x->matrix, &x->axes));
        if (f.number == 2) WEFT_TRY(read_dims(f.bytes, WEFT_MAX_RANK, x->map, &x->rank));
        if (f.number == 4) WEFT_TRY(read_dims(f.bytes, 1024, offsets, &x->manual));
        if (f.number == 6) WEFT_TRY(read_int(&f, &x->step));
        if (f.number == 7) WEFT_TRY(read_int(&f, &x->size));
    }
    return WEFT_OK;
}

static weft_status read_layout_item(wefti_layouts *l, wire_reader r, wefti_strategy_layout *x) {
    *x = (wefti_strategy_layout){.shape_rank = -1};
    bool has = false;
    while (r.at < r.end) {
        wire_field f;
        WEFT_TRY(read_field(&r, &f));
        if (f.number == 1) WEFT_TRY(read_text(l, &f, &x->name));
        if (f.number != 2) continue;
        WEFT_TRY(need(&f, WIRE_BYTES));
        weft_status status = read_layouts(f.bytes, x);
        if (status < 0) return x->name ? wefti_prefix(status, "parameter %.200s", x->name) : status;
        has = true;
    }
    WEFT_REQUIRE(x->name && *x->name && has, WEFT_E_CORRUPT,
                 "a parameter has no name or no layout");
    return WEFT_OK;
}

typedef struct wire_strategy {
    int64_t stage, cuts[WIRE_INPUTS_MAX];
    int32_t ranks[WIRE_INPUTS_MAX];
    int inputs, used;
} wire_strategy;

static weft_status read_strategys(wire_reader r, wire_strategy *x) {
    while (r.at < r.end) {
        wire_field f;
        WEFT_TRY(read_field(&r, &f));
        if (f.number == 1) WEFT_TRY(read_int(&f, &x->stage));
        if (f.number != 2) continue;
        WEFT_TRY(need(&f, WIRE_BYTES));
        WEFT_REQUIRE(x->inputs < WIRE_INPUTS_MAX, WEFT_E_CORRUPT, "a node has too many inputs");
        const int before = x->used;
        WEFT_TRY(read_dims(f.bytes, WIRE_INPUTS_MAX, x->cuts, &x->used));
        x->ranks[x->inputs++] = x->used - before;
    }
    return WEFT_OK;
}

static weft_status read_strategy_item(wefti_layouts *l, wire_reader r) {
    wire_strategy *x = wefti_arena_alloc(l->arena, sizeof *x);
    const char *name = NULL;
    WEFT_REQUIRE(x, WEFT_E_NOMEM, "no memory for a strategy");
    while (r.at < r.end) {
        wire_field f;
        WEFT_TRY(read_field(&r, &f));
        if (f.number == 1) WEFT_TRY(read_text(l, &f, &name));
        if (f.number != 2) continue;
        WEFT_TRY(need(&f, WIRE_BYTES));
        WEFT_TRY(read_strategys(f.bytes, x));
    }
    WEFT_REQUIRE(name, WEFT_E_CORRUPT, "a node has no name");
    if (!l->strategy_count)
        l->stage = (int32_t)(x->stage > 0 && x->stage < INT32_MAX ? x->stage : 0);
    return wefti_strategy_add_item(l, name, x->stage, x->inputs, x->ranks, x->cuts);
}

/* Reads all of the file, so that afterwards only contents can be wrong. */
static weft_status read_map(wefti_layouts *l, wire_reader r) {
    wefti_strategy_layout x;
    while (r.at < r.end) {
        wire_field f;
        WEFT_TRY(read_field(&r, &f));
        if (f.number == 2 || f.number == 3) WEFT_TRY(need(&f, WIRE_BYTES));
        if (f.number == 2) WEFT_TRY(read_strategy_item(l, f.bytes));
        if (f.number == 3) WEFT_TRY(read_layout_item(l, f.bytes, &x));
    }
    return WEFT_OK;
}

static weft_status add_layouts(wefti_layouts *l, wire_reader r) {
    wefti_strategy_layout x;
    while (r.at < r.end) {
        wire_field f;
        WEFT_TRY(read_field(&r, &f));
        if (f.number != 3) continue;
        WEFT_TRY(read_layout_item(l, f.bytes, &x));
        WEFT_TRY(wefti_strategy_add(l, &x));
    }
    return WEFT_OK;
}

weft_status wefti_strategy_parse_protobuf(wefti_layouts *l, const void *data, int64_t bytes) {
    const unsigned char *at = data;
    weft_status status = read_map(l, (wire_reader){at, at + bytes});
    if (status < 0)
        return wefti_prefix(status, "%s is neither a plan of weft nor a strategy file of MindSpore",
                            l->path);
    return add_layouts(l, (wire_reader){at, at + bytes});
}

/* ---- printing ---- */

static void put_varint(wefti_text *t, uint64_t value) {
    char bytes[10];
    int count = 0;
    for (; value >= 128; value >>= 7) bytes[count++] = (char)(value | 128);
    bytes[count++] = (char)value;
    wefti_text_add_bytes(t, bytes, count);
}

static void put_number(wefti_text *t, uint32_t number, int64_t value) {
    put_varint(t, (uint64_t)number << 3 | WIRE_VARINT);
    put_varint(t, (uint64_t)value);
}

static void put_bytes(wefti_text *t, uint32_t number, const char *data, int64_t bytes) {
    put_varint(t, (uint64_t)number << 3 | WIRE_BYTES);
    put_varint(t, (uint64_t)bytes);
    if (bytes) wefti_text_add_bytes(t, data, bytes);
}

/* Ends a message: adds it to `t` as field `number`, and frees it. */
static void put_message(wefti_text *t, uint32_t number, wefti_text *message) {
    t->failed |= message->failed;
    put_bytes(t, number, message->data, message->used);
    wefti_text_free(message);
}

static void put_dims(wefti_text *t, uint32_t number, const int64_t *dims, int count) {
    wefti_text message = {0};
    for (int i = 0; i < count; i++) put_number(&message, 1, dims[i]);
    put_message(t, number, &message);
}

static void put_item(wefti_text *t, const wefti_strategy_item *item) {
    wefti_text strategys = {0}, message = {0};
    const int64_t *cuts = item->cuts;
    put_number(&strategys, 1, item->stage);
    for (int i = 0; i < item->inputs; cuts += item->ranks[i++])
        put_dims(&strategys, 2, cuts, item->ranks[i]);
    put_bytes(&message, 1, item->name, (int64_t)strlen(item->name));
    put_message(&message, 2, &strategys);
    put_message(t, 2, &message);
}

static weft_status put_layout(wefti_text *t, const wefti_layouts *l, const wefti_placement *p) {
    wefti_strategy_layout x;
    wefti_text layouts = {0}, message = {0};
    WEFT_TRY(wefti_strategy_of(l, p, &x));
    put_dims(&layouts, 1, x.matrix, x.axes);
    put_dims(&layouts, 2, x.map, x.rank);
    put_dims(&layouts, 3, NULL, 0);
    put_dims(&layouts, 4, NULL, 0);
    put_number(&layouts, 5, 0);
    put_number(&layouts, 6, x.step);
    put_number(&layouts, 7, x.size);
    put_bytes(&message, 1, x.name, (int64_t)strlen(x.name));
    put_message(&message, 2, &layouts);
    put_message(t, 3, &message);
    return WEFT_OK;
}

weft_status wefti_layouts_print_protobuf(const wefti_layouts *l, char **out, int64_t *out_bytes) {
    wefti_text t = {0};
    weft_status status = WEFT_OK;
    put_number(&t, 1, l->stages > 1 ? 1 : 0);
    for (int64_t i = 0; i < l->strategy_count; i++) put_item(&t, &l->strategies[i]);
    for (int64_t i = 0; i < l->count && status >= 0; i++) status = put_layout(&t, l, &l->items[i]);
    if (status >= 0 && t.failed) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a strategy file");
    if (status < 0) {
        wefti_text_free(&t);
        return status;
    }
    *out_bytes = t.used;
    *out = t.data; /* the buffer itself: its content may have NUL bytes */
    return WEFT_OK;
}
