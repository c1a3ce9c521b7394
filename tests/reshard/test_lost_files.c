/* Files of slices that are missing or in a wrong place. Of missing ones what is left must not pass
 * for the whole checkpoint, whatever tells which tensors there were. */
#include "fixture.h"

/* A strategy file of "a" on stage 0 and "b" on stage 1, two ranks each, which divide the rows. */
static const char two_stages[] = "{\"parallel_layout_item\": {"
                                 "\"0-a\": {\"dev_matrix\": [2], \"tensor_map\": [0, -1]}, "
                                 "\"1-b\": {\"dev_matrix\": [2], \"tensor_map\": [0, -1]}}}";

/* The slice [2, 2] of a rank of these stages. `pairs` is its metadata. */
static void put_rank(const char *dir, int rank, const wefti_safetensors_pair *pairs,
                     int64_t count) {
    float values[4] = {(float)rank, 1, 2, 3};
    char folder[32];
    const wefti_safetensors_item item = {rank < 2 ? "a" : "b", WEFT_DESC(WEFT_F32, 2, 2), values};
    (void)snprintf(folder, sizeof folder, "rank_%d", rank);
    const char *path = path_in(dir, folder);
    ASSERT_OK(wefti_dir_make(path));
    ASSERT_OK(wefti_safetensors_write(path_in(path, "s.safetensors"), &item, 1, pairs, count));
}

static void lose(const char *dir, int rank) {
    char folder[32];
    (void)snprintf(folder, sizeof folder, "rank_%d", rank);
    ASSERT_OK(wefti_remove_tree(path_in(dir, folder)));
}

static weft_status reshard_with(const char *source, const char *out,
                                const weft_checkpoint_reshard_options *o) {
    char *text = NULL;
    weft_status status = weft_checkpoint_reshard(source, out, o, 1, &text);
    weft_checkpoint_text_free(text);
    return status;
}

static weft_status digest_with(const char *source, const char *from) {
    char *text = NULL;
    weft_status status = weft_checkpoint_digest(source, from, 1, &text);
    weft_checkpoint_text_free(text);
    return status;
}

/* Slices of MindSpore: a strategy file names the parameters of a stage that is lost. */
static void test_strategy(void **state) {
    const fixture *f = *state;
    const wefti_safetensors_pair pair = {"format", "pt"};
    const char *dir = in(f, "ms"), *out = in(f, "out"), *from = in(f, "s.json");
    put_file(from, two_stages, sizeof two_stages - 1);
    for (int r = 0; r < 4; r++) put_rank(dir, r, &pair, 1);
    lose(dir, 2);
    lose(dir, 3);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "ms|tensor b|rank_2|rank_3", reshard(dir, out, from, NULL));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "ms|tensor b|rank_2|rank_3", digest_with(dir, from));
    /* a rank that needs only what is there; one that needs what is lost */
    int rank = 1;
    weft_checkpoint_reshard_options o = WEFT_STRUCT(weft_checkpoint_reshard_options, .from = from,
                                                    .to = from, .only = &rank, .only_count = 1);
    ASSERT_OK(reshard_with(dir, out, &o));
    ASSERT_OK(wefti_remove_tree(out));
    rank = 2;
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "ms|tensor b|rank_2|rank_3", reshard_with(dir, out, &o));
    assert_false(wefti_exists(out));
}

/* Slices that tell the number of ranks, but not what other ranks had. */
static void test_stated_ranks(void **state) {
    const fixture *f = *state;
    static const char *const regions[] = {
        "{\"a\": {\"shape\": [2, 2], \"begin\": [0, 0]}}",
        "{\"b\": {\"shape\": [2, 2], \"begin\": [0, 0]}}",
    };
    const char *dir = in(f, "slices"), *out = in(f, "out");
    for (int r = 0; r < 4; r++) {
        const wefti_safetensors_pair pairs[] = {{"ranks", "4"}, {"weft_regions", regions[r / 2]}};
        put_rank(dir, r, pairs, 2);
    }
    lose(dir, 3);
    lose(dir, 2);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "rank_2|rank_3|--from", reshard(dir, out, NULL, NULL));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "rank_2|rank_3|--from", digest_with(dir, NULL));
    assert_false(wefti_exists(out));
    const weft_checkpoint_reshard_options o =
        WEFT_STRUCT(weft_checkpoint_reshard_options, .replicas = true);
    ASSERT_FAILS(WEFT_E_MISMATCH, "rank_0|rank_1|tensor a", reshard_with(dir, out, &o));
    lose(dir, 1);
    ASSERT_OK(reshard_with(dir, out, &o));
}

/* A step's manifest names what is lost. */
static void test_manifest(void **state) {
    const fixture *f = *state;
    random_source r = {.seed = test_seed(31)};
    const char *from = in(f, "from"), *slices = in(f, "slices"), *out = in(f, "out");
    write_run(f);
    random_strategy(&r, 4, 2, from);
    ASSERT_OK(reshard(f->dir, slices, NULL, from));
    lose(slices, 2);
    lose(slices, 3);
    const weft_checkpoint_reshard_options hf =
        WEFT_STRUCT(weft_checkpoint_reshard_options, .format = WEFT_CHECKPOINT_HF);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "0 of|rank_2|rank_3", reshard_with(slices, out, &hf));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "0 of|rank_2|rank_3", digest_with(slices, NULL));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "rank_2|missing", reshard(slices, out, from, NULL));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "rank 2", digest_with(slices, from));
    /* the list of a rank of the lost stage names its files, also after they are gone */
    const weft_checkpoint_reshard_options both =
        WEFT_STRUCT(weft_checkpoint_reshard_options, .from = from, .to = from);
    char *list = NULL;
    ASSERT_OK(weft_checkpoint_sources(slices, 3, &both, 0, &list));
    assert_non_null(strstr(list, "rank_3"));
    weft_checkpoint_text_free(list);
    assert_false(wefti_exists(out));
}

/* torch's format tells neither the number of files nor the shapes of tensors. weft adds the number.
 */
static void test_torch(void **state) {
    const fixture *f = *state;
    random_source r = {.seed = test_seed(32)};
    const char *to = in(f, "to"), *dcp = in(f, "dcp"), *out = in(f, "out");
    const weft_checkpoint_reshard_options o =
        WEFT_STRUCT(weft_checkpoint_reshard_options, .to = to, .format = WEFT_CHECKPOINT_DCP);
    write_run(f);
    random_strategy(&r, 3, 1, to);
    ASSERT_OK(reshard_with(f->dir, dcp, &o));
    for (int k = 1; k <= 3; k++) {
        char name[64];
        (void)snprintf(name, sizeof name, "shard-%05d-model-00001-of-00001.safetensors", k);
        ASSERT_OK(wefti_rename(path_in(dcp, name), in(f, "aside")));
        ASSERT_FAILS(WEFT_E_NOT_FOUND, "dcp|2 of 3", digest_with(dcp, NULL));
        ASSERT_FAILS(WEFT_E_NOT_FOUND, "dcp|2 of 3", reshard(dcp, out, NULL, NULL));
        assert_false(wefti_exists(out));
        ASSERT_OK(wefti_rename(in(f, "aside"), path_in(dcp, name)));
    }
    ASSERT_OK(digest_with(dcp, NULL));
}

/* Model directories: numbered files without an index, and an index that names more than there is.
 */
static void test_model_files(void **state) {
    const fixture *f = *state;
    static const char index[] = "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", "
                                "\"b\": \"model-00002-of-00002.safetensors\"}}";
    const char *dir = in(f, "model"), *out = in(f, "out");
    const char *first = in(f, "model/model-00001-of-00002.safetensors");
    const char *second = in(f, "model/model-00002-of-00002.safetensors");
    float values[2] = {1, 2};
    const wefti_safetensors_item a = {"a", WEFT_DESC(WEFT_F32, 2), values};
    const wefti_safetensors_item b = {"b", WEFT_DESC(WEFT_F32, 2), values};
    ASSERT_OK(wefti_dir_make(dir));
    ASSERT_OK(wefti_safetensors_write(first, &a, 1, NULL, 0));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "model-00002-of-00002", reshard(dir, out, NULL, NULL));
    ASSERT_OK(wefti_rename(first, second));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "model-00001-of-00002", digest_with(dir, NULL));
    ASSERT_OK(wefti_safetensors_write(first, &b, 1, NULL, 0));
    ASSERT_OK(digest_with(dir, NULL));
    put_file(in(f, "model/model.safetensors.index.json"), index, sizeof index - 1);
    ASSERT_FAILS(WEFT_E_CORRUPT, "model-00001-of-00002|tensor a|index.json",
                 digest_with(dir, NULL));
    ASSERT_OK(wefti_safetensors_write(first, &a, 1, NULL, 0));
    ASSERT_FAILS(WEFT_E_CORRUPT, "model-00002-of-00002|tensor b|index.json",
                 digest_with(dir, NULL));
    ASSERT_OK(wefti_safetensors_write(second, &b, 1, NULL, 0));
    ASSERT_OK(digest_with(dir, NULL));
    assert_false(wefti_exists(out));
}

/* Files in the folder of another rank, and of another conversion. */
static void test_misplaced(void **state) {
    const fixture *f = *state;
    random_source r = {.seed = test_seed(33)};
    const char *to = in(f, "to"), *two = in(f, "two"), *slices = in(f, "slices");
    const char *others = in(f, "others"), *out = in(f, "out");
    write_run(f);
    random_strategy(&r, 3, 1, to);
    random_strategy(&r, 2, 1, two);
    ASSERT_OK(reshard(f->dir, slices, NULL, to));
    ASSERT_OK(reshard(f->dir, others, NULL, two));
    ASSERT_OK(wefti_rename(path_in(slices, "rank_1"), in(f, "aside")));
    ASSERT_OK(wefti_rename(path_in(others, "rank_1"), path_in(slices, "rank_1")));
    ASSERT_FAILS(WEFT_E_MISMATCH, "slices/rank_0|3 ranks|slices/rank_1|2 ranks",
                 reshard(slices, out, NULL, NULL));
    lose(slices, 1);
    ASSERT_OK(wefti_rename(path_in(slices, "rank_2"), path_in(slices, "rank_1")));
    ASSERT_OK(wefti_rename(in(f, "aside"), path_in(slices, "rank_2")));
    ASSERT_FAILS(WEFT_E_MISMATCH, "slices/rank_1|rank 2", reshard(slices, out, NULL, NULL));
    assert_false(wefti_exists(out));
}

/* Two conversions to one destination: the second one must not take the directory of the first for
 * what a killed one has left. */
static void test_two_writers(void **state) {
    const fixture *f = *state;
    const char *out = in(f, "out");
    wefti_reshard_input input;
    wefti_target *first = NULL, *second = NULL;
    wefti_target_step *step = NULL;
    write_run(f);
    ASSERT_OK(wefti_reshard_open(f->dir, NULL, &input));
    ASSERT_OK(wefti_target_create(input.shards, out, &first));
    ASSERT_OK(wefti_target_run(first, &step));
    ASSERT_OK(wefti_target_make(first));
    ASSERT_FAILS(WEFT_E_ARG, "out|another", reshard(f->dir, out, NULL, NULL));
    wefti_target_run_free(step);
    wefti_target_destroy(first);
    /* the same directory, left by a process that is gone */
    ASSERT_OK(wefti_dir_make(in(f, ".out.weft-tmp")));
    put_file(in(f, ".out.weft-tmp/x"), "x", 1);
    ASSERT_OK(wefti_target_create(input.shards, out, &second));
    ASSERT_OK(wefti_target_run(second, &step));
    ASSERT_OK(wefti_target_make(second));
    assert_false(wefti_exists(in(f, ".out.weft-tmp/x")));
    wefti_target_run_free(step);
    wefti_target_destroy(second);
    assert_false(wefti_exists(in(f, ".out.weft-tmp")));
    wefti_reshard_close(&input);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_strategy, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_stated_ranks, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_manifest, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_torch, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_model_files, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_misplaced, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_two_writers, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
