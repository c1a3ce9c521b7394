/* Directories with adapters: the adapters of a run in PEFT's form, and models whose weights hold
 * what their adapters add. One tensor at a time is in memory. The directory appears when it is
 * complete.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/json/json.h"
#include "checkpoint/side_files.h"
#include "interop/config.h"
#include "interop/pretrained.h"
#include "models/family.h"
#include "models/models.h"
#include "tensor/tensor.h"
#include "weft/checkpoint.h"

enum { TENSOR_NAME = 512 };

/* A tensor to write. */
typedef struct adapted {
    const wefti_safetensors_entry *entry;
    const wefti_safetensors_entry *down, *up; /* the adapter's A and B; NULL: none */
    double scale;
    bool columns; /* the weight is [in, out], as gpt2's are */
} adapted;

typedef struct directory {
    char *path; /* of the adapters */
    char *base; /* of the other tensors */
    bool peft;  /* the adapters are in PEFT's form */
    weft_model_config config;
    wefti_tensor_set *adapters, *model;
    wefti_safetensors_item *items;
    adapted *outputs;
    char *names; /* [count][TENSOR_NAME], of adapters that are written alone */
    int64_t count;
} directory;

static void close_all(directory *d) {
    if (d->model != d->adapters) wefti_tensor_set_close(d->model);
    wefti_tensor_set_close(d->adapters);
    wefti_free(d->path);
    wefti_free(d->base);
    wefti_free(d->items);
    wefti_free(d->outputs);
    wefti_free(d->names);
}

/* ---- reading ---- */

weft_status wefti_adapter_open(const char *directory, wefti_tensor_set **out) {
    char *path = wefti_format("%s/adapter_model.safetensors", directory);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_tensor_set_open(path, out);
    wefti_free(path);
    return status;
}

static weft_status is_peft(const char *path, bool *out) {
    char *file = wefti_format("%s/adapter_config.json", path);
    WEFT_REQUIRE(file, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_look_for(file, out);
    wefti_free(file);
    return status;
}

/* A step of a run, or a directory as it is. Damaged newer steps are passed over. */
static weft_status find_model(const char *directory, char **out) {
    char *note = NULL;
    const weft_status status = wefti_pretrained_path(directory, out, &note);
    wefti_free(note);
    return status;
}

static weft_status open_adapters(directory *d, const char *from, const char *base) {
    WEFT_REQUIRE(base, WEFT_E_ARG, "%s holds adapters alone: name the model below them (--base)",
                 from);
    d->path = wefti_strdup(from);
    WEFT_REQUIRE(d->path, WEFT_E_NOMEM, "no memory for a path");
    WEFT_TRY(find_model(base, &d->base));
    WEFT_TRY(wefti_pretrained_config(d->base, &d->config));
    WEFT_REQUIRE(!d->config.lora.rank, WEFT_E_ARG, "%s has adapters of its own: merge them first",
                 base);
    WEFT_TRY(wefti_adapter_read(from, &d->config.lora));
    weft_status status = weft_model_complete(&d->config);
    if (status < 0) return wefti_prefix(status, "%s", from);
    WEFT_TRY(wefti_adapter_open(d->path, &d->adapters));
    return wefti_tensor_set_open(d->base, &d->model);
}

static weft_status open_all(directory *d, const char *from, const char *base) {
    WEFT_TRY(is_peft(from, &d->peft));
    if (d->peft) return open_adapters(d, from, base);
    WEFT_TRY(find_model(from, &d->path));
    d->base = wefti_strdup(d->path);
    WEFT_REQUIRE(d->base, WEFT_E_NOMEM, "no memory for a path");
    WEFT_TRY(wefti_pretrained_config(d->path, &d->config));
    WEFT_REQUIRE(d->config.lora.rank, WEFT_E_NOT_FOUND, "%s has no adapters", d->path);
    WEFT_TRY(wefti_tensor_set_open(d->path, &d->adapters));
    d->model = d->adapters;
    return WEFT_OK;
}

static weft_status bare_name(const directory *d, const char *name, char out[TENSOR_NAME]) {
    char plain[TENSOR_NAME];
    WEFT_REQUIRE(strlen(name) < sizeof plain, WEFT_E_NO_IMPL, "%s: a name of %zu bytes", d->path,
                 strlen(name));
    wefti_plain_name(name, plain);
    (void)snprintf(out, TENSOR_NAME, "%s", wefti_bare_name(&d->config, plain));
    return WEFT_OK;
}

/* The adapter's tensor `part`, "lora_A", of the weight with this bare name; NULL: none. */
static weft_status find_adapter(const directory *d, const char *weight, const char *part,
                                const wefti_safetensors_entry **out) {
    char wanted[TENSOR_NAME + 16], name[TENSOR_NAME];
    const size_t length = strlen(weight), end = strlen(".weight");
    *out = NULL;
    if (length <= end || strcmp(weight + length - end, ".weight") != 0) return WEFT_OK;
    (void)snprintf(wanted, sizeof wanted, "%.*s.%s.weight", (int)(length - end), weight, part);
    for (int64_t i = 0; i < wefti_tensor_set_count(d->adapters); i++) {
        const wefti_safetensors_entry *e = wefti_tensor_set_at(d->adapters, i);
        if (!strstr(e->name, part)) continue;
        WEFT_TRY(bare_name(d, e->name, name));
        if (!strcmp(name, wanted)) *out = e;
    }
    return WEFT_OK;
}

static weft_status check_floats(const directory *d, const wefti_safetensors_entry *e) {
    WEFT_REQUIRE(e->desc.rank >= 0 && wefti_dtype_is_float(e->desc.dtype), WEFT_E_NO_IMPL,
                 "%s: %s is %s: weft reads F32, BF16, F16 and F64", d->path, e->name, e->dtype);
    return WEFT_OK;
}

/* W [out, in] or [in, out], A [rank, in], B [out, rank]. */
static weft_status check_shapes(const directory *d, const adapted *o) {
    const weft_desc *w = &o->entry->desc, *a = &o->down->desc, *b = &o->up->desc;
    WEFT_TRY(check_floats(d, o->entry));
    WEFT_TRY(check_floats(d, o->down));
    WEFT_TRY(check_floats(d, o->up));
    const int64_t rank = d->config.lora.rank;
    WEFT_REQUIRE(w->rank == 2 && a->rank == 2 && b->rank == 2 && a->shape[0] == rank &&
                     b->shape[1] == rank && a->shape[1] == w->shape[o->columns ? 0 : 1] &&
                     b->shape[0] == w->shape[o->columns ? 1 : 0],
                 WEFT_E_SHAPE, "%s: the adapter of %s does not fit: %s is %s, A %s and B %s",
                 d->path, o->entry->name, o->entry->name, wefti_desc_text(w).text,
                 wefti_desc_text(a).text, wefti_desc_text(b).text);
    return WEFT_OK;
}

static weft_status add(directory *d, const char *name, const adapted *o) {
    adapted *kept = &d->outputs[d->count];
    *kept = *o;
    WEFT_REQUIRE(o->entry->desc.rank >= 0, WEFT_E_NO_IMPL, "%s: %s is %s, which weft cannot write",
                 d->path, o->entry->name, o->entry->dtype);
    d->items[d->count++] = (wefti_safetensors_item){name, o->entry->desc, kept};
    return WEFT_OK;
}

static weft_status make_room(directory *d) {
    const int64_t room = wefti_tensor_set_count(d->model) + 1;
    WEFT_NEW_ARRAY(d->items, wefti_safetensors_item, room);
    WEFT_NEW_ARRAY(d->outputs, adapted, room);
    return WEFT_OK;
}

static weft_status list_merged(directory *d) {
    const weft_lora *l = &d->config.lora;
    int64_t used = 0, all = 0;
    char name[TENSOR_NAME];
    WEFT_TRY(make_room(d));
    for (int64_t i = 0; i < wefti_tensor_set_count(d->model); i++) {
        adapted o = {.entry = wefti_tensor_set_at(d->model, i),
                     .scale = l->alpha / (double)l->rank,
                     .columns = wefti_family_style_of(d->config.family) == WEFTI_STYLE_GPT2};
        if (wefti_lora_is_adapter(o.entry->name)) continue;
        WEFT_TRY(bare_name(d, o.entry->name, name));
        WEFT_TRY(find_adapter(d, name, "lora_A", &o.down));
        WEFT_TRY(find_adapter(d, name, "lora_B", &o.up));
        if (o.down && o.up) {
            WEFT_TRY(check_shapes(d, &o));
            used += 2;
        }
        WEFT_TRY(add(d, o.entry->name, &o));
    }
    for (int64_t i = 0; i < wefti_tensor_set_count(d->adapters); i++)
        all += d->peft || wefti_lora_is_adapter(wefti_tensor_set_at(d->adapters, i)->name);
    WEFT_REQUIRE(used == all && all > 0, WEFT_E_SHAPE,
                 "%s: %lld of %lld tensors are adapters of weights in %s", d->path, (long long)used,
                 (long long)all, d->base);
    return WEFT_OK;
}

/* PEFT puts base_model.model. before the names of the model's class. */
static weft_status list_adapters(directory *d) {
    WEFT_TRY(make_room(d));
    d->names = wefti_alloc((size_t)wefti_tensor_set_count(d->adapters) * TENSOR_NAME + 1);
    WEFT_REQUIRE(d->names, WEFT_E_NOMEM, "no memory for the names of adapters");
    for (int64_t i = 0; i < wefti_tensor_set_count(d->adapters); i++) {
        const adapted o = {.entry = wefti_tensor_set_at(d->adapters, i)};
        char *name = d->names + d->count * TENSOR_NAME;
        if (!wefti_lora_is_adapter(o.entry->name)) continue;
        const int needed = snprintf(name, TENSOR_NAME, "base_model.model.%s", o.entry->name);
        WEFT_REQUIRE(needed >= 0 && needed < TENSOR_NAME, WEFT_E_NO_IMPL, "a name of %d bytes",
                     needed);
        WEFT_TRY(add(d, name, &o));
    }
    return WEFT_OK;
}

/* ---- writing ---- */

static weft_status read_floats(const wefti_safetensors_entry *e, float *out) {
    const int64_t count = weft_desc_elems(&e->desc);
    char *bytes = wefti_alloc((size_t)e->bytes + 1);
    WEFT_REQUIRE(bytes, WEFT_E_NOMEM, "no memory for %s", e->name);
    weft_status status = wefti_reader_at(e->reader, e->at, e->bytes, bytes);
    if (status >= 0) wefti_convert(WEFT_F32, out, e->desc.dtype, bytes, count);
    wefti_free(bytes);
    return status;
}

/* up_rows [out][rank] -> out [rank][out] */
static void transpose(const float *b, int64_t rows, int64_t rank, float *out) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t r = 0; r < rank; r++) out[r * rows + i] = b[i * rank + r];
}

/* Adds scale * sum over r of left[r][row] * right[r][col] to each row of the weight in `room`. */
static void add_product(const adapted *o, const float *left, const float *right, double *row,
                        int64_t rank, void *room) {
    const weft_desc *w = &o->entry->desc;
    const int64_t rows = w->shape[0], cols = w->shape[1];
    for (int64_t i = 0; i < rows; i++) {
        char *at = (char *)room + (size_t)(i * cols) * weft_dtype_bytes(w->dtype);
        wefti_convert(WEFT_F64, row, w->dtype, at, cols);
        for (int64_t r = 0; r < rank; r++) {
            const double factor = o->scale * (double)left[r * rows + i];
            for (int64_t c = 0; c < cols; c++) row[c] += factor * (double)right[r * cols + c];
        }
        wefti_convert(w->dtype, at, WEFT_F64, row, cols);
    }
}

static weft_status merge(const adapted *o, void *room) {
    const int64_t rank = o->down->desc.shape[0], in = o->down->desc.shape[1],
                  out = o->up->desc.shape[0], cols = o->entry->desc.shape[1];
    float *a = wefti_alloc((size_t)(rank * in + 2 * rank * out) * sizeof *a + 1);
    double *row = wefti_alloc((size_t)cols * sizeof *row + 1);
    weft_status status =
        a && row ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for %s", o->entry->name);
    if (status >= 0) status = read_floats(o->down, a);
    if (status >= 0) status = read_floats(o->up, a + rank * in);
    if (status >= 0) {
        float *turned = a + rank * (in + out);
        transpose(a + rank * in, out, rank, turned);
        add_product(o, o->columns ? a : turned, o->columns ? turned : a, row, rank, room);
    }
    wefti_free(row);
    wefti_free(a);
    return status;
}

static weft_status make(const wefti_safetensors_item *item, void *room) {
    const adapted *o = item->data;
    WEFT_TRY(wefti_reader_at(o->entry->reader, o->entry->at, o->entry->bytes, room));
    return o->down && o->up ? merge(o, room) : WEFT_OK;
}

static int by_size_and_name(const void *a, const void *b) {
    const wefti_safetensors_item *x = a, *y = b;
    const size_t m = weft_dtype_bytes(x->desc.dtype), n = weft_dtype_bytes(y->desc.dtype);
    return m != n ? (m < n ? 1 : -1) : strcmp(x->name, y->name);
}

static weft_status write_text(const char *folder, const char *name, const char *text) {
    char *path = wefti_format("%s/%s", folder, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = wefti_file_write(path, text, strlen(text));
    wefti_free(path);
    return status;
}

static weft_status write_tensors(const directory *d, const char *folder, const char *name) {
    static const wefti_safetensors_pair torch = {"format", "pt"};
    char *path = wefti_format("%s/%s", folder, name);
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    if (d->count) qsort(d->items, (size_t)d->count, sizeof *d->items, by_size_and_name);
    weft_status status = wefti_safetensors_write_made(path, d->items, d->count, &torch, 1, make);
    wefti_free(path);
    return status;
}

static weft_status write_adapters(directory *d, const char *base, const char *folder) {
    const bool columns = wefti_family_style_of(d->config.family) == WEFTI_STYLE_GPT2;
    wefti_text t = {0};
    WEFT_TRY(list_adapters(d));
    WEFT_TRY(write_tensors(d, folder, "adapter_model.safetensors"));
    wefti_text_add(&t, "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", "
                       "\"base_model_name_or_path\": ");
    if (base)
        wefti_json_quote(&t, base);
    else
        wefti_text_add(&t, "null");
    wefti_text_add(&t, ", \"inference_mode\": true, \"bias\": \"none\", \"fan_in_fan_out\": %s, ",
                   columns ? "true" : "false");
    wefti_lora_write(&t, &d->config.lora);
    wefti_text_add(&t, "}\n");
    char *text = wefti_text_take(&t);
    WEFT_REQUIRE(text, WEFT_E_NOMEM, "no memory for adapter_config.json");
    weft_status status = write_text(folder, "adapter_config.json", text);
    wefti_free(text);
    return status;
}

/* The configuration of a model from elsewhere stays as it is. */
static weft_status write_merged(directory *d, const char *folder) {
    wefti_side_files side = {0};
    weft_model_config plain = d->config;
    char *text;
    plain.lora = (weft_lora){0};
    WEFT_TRY(list_merged(d));
    WEFT_TRY(write_tensors(d, folder, "model.safetensors"));
    weft_status status = wefti_side_files_add(
        &side, d->base, d->peft ? WEFTI_SIDE_ALL : WEFTI_SIDE_MODEL | WEFTI_SIDE_TOKENIZER);
    if (status >= 0) status = wefti_side_files_write(&side, folder);
    wefti_side_files_free(&side);
    if (status < 0 || d->peft) return status;
    WEFT_TRY(weft_model_config_write(&plain, &text));
    status = write_text(folder, "config.json", text);
    weft_text_free(text);
    return status;
}

static weft_status write_all(directory *d, bool merged, const char *base, const char *partial,
                             const char *out) {
    WEFT_TRY(wefti_check_new(out));
    WEFT_TRY(wefti_remove_tree(partial)); /* of a process that was killed */
    WEFT_TRY(wefti_dir_make(partial));
    weft_status status = merged ? write_merged(d, partial) : write_adapters(d, base, partial);
    if (status >= 0) status = wefti_dir_sync(partial);
    if (status >= 0) return wefti_rename(partial, out);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (wefti_remove_tree(partial) < 0) wefti_error_clear();
    return wefti_failure_tell(&failure);
}

static weft_status convert(const char *from, const char *base, const char *out, bool merged) {
    directory d = {0};
    WEFT_REQUIRE(from && *from && out && *out, WEFT_E_ARG,
                 "adapters need a source and a directory");
    char *partial = wefti_format("%s.partial", out);
    weft_status status = partial ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a path");
    if (status >= 0) status = open_all(&d, from, base);
    if (status >= 0) status = write_all(&d, merged, base, partial, out);
    close_all(&d);
    wefti_free(partial);
    return status;
}

weft_status weft_checkpoint_adapter(const char *from, const char *base, const char *out) {
    return convert(from, base, out, false);
}

weft_status weft_checkpoint_merge_adapter(const char *from, const char *base, const char *out) {
    return convert(from, base, out, true);
}
