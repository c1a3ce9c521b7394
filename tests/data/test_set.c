/* Data sets of every format: samples, parts, order, vocabulary. Errors name the problem and the
 * place. Every call fails in turn. */
#include "data_fixture.h"

#include <math.h>
#include <unistd.h>

#include "data/files.h"
#include "weft/data.h"

static weft_data *open_data(weft_data_options options) {
    weft_data *data;
    ASSERT_OK(weft_data_open(&options, &data));
    return data;
}

static weft_status try_data(weft_data_options options) {
    weft_data *data;
    weft_status status = weft_data_open(&options, &data);
    if (status >= 0) weft_data_close(data);
    return status;
}

static void text_windows(void **state) {
    (void)state;
    const char *path = put_file("a.txt", "0123456789", 10);
    weft_data *data =
        open_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path, .context = 3));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 3); /* floor(9 / 3) */
    assert_int_equal(weft_data_samples(data, WEFT_DATA_VALIDATION), 0);
    assert_int_equal(weft_data_vocab(data), 256);
    assert_non_null(weft_data_tokenizer(data));
    weft_desc input = weft_data_input(data), target = weft_data_target(data);
    assert_int_equal(input.dtype, WEFT_I32);
    assert_int_equal(weft_desc_bytes(&input), 12);
    assert_int_equal(weft_desc_bytes(&target), 12);
    for (int sample = 0; sample < 3; sample++) {
        int32_t in[3], out[3];
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, sample, in, out));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(in[i], '0' + sample * 3 + i);
            assert_int_equal(out[i], in[i] + 1);
        }
    }
    int32_t in[3], out[3];
    ASSERT_FAILS(WEFT_E_ARG, "sample 3", weft_data_read(data, WEFT_DATA_TRAIN, 3, in, out));
    ASSERT_FAILS(WEFT_E_ARG, "sample -1", weft_data_read(data, WEFT_DATA_TRAIN, -1, in, out));
    ASSERT_FAILS(WEFT_E_ARG, "sample 0", weft_data_read(data, WEFT_DATA_VALIDATION, 0, in, out));
    weft_data_close(data);
    weft_data_close(NULL);
    /* exactly one sample, and one byte less */
    data = open_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path, .context = 9));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 1);
    weft_data_close(data);
    ASSERT_FAILS(
        WEFT_E_SHAPE, "10 tokens|10|11",
        try_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path, .context = 10)));
}

/* All targets and the first input of a part: its text. */
static void assert_text(const weft_data *data, const char *expected) {
    int64_t samples = weft_data_samples(data, WEFT_DATA_TRAIN);
    for (int64_t s = 0; s < samples; s++) {
        int32_t in, out;
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, s, &in, &out));
        assert_int_equal(in, (unsigned char)expected[s]);
        assert_int_equal(out, (unsigned char)expected[s + 1]);
    }
    assert_int_equal(samples, (int64_t)strlen(expected) - 1);
}

static void trees_and_patterns(void **state) {
    (void)state;
    ASSERT_OK(wefti_dir_make(in_root("t/b/c")));
    put_file("t/b/2.h", "two,", 4);
    put_file("t/b/c/3.h", "three,", 6);
    put_file("t/a.h", "one,", 4);
    put_file("t/empty.h", "", 0);
    put_file("t/z.c", "four", 4);
    put_file("t/.hidden", "secret", 6);
    assert_int_equal(symlink(in_root("t"), in_root("t/b/loop")), 0); /* not entered */
    static const struct {
        const char *path, *text;
    } cases[] = {
        {"t", "one,two,three,four"},  {"t/", "one,two,three,four"},   {"t/*.h", "one,"},
        {"t/**.h", "one,two,three,"}, {"t/**/*.h", "one,two,three,"}, {"t/b/*/?.h", "three,"},
        {"t/[!z].?", "one,"},         {"t/b/[1-2].h", "two,"},        {"t/z.c", "four"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_data *data = open_data(WEFT_STRUCT(weft_data_options, .format = "text",
                                                .path = in_root(cases[i].path), .context = 1));
        assert_text(data, cases[i].text);
        weft_data_close(data);
    }
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "*.x",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = in_root("t/*.x"),
                                      .context = 1)));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "none",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = in_root("none"),
                                      .context = 1)));
    ASSERT_OK(wefti_dir_make(in_root("bare")));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "holds|files",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = in_root("bare"),
                                      .context = 1)));
    ASSERT_FAILS(WEFT_E_SHAPE, "has 0 tokens",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "text",
                                      .path = in_root("t/empty.h"), .context = 1)));
}

static void pattern_rules(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool matches;
    } cases[] = {{"a", "a", true},
                 {"a", "b", false},
                 {"*", "", true},
                 {"*", "a/b", false},
                 {"**", "a/b", true},
                 {"a*b*c", "axbxbxc", true},
                 {"a*b*c", "axbxbx", false},
                 {"?", "/", false},
                 {"a/**/b", "a/b", true},
                 {"a/**/b", "a/x/y/b", true},
                 {"a/**/b", "a/xb", false},
                 {"x**/b", "xb", false},
                 {"x**/b", "xy/b", true},
                 {"[a-c]x", "bx", true},
                 {"[a-c]x", "dx", false},
                 {"[!a-c]x", "dx", true},
                 {"[]]", "]", true},
                 {"[a", "a", false},
                 {"[!a]", "/", false},
                 {"**/*.h", "a/b/c.h", true},
                 {"**/*.h", "c.h", true},
                 {"**x*y", "a/x/xy", true},
                 {"", "", true},
                 {"", "a", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (wefti_pattern_matches(cases[i].pattern, cases[i].text) != cases[i].matches)
            fail_msg("%s and %s", cases[i].pattern, cases[i].text);
}

static void parts(void **state) {
    (void)state;
    char text[101];
    for (int i = 0; i < 101; i++) text[i] = (char)i;
    const char *path = put_file("a", text, 101), *other = put_file("b", text, 51);
    weft_data *data = open_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path,
                                            .context = 5, .validation_fraction = 0.25));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 15);
    assert_int_equal(weft_data_samples(data, WEFT_DATA_VALIDATION), 5);
    int32_t in[5], out[5];
    ASSERT_OK(weft_data_read(data, WEFT_DATA_VALIDATION, 0, in, out));
    assert_int_equal(in[0], 75);
    ASSERT_OK(weft_data_read(data, WEFT_DATA_VALIDATION, 4, in, out));
    assert_int_equal(out[4], 100);
    weft_data_close(data);
    data = open_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path, .context = 5,
                                 .validation_path = other));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 20);
    assert_int_equal(weft_data_samples(data, WEFT_DATA_VALIDATION), 10);
    weft_data_close(data);
    weft_data_options o = WEFT_STRUCT(weft_data_options, .format = "text", .path = path,
                                      .context = 5, .validation_fraction = 0.01);
    ASSERT_FAILS(WEFT_E_SHAPE, "leaves 0 for validation", try_data(o));
    o.validation_fraction = 1.0;
    ASSERT_FAILS(WEFT_E_ARG, "fraction", try_data(o));
    o.validation_fraction = -0.5;
    ASSERT_FAILS(WEFT_E_ARG, "fraction", try_data(o));
    o.validation_fraction = 0.5;
    o.validation_path = other;
    ASSERT_FAILS(WEFT_E_ARG, "not both", try_data(o));
}

static void options(void **state) {
    (void)state;
    const char *path = put_file("a", "0123456789", 10);
    ASSERT_FAILS(WEFT_E_ARG, "'csv'",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "csv", .path = path)));
    ASSERT_FAILS(WEFT_E_ARG, "format ''", try_data(WEFT_STRUCT(weft_data_options, .path = path)));
    ASSERT_FAILS(WEFT_E_ARG, "path",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "text", .context = 1)));
    ASSERT_FAILS(WEFT_E_ARG, "context",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path)));
    ASSERT_FAILS(
        WEFT_E_ARG, "context",
        try_data(WEFT_STRUCT(weft_data_options, .format = "idx", .path = path, .context = 4)));
    ASSERT_FAILS(WEFT_E_ARG, "vocabulary",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path,
                                      .context = 1, .vocab = -1)));
}

static void vocabulary(void **state) {
    (void)state;
    const char *path = put_file("a", "01z3", 4);
    weft_data_options o =
        WEFT_STRUCT(weft_data_options, .format = "text", .path = path, .context = 1, .vocab = 'z');
    ASSERT_FAILS(WEFT_E_ARG, "token 122|byte 2|(number 2)|122", try_data(o));
    o.vocab++;
    ASSERT_OK(try_data(o));
    buffer b = {0};
    put_shard(&b, 20240520, 1, 4, (uint16_t[]){1, 2, 50257, 3}, 8);
    weft_data_options shard = WEFT_STRUCT(weft_data_options, .format = "tokens",
                                          .path = put_file("s.bin", b.bytes, (size_t)b.count),
                                          .context = 3, .vocab = 50257);
    ASSERT_FAILS(WEFT_E_ARG, "token 50257 at byte 1028 (number 2)", try_data(shard));
    shard.vocab = 0;
    ASSERT_OK(try_data(shard));
    buffer wide = {0};
    put_shard(&wide, 20240801, 7, 2, (uint32_t[]){1, 0xFFFFFFFF}, 8);
    shard.path = put_file("w.bin", wide.bytes, (size_t)wide.count);
    shard.context = 1;
    ASSERT_FAILS(WEFT_E_CORRUPT, "4294967295|byte 1028|(number 1)", try_data(shard));
}

static void several_shards(void **state) {
    (void)state;
    ASSERT_OK(wefti_dir_make(in_root("s")));
    uint16_t next = 0;
    for (int f = 0; f < 3; f++) { /* 5, 0 and 6 tokens: windows cross files */
        uint16_t tokens[6];
        int count = f == 0 ? 5 : f == 1 ? 0 : 6;
        for (int i = 0; i < count; i++) tokens[i] = next++;
        buffer b = {0};
        put_shard(&b, 20240520, 1, count, tokens, (size_t)count * 2);
        char name[20];
        (void)snprintf(name, sizeof name, "s/%d.bin", f);
        put_file(name, b.bytes, (size_t)b.count);
    }
    static const char *const paths[] = {"s", "s/*.bin"};
    for (int p = 0; p < 2; p++) {
        weft_data *data = open_data(WEFT_STRUCT(weft_data_options, .format = "tokens",
                                                .path = in_root(paths[p]), .context = 5));
        assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 2);
        assert_null(weft_data_tokenizer(data));
        int32_t in[5], out[5];
        for (int s = 0; s < 2; s++) {
            ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, s, in, out));
            for (int i = 0; i < 5; i++) {
                assert_int_equal(in[i], s * 5 + i);
                assert_int_equal(out[i], s * 5 + i + 1);
            }
        }
        weft_data_close(data);
    }
    put_file("s/3.bin", "short", 5);
    ASSERT_FAILS(WEFT_E_CORRUPT, "s/3.bin",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "tokens", .path = in_root("s"),
                                      .context = 5)));
}

static void npy_tokens_and_images(void **state) {
    (void)state;
    int64_t tokens[] = {5, 6, 7, 8};
    float images[2 * 3] = {0.0f, 0.5f, 1.0f, 2.0f, 3.0f, 4.0f};
    buffer t = {0}, x = {0}, y = {0}, z = {0};
    put_npy(&t, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }", tokens,
            sizeof tokens);
    put_npy(&x, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3), }", images,
            sizeof images);
    put_npy(&y, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1), }", (int64_t[]){1, 9},
            16);
    put_npy(&z, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", images, 8);
    weft_data *data = open_data(WEFT_STRUCT(weft_data_options, .format = "npy",
                                            .path = put_file("t.npy", t.bytes, (size_t)t.count),
                                            .context = 3, .vocab = 9));
    int32_t in[3], out[3];
    ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 0, in, out));
    assert_memory_equal(in, ((int32_t[]){5, 6, 7}), 12);
    assert_memory_equal(out, ((int32_t[]){6, 7, 8}), 12);
    weft_data_close(data);
    const char *path = put_file("train_images.npy", x.bytes, (size_t)x.count);
    put_file("train_labels.npy", y.bytes, (size_t)y.count);
    const char *paths[] = {
        path, data_root}; /* in the directory, the only .npy with "images" in its name */
    for (int p = 0; p < 2; p++) {
        data = open_data(
            WEFT_STRUCT(weft_data_options, .format = "npy", .path = paths[p], .vocab = 10));
        weft_desc input = weft_data_input(data), target = weft_data_target(data);
        assert_int_equal(input.dtype, WEFT_F32);
        assert_int_equal(input.rank, 2);
        assert_int_equal(input.shape[1], 3);
        assert_int_equal(target.rank, 0);
        assert_int_equal(weft_data_vocab(data), 10);
        float image[3];
        int32_t label;
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 1, image, &label));
        assert_memory_equal(image, images + 3, sizeof image);
        assert_int_equal(label, 9);
        weft_data_close(data);
    }
    weft_data_options o = WEFT_STRUCT(weft_data_options, .format = "npy", .path = path, .vocab = 9);
    ASSERT_FAILS(WEFT_E_ARG, "9|1", try_data(o));
    o.vocab = 0;
    o.labels = put_file("z.npy", z.bytes, (size_t)z.count);
    ASSERT_FAILS(WEFT_E_SHAPE, "integers", try_data(o));
    o.labels = put_file("t.npy", t.bytes, (size_t)t.count);
    ASSERT_FAILS(WEFT_E_SHAPE, "4 labels", try_data(o));
    o.labels = NULL;
    o.path = in_root("t.npy");
    ASSERT_FAILS(WEFT_E_ARG, "labels", try_data(o));
    o.context = 1;
    o.path = path;
    ASSERT_FAILS(WEFT_E_SHAPE, "one dimension", try_data(o));
    images[4] = (float)INFINITY;
    buffer bad = {0};
    put_npy(&bad, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3), }", images,
            sizeof images);
    put_file("train_images.npy", bad.bytes, (size_t)bad.count);
    data = open_data(WEFT_STRUCT(weft_data_options, .format = "npy", .path = path));
    float image[3];
    int32_t label;
    ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 0, image, &label));
    ASSERT_FAILS(WEFT_E_NUMERIC, "element 1 of image 1",
                 weft_data_read(data, WEFT_DATA_TRAIN, 1, image, &label));
    weft_data_close(data);
}

/* Pixels of wide integer types: dividing by the largest number of the type would leave almost
 * nothing. */
static void pixels_in_numbers_too_wide(void **state) {
    (void)state;
    static const struct {
        const char *descr;
        int bytes;
        uint64_t pixel;
        bool good;
    } cases[] = {{"<i8", 8, 255, false},    {"<i4", 4, 255, false},       {"<u4", 4, 1000, false},
                 {"<u2", 2, 255, false},    {"<i2", 2, 200, false},       {"|u1", 1, 3, true},
                 {"|b1", 1, 1, true},       {"<u2", 2, 4000, true},       {"<i4", 4, 0, true},
                 {"<i4", 4, 1 << 29, true}, {"<i8", 8, 1ULL << 62, true}, {"<i8", 8, 65535, false},
                 {"<i4", 4, 65535, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char pixels[2 * 2 * 8] = {0};
        char header[100];
        memcpy(pixels + cases[i].bytes, &cases[i].pixel, (size_t)cases[i].bytes);
        (void)snprintf(header, sizeof header,
                       "{'descr': '%s', 'fortran_order': False, 'shape': (2, 1, 2), }",
                       cases[i].descr);
        buffer x = {0}, y = {0};
        put_npy(&x, 1, header, pixels, 4 * (size_t)cases[i].bytes);
        put_npy(&y, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }", "\0\1", 2);
        weft_data_options o =
            WEFT_STRUCT(weft_data_options, .format = "npy",
                        .path = put_file("wide.npy", x.bytes, (size_t)x.count),
                        .labels = put_file("narrow.npy", y.bytes, (size_t)y.count));
        if (cases[i].good)
            weft_data_close(open_data(o));
        else
            ASSERT_FAILS(WEFT_E_ARG, "bytes", try_data(o));
    }
}

static void idx_pairs(void **state) {
    (void)state;
    buffer x = {0}, y = {0}, other = {0};
    put_idx(&x, 0x08, 1, 3, (uint32_t[]){4, 2, 2});
    put_idx(&y, 0x08, 1, 1, (uint32_t[]){4});
    put_idx(&other, 0x08, 1, 3, (uint32_t[]){4, 2, 3});
    x.bytes[x.count - 1] = 255;
    x.bytes[x.count - 2] = 51;
    y.bytes[y.count - 1] = 7;
    ASSERT_OK(wefti_dir_make(in_root("m")));
    put_file("m/train-images-idx3-ubyte", x.bytes, (size_t)x.count);
    put_file("m/train-labels-idx1-ubyte", y.bytes, (size_t)y.count);
    put_file("m/t10k-images-idx3-ubyte", other.bytes, (size_t)other.count);
    put_file("m/t10k-labels-idx1-ubyte", y.bytes, (size_t)y.count);
    weft_data *data =
        open_data(WEFT_STRUCT(weft_data_options, .format = "idx", .path = in_root("m"), .vocab = 10,
                              .validation_fraction = 0.5));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 2);
    float image[4];
    int32_t label;
    ASSERT_OK(weft_data_read(data, WEFT_DATA_VALIDATION, 1, image, &label));
    assert_true(image[3] == 1.0f && image[2] == 0.2f && image[0] == 0.0f);
    assert_int_equal(label, 7);
    weft_data_close(data);
    ASSERT_FAILS(WEFT_E_SHAPE, "different sizes",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "idx", .path = in_root("m"),
                                      .validation_path = in_root("m/t10k-images-idx3-ubyte"))));
    put_file("m/extra-images", x.bytes, (size_t)x.count);
    ASSERT_OK(try_data(WEFT_STRUCT(weft_data_options, .format = "idx",
                                   .path = in_root("m")))); /* still one train* */
    put_file("m/train-images-2", x.bytes, (size_t)x.count);
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "2 files",
                 try_data(WEFT_STRUCT(weft_data_options, .format = "idx", .path = in_root("m"))));
}

static void tokenised_text(void **state) {
    (void)state;
    ASSERT_OK(wefti_dir_make(in_root("d")));
    put_file("d/a", "hello there", 11);
    put_file("d/b", "hello there", 11);
    weft_data_options o = WEFT_STRUCT(weft_data_options, .format = "text", .path = in_root("d"),
                                      .context = 1, .tokenizer = "tests/data/tokenizer_gpt2.json");
    weft_data *data = open_data(o);
    const weft_tokenizer *t = weft_data_tokenizer(data);
    assert_int_equal(weft_data_vocab(data), weft_tokenizer_vocab(t));
    int32_t ids[20], in, out;
    int64_t count;
    ASSERT_OK(weft_tokenizer_encode(t, "hello there", 11, ids, 19, &count));
    ids[count++] = weft_tokenizer_find(t, "<|endoftext|>"); /* behind each of several files */
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 2 * count - 1);
    for (int64_t i = 0; i < 2 * count - 1; i++) {
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, i, &in, &out));
        assert_int_equal(in, ids[i % count]);
        assert_int_equal(out, ids[(i + 1) % count]);
    }
    weft_data_close(data);
    o.vocab = 10;
    ASSERT_FAILS(WEFT_E_ARG, "vocabulary of 10", try_data(o));
}

static void each_epoch_visits_each_sample_once(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 7, 64, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s], moved = 0;
        unsigned char seen[1000];
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t index = weft_data_order(11, n, epoch * n + i);
                assert_true(index >= 0 && index < n && !seen[index]);
                seen[index] = 1;
                moved += index != weft_data_order(11, n, i); /* another order each epoch */
                moved += index != weft_data_order(12, n, epoch * n + i); /* and for each seed */
            }
        }
        if (n >= 64) assert_true(moved > n);
    }
    assert_int_equal(weft_data_order(1, 0, 5), 0);
    assert_int_equal(weft_data_order(1, 5, -1), 0);
    /* far positions are as good as near ones */
    int64_t far = ((int64_t)1 << 62) + 12345;
    assert_true(weft_data_order(3, 1000, far) >= 0 && weft_data_order(3, 1000, far) < 1000);
}

static void real_text(void **state) {
    (void)state;
    const char *path = shared_file("tinyshakespeare.txt");
    if (!path) skip();
    weft_data *data =
        open_data(WEFT_STRUCT(weft_data_options, .format = "text", .path = path, .context = 256,
                              .vocab = 256, .validation_fraction = 0.1));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN) +
                         weft_data_samples(data, WEFT_DATA_VALIDATION),
                     (1115394 - 1) / 256);
    int32_t in[256], out[256];
    ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 0, in, out));
    for (int i = 0; i < 13; i++) assert_int_equal(in[i], "First Citizen"[i]);
    weft_data_close(data);
}

static void real_images(void **state) {
    (void)state;
#ifdef WEFT_HAVE_ZLIB
    const char *path = shared_file("t10k-images-idx3-ubyte.gz");
    if (!path) skip();
    weft_data *data =
        open_data(WEFT_STRUCT(weft_data_options, .format = "idx", .path = path, .vocab = 10));
    assert_int_equal(weft_data_samples(data, WEFT_DATA_TRAIN), 10000);
    assert_int_equal(weft_data_vocab(data), 10);
    weft_desc input = weft_data_input(data);
    assert_int_equal(input.rank, 2);
    assert_int_equal(input.shape[0], 28);
    assert_int_equal(input.shape[1], 28);
    static const int labels[] = {7, 2, 1, 0, 4, 1, 4, 9, 5, 9}; /* the well-known first ten */
    double sum = 0.0;
    float image[784], largest = 0.0f;
    for (int64_t i = 0; i < 10000; i++) {
        int32_t label;
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, i, image, &label));
        if (i < 10) assert_int_equal(label, labels[i]);
        for (int k = 0; k < 784; k++) {
            sum += (double)image[k];
            if (image[k] > largest) largest = image[k];
        }
    }
    assert_true(largest == 1.0f);
    double mean = sum / 7840000.0; /* 0.1325 for this file */
    assert_true(mean > 0.132 && mean < 0.133);
    weft_data_close(data);
#endif
}

/* A large file: a header, and `bytes` that count up. */
static const char *put_large(const char *name, const buffer *header, int64_t bytes) {
    unsigned char *all = malloc((size_t)(header->count + bytes));
    assert_non_null(all);
    memcpy(all, header->bytes, (size_t)header->count);
    for (int64_t i = 0; i < bytes; i++) all[header->count + i] = (unsigned char)(i % 251);
    const char *path = put_file(name, all, (size_t)(header->count + bytes));
    free(all);
    return path;
}

/* A file is cut while it is in use. The rest of it is still read. Reading the cut part is an error
 * that names the file, and the process goes on. */
static void cut_meanwhile(void **state) {
    (void)state;
    enum { IMAGES = 1000, EACH = 100 };
    buffer none = {0}, shard = {0}, images = {0}, turned = {0};
    put_shard(&shard, 20240520, 1, IMAGES * EACH / 2, "", 0);
    put_npy(&images, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (1000, 10, 10), }", "",
            0);
    put_npy(&turned, 1, "{'descr': '|u1', 'fortran_order': True, 'shape': (1000, 10, 10), }", "",
            0);
    buffer label_header = {0};
    put_npy(&label_header, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (1000,), }", "",
            0);
    char label_path[300], path[300];
    (void)snprintf(label_path, sizeof label_path, "%s",
                   put_large("labels.npy", &label_header, IMAGES));
    const struct {
        const char *format;
        const buffer *header;
        int64_t bytes;
        bool cut; /* else all of it is in memory */
    } all[] = {{"text", &none, 2 << 20, true},
               {"text", &none, IMAGES * EACH, false},
               {"tokens", &shard, IMAGES * EACH, true},
               {"npy", &images, IMAGES * EACH, true},
               {"npy", &turned, IMAGES * EACH, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bool pictures = strcmp(all[i].format, "npy") == 0;
        (void)snprintf(path, sizeof path, "%s", put_large("large", all[i].header, all[i].bytes));
        weft_data *data = open_data(
            WEFT_STRUCT(weft_data_options, .format = all[i].format, .path = path,
                        .labels = pictures ? label_path : NULL, .context = pictures ? 0 : 10));
        float image[EACH];
        int32_t in[10], out[10];
        void *input = pictures ? (void *)image : in;
        int64_t last = weft_data_samples(data, WEFT_DATA_TRAIN) - 1;
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, last, input, out));
        assert_int_equal(truncate(path, 90000), 0);
        ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, 0, input, out));
        if (all[i].cut)
            ASSERT_FAILS(WEFT_E_IO, "large|while",
                         weft_data_read(data, WEFT_DATA_TRAIN, last, input, out));
        else
            ASSERT_OK(weft_data_read(data, WEFT_DATA_TRAIN, last, input, out));
        weft_data_close(data);
    }
}

/* Every allocation and I/O call failed in turn: an error with a message, nothing lost (address
 * sanitizer). */
static void faults(void **state) {
    (void)state;
    buffer s = {0}, x = {0}, y = {0};
    put_shard(&s, 20240520, 1, 4, (uint16_t[]){1, 2, 3, 4}, 8);
    put_idx(&x, 0x08, 1, 3, (uint32_t[]){4, 2, 2});
    put_idx(&y, 0x08, 1, 1, (uint32_t[]){4});
    ASSERT_OK(wefti_dir_make(in_root("text/sub")));
    put_file("text/a", "hello", 5);
    put_file("text/sub/b", "there", 5);
    put_file("s.bin", s.bytes, (size_t)s.count);
    put_file("images", x.bytes, (size_t)x.count);
    put_file("labels", y.bytes, (size_t)y.count);
    put_file("labels.gz", "other", 5); /* not read in place of labels */
    char text[300], shard[300], images[300];
    (void)snprintf(text, sizeof text, "%s/text", data_root);
    (void)snprintf(shard, sizeof shard, "%s/*.bin", data_root);
    (void)snprintf(images, sizeof images, "%s/images", data_root);
    const weft_data_options all[] = {
        WEFT_STRUCT(weft_data_options, .format = "text", .path = text, .context = 2,
                    .validation_path = text),
        WEFT_STRUCT(weft_data_options, .format = "text", .path = text, .context = 2,
                    .tokenizer = "tests/data/tokenizer_llama2.json"),
        WEFT_STRUCT(weft_data_options, .format = "tokens", .path = shard, .context = 2),
        WEFT_STRUCT(weft_data_options, .format = "idx", .path = images, .vocab = 10,
                    .validation_fraction = 0.5),
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int kind = 0; kind < WEFTI_FAULT_KINDS; kind++)
            for (int64_t n = 0, reached = 1; reached; n++) {
                wefti_fault_arm((wefti_fault_kind)kind, n, false, 0);
                weft_data *data;
                weft_status status = weft_data_open(&all[i], &data);
                reached = wefti_fault_count((wefti_fault_kind)kind) > n;
                disarm_faults();
                if (status >= 0) weft_data_close(data);
                if (status < 0) assert_true(weft_error_message()[0]);
                if (!reached) assert_int_equal(status, WEFT_OK);
                if (kind == WEFTI_FAULT_IO && status < 0) assert_int_equal(status, WEFT_E_IO);
                if (kind == WEFTI_FAULT_ALLOC && status >= 0) assert_false(reached);
            }
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, data_setup, data_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_ROOT(text_windows),
        IN_ROOT(trees_and_patterns),
        cmocka_unit_test(pattern_rules),
        IN_ROOT(parts),
        IN_ROOT(options),
        IN_ROOT(vocabulary),
        IN_ROOT(several_shards),
        IN_ROOT(npy_tokens_and_images),
        IN_ROOT(pixels_in_numbers_too_wide),
        IN_ROOT(idx_pairs),
        IN_ROOT(tokenised_text),
        cmocka_unit_test(each_epoch_visits_each_sample_once),
        cmocka_unit_test(real_text),
        cmocka_unit_test(real_images),
        IN_ROOT(cut_meanwhile),
        IN_ROOT(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
