/* MindSpore's strategy files in JSON: objects `parallel_strategy_item` and `parallel_layout_item`
 * whose keys are nodes and parameters. See layouts.h. */
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "reshard/layouts.h"

enum { STRATEGY_INPUTS_MAX = 1024, STRATEGY_CUTS_MAX = 65536 };

static weft_status read_list(const wefti_json *item, const char *key, int most, int64_t *out,
                             int *out_count) {
    const wefti_json *list = NULL;
    WEFT_TRY(wefti_json_array(item, key, &list));
    WEFT_REQUIRE(list->count <= most, WEFT_E_CORRUPT, "\"%s\" has %d elements; at most %d", key,
                 list->count, most);
    *out_count = 0;
    WEFTI_JSON_EACH(number, list) {
        WEFT_REQUIRE(number->kind == WEFTI_JSON_INT, WEFT_E_CORRUPT,
                     "\"%s\" is not a list of whole numbers", key);
        out[(*out_count)++] = number->as.integer;
    }
    return WEFT_OK;
}

static weft_status read_layout(const wefti_json *item, wefti_strategy_layout *x) {
    const wefti_json *offsets = wefti_json_get(item, "indices_offset");
    x->shape_rank = -1;
    WEFT_REQUIRE(item->kind == WEFTI_JSON_OBJECT, WEFT_E_CORRUPT, "a layout must be an object");
    WEFT_TRY(read_list(item, "dev_matrix", 64, x->matrix, &x->axes));
    WEFT_TRY(read_list(item, "tensor_map", WEFT_MAX_RANK, x->map, &x->rank));
    if (offsets && offsets->kind == WEFTI_JSON_ARRAY) x->manual = offsets->count;
    if (wefti_json_get(item, "tensor_shape"))
        WEFT_TRY(read_list(item, "tensor_shape", WEFT_MAX_RANK, x->shape, &x->shape_rank));
    if (wefti_json_get(item, "opt_weight_shard_step"))
        WEFT_TRY(wefti_json_int(item, "opt_weight_shard_step", &x->step));
    if (wefti_json_get(item, "opt_weight_shard_size"))
        WEFT_TRY(wefti_json_int(item, "opt_weight_shard_size", &x->size));
    WEFT_REQUIRE(x->shape_rank < 0 || x->shape_rank == x->rank, WEFT_E_CORRUPT,
                 "\"tensor_shape\" has %d elements and \"tensor_map\" has %d", x->shape_rank,
                 x->rank);
    for (int d = 0; d < x->rank && x->shape_rank >= 0; d++)
        WEFT_REQUIRE(x->shape[d] >= 0, WEFT_E_CORRUPT, "\"tensor_shape\" has a negative size");
    return WEFT_OK;
}

static weft_status read_item(wefti_layouts *l, const wefti_json *item) {
    int32_t ranks[STRATEGY_INPUTS_MAX];
    const wefti_json *inputs = NULL;
    int64_t stage = 0, cuts[STRATEGY_INPUTS_MAX];
    int count = 0, used = 0;
    WEFT_TRY(wefti_json_int(item, "stage", &stage));
    WEFT_TRY(wefti_json_array(item, "parallel_strategy", &inputs));
    WEFTI_JSON_EACH(input, inputs) {
        WEFT_REQUIRE(input->kind == WEFTI_JSON_ARRAY && count < STRATEGY_INPUTS_MAX &&
                         used + input->count <= STRATEGY_INPUTS_MAX,
                     WEFT_E_CORRUPT, "\"parallel_strategy\" must be a list of lists");
        ranks[count++] = input->count;
        WEFTI_JSON_EACH(cut, input) {
            WEFT_REQUIRE(cut->kind == WEFTI_JSON_INT, WEFT_E_CORRUPT,
                         "\"parallel_strategy\" has an element that is not a whole number");
            cuts[used++] = cut->as.integer;
        }
    }
    if (!l->strategy_count) l->stage = (int32_t)(stage > 0 && stage < INT32_MAX ? stage : 0);
    return wefti_strategy_add_item(l, item->key, stage, count, ranks, cuts);
}

static weft_status read_items(wefti_layouts *l, const wefti_json *root) {
    const wefti_json *items = wefti_json_get(root, "parallel_strategy_item");
    WEFT_REQUIRE(!items || items->kind == WEFTI_JSON_OBJECT || items->kind == WEFTI_JSON_NULL,
                 WEFT_E_CORRUPT, "\"parallel_strategy_item\" must be an object");
    if (!items || items->kind != WEFTI_JSON_OBJECT) return WEFT_OK;
    WEFTI_JSON_EACH(item, items) {
        weft_status status = read_item(l, item);
        if (status < 0) return wefti_prefix(status, "node %.200s", item->key);
    }
    return WEFT_OK;
}

weft_status wefti_strategy_parse_json(wefti_layouts *l, const char *text, int64_t bytes) {
    static const wefti_json_limits limits = {
        .depth = 8, .members = 1000000, .array_items = STRATEGY_CUTS_MAX};
    const wefti_json *root = NULL, *layouts = NULL;
    weft_status status = wefti_json_parse(l->arena, text, bytes, &limits, &root);
    if (status < 0) return wefti_prefix(status, "%s", l->path);
    status = wefti_json_object(root, "parallel_layout_item", &layouts);
    if (status < 0)
        return wefti_prefix(status, "%s is neither a plan of weft nor a strategy file of MindSpore",
                            l->path);
    status = read_items(l, root);
    if (status < 0) return wefti_prefix(status, "%s", l->path);
    WEFTI_JSON_EACH(item, layouts) {
        wefti_strategy_layout x = {.name = item->key};
        status = read_layout(item, &x);
        if (status < 0) return wefti_prefix(status, "%s: parameter %.200s", l->path, item->key);
        WEFT_TRY(wefti_strategy_add(l, &x));
    }
    return WEFT_OK;
}

/* ---- printing ---- */

static void add_list(wefti_text *t, const char *key, const int64_t *items, int count) {
    wefti_text_add(t, "\"%s\": [", key);
    for (int i = 0; i < count; i++) wefti_text_add(t, i ? ", %lld" : "%lld", (long long)items[i]);
    wefti_text_add(t, "]");
}

static void add_item(wefti_text *t, const wefti_strategy_item *item) {
    const int64_t *cuts = item->cuts;
    wefti_json_quote(t, item->name);
    wefti_text_add(t, ": {\"parallel_strategy\": [");
    for (int i = 0; i < item->inputs; cuts += item->ranks[i++]) {
        wefti_text_add(t, i ? ", [" : "[");
        for (int d = 0; d < item->ranks[i]; d++)
            wefti_text_add(t, d ? ", %lld" : "%lld", (long long)cuts[d]);
        wefti_text_add(t, "]");
    }
    wefti_text_add(t, "], \"stage\": %d}", item->stage);
}

static weft_status add_layout(wefti_text *t, const wefti_layouts *l, const wefti_placement *p) {
    wefti_strategy_layout x;
    WEFT_TRY(wefti_strategy_of(l, p, &x));
    wefti_json_quote(t, x.name);
    wefti_text_add(t, ": {");
    add_list(t, "dev_matrix", x.matrix, x.axes);
    wefti_text_add(t,
                   ", \"field\": 0, \"opt_weight_shard_size\": %lld, "
                   "\"opt_weight_shard_step\": %lld, ",
                   (long long)x.size, (long long)x.step);
    add_list(t, "tensor_map", x.map, x.rank);
    if (x.shape_rank >= 0) wefti_text_add(t, ", ");
    if (x.shape_rank >= 0) add_list(t, "tensor_shape", x.shape, x.rank);
    wefti_text_add(t, "}");
    return WEFT_OK;
}

weft_status wefti_layouts_print_json(const wefti_layouts *l, char **out, int64_t *out_bytes) {
    wefti_text t = {0};
    weft_status status = WEFT_OK;
    wefti_text_add(&t, "{\"current_stage\": %d,\n \"parallel_layout_item\": {",
                   l->stages > 1 ? 1 : 0);
    for (int64_t i = 0; i < l->count && status >= 0; i++) {
        wefti_text_add(&t, i ? ",\n  " : "\n  ");
        status = add_layout(&t, l, &l->items[i]);
    }
    wefti_text_add(&t, "},\n \"parallel_strategy_item\": {");
    for (int64_t i = 0; i < l->strategy_count; i++) {
        wefti_text_add(&t, i ? ",\n  " : "\n  ");
        add_item(&t, &l->strategies[i]);
    }
    wefti_text_add(&t, "}}\n");
    int64_t bytes = t.used;
    char *text = wefti_text_take(&t);
    if (status >= 0 && !text) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a strategy file");
    if (status < 0) {
        wefti_free(text);
        return status;
    }
    *out = text;
    *out_bytes = bytes;
    return WEFT_OK;
}
