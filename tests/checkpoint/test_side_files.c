/* Files beside a model: the table's names are found and nothing else; blocks of them travel whole;
 * links bring no file of another name. */
#include "checkpoint/side_files.h"

#include "fixture.h"

#include <string.h>
#include <unistd.h>

static const char binary[] = {'a', 0, 'b', 0, 0};

static void put(const char *dir, const char *name, const char *text) {
    put_file(path_in(dir, name), text, strlen(text));
}

static void make(const char *dir) {
    ASSERT_OK(wefti_dir_make(dir));
    put(dir, "config.json", "{\"c\": 1}");
    put(dir, "generation_config.json", "{\"eos_token_id\": 3}");
    put(dir, "tokenizer_config.json", "{}");
    put(dir, "chat_template.jinja", "");
    put(dir, "README.md", "not of the table");
    put_file(path_in(dir, "tokenizer.model"), binary, sizeof binary);
    ASSERT_OK(wefti_dir_make(path_in(dir, "vocab.json"))); /* a folder of that name is no file */
}

static void assert_has(const wefti_side_files *files, const char *name, const void *text,
                       int64_t bytes) {
    int64_t found = -1;
    const char *there = wefti_side_files_find(files, name, &found);
    assert_non_null(there);
    assert_int_equal(found, bytes);
    assert_memory_equal(there, text, (size_t)bytes);
}

static void uses(void **state) {
    const fixture *f = *state;
    wefti_side_files files = {0}, tokens = {0};
    int64_t bytes;
    make(f->dir);
    ASSERT_OK(wefti_side_files_add(&files, f->dir, WEFTI_SIDE_ALL));
    assert_int_equal(files.count, 5);
    assert_has(&files, "config.json", "{\"c\": 1}", 8);
    assert_has(&files, "chat_template.jinja", "", 0);
    assert_has(&files, "tokenizer.model", binary, sizeof binary);
    assert_null(wefti_side_files_find(&files, "README.md", &bytes));
    ASSERT_OK(wefti_side_files_add(&tokens, f->dir, WEFTI_SIDE_TOKENIZER));
    assert_int_equal(tokens.count, 3);
    assert_null(wefti_side_files_find(&tokens, "generation_config.json", &bytes));
    wefti_side_files_free(&tokens);
    ASSERT_OK(wefti_side_files_add(&tokens, f->root, WEFTI_SIDE_ALL)); /* none there */
    assert_int_equal(tokens.count, 0);
    wefti_side_files_free(&files);
}

static void blocks(void **state) {
    const fixture *f = *state;
    wefti_side_files files = {0}, heard = {0};
    make(f->dir);
    ASSERT_OK(wefti_side_files_add(&files, f->dir, WEFTI_SIDE_ALL));
    for (int64_t cut = 0; cut <= files.bytes; cut++) {
        char *data = wefti_alloc((size_t)cut + 1);
        memcpy(data, files.data, (size_t)cut);
        const weft_status status = wefti_side_files_take(&heard, data, cut);
        assert_true(status >= 0 || status == WEFT_E_MISMATCH);
        if (cut == files.bytes) assert_int_equal(status, WEFT_OK);
    }
    assert_int_equal(heard.count, files.count);
    assert_has(&heard, "tokenizer.model", binary, sizeof binary);
    const char *copy = path_in(f->root, "copy");
    ASSERT_OK(wefti_dir_make(copy));
    ASSERT_OK(wefti_side_files_write(&heard, copy));
    wefti_side_files_free(&heard);
    ASSERT_OK(wefti_side_files_add(&heard, copy, WEFTI_SIDE_ALL));
    assert_int_equal(heard.bytes, files.bytes);
    assert_memory_equal(heard.data, files.data, (size_t)files.bytes);
    wefti_side_files_free(&heard);
    wefti_side_files_free(&files);
}

static void links(void **state) {
    const fixture *f = *state;
    wefti_side_files files = {0};
    make(f->dir);
    const char *linked = path_in(f->root, "linked"),
               *link = path_in(linked, "tokenizer_config.json");
    ASSERT_OK(wefti_dir_make(linked));
    assert_int_equal(symlink(path_in(f->dir, "tokenizer_config.json"), link), 0);
    ASSERT_OK(wefti_side_files_add(&files, linked, WEFTI_SIDE_ALL));
    assert_has(&files, "tokenizer_config.json", "{}", 2);
    wefti_side_files_free(&files);
    assert_int_equal(remove(link), 0);
    assert_int_equal(symlink(path_in(f->dir, "README.md"), link), 0);
    ASSERT_STATUS(WEFT_E_CORRUPT, wefti_side_files_add(&files, linked, WEFTI_SIDE_ALL));
    ASSERT_MESSAGE("tokenizer_config.json|README.md|same name");
    wefti_side_files_free(&files);
    /* root/snapshots/1/config.json -> ../../blobs/<hash>, as a Hugging Face cache lays it out */
    const char *snapshot = path_in(f->root, "snapshots/1"), *blobs = path_in(f->root, "blobs");
    ASSERT_OK(wefti_dir_make(snapshot));
    ASSERT_OK(wefti_dir_make(blobs));
    put(blobs, "0a1b", "{\"b\": 2}");
    assert_int_equal(symlink("../../blobs/0a1b", path_in(snapshot, "config.json")), 0);
    ASSERT_OK(wefti_side_files_add(&files, snapshot, WEFTI_SIDE_ALL));
    assert_has(&files, "config.json", "{\"b\": 2}", 8);
    wefti_side_files_free(&files);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void) {
    const struct CMUnitTest tests[] = {TEST(uses), TEST(blocks), TEST(links)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
