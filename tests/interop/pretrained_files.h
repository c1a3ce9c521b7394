/* Directories in Hugging Face's form, as tests write them: config.json and safetensors. Each
 * element has a value that its place determines, so a test knows what a session must have read. */
#ifndef INTEROP_PRETRAINED_FILES_H
#define INTEROP_PRETRAINED_FILES_H

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "interop/pretrained.h"

enum { TENSORS = 64 };

/* A directory being written: its tensors, as f32 values. */
typedef struct files {
    char path[256];
    weft_model_config config;
    wefti_safetensors_item items[TENSORS];
    char names[TENSORS][160];
    float *values[TENSORS];
    int64_t count;
} files;

static inline weft_session *session_of(const weft_model_config *c, weft_graph **out_graph) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    ASSERT_OK(weft_model_build(c, WEFT_USE_LOGITS, 1, 0, WEFT_F32, out_graph));
    ASSERT_OK(weft_session_create(*out_graph, &o, &s));
    return s;
}

/* Values that every element type of a file holds exactly: small multiples of 1/16. */
static inline float value_of(int64_t tensor, int64_t element) {
    return (float)((tensor * 7 + element * 3) % 41 - 20) / 16.0f;
}

/* Elements `first` and on of the session's tensor. */
static inline void add_part(files *f, const char *name, weft_desc desc, int64_t number,
                            int64_t first) {
    int64_t k = f->count++, elems = weft_desc_elems(&desc);
    (void)snprintf(f->names[k], sizeof f->names[k], "%s", name);
    f->values[k] = malloc((size_t)elems * sizeof(float));
    assert_non_null(f->values[k]);
    for (int64_t i = 0; i < elems; i++) f->values[k][i] = value_of(number, first + i);
    f->items[k] = (wefti_safetensors_item){f->names[k], desc, f->values[k]};
}

static inline void add_item(files *f, const char *name, weft_desc desc, int64_t number) {
    add_part(f, name, desc, number, 0);
}

static inline void files_of(files *f, weft_family family) {
    memset(f, 0, sizeof *f);
    f->config = (weft_model_config){.family = family,
                                    .layers = 2,
                                    .hidden = 8,
                                    .heads = 2,
                                    .ffn = 12,
                                    .context = 6,
                                    .vocab = 11};
    if (family == WEFT_FAMILY_GPT2_MOE || family == WEFT_FAMILY_MIXTRAL) f->config.experts = 2;
    ASSERT_OK(weft_model_complete(&f->config));
    const char *base = getenv("TMPDIR");
    (void)snprintf(f->path, sizeof f->path, "%s/weft-pretrained-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(f->path));
    weft_graph *g;
    weft_session *s = session_of(&f->config, &g);
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        char name[160];
        weft_desc desc;
        int64_t first = 0;
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        for (int64_t part = 0; first < weft_desc_elems(&t.desc); part++) {
            ASSERT_OK(
                weft_model_file_name(&f->config, t.name, &t.desc, part, name, sizeof name, &desc));
            add_part(f, name, desc, i, first);
            first += weft_desc_elems(&desc);
        }
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

static inline void files_end(files *f) {
    for (int64_t i = 0; i < f->count; i++) free(f->values[i]);
    ASSERT_OK(wefti_remove_tree(f->path));
}

static inline void write_text(const files *f, const char *name, const char *text) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", f->path, name);
    ASSERT_OK(wefti_file_write(path, text, strlen(text)));
}

static inline void write_tensors(const files *f, const char *name,
                                 const wefti_safetensors_item *items, int64_t count) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", f->path, name);
    ASSERT_OK(wefti_safetensors_write(path, items, count, NULL, 0));
}

/* config.json and model.safetensors. */
static inline void write_all(const files *f) {
    char *config;
    ASSERT_OK(weft_model_config_write(&f->config, &config));
    write_text(f, "config.json", config);
    weft_text_free(config);
    write_tensors(f, "model.safetensors", f->items, f->count);
}

/* An index in place of model.safetensors: tensors up to number `half` are in `low`, others in
 * `high`. `before`: entries before those of the tensors, each with a comma. */
static inline void write_index(const files *f, const char *before, int64_t half, const char *low,
                               const char *high) {
    wefti_text index = {0};
    char path[512];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f->path);
    assert_int_equal(unlink(path), 0);
    wefti_text_add(&index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {%s", before);
    for (int64_t k = 0; k < f->count; k++)
        wefti_text_add(&index, "%s\"%s\": \"%s\"", k ? ", " : "", f->names[k],
                       k < half ? low : high);
    wefti_text_add(&index, "}}");
    write_text(f, "model.safetensors.index.json", index.data);
    wefti_text_free(&index);
}

static inline weft_status load(const files *f) {
    weft_graph *g;
    weft_session *s = session_of(&f->config, &g);
    weft_status status = wefti_pretrained_load(s, &f->config, f->path);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return status;
}

/* Configuration and every parameter arrive. */
static inline void assert_loads(const files *f) {
    weft_model_config config;
    weft_graph *g;
    ASSERT_OK(wefti_pretrained_config(f->path, &config));
    assert_int_equal(config.family, f->config.family);
    assert_int_equal(config.vocab, f->config.vocab);
    weft_session *s = session_of(&config, &g);
    ASSERT_OK(wefti_pretrained_load(s, &config, f->path));
    int parameters = 0;
    for (int i = 0; i < weft_session_tensors(s, 0); i++) {
        weft_tensor_info t;
        float values[1024];
        ASSERT_OK(weft_session_tensor(s, 0, i, &t));
        if (t.role != WEFT_ROLE_PARAM) continue;
        assert_true(t.bytes <= (int64_t)sizeof values);
        ASSERT_OK(weft_session_read(s, 0, t.name, values, (size_t)t.bytes));
        for (int64_t k = 0; k < t.bytes / 4; k++)
            if (values[k] != value_of(i, k))
                fail_msg("%s[%lld] is %g, not %g", t.name, (long long)k, (double)values[k],
                         (double)value_of(i, k));
        parameters++;
    }
    assert_true(parameters > 10);
    weft_session_destroy(s);
    weft_graph_destroy(g);
}

enum { FAMILIES = 9 };
static const weft_family families[FAMILIES] = {
    WEFT_FAMILY_GPT2,     WEFT_FAMILY_LLAMA,   WEFT_FAMILY_BERT,
    WEFT_FAMILY_GPT2_MOE, WEFT_FAMILY_MIXTRAL, WEFT_FAMILY_MISTRAL,
    WEFT_FAMILY_QWEN2,    WEFT_FAMILY_QWEN3,   WEFT_FAMILY_OLMO2};

#endif
