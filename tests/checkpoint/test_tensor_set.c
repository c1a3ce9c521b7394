/* Model directories by others: one file, shards with an index, caches made of links, and hostile
 * ones. */
#include "checkpoint/tensor_set.h"

#include "fixture.h"

#include <sys/stat.h>

static float value_a = 1, value_b[2] = {2, 3};

/* DIR with shard one.safetensors (a) and two.safetensors (b), and the given index. */
static void make_dir(const char *dir, const char *index) {
    ASSERT_OK(wefti_dir_make(dir));
    wefti_safetensors_item a = {"a", {WEFT_F32, 0, {0}}, &value_a};
    wefti_safetensors_item b = {"b", {WEFT_F32, 1, {2}}, value_b};
    ASSERT_OK(wefti_safetensors_write(path_in(dir, "one.safetensors"), &a, 1, NULL, 0));
    ASSERT_OK(wefti_safetensors_write(path_in(dir, "two.safetensors"), &b, 1, NULL, 0));
    if (index) put_file(path_in(dir, "model.safetensors.index.json"), index, strlen(index));
}

static const char good_index[] =
    "{\"metadata\": {\"total_size\": 12, \"more\": [1, {}]}, \"extra\": null,\n"
    " \"weight_map\": {\"b\": \"two.safetensors\", \"a\": \"one.safetensors\"}}";

static void assert_both(const wefti_tensor_set *set) {
    assert_int_equal(wefti_tensor_set_count(set), 2);
    assert_string_equal(wefti_tensor_set_at(set, 0)->name, "a");
    assert_null(wefti_tensor_set_at(set, 2));
    const wefti_safetensors_entry *b = wefti_tensor_set_find(set, "b");
    assert_non_null(b);
    assert_memory_equal(BYTES_OF(b), value_b, sizeof value_b);
    assert_null(wefti_tensor_set_find(set, "c"));
}

static void sharded(void **state) {
    const fixture *f = *state;
    make_dir(f->dir, good_index);
    wefti_tensor_set *set = NULL;
    ASSERT_OK(wefti_tensor_set_open(f->dir, &set));
    assert_both(set);
    assert_int_equal(wefti_tensor_set_files(set), 2);
    assert_string_equal(wefti_tensor_set_file_name(set, 0), "one.safetensors");
    assert_null(wefti_tensor_set_file(set, 2));
    wefti_tensor_set_close(set);
    wefti_tensor_set_close(NULL);
}

static void single(void **state) {
    const fixture *f = *state;
    make_dir(f->dir, good_index);
    wefti_safetensors_item both[] = {{"b", {WEFT_F32, 1, {2}}, value_b},
                                     {"a", {WEFT_F32, 0, {0}}, &value_a}};
    const char *path = path_in(f->dir, "model.safetensors");
    ASSERT_OK(wefti_safetensors_write(path, both, 2, NULL, 0));
    const char *paths[] = {f->dir, path}; /* the single file goes before an index */
    for (int i = 0; i < 2; i++) {
        wefti_tensor_set *set = NULL;
        ASSERT_OK(wefti_tensor_set_open(paths[i], &set));
        assert_both(set);
        assert_int_equal(wefti_tensor_set_files(set), 1);
        wefti_tensor_set_close(set);
    }
}

static void refuses_index(const fixture *f, const char *index, const char *why) {
    make_dir(f->dir, index);
    wefti_tensor_set *set = NULL;
    if (wefti_tensor_set_open(f->dir, &set) != WEFT_E_CORRUPT) fail_msg("%s was accepted", index);
    ASSERT_MESSAGE(why);
    assert_null(set);
}

static void hostile_indexes(void **state) {
    const fixture *f = *state;
    refuses_index(f, "", "not valid JSON");
    refuses_index(f, "[]", "\"weight_map\" is missing");
    refuses_index(f, "{}", "\"weight_map\" is missing");
    refuses_index(f, "{\"weight_map\": []}", "object");
    refuses_index(f, "{\"weight_map\": {\"a\": 1}}", "plain|file");
    refuses_index(f, "{\"weight_map\": {\"a\": \"\"}}", "plain|file");
    refuses_index(f, "{\"weight_map\": {\"a\": \"..\"}}", "plain|file");
    refuses_index(f, "{\"weight_map\": {\"a\": \"../run/one.safetensors\"}}", "plain|file");
    refuses_index(f, "{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "plain|file");
    refuses_index(f, "{\"weight_map\": {\"a\": \"one.safetensors\\u0000\"}}", "NUL");
    refuses_index(f, "{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"x\"}}", "duplicate");
    refuses_index(f, "{\"weight_map\": {\"a\": \"absent.safetensors\"}}", "is missing");
    refuses_index(f, "{\"weight_map\": {\"a\": \"two.safetensors\"}}", "\"a\"");
    refuses_index(f, "{\"weight_map\": {\"a\": \"model.safetensors.index.json\"}}",
                  "safetensors file");
    refuses_index(f, "{\"weight_map\": {\"a\": [[[[[[[[]]]]]]]]}}", "nested deeper");
    ASSERT_OK(wefti_dir_make(path_in(f->dir, "sub")));
    make_dir(f->dir, "{\"weight_map\": {\"a\": \"sub\"}}");
    wefti_tensor_set *set = NULL;
    ASSERT_STATUS(WEFT_E_IO, wefti_tensor_set_open(f->dir, &set));
    ASSERT_MESSAGE("directory|file");
    ASSERT_STATUS(WEFT_E_NOT_FOUND, wefti_tensor_set_open(f->root, &set));
    ASSERT_MESSAGE("neither model.safetensors nor");
    ASSERT_STATUS(WEFT_E_NOT_FOUND, wefti_tensor_set_open(path_in(f->root, "x.safetensors"), &set));
}

/* A link may lead to any regular file, which must then be safetensors. Others could block. */
static void links(void **state) {
    const fixture *f = *state;
    make_dir(f->dir, good_index);
    const char *one = path_in(f->dir, "one.safetensors"), *fifo = path_in(f->root, "fifo");
    assert_int_equal(remove(one), 0);
    const char *targets[] = {"/etc/passwd", "two.safetensors", "../../blobs/../one", "../blobs/x",
                             fifo,          "/dev/zero",       "one.safetensors"};
    const char *why[] = {"one.safetensors", "tensor \"a\"", "link|not exist", "link|not exist",
                         "link|regular",    "link|regular", "link|not exist"};
    assert_int_equal(mkfifo(fifo, 0600), 0);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        assert_int_equal(symlink(targets[i], one), 0);
        wefti_tensor_set *set = NULL;
        ASSERT_STATUS(WEFT_E_CORRUPT, wefti_tensor_set_open(f->dir, &set));
        ASSERT_MESSAGE(why[i]);
        assert_int_equal(remove(one), 0);
    }
    const char *pool = path_in(f->root, "pool");
    make_dir(pool, NULL);
    assert_int_equal(symlink(path_in(pool, "one.safetensors"), one), 0);
    wefti_tensor_set *linked = NULL;
    ASSERT_OK(wefti_tensor_set_open(f->dir, &linked));
    assert_both(linked);
    wefti_tensor_set_close(linked);
    /* root/snapshots/1/one.safetensors -> ../../blobs/<hash>, as the cache lays it out */
    const char *snapshot = path_in(f->root, "snapshots/1"), *blobs = path_in(f->root, "blobs");
    make_dir(snapshot, good_index);
    ASSERT_OK(wefti_dir_make(blobs));
    ASSERT_OK(wefti_rename(path_in(snapshot, "one.safetensors"), path_in(blobs, "0a1b")));
    assert_int_equal(symlink("../../blobs/0a1b", path_in(snapshot, "one.safetensors")), 0);
    wefti_tensor_set *set = NULL;
    ASSERT_OK(wefti_tensor_set_open(snapshot, &set));
    assert_both(set);
    wefti_tensor_set_close(set);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(sharded), TEST(single), TEST(hostile_indexes),
                                       TEST(links)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
