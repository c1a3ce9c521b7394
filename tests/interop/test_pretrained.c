/* Starting from Hugging Face directories: every family, its configuration, element types and
 * shards. If WEFT_TEST_PEERS names a directory made by bench/peers/make_tiny.py, logits are
 * compared with the logits of transformers. */
#include "pretrained_files.h"

#include <math.h>
#include <stdint.h>

#include "data/array.h"
#include "setup/setup.h"
#include "tensor/tensor.h"

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
    const char *low = "model-00001-of-00002.safetensors",
               *high = "model-00002-of-00002.safetensors";
    int64_t half = f.count / 2;
    write_tensors(&f, low, f.items, half);
    write_tensors(&f, high, f.items + half, f.count - half);
    write_index(&f, "", half, low, high);
    assert_loads(&f);
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
        cmocka_unit_test(element_types),
        cmocka_unit_test(shards),
        cmocka_unit_test(logits_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
