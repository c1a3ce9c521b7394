/* Selects the tensors to split, and the dimension. See slices.h. */
#include "checkpoint/slices.h"

#include <string.h>

#include "base/text.h"
#include "base/io.h"
#include "base/json/json.h"
#include "base/memory.h"
#include "tensor/tensor.h"

static bool same_shape(const weft_desc *a, const weft_desc *b) {
    weft_desc other = *b;
    other.dtype = a->dtype;
    return wefti_desc_equal(a, &other);
}

static const wefti_safetensors_entry *named(const wefti_source *source, const char *name,
                                            size_t length) {
    char text[WEFTI_SAFETENSORS_NAME_BYTES + 1];
    if (length >= sizeof text) return NULL;
    memcpy(text, name, length);
    text[length] = '\0';
    return wefti_source_find(source, text);
}

/* "w" for "w.m"; NULL: no such parameter. */
static const wefti_safetensors_entry *named_before(const wefti_source *source, const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? named(source, name, (size_t)(dot - name)) : NULL;
}

/* The parameter that an optimizer's tensor `entry` belongs to: "w" for "w.m" and for "moments.w";
 * NULL: unknown. */
static const wefti_safetensors_entry *parameter_of(const wefti_source *source,
                                                   const wefti_safetensors_entry *entry) {
    const char *dot = strchr(entry->name, '.');
    const wefti_safetensors_entry *found = named_before(source, entry->name);
    if (found && same_shape(&found->desc, &entry->desc)) return found;
    found = dot ? named(source, dot + 1, strlen(dot + 1)) : NULL;
    return found && same_shape(&found->desc, &entry->desc) ? found : NULL;
}

/* Applies the split rules to one tensor, and marks all rules that match it. */
static weft_status find_dimension(const wefti_source *source, const wefti_safetensors_entry *entry,
                                  const weft_checkpoint_slice_rule *rules, int count, bool *matched,
                                  int *out) {
    const wefti_safetensors_entry *parameter = parameter_of(source, entry);
    *out = WEFTI_SLICE_UNSAID;
    for (int i = 0; i < count; i++) {
        if (!wefti_glob_match(rules[i].match, entry->name) &&
            !(parameter && wefti_glob_match(rules[i].match, parameter->name)))
            continue;
        matched[i] = true;
        *out = rules[i].dimension;
    }
    WEFT_REQUIRE(*out < entry->desc.rank, WEFT_E_SHAPE,
                 "%s: tensor \"%.200s\" is %s; it cannot be split along dimension %d",
                 wefti_source_path(source), entry->name, wefti_desc_text(&entry->desc).text, *out);
    return WEFT_OK;
}

/* An optimizer's tensor with another shape than its parameter cannot be split like the parameter,
 * and is most likely not whole either: the caller must name it. */
static weft_status check_other_shapes(const wefti_source *source, const int *dimensions) {
    for (int64_t k = 0; k < wefti_source_count(source); k++) {
        const wefti_safetensors_entry *entry = wefti_source_at(source, k);
        if (dimensions[k] != WEFTI_SLICE_UNSAID || weft_desc_elems(&entry->desc) <= 1) continue;
        const wefti_safetensors_entry *parameter = named_before(source, entry->name);
        int64_t number = parameter ? parameter - wefti_source_at(source, 0) : k;
        WEFT_REQUIRE(dimensions[number] < 0, WEFT_E_SHAPE,
                     "tensor \"%.200s\" is %s: say along which dimension it is split, because its "
                     "parameter \"%.200s\", %s, is split along dimension %d",
                     entry->name, wefti_desc_text(&entry->desc).text, parameter->name,
                     wefti_desc_text(&parameter->desc).text, dimensions[number]);
    }
    return WEFT_OK;
}

static weft_status check_rules(const weft_checkpoint_slice_rule *rules, int count) {
    WEFT_REQUIRE(count >= 0, WEFT_E_ARG, "there are %d rules", count);
    for (int i = 0; i < count; i++) {
        WEFT_REQUIRE(*rules[i].match && wefti_glob_valid(rules[i].match), WEFT_E_ARG,
                     "'%.200s' is not a pattern for names of tensors", rules[i].match);
        WEFT_REQUIRE(rules[i].dimension >= WEFTI_SLICE_NONE && rules[i].dimension < WEFT_MAX_RANK,
                     WEFT_E_ARG,
                     "'%.200s' is split along dimension %d; there are 0 to %d, and -1 for none",
                     rules[i].match, rules[i].dimension, WEFT_MAX_RANK - 1);
    }
    return WEFT_OK;
}

weft_status wefti_slices_dimensions(const wefti_source *source,
                                    const weft_checkpoint_slice_rule *rules, int count, int *out) {
    WEFT_TRY(check_rules(rules, count));
    bool *matched;
    WEFT_NEW_ARRAY(matched, bool, count + 1);
    weft_status status = WEFT_OK;
    for (int64_t k = 0; k < wefti_source_count(source) && status >= 0; k++) {
        const wefti_safetensors_entry *entry = wefti_source_at(source, k);
        status = wefti_safetensors_check_known(wefti_source_path(source), entry);
        if (status >= 0) status = find_dimension(source, entry, rules, count, matched, &out[k]);
    }
    for (int i = 0; i < count && status >= 0; i++)
        if (!matched[i])
            status = WEFT_RAISE(WEFT_E_ARG, "'%.200s' matches no tensor of %s", rules[i].match,
                                wefti_source_path(source));
    wefti_free(matched);
    return status < 0 ? status : check_other_shapes(source, out);
}

wefti_runs wefti_runs_of(const weft_desc *desc, int dimension) {
    wefti_runs runs = {1, desc->shape[dimension], (int64_t)weft_dtype_bytes(desc->dtype)};
    for (int d = 0; d < dimension; d++) runs.outer *= desc->shape[d];
    for (int d = dimension + 1; d < desc->rank; d++) runs.inner *= desc->shape[d];
    return runs;
}

bool wefti_slices_own(const char *key) {
    return !strcmp(key, WEFTI_SLICE_RANK) || !strcmp(key, WEFTI_SLICE_RANKS);
}

weft_status wefti_slices_check_new(const char *path) {
    WEFT_REQUIRE(!wefti_exists(path), WEFT_E_ARG, "%s exists; nothing is written over it", path);
    return WEFT_OK;
}

void wefti_slices_tell(wefti_text *text, bool json, bool first, const wefti_safetensors_item *item,
                       const char *verb, int dimension) {
    if (!json) {
        wefti_text_add(text, "  %-48s %-24s ", item->name, wefti_desc_text(&item->desc).text);
        if (dimension < 0) wefti_text_add(text, "whole\n");
        if (dimension >= 0) wefti_text_add(text, "%s along dimension %d\n", verb, dimension);
        return;
    }
    wefti_text_add(text, "%s{\"name\": ", first ? "" : ", ");
    wefti_json_quote(text, item->name);
    wefti_text_add(text, ", \"dtype\": \"%s\", \"shape\": [",
                   wefti_safetensors_dtype_name(item->desc.dtype));
    for (int d = 0; d < item->desc.rank; d++)
        wefti_text_add(text, d ? ", %lld" : "%lld", (long long)item->desc.shape[d]);
    if (dimension < 0) wefti_text_add(text, "], \"dimension\": null}");
    if (dimension >= 0) wefti_text_add(text, "], \"dimension\": %d}", dimension);
}

weft_status wefti_slices_take(wefti_text *text, char **out) {
    *out = wefti_text_take(text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for the report on the tensors");
    return WEFT_OK;
}

weft_status wefti_slices_give(weft_status status, char *text, char **out) {
    if (status >= 0 && out)
        *out = text;
    else
        wefti_free(text);
    return status;
}
