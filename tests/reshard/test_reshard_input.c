/* Checkpoints of other programs, and input that is refused: damage, gaps, overlaps, replicas that
 * differ, layouts that do not fit. A refused or failed conversion leaves no destination.
 * weft-test: threads */
#include "fixture.h"

#include <math.h>

#include "checkpoint/tensor_set.h"
#include "tensor/tensor.h"

#include "dcp_shards.inc"

static const char other_strategy[] =
    "{\"parallel_layout_item\": {\"v\": {\"dev_matrix\": [4], \"tensor_map\": [0]}}}";
static const char emb_strategy[] = "{\"parallel_layout_item\": {\"emb.weight\": {\"dev_matrix\": "
                                   "[2], \"tensor_map\": [0, -1]}}}";

/* A strategy file of one parameter. */
static const char *strategy_of(const fixture *f, const char *name, const char *layout) {
    char text[600];
    (void)snprintf(
        text, sizeof text,
        "{\"current_stage\": 0, \"parallel_strategy_item\": {}, \"parallel_layout_item\": "
        "{\"w\": {\"field\": 0, %s}}}",
        layout);
    const char *path = in(f, name);
    put_file(path, text, strlen(text));
    return path;
}

#define ROWS4                                                                                      \
    "\"dev_matrix\": [4, 1], \"tensor_map\": [1, 0], \"opt_weight_shard_step\": 0, "               \
    "\"opt_weight_shard_size\": 0"

/* A slice [rows, 2] of "w" in the folder of a rank, with the given values from `first` on. */
static void put_slice(const fixture *f, const char *dir, int rank, int64_t rows, float first,
                      const char *regions) {
    float values[64];
    char folder[64];
    wefti_safetensors_item item = {"w", WEFT_DESC(WEFT_F32, rows, 2), values};
    wefti_safetensors_pair pairs[] = {{"format", "pt"}, {"weft_regions", regions}};
    for (int64_t i = 0; i < rows * 2; i++) values[i] = first + (float)i;
    (void)snprintf(folder, sizeof folder, "rank_%d", rank);
    const char *path = path_in(in(f, dir), folder);
    ASSERT_OK(wefti_dir_make(path));
    ASSERT_OK(
        wefti_safetensors_write(path_in(path, "s.safetensors"), &item, 1, pairs, regions ? 2 : 1));
}

static void put_four(const fixture *f, const char *dir) {
    for (int r = 0; r < 4; r++) put_slice(f, dir, r, 2, (float)(4 * r), NULL);
}

static void assert_nothing(const fixture *f, const char *name) {
    char hidden[80];
    (void)snprintf(hidden, sizeof hidden, ".%s.weft-tmp", name);
    assert_false(wefti_exists(in(f, name)));
    assert_false(wefti_exists(in(f, hidden)));
}

/* ---- files of other programs ---- */

static void test_torch(void **state) {
    const fixture *f = *state;
    const char *dir = in(f, "dcp"), *out = in(f, "whole");
    wefti_tensor_set *set = NULL;
    ASSERT_OK(wefti_dir_make(dir));
    put_file(path_in(dir, "shard-00001-model-00001-of-00001.safetensors"), dcp_shard_1,
             sizeof dcp_shard_1);
    put_file(path_in(dir, "shard-00002-model-00001-of-00001.safetensors"), dcp_shard_2,
             sizeof dcp_shard_2);
    ASSERT_OK(reshard(dir, out, NULL, NULL));
    ASSERT_OK(wefti_tensor_set_open(out, &set));
    assert_int_equal(wefti_tensor_set_count(set), 3);
    const wefti_safetensors_entry *a = wefti_tensor_set_find(set, "a");
    const wefti_safetensors_entry *b = wefti_tensor_set_find(set, "b");
    assert_int_equal(a->desc.shape[0], 5);
    assert_int_equal(b->desc.shape[1], 6);
    float values[15];
    uint16_t halves[12];
    ASSERT_OK(wefti_reader_at(a->reader, a->at, a->bytes, values));
    ASSERT_OK(wefti_reader_at(b->reader, b->at, b->bytes, halves));
    for (int i = 0; i < 15; i++) assert_true(values[i] == (float)i);
    for (int i = 0; i < 12; i++) assert_true(wefti_bf16_to_f32(halves[i]) == (float)i);
    wefti_tensor_set_close(set);
    /* cut at every byte: never accepted as whole */
    for (size_t n = 0; n < sizeof dcp_shard_2; n++) {
        char *text = NULL;
        put_file(path_in(dir, "shard-00002-model-00001-of-00001.safetensors"), dcp_shard_2, n);
        assert_true(weft_checkpoint_digest(dir, NULL, 0, &text) < 0);
    }
    /* the numbers of the other files tell which one is missing */
    put_file(path_in(dir, "shard-00002-model-00001-of-00001.safetensors"), dcp_shard_2,
             sizeof dcp_shard_2);
    ASSERT_OK(
        wefti_rename(path_in(dir, "shard-00001-model-00001-of-00001.safetensors"), in(f, "aside")));
    ASSERT_OK(wefti_remove_tree(out));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "shard-00001-model", reshard(dir, out, NULL, NULL));
    assert_nothing(f, "whole");
}

static void test_optimizer_shards(void **state) {
    const fixture *f = *state;
    /* [8, 2] on 4 ranks: 2 replicas in front, rows in 2, the replicas share the rows again */
    const char *layout = "\"dev_matrix\": [2, 2, 1], \"tensor_map\": [1, 0], "
                         "\"opt_weight_shard_step\": 2, \"opt_weight_shard_size\": 2";
    static const float first[] = {0, 8, 4, 12};
    for (int r = 0; r < 4; r++) put_slice(f, "ms", r, 2, first[r], NULL);
    const char *out = in(f, "whole");
    ASSERT_OK(reshard(in(f, "ms"), out, strategy_of(f, "s.json", layout), NULL));
    wefti_tensor_set *set = NULL;
    float values[16];
    ASSERT_OK(wefti_tensor_set_open(out, &set));
    const wefti_safetensors_entry *w = wefti_tensor_set_find(set, "w");
    ASSERT_OK(wefti_reader_at(w->reader, w->at, w->bytes, values));
    for (int i = 0; i < 16; i++) assert_true(values[i] == (float)i);
    wefti_tensor_set_close(set);
}

static void groups_of(const char *layout, const char *expected) {
    char text[600];
    wefti_layouts *l = NULL;
    wefti_text groups = {0};
    (void)snprintf(text, sizeof text, "{\"parallel_layout_item\": {%s}}", layout);
    ASSERT_OK(wefti_layouts_parse("golden", text, (int64_t)strlen(text), &l));
    ASSERT_OK(wefti_layouts_groups_text(l, false, &groups));
    char *got = wefti_text_take(&groups);
    assert_string_equal(got, expected);
    wefti_free(got);
    wefti_layouts_close(l);
}

/* accept 33(a): of 8 ranks: a weight split by rows on [2, 4, 1], another one by columns on [4, 1,
 * 2]. */
static void test_redundancy(void **state) {
    (void)state;
    static const char rows[] = "\"a\": {\"dev_matrix\": [2, 4, 1], \"tensor_map\": [1, 0]}";
    static const char both[] = "\"a\": {\"dev_matrix\": [2, 4, 1], \"tensor_map\": [1, 0]}, "
                               "\"b\": {\"dev_matrix\": [4, 1, 2], \"tensor_map\": [1, 0]}";
    static const char shared[] = "\"b\": {\"dev_matrix\": [4, 1, 2], \"tensor_map\": [1, 0], "
                                 "\"opt_weight_shard_step\": 2, \"opt_weight_shard_size\": 4}";
    static const char pairs[] = "\"b\": {\"dev_matrix\": [4, 1, 2], \"tensor_map\": [1, 0], "
                                "\"opt_weight_shard_step\": 2, \"opt_weight_shard_size\": 2}";
    groups_of(rows, "{0,4},{1,5},{2,6},{3,7}\n");
    groups_of(both, "{0,4},{1,5},{2,6},{3,7}\n");
    groups_of(shared, "{0},{1},{2},{3},{4},{5},{6},{7}\n");
    groups_of(pairs, "{0,4},{1,5},{2,6},{3,7}\n");
}

/* ---- refused ---- */

static void test_refused_layouts(void **state) {
    const fixture *f = *state;
    const char *dir = in(f, "ms"), *out = in(f, "out");
    put_four(f, "ms");
    ASSERT_FAILS(WEFT_E_ARG, "--from", reshard(dir, out, NULL, NULL));
    ASSERT_FAILS(
        WEFT_E_MISMATCH, "two.json|2|3",
        reshard(dir, out,
                strategy_of(f, "two.json", "\"dev_matrix\": [2, 1], \"tensor_map\": [1, 0]"),
                NULL));
    ASSERT_FAILS(
        WEFT_E_SHAPE, "w|shape.json|12",
        reshard(dir, out, strategy_of(f, "shape.json", ROWS4 ", \"tensor_shape\": [12, 2]"), NULL));
    ASSERT_FAILS(
        WEFT_E_SHAPE, "w|odd.json",
        reshard(dir, out,
                strategy_of(f, "odd.json", "\"dev_matrix\": [4, 1, 1], \"tensor_map\": [1, 0, -1]"),
                NULL));
    ASSERT_FAILS(
        WEFT_E_NO_IMPL, "manual.json|w|indices_offset",
        reshard(dir, out, strategy_of(f, "manual.json", ROWS4 ", \"indices_offset\": [1]"), NULL));
    put_file(in(f, "other.json"), other_strategy, sizeof other_strategy - 1);
    ASSERT_FAILS(WEFT_E_MISMATCH, "other.json|v|ms", reshard(dir, out, in(f, "other.json"), NULL));
    assert_nothing(f, "out");
}

static void test_refused_slices(void **state) {
    const fixture *f = *state;
    const char *out = in(f, "out");
    const char *from = strategy_of(
        f, "s.json", "\"dev_matrix\": [2, 2, 1], \"tensor_map\": [1, 0]"); /* 0 = 2, 1 = 3 */
    for (int r = 0; r < 4; r++)
        put_slice(f, "differ", r, 2, (float)(4 * (r == 3 ? 9 : r % 2)), NULL);
    ASSERT_FAILS(WEFT_E_MISMATCH, "rank_1|rank_3|w", reshard(in(f, "differ"), out, from, NULL));
    static const char f8[] = "\x3d\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],"
                             "\"data_offsets\":[0,2]}}   12";
    ASSERT_OK(wefti_dir_make(in(f, "f8")));
    ASSERT_OK(wefti_dir_make(in(f, "f8/rank_0")));
    put_file(in(f, "f8/rank_0/s.safetensors"), f8, sizeof f8 - 1);
    ASSERT_FAILS(WEFT_E_NO_IMPL, "rank_0|\"w\" of F8_E4M3", reshard(in(f, "f8"), out, NULL, NULL));
    ASSERT_FAILS(WEFT_E_NO_IMPL, "\"w\" of F8_E4M3",
                 reshard(in(f, "f8/rank_0/s.safetensors"), out, NULL, NULL));
    put_slice(f, "gap", 0, 2, 0, "{\"w\": {\"shape\": [6, 2], \"begin\": [0, 0]}}");
    put_slice(f, "gap", 1, 2, 4, "{\"w\": {\"shape\": [6, 2], \"begin\": [4, 0]}}");
    ASSERT_FAILS(WEFT_E_CORRUPT, "w|8 of 12", reshard(in(f, "gap"), out, NULL, NULL));
    put_slice(f, "over", 0, 2, 0, "{\"w\": {\"shape\": [3, 2], \"begin\": [0, 0]}}");
    put_slice(f, "over", 1, 2, 2, "{\"w\": {\"shape\": [3, 2], \"begin\": [1, 0]}}");
    ASSERT_FAILS(WEFT_E_CORRUPT, "rank_0|rank_1|w", reshard(in(f, "over"), out, NULL, NULL));
    put_slice(f, "outside", 0, 2, 0, "{\"w\": {\"shape\": [2, 2], \"begin\": [1, 0]}}");
    ASSERT_FAILS(WEFT_E_CORRUPT, "rank_0|w", reshard(in(f, "outside"), out, NULL, NULL));
    put_slice(f, "named", 0, 2, 0, "{\"v\": {\"shape\": [2, 2], \"begin\": [0, 0]}}");
    ASSERT_FAILS(WEFT_E_CORRUPT, "rank_0|w", reshard(in(f, "named"), out, NULL, NULL));
    static const char *const not_objects[] = {"8", "\"w\"", "[8]", "null"};
    for (size_t k = 0; k < sizeof not_objects / sizeof not_objects[0]; k++) {
        put_slice(f, "other", 0, 2, 0, not_objects[k]);
        ASSERT_FAILS(WEFT_E_CORRUPT, "rank_0|not a JSON object",
                     reshard(in(f, "other"), out, NULL, NULL));
    }
    assert_nothing(f, "out");
}

static void test_replicas(void **state) {
    const fixture *f = *state;
    const char *from =
        strategy_of(f, "s.json", "\"dev_matrix\": [2, 2, 1], \"tensor_map\": [1, 0]");
    const char *dir = in(f, "ms"), *out = in(f, "out");
    weft_checkpoint_reshard_options o = WEFT_STRUCT(weft_checkpoint_reshard_options, .from = from);
    char *text = NULL;
    for (int r = 0; r < 4; r++) put_slice(f, "ms", r, 2, (float)(4 * (r % 2)), NULL);
    ASSERT_OK(wefti_remove_tree(path_in(dir, "rank_1")));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "rank_1|w|rank 3",
                 weft_checkpoint_reshard(dir, out, &o, 0, &text));
    o.replicas = true;
    ASSERT_OK(weft_checkpoint_reshard(dir, out, &o, 0, &text));
    weft_checkpoint_text_free(text);
    ASSERT_OK(wefti_remove_tree(out));
    ASSERT_OK(wefti_remove_tree(path_in(dir, "rank_3")));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "w|rank 1|rank 3",
                 weft_checkpoint_reshard(dir, out, &o, 0, &text));
    assert_nothing(f, "out");
}

static void test_later_version(void **state) {
    const fixture *f = *state;
    const char *slices = in(f, "slices"), *out = in(f, "out");
    size_t bytes;
    write_run(f);
    put_file(in(f, "s.json"), emb_strategy, sizeof emb_strategy - 1);
    ASSERT_OK(reshard(f->dir, slices, NULL, in(f, "s.json")));
    ASSERT_FAILS(WEFT_E_ARG, "slices", reshard(f->dir, slices, NULL, in(f, "s.json")));
    unsigned char *text = get_file(path_in(slices, "weft-step.json"), &bytes);
    text[bytes] = '\0';
    char *version = strstr((char *)text, "\"format_version\": 2");
    assert_non_null(version);
    version[18] = '4';
    char tail[WEFTI_MANIFEST_TAIL_BYTES + 1];
    wefti_manifest_tail((char *)text, (int64_t)bytes - WEFTI_MANIFEST_TAIL_BYTES, tail);
    memcpy(text + bytes - WEFTI_MANIFEST_TAIL_BYTES, tail, WEFTI_MANIFEST_TAIL_BYTES);
    put_file(path_in(slices, "weft-step.json"), text, bytes);
    free(text);
    ASSERT_FAILS(WEFT_E_NO_IMPL, "weft-step.json|4", reshard(slices, out, NULL, NULL));
    assert_nothing(f, "out");
}

/* Every call of the file system fails once. A failed attempt leaves nothing, unless only the sync
 * behind the rename failed. A destination that exists is whole. */
static void test_faults(void **state) {
    const fixture *f = *state;
    char expected[32], got[32];
    int64_t failures = 0, calls = 0;
    write_run(f);
    digest_text(f->dir, NULL, expected);
    for (int64_t n = 0; n <= calls; n++) {
        const char *out = in(f, "out");
        wefti_fault_arm(WEFTI_FAULT_IO, n, false, 0);
        weft_status status = reshard(f->dir, out, NULL, NULL);
        if (wefti_fault_count(WEFTI_FAULT_IO) > n) calls = n + 1; /* one of them failed */
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        failures += status < 0;
        if (!wefti_exists(out)) {
            assert_true(status < 0);
            continue;
        }
        digest_text(out, NULL, got);
        assert_string_equal(got, expected);
        ASSERT_OK(wefti_remove_tree(out));
    }
    print_message("%lld of %lld calls failed the conversion\n", (long long)failures,
                  (long long)calls);
    assert_true(failures > 8);
}

/* A conversion that succeeds has all that lies beside the tensors, whatever call fails: the state
 * of a run, or the files of a model. */
static void test_faults_beside(void **state) {
    const fixture *f = *state;
    static const float w[2];
    const wefti_safetensors_item item = {"w", WEFT_DESC(WEFT_F32, 2), w};
    const char *out = in(f, "out"), *slices = in(f, "slices"), *model = in(f, "model");
    write_run(f);
    ASSERT_OK(reshard(f->dir, slices, NULL, "2:emb.weight=0"));
    ASSERT_OK(wefti_dir_make(model));
    ASSERT_OK(wefti_safetensors_write(path_in(model, "model.safetensors"), &item, 1, NULL, 0));
    put_file(path_in(model, "generation_config.json"), "{}", 2);
    for (int way = 0; way < 2; way++)
        for (int64_t n = 0, calls = 1; n < calls; n++) {
            wefti_fault_arm(WEFTI_FAULT_IO, n, false, 0);
            weft_status status = reshard(way ? model : slices, out, NULL, NULL);
            if (wefti_fault_count(WEFTI_FAULT_IO) > n) calls = n + 2;
            wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
            if (status >= 0 && wefti_exists(path_in(out, "generation_config.json")) != (way == 1))
                fail_msg("way %d, call %lld", way, (long long)n);
            if (status >= 0 && wefti_exists(path_in(out, "model.safetensors")) != (way == 1))
                fail_msg("way %d, call %lld", way, (long long)n);
            ASSERT_OK(wefti_remove_tree(out));
        }
}

/* If the disk cannot tell whether a file is there, it is not new. */
static void test_written_over(void **state) {
    const fixture *f = *state;
    random_source r = {.seed = test_seed(33)};
    const char *from = in(f, "from.ckpt"), *to = in(f, "to.ckpt");
    random_strategy(&r, 2, 1, from);
    put_file(to, "x", 1);
    for (int64_t n = 0, calls = 1; n < calls; n++) {
        size_t bytes = 0;
        wefti_fault_arm(WEFTI_FAULT_IO, n, false, 0);
        weft_status status = weft_checkpoint_merge_strategies(&from, 1, to);
        if (wefti_fault_count(WEFTI_FAULT_IO) > n) calls = n + 2;
        wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
        assert_true(status < 0);
        free(get_file(to, &bytes));
        assert_int_equal(bytes, 1);
    }
}

/* What two files differ in; integers beyond the 53 bits of a double, and numbers without order. */
static void test_diff(void **state) {
    const fixture *f = *state;
    const int64_t big = (int64_t)1 << 60;
    float x[] = {1, NAN, INFINITY, 2}, y[] = {1, NAN, 7, NAN};
    int64_t i[] = {3, big, INT64_MIN}, k[] = {3, big + 3, INT64_MIN};
    int64_t least[] = {INT64_MIN}, most[] = {INT64_MAX};
    const wefti_safetensors_item a[] = {{"i", WEFT_DESC(WEFT_I64, 3), i},
                                        {"o", WEFT_DESC(WEFT_I64, 1), least},
                                        {"s", WEFT_DESC(WEFT_F32, 2, 2), x},
                                        {"x", WEFT_DESC(WEFT_F32, 4), x}};
    const wefti_safetensors_item b[] = {{"i", WEFT_DESC(WEFT_I64, 3), k},
                                        {"o", WEFT_DESC(WEFT_I64, 1), most},
                                        {"s", WEFT_DESC(WEFT_F32, 4), y},
                                        {"x", WEFT_DESC(WEFT_F32, 4), y}};
    const char *first = in(f, "a.safetensors"), *second = in(f, "b.safetensors");
    int64_t differing = 0;
    char *text = NULL;
    ASSERT_OK(wefti_safetensors_write(first, a, 4, NULL, 0));
    ASSERT_OK(wefti_safetensors_write(second, b, 4, NULL, 0));
    ASSERT_OK(weft_checkpoint_diff(first, NULL, second, NULL, 1, &differing, &text));
    assert_int_equal(differing, 4);
    assert_non_null(strstr(text, "\"elements\": 1, \"not_comparable\": 0, \"first_index\": [1], "
                                 "\"largest\": 3, \"largest_index\": [1]"));
    assert_non_null(strstr(text, "\"largest\": 1.8446744073709552e+19, \"largest_index\": [0]"));
    assert_non_null(strstr(text, "\"difference\": \"shape\""));
    assert_non_null(strstr(text, "\"elements\": 2, \"not_comparable\": 1, \"first_index\": [2], "
                                 "\"largest\": null, \"largest_index\": [2]"));
    weft_checkpoint_text_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_torch, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_optimizer_shards, fixture_begin, fixture_end),
        cmocka_unit_test(test_redundancy),
        cmocka_unit_test_setup_teardown(test_refused_layouts, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_refused_slices, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_replicas, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_later_version, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_diff, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_faults, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_faults_beside, fixture_begin, fixture_end),
        cmocka_unit_test_setup_teardown(test_written_over, fixture_begin, fixture_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
