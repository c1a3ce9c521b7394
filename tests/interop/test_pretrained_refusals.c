/* Hugging Face directories that are refused: other forms of weights, extra, missing and wrong
 * tensors, and faults of memory and files. */
#include "pretrained_files.h"

#include "base/fault.h"

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

/* Every allocation, then every file call, fails in turn: a clean error and nothing left. What
 * succeeds has seen generation_config.json. */
static void faults(void **state) {
    (void)state;
    files f;
    files_of(&f, WEFT_FAMILY_LLAMA);
    write_all(&f);
    write_text(&f, "generation_config.json", "{\"eos_token_id\": [3]}");
    weft_graph *g;
    weft_session *s = session_of(&f.config, &g);
    ASSERT_OK(wefti_pretrained_load(s, &f.config, f.path)); /* starts the session */
    for (int kind = 0; kind < (int)WEFTI_FAULT_KINDS; kind++) {
        int64_t nth = 0;
        for (bool failed = true; failed; nth++) {
            weft_model_config c;
            wefti_fault_arm((wefti_fault_kind)kind, nth, false, 0);
            weft_status status = wefti_pretrained_config(f.path, &c);
            if (status >= 0) assert_int_equal(c.ends[0], 3);
            if (status >= 0) status = wefti_pretrained_load(s, &f.config, f.path);
            failed = wefti_fault_count((wefti_fault_kind)kind) > nth;
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_forms),
        cmocka_unit_test(unknown_extras),
        cmocka_unit_test(missing_tensors),
        cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(nothing_is_half_loaded),
        cmocka_unit_test(wrong_directories),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
