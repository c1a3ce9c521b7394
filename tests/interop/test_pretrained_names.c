/* Names of tensors in Hugging Face directories: prefixes, wrappers, old names, matrices that two
 * names share, and extra tensors that are allowed. */
#include "pretrained_files.h"

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
        const char *part = "parts/model-00001-of-00001.safetensors";
        char path[512], entry[160];
        (void)snprintf(path, sizeof path, "%s/parts", f.path);
        ASSERT_OK(wefti_dir_make(path));
        write_tensors(&f, part, f.items, f.count);
        (void)snprintf(entry, sizeof entry, "\"%s\": \"%s\", ", cases[i].table, part);
        write_index(&f, entry, 0, NULL, part);
        assert_loads(&f);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_without_prefix),
        cmocka_unit_test(names_of_wrappers),
        cmocka_unit_test(norms_of_old),
        cmocka_unit_test(own_output),
        cmocka_unit_test(tied_once),
        cmocka_unit_test(bias_of_decoder),
        cmocka_unit_test(known_extras),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
