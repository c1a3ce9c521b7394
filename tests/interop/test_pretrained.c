/* Starting from Hugging Face directories: names with and without the base model's prefix, element
 * types, shards, and allowed and refused extra tensors. If WEFT_TEST_PEERS names a directory made
 * by bench/peers/make_tiny.py, logits are compared with the logits of transformers. */
#include "support.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <math.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "tensor/tensor.h"
#include "data/array.h"
#include "interop/pretrained.h"
#include "setup/setup.h"

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

static weft_session *session_of(const weft_model_config *c, weft_graph **out_graph) {
    weft_session_options o = weft_session_defaults();
    weft_session *s;
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    ASSERT_OK(weft_model_build(c, WEFT_USE_LOGITS, 1, 0, WEFT_F32, out_graph));
    ASSERT_OK(weft_session_create(*out_graph, &o, &s));
    return s;
}

/* Values that every element type of a file holds exactly: small multiples of 1/16. */
static float value_of(int64_t tensor, int64_t element) {
    return (float)((tensor * 7 + element * 3) % 41 - 20) / 16.0f;
}

/* Elements `first` and on of the session's tensor. */
static void add_part(files *f, const char *name, weft_desc desc, int64_t number, int64_t first) {
    int64_t k = f->count++, elems = weft_desc_elems(&desc);
    (void)snprintf(f->names[k], sizeof f->names[k], "%s", name);
    f->values[k] = malloc((size_t)elems * sizeof(float));
    assert_non_null(f->values[k]);
    for (int64_t i = 0; i < elems; i++) f->values[k][i] = value_of(number, first + i);
    f->items[k] = (wefti_safetensors_item){f->names[k], desc, f->values[k]};
}

static void add_item(files *f, const char *name, weft_desc desc, int64_t number) {
    add_part(f, name, desc, number, 0);
}

static void files_of(files *f, weft_family family) {
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

static void files_end(files *f) {
    for (int64_t i = 0; i < f->count; i++) free(f->values[i]);
    ASSERT_OK(wefti_remove_tree(f->path));
}

static void write_text(const files *f, const char *name, const char *text) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", f->path, name);
    ASSERT_OK(wefti_file_write(path, text, strlen(text)));
}

static void write_tensors(const files *f, const char *name, const wefti_safetensors_item *items,
                          int64_t count) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", f->path, name);
    ASSERT_OK(wefti_safetensors_write(path, items, count, NULL, 0));
}

/* config.json and model.safetensors. */
static void write_all(const files *f) {
    char *config;
    ASSERT_OK(weft_model_config_write(&f->config, &config));
    write_text(f, "config.json", config);
    weft_text_free(config);
    write_tensors(f, "model.safetensors", f->items, f->count);
}

static weft_status load(const files *f) {
    weft_graph *g;
    weft_session *s = session_of(&f->config, &g);
    weft_status status = wefti_pretrained_load(s, &f->config, f->path);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    return status;
}

/* Configuration and every parameter arrive. */
static void assert_loads(const files *f) {
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

static void every_family(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        files f;
        files_of(&f, families[i]);
        write_all(&f);
        assert_loads(&f);
        files_end(&f);
    }
}

/* qkv_bias: false leaves out three biases of each layer. */
static void vit_without_biases(void **state) {
    (void)state;
    int64_t counts[2];
    for (int bare = 0; bare < 2; bare++) {
        weft_model_config c = {.family = WEFT_FAMILY_VIT,
                               .layers = 2,
                               .hidden = 8,
                               .heads = 2,
                               .ffn = 12,
                               .patch = 2,
                               .image = {1, 4, 4},
                               .classes = 3,
                               .no_qkv_bias = bare};
        weft_graph *g;
        ASSERT_OK(weft_model_complete(&c));
        weft_session *s = session_of(&c, &g);
        counts[bare] = 0;
        for (int i = 0; i < weft_session_tensors(s, 0); i++) {
            weft_tensor_info t;
            ASSERT_OK(weft_session_tensor(s, 0, i, &t));
            counts[bare] += t.role == WEFT_ROLE_PARAM;
            assert_false(bare && strstr(t.name, "attention.attention.query.bias"));
        }
        weft_session_destroy(s);
        weft_graph_destroy(g);
    }
    assert_int_equal(counts[0] - counts[1], 2 * 3);
}

/* The directory gives the dropout rate, unless the job sets one; 0 counts as a rate. */
static void dropout_of_job_or_files(void **state) {
    (void)state;
    static const struct {
        const char *word;
        double rate;
        const char *printed;
    } cases[] = {{"model.dropout=auto", 0.25, "dropout: auto\n"},
                 {"model.dropout=0", 0, "dropout: 0\n"},
                 {"model.dropout=0.5", 0.5, "dropout: 0.5\n"}};
    files f;
    files_of(&f, WEFT_FAMILY_GPT2);
    f.config.dropout = 0.25;
    write_all(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char from[300];
        (void)snprintf(from, sizeof from, "model.from=%s", f.path);
        const char *words[] = {from, cases[i].word};
        weft_job *job;
        ASSERT_OK(weft_job_load(NULL, words, 2, &job));
        assert_non_null(strstr(job->text, cases[i].printed));
        wefti_setup alone = {.context = NULL};
        wefti_built t = {.setup = &alone, .job = job};
        ASSERT_OK(wefti_built_configure(&t));
        assert_true(t.model.config.dropout == cases[i].rate);
        wefti_built_close(&t);
        wefti_setup_close(&alone);
        weft_job_free(job);
    }
    /* The directory's rates may differ; a rate of the job holds everywhere. */
    char path[300], from[300], *text;
    int64_t bytes;
    (void)snprintf(path, sizeof path, "%s/config.json", f.path);
    ASSERT_OK(wefti_file_read(path, 1 << 20, &text, &bytes));
    memcpy(strstr(strstr(text, "embd_pdrop"), "0.25"), "0.35", 4);
    ASSERT_OK(wefti_file_write(path, text, (size_t)bytes));
    wefti_free(text);
    (void)snprintf(from, sizeof from, "model.from=%s", f.path);
    for (int set = 0; set < 2; set++) {
        const char *words[] = {from, "model.dropout=0.5"};
        weft_job *job;
        ASSERT_OK(weft_job_load(NULL, words, 1 + set, &job));
        wefti_setup alone = {.context = NULL};
        wefti_built t = {.setup = &alone, .job = job};
        ASSERT_OK(wefti_built_configure(&t));
        assert_true(t.model.config.dropout == (set ? 0.5 : 0.25));
        assert_int_equal(t.model.config.dropout_apart, !set);
        if (!set) assert_true(t.model.config.embedding_dropout == 0.35);
        wefti_built_close(&t);
        wefti_setup_close(&alone);
        weft_job_free(job);
    }
    files_end(&f);
}

/* Names as wrappers of torch leave them: all of the tensors, some of them, in the middle. */
static void names_of_wrappers(void **state) {
    (void)state;
    static const char *const before[] = {"_orig_mod.", "module.", "module._orig_mod.",
                                         "_orig_mod.module.", "_fsdp_wrapped_module."};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        files f;
        files_of(&f, WEFT_FAMILY_LLAMA);
        for (int64_t k = 0; k < f.count; k++) {
            char *name = f.names[k], old[160], *layer = strstr(name, "self_attn.");
            (void)snprintf(old, sizeof old, "%s", name);
            (void)snprintf(name, sizeof f.names[k], "%s%.*s%s%s", before[i],
                           layer ? (int)(layer - name) : (int)strlen(name), old,
                           layer ? "_checkpoint_wrapped_module." : "",
                           layer ? old + (layer - name) : "");
        }
        write_all(&f);
        assert_loads(&f);
        files_end(&f);
    }
    files f;
    files_of(&f, WEFT_FAMILY_GPT2);
    add_item(&f, "_orig_mod.transformer.ln_f.bias", weft_desc_of(WEFT_F32, 1, (int64_t[]){8}), 1);
    write_all(&f);
    ASSERT_FAILS(WEFT_E_CORRUPT, "_orig_mod.transformer.ln_f.bias", load(&f)); /* twice */
    files_end(&f);
}

static void names_without_prefix(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        files f;
        files_of(&f, families[i]);
        for (int64_t k = 0; k < f.count; k++) {
            char other[160];
            if (weft_model_file_alias(&f.config, f.names[k], 0, other, sizeof other) == WEFT_OK)
                (void)snprintf(f.names[k], sizeof f.names[k], "%s", other);
        }
        write_all(&f);
        assert_loads(&f);
        files_end(&f);
    }
}

static void norms_of_old(void **state) {
    (void)state;
    files f;
    int renamed = 0;
    files_of(&f, WEFT_FAMILY_BERT);
    for (int64_t k = 0; k < f.count; k++) {
        char *at = strstr(f.names[k], "LayerNorm.weight");
        if (at) renamed++, memcpy(at, "LayerNorm.gamma", 16);
        at = strstr(f.names[k], "LayerNorm.bias");
        if (at) memcpy(at, "LayerNorm.beta", 15);
    }
    assert_int_equal(renamed, 6);
    write_all(&f);
    assert_loads(&f);
    files_end(&f);
}

static void element_types(void **state) {
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_BF16, WEFT_F16, WEFT_F64};
    for (int d = 0; d < 3; d++) {
        files f;
        void *narrow[TENSORS];
        files_of(&f, WEFT_FAMILY_GPT2);
        for (int64_t k = 0; k < f.count; k++) {
            int64_t elems = weft_desc_elems(&f.items[k].desc);
            narrow[k] = malloc((size_t)elems * 8);
            assert_non_null(narrow[k]);
            wefti_convert(dtypes[d], narrow[k], WEFT_F32, f.values[k], elems);
            f.items[k].desc.dtype = dtypes[d];
            f.items[k].data = narrow[k];
        }
        write_all(&f);
        assert_loads(&f);
        for (int64_t k = 0; k < f.count; k++) free(narrow[k]);
        files_end(&f);
    }
}

static void shards(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_LLAMA);
    write_all(&f);
    char path[512];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f.path);
    assert_int_equal(unlink(path), 0);
    int64_t half = f.count / 2;
    write_tensors(&f, "model-00001-of-00002.safetensors", f.items, half);
    write_tensors(&f, "model-00002-of-00002.safetensors", f.items + half, f.count - half);
    wefti_text index = {0};
    wefti_text_add(&index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int64_t k = 0; k < f.count; k++)
        wefti_text_add(&index, "%s\"%s\": \"model-0000%d-of-00002.safetensors\"", k ? ", " : "",
                       f.names[k], k < half ? 1 : 2);
    wefti_text_add(&index, "}}");
    char *text = wefti_text_take(&index);
    write_text(&f, "model.safetensors.index.json", text);
    wefti_free(text);
    assert_loads(&f);
    files_end(&f);
}

static int64_t item_named(const files *f, const char *name) {
    for (int64_t k = 0; k < f->count; k++)
        if (!strcmp(f->names[k], name)) return k;
    fail_msg("no tensor %s", name);
    return -1;
}

/* Adds a tensor with the values of the item `of`; `moved` is added to the last one. */
static void add_copy(files *f, const char *name, const char *of, float moved) {
    int64_t from = item_named(f, of), elems = weft_desc_elems(&f->items[from].desc);
    add_item(f, name, f->items[from].desc, 0);
    float *values = f->values[f->count - 1];
    memcpy(values, f->values[from], (size_t)elems * sizeof *values);
    values[elems - 1] += moved;
}

/* The configuration says that the output uses the embedding. If the files hold another matrix for
 * the output, it counts, as in transformers. An equal one is a copy. */
static void own_output(void **state) {
    (void)state;
    static const struct {
        weft_family family;
        const char *table, *head, *name;
    } cases[] = {
        {WEFT_FAMILY_GPT2, "transformer.wte.weight", "lm_head.weight", "lm_head.weight"},
        {WEFT_FAMILY_LLAMA, "model.embed_tokens.weight", "lm_head.weight", "lm_head.weight"},
        {WEFT_FAMILY_QWEN2, "model.embed_tokens.weight", "lm_head.weight", "lm_head.weight"},
        {WEFT_FAMILY_BERT, "bert.embeddings.word_embeddings.weight",
         "cls.predictions.decoder.weight", "cls.predictions.decoder.weight"}};
    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        const bool other = i % 2;
        files f;
        weft_model_config c;
        weft_graph *g;
        float head[11 * 8];
        files_of(&f, cases[i / 2].family);
        if (cases[i / 2].family == WEFT_FAMILY_LLAMA || cases[i / 2].family == WEFT_FAMILY_QWEN2) {
            f.config.tied = true; /* the files were made untied: the head's item is last */
            int64_t k = item_named(&f, "lm_head.weight");
            float *values = f.values[k];
            f.count--;
            f.items[k] = f.items[f.count], f.values[k] = f.values[f.count];
            memmove(f.names[k], f.names[f.count], sizeof f.names[k]);
            f.items[k].name = f.names[k];
            free(values);
        }
        add_copy(&f, cases[i / 2].head, cases[i / 2].table, other ? 1 : 0);
        write_all(&f);
        ASSERT_OK(wefti_pretrained_config(f.path, &c));
        assert_int_equal(c.tied, !other);
        weft_session *s = session_of(&c, &g);
        ASSERT_OK(wefti_pretrained_load(s, &c, f.path));
        if (other) {
            ASSERT_OK(weft_session_read(s, 0, cases[i / 2].name, head, sizeof head));
            assert_memory_equal(head, f.values[f.count - 1], sizeof head);
            ASSERT_FAILS(WEFT_E_NO_IMPL, f.path, load(&f)); /* into a tied model */
        } else {
            ASSERT_OK(load(&f));
        }
        weft_session_destroy(s);
        weft_graph_destroy(g);
        files_end(&f);
    }
}

/* safetensors' save_model keeps one of the names of a tied matrix. Indexes may list both. */
static void tied_once(void **state) {
    (void)state;
    static const struct {
        weft_family family;
        const char *table, *head;
    } cases[] = {{WEFT_FAMILY_GPT2, "transformer.wte.weight", "lm_head.weight"},
                 {WEFT_FAMILY_QWEN2, "model.embed_tokens.weight", "lm_head.weight"},
                 {WEFT_FAMILY_BERT, "bert.embeddings.word_embeddings.weight",
                  "cls.predictions.decoder.weight"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        files f;
        files_of(&f, cases[i].family);
        if (cases[i].family == WEFT_FAMILY_QWEN2) {
            f.config.tied = true;
            int64_t k = item_named(&f, "lm_head.weight");
            free(f.values[k]);
            f.count--;
            f.items[k] = f.items[f.count], f.values[k] = f.values[f.count];
            memmove(f.names[k], f.names[f.count], sizeof f.names[k]);
            f.items[k].name = f.names[k];
        }
        const int64_t table = item_named(&f, cases[i].table);
        (void)snprintf(f.names[table], sizeof f.names[table], "%s", cases[i].head);
        write_all(&f);
        assert_loads(&f);
        /* The same with an index that lists the table, which is in no file. */
        char path[512];
        (void)snprintf(path, sizeof path, "%s/model.safetensors", f.path);
        assert_int_equal(unlink(path), 0);
        (void)snprintf(path, sizeof path, "%s/parts", f.path);
        ASSERT_OK(wefti_dir_make(path));
        write_tensors(&f, "parts/model-00001-of-00001.safetensors", f.items, f.count);
        wefti_text index = {0};
        wefti_text_add(&index, "{\"weight_map\": {\"%s\": \"parts/%s\"", cases[i].table,
                       "model-00001-of-00001.safetensors");
        for (int64_t k = 0; k < f.count; k++)
            wefti_text_add(&index, ", \"%s\": \"parts/model-00001-of-00001.safetensors\"",
                           f.names[k]);
        wefti_text_add(&index, "}}");
        char *text = wefti_text_take(&index);
        write_text(&f, "model.safetensors.index.json", text);
        wefti_free(text);
        assert_loads(&f);
        files_end(&f);
    }
}

/* What to do is said for each form of weights that is not read. */
static void other_forms(void **state) {
    (void)state;
    static const struct {
        const char *file, *says;
    } cases[] = {{"pytorch_model.bin", "save_pretrained"},
                 {"pytorch_model-00001-of-00002.bin", "save_pretrained"},
                 {"pytorch_model.bin.index.json", "download"},
                 {"model.pt", "save_file"},
                 {"consolidated.00.pth", "save_file"},
                 {"model.fp16.safetensors", "model.safetensors"},
                 {"model.safetensors.index.fp16.json", "model.safetensors.index.json"},
                 {"model.bf16-00001-of-00002.safetensors", "model.safetensors"},
                 {"adapter_model.safetensors", "merge-adapter"},
                 {"model-q4.gguf", "gguf_file"},
                 {"tf_model.h5", "from_tf"},
                 {"notes.txt", "model.safetensors.index.json"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        files f;
        char path[512];
        weft_model_config c;
        files_of(&f, WEFT_FAMILY_GPT2);
        write_all(&f);
        (void)snprintf(path, sizeof path, "%s/model.safetensors", f.path);
        assert_int_equal(unlink(path), 0);
        write_text(&f, cases[i].file, "x");
        ASSERT_FAILS(WEFT_E_NOT_FOUND, cases[i].says, load(&f));
        if (strcmp(cases[i].file, "notes.txt") != 0) ASSERT_MESSAGE(cases[i].file);
        ASSERT_OK(wefti_pretrained_config(f.path, &c)); /* plans need no weights */
        files_end(&f);
    }
}

/* bert's output bias has two names. transformers computes with the decoder's. */
static void bias_of_decoder(void **state) {
    (void)state;
    files f;
    weft_graph *g;
    float bias[11];
    files_of(&f, WEFT_FAMILY_BERT);
    add_copy(&f, "cls.predictions.decoder.bias", "cls.predictions.bias", 1);
    write_all(&f);
    weft_session *s = session_of(&f.config, &g);
    ASSERT_OK(wefti_pretrained_load(s, &f.config, f.path));
    ASSERT_OK(weft_session_read(s, 0, "cls.predictions.bias", bias, sizeof bias));
    assert_memory_equal(bias, f.values[f.count - 1], sizeof bias);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    files_end(&f);
}

static void known_extras(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_GPT2);
    add_copy(&f, "lm_head.weight", "transformer.wte.weight", 0);
    add_item(&f, "transformer.h.0.attn.bias", weft_desc_of(WEFT_F32, 4, (int64_t[]){1, 1, 6, 6}),
             2);
    add_item(&f, "transformer.h.1.attn.masked_bias", weft_desc_of(WEFT_F32, 0, NULL), 3);
    write_all(&f);
    assert_loads(&f);
    files_end(&f);
}

static void unknown_extras(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_GPT2);
    add_item(&f, "transformer.h.2.ln_1.weight", weft_desc_of(WEFT_F32, 1, (int64_t[]){8}), 1);
    add_item(&f, "score.weight", weft_desc_of(WEFT_F32, 2, (int64_t[]){2, 8}), 2);
    write_all(&f);
    ASSERT_FAILS(WEFT_E_NO_IMPL, "score.weight", load(&f));
    ASSERT_MESSAGE("transformer.h.2.ln_1.weight");
    ASSERT_MESSAGE(f.path);
    files_end(&f);
}

static void missing_tensors(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_GPT2);
    char gone[160];
    (void)snprintf(gone, sizeof gone, "%s", f.names[3]);
    f.items[3] = f.items[f.count - 1]; /* the last one in its place */
    wefti_safetensors_item last = f.items[f.count - 1];
    f.count--;
    write_all(&f);
    f.count++;
    ASSERT_FAILS(WEFT_E_NOT_FOUND, gone, load(&f));
    write_tensors(&f, "model.safetensors", &last, 1);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, " and ", load(&f)); /* five names, then how many more */
    files_end(&f);
}

static void wrong_tensors(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_LLAMA);
    write_all(&f);
    f.config.vocab = 10; /* another model */
    ASSERT_FAILS(WEFT_E_SHAPE, "f32[11, 8], not f32[10, 8]", load(&f));
    f.config.vocab = 11;
    f.items[0].desc.dtype = WEFT_I32;
    write_all(&f);
    ASSERT_FAILS(WEFT_E_NO_IMPL, "I32", load(&f));
    files_end(&f);
}

/* A refused directory leaves the session's values alone. */
static void nothing_is_half_loaded(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_GPT2);
    add_item(&f, "zzz", weft_desc_of(WEFT_F32, 1, (int64_t[]){8}), 1);
    write_all(&f);
    weft_graph *g;
    weft_session *s = session_of(&f.config, &g);
    float before[11 * 8], after[11 * 8];
    ASSERT_OK(weft_session_read(s, 0, "wte.weight", before, sizeof before));
    ASSERT_FAILS(WEFT_E_NO_IMPL, "zzz", wefti_pretrained_load(s, &f.config, f.path));
    ASSERT_OK(weft_session_read(s, 0, "wte.weight", after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    files_end(&f);
}

static void wrong_directories(void **state) {
    (void)state;
    files f;
    weft_model_config c;
    files_of(&f, WEFT_FAMILY_GPT2);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "neither config.json nor", wefti_pretrained_config(f.path, &c));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "directory", wefti_pretrained_config("/does/not/exist", &c));
    write_text(&f, "config.json", "{\"model_type\": \"mamba\"}");
    ASSERT_FAILS(WEFT_E_NO_IMPL, "mamba", wefti_pretrained_config(f.path, &c));
    ASSERT_MESSAGE(f.path);
    write_text(&f, "config.json", "{\"model_type\"");
    ASSERT_FAILS(WEFT_E_CORRUPT, "config.json", wefti_pretrained_config(f.path, &c));
    ASSERT_FAILS(WEFT_E_CORRUPT, f.path, wefti_pretrained_config_file(f.path, &c));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "exist", wefti_pretrained_config_file("/does/not/exist", &c));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, f.path, load(&f)); /* a configuration but no weights */
    files_end(&f);
}

/* Every allocation, then every file call, fails in turn: a clean error and nothing left. */
static void faults(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_LLAMA);
    write_all(&f);
    weft_graph *g;
    weft_session *s = session_of(&f.config, &g);
    ASSERT_OK(wefti_pretrained_load(s, &f.config, f.path)); /* starts the session */
    for (int kind = 0; kind < (int)WEFTI_FAULT_KINDS; kind++) {
        int64_t nth = 0;
        for (weft_status status = WEFT_E_NOMEM; status < 0; nth++) {
            weft_model_config c;
            wefti_fault_arm((wefti_fault_kind)kind, nth, false, 0);
            status = wefti_pretrained_config(f.path, &c);
            if (status >= 0) status = wefti_pretrained_load(s, &f.config, f.path);
            wefti_fault_arm((wefti_fault_kind)kind, -1, false, 0);
            weft_status expected = kind == WEFTI_FAULT_ALLOC ? WEFT_E_NOMEM : WEFT_E_IO;
            bool unseen = kind == WEFTI_FAULT_IO && status == WEFT_E_NOT_FOUND; /* nothing there */
            if (status != WEFT_OK && status != expected && !unseen)
                fail_msg("fault %lld: %s: %s", (long long)nth, weft_status_text(status),
                         weft_error_message());
        }
        assert_true(nth > 3);
    }
    weft_session_destroy(s);
    weft_graph_destroy(g);
    files_end(&f);
}

/* ---- against transformers ---- */

static wefti_array npy(const char *folder, const char *name, char **data) {
    char path[600];
    int64_t bytes;
    wefti_array a;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    ASSERT_OK(wefti_file_read(path, INT32_MAX, data, &bytes));
    ASSERT_OK(wefti_npy_parse(path, (const unsigned char *)*data, bytes, &a));
    return a;
}

/* Feed ids.npy as tokens, or image.npy. */
static void feed_peer(weft_session *s, const char *name, const wefti_array *input) {
    void *data = malloc((size_t)input->elems * 4);
    assert_non_null(data);
    if (!strcmp(name, "tokens"))
        wefti_array_tokens(input, 0, input->elems, data);
    else
        wefti_array_scaled(input, 0, input->elems, data);
    ASSERT_OK(weft_session_feed(s, 0, name, data, (size_t)input->elems * 4));
    free(data);
}

static double worst_difference(const char *folder) {
    weft_model_config c;
    weft_graph *g;
    weft_session *s;
    char *input_data, *logits_data;
    ASSERT_OK(wefti_pretrained_config(folder, &c));
    bool language = weft_family_is_language(c.family);
    wefti_array input = npy(folder, language ? "ids.npy" : "image.npy", &input_data);
    wefti_array logits = npy(folder, "logits.npy", &logits_data);
    weft_session_options o = weft_session_defaults();
    o.optimizer.kind = WEFT_NO_OPTIMIZER;
    ASSERT_OK(weft_model_build(&c, WEFT_USE_LOGITS, input.shape[0], language ? input.shape[1] : 0,
                               WEFT_F32, &g));
    ASSERT_OK(weft_session_create(g, &o, &s));
    ASSERT_OK(wefti_pretrained_load(s, &c, folder));
    size_t bytes = (size_t)logits.elems * sizeof(float);
    float *got = malloc(bytes), *want = malloc(bytes);
    assert_true(got && want && logits.elems > 0);
    wefti_array_scaled(&logits, 0, logits.elems, want);
    feed_peer(s, language ? "tokens" : "image", &input);
    ASSERT_OK(weft_session_forward(s, 0, NULL));
    ASSERT_OK(weft_session_read(s, 0, "logits", got, bytes));
    double worst = 0;
    for (int64_t i = 0; i < logits.elems; i++) {
        double difference = fabs((double)got[i] - (double)want[i]);
        worst = difference <= worst ? worst : difference; /* NaN is kept */
    }
    free(got);
    free(want);
    weft_session_destroy(s);
    weft_graph_destroy(g);
    wefti_free(input_data);
    wefti_free(logits_data);
    return worst;
}

static void logits_of_transformers(void **state) {
    (void)state;
    const char *root = getenv("WEFT_TEST_PEERS");
    if (!root) {
        SKIP("WEFT_TEST_PEERS names no folder of bench/peers/make_tiny.py");
    }
    char **names;
    int64_t count, compared = 0;
    ASSERT_OK(wefti_dir_list(root, &names, &count));
    for (int64_t i = 0; i < count; i++) {
        char folder[512];
        (void)snprintf(folder, sizeof folder, "%s/%s", root, names[i]);
        if (wefti_is_dir(folder)) {
            double worst = worst_difference(folder);
            print_message("%-24s %.2e\n", names[i], worst);
            if (!(worst <= 1e-4)) fail_msg("%s: logits differ by %g", names[i], worst);
            compared++;
        }
    }
    wefti_free(names);
    assert_true(compared > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),
        cmocka_unit_test(vit_without_biases),
        cmocka_unit_test(dropout_of_job_or_files),
        cmocka_unit_test(names_without_prefix),
        cmocka_unit_test(names_of_wrappers),
        cmocka_unit_test(norms_of_old),
        cmocka_unit_test(element_types),
        cmocka_unit_test(shards),
        cmocka_unit_test(own_output),
        cmocka_unit_test(tied_once),
        cmocka_unit_test(other_forms),
        cmocka_unit_test(bias_of_decoder),
        cmocka_unit_test(known_extras),
        cmocka_unit_test(unknown_extras),
        cmocka_unit_test(missing_tensors),
        cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(nothing_is_half_loaded),
        cmocka_unit_test(wrong_directories),
        cmocka_unit_test(faults),
        cmocka_unit_test(logits_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
