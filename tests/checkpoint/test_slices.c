/* Slices of parameters and of their optimizer states. Slices that are joined, cut differently and
 * joined again have the same bytes. Slices that do not fit are refused by name, and no file is
 * left. */
#include "fixture.h"

#include <errno.h>

#include "checkpoint/safetensors.h"
#include "weft/checkpoint.h"

typedef const char *const *paths;

static weft_status merge(paths slices, int count, const weft_checkpoint_slice_rule *cuts,
                         int cut_count, const char *path) {
    char *text = NULL;
    weft_status status = weft_checkpoint_merge(slices, count, cuts, cut_count, path, 0, &text);
    weft_checkpoint_text_free(text);
    return status;
}

static weft_status split(const char *path, int ranks, const weft_checkpoint_slice_rule *cuts,
                         int cut_count, const char *prefix) {
    char *text = NULL;
    weft_status status = weft_checkpoint_split(path, ranks, cuts, cut_count, prefix, 1, &text);
    weft_checkpoint_text_free(text);
    return status;
}

/* `rank`: the rank of the slice, `ranks`: the number of ranks; NULL: the file does not say. */
static void write_slice(const char *path, const wefti_safetensors_item *items, int64_t count,
                        const char *rank, const char *ranks) {
    wefti_safetensors_pair pairs[] = {{"format", "pt"}, {"rank", rank}, {"ranks", ranks}};
    ASSERT_OK(wefti_safetensors_write(path, items, count, pairs, ranks ? 3 : rank ? 2 : 1));
}

static void write_items(const char *path, const wefti_safetensors_item *items, int64_t count) {
    write_slice(path, items, count, NULL, NULL);
}

/* The name that `split` gives to the file of a rank. */
static const char *slice_of(const fixture *f, const char *prefix, int rank, int ranks) {
    char name[100];
    (void)snprintf(name, sizeof name, "%s-rank-%05d-of-%05d.safetensors", strrchr(prefix, '/') + 1,
                   rank, ranks);
    return in(f, name);
}

/* ---- four ranks of a network of two layers ---- */

enum { RANKS = 4, UNITS = 8, INPUTS = 6, OWN = UNITS / RANKS };

static const char *const names[RANKS] = {"0.safetensors", "1.safetensors", "2.safetensors",
                                         "3.safetensors"};

static float value_of(int tensor, int row, int column) {
    return (float)(1000 * tensor + 10 * row + column);
}

/* "fc1.weight" [INPUTS, UNITS] by columns, "fc2.weight" [UNITS, 3] by rows, their momenta, a bias
 * and a number that all have. */
static void write_rank(const char *path, int rank) {
    static float data[4][INPUTS * UNITS], bias[3] = {7, 8, 9};
    static int64_t step = 20;
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < (t < 2 ? INPUTS : OWN); i++)
            for (int j = 0; j < (t < 2 ? OWN : 3); j++)
                data[t][i * (t < 2 ? OWN : 3) + j] =
                    t < 2 ? value_of(t, i, rank * OWN + j) : value_of(t, rank * OWN + i, j);
    wefti_safetensors_item items[] = {
        {"fc1.weight", {WEFT_F32, 2, {INPUTS, OWN}}, data[0]},
        {"fc1.weight.m", {WEFT_F32, 2, {INPUTS, OWN}}, data[1]},
        {"fc2.weight", {WEFT_F32, 2, {OWN, 3}}, data[2]},
        {"moments.fc2.weight", {WEFT_F32, 2, {OWN, 3}}, data[3]},
        {"fc2.bias", {WEFT_F32, 1, {3}}, bias},
        {"step", {WEFT_I64, 0, {0}}, &step},
    };
    write_slice(path, items, 6, (char[]){(char)('0' + rank), '\0'},
                (char[]){(char)('0' + RANKS), '\0'});
}

static const weft_checkpoint_slice_rule layers[] = {{"fc1.*", 1}, {"fc2.weight", 0}};

static void assert_whole(const char *path) {
    wefti_safetensors *file = NULL;
    ASSERT_OK(wefti_safetensors_open(path, &file));
    static const char *const cut[] = {"fc1.weight", "fc1.weight.m", "fc2.weight",
                                      "moments.fc2.weight"};
    assert_int_equal(wefti_safetensors_count(file), 6);
    for (int t = 0; t < 4; t++) {
        const wefti_safetensors_entry *e = wefti_safetensors_find(file, cut[t]);
        assert_non_null(e);
        assert_int_equal(e->desc.shape[0], t < 2 ? INPUTS : UNITS);
        assert_int_equal(e->desc.shape[1], t < 2 ? UNITS : 3);
        const unsigned char *bytes = BYTES_OF(e);
        for (int i = 0; i < (int)e->desc.shape[0]; i++)
            for (int j = 0; j < (int)e->desc.shape[1]; j++) {
                float is;
                memcpy(&is, bytes + 4 * (i * e->desc.shape[1] + j), 4);
                assert_true(is == value_of(t, i, j));
            }
    }
    assert_int_equal(wefti_safetensors_find(file, "fc2.bias")->desc.shape[0], 3);
    wefti_safetensors_close(file);
}

static void joined_cut_and_joined_again(void **state) {
    const fixture *f = *state;
    const char *slices[RANKS], *halves[2], *quarters[RANKS];
    const char *whole = in(f, "whole.safetensors");
    const char *again = in(f, "again.safetensors");
    const char *half = in(f, "half"), *quarter = in(f, "quarter");
    for (int r = 0; r < RANKS; r++) {
        slices[r] = in(f, names[r]);
        write_rank(slices[r], r);
    }
    ASSERT_OK(merge(slices, RANKS, layers, 2, whole));
    assert_whole(whole);
    ASSERT_OK(split(whole, 2, layers, 2, half));
    for (int r = 0; r < 2; r++) halves[r] = slice_of(f, half, r, 2);
    ASSERT_OK(merge(halves, 2, layers, 2, again));
    assert_same_file(whole, again);
    /* Cut evenly, the slices are again the files that were joined. */
    ASSERT_OK(split(again, RANKS, layers, 2, quarter));
    for (int r = 0; r < RANKS; r++) {
        quarters[r] = slice_of(f, quarter, r, RANKS);
        assert_same_file(quarters[r], slices[r]);
    }
}

static uint64_t random_seed;

/* ---- any shape, along any dimension, for any number of ranks ---- */

static int64_t pick(uint64_t *at, int64_t below) {
    return wefti_philox_u32(random_seed, 1, (*at)++) % (uint32_t)below;
}

/* Element by element: the slice of `rank` has the elements of the whole from `begin` on. */
static void assert_slice(const wefti_safetensors_entry *slice, const unsigned char *whole,
                         const weft_desc *desc, int dimension, int64_t begin) {
    int64_t bytes = (int64_t)weft_dtype_bytes(desc->dtype), count = weft_desc_elems(&slice->desc);
    const unsigned char *part = BYTES_OF(slice);
    for (int64_t k = 0; k < count; k++) {
        int64_t rest = k, at = 0, stride = 1;
        for (int d = desc->rank; d-- > 0;) {
            int64_t index = rest % slice->desc.shape[d] + (d == dimension ? begin : 0);
            rest /= slice->desc.shape[d];
            at += index * stride;
            stride *= desc->shape[d];
        }
        assert_memory_equal(part + k * bytes, whole + at * bytes, (size_t)bytes);
    }
}

static void any_shape_and_number(void **state) {
    const fixture *f = *state;
    static unsigned char data[6 * 6 * 6 * 6 * 8];
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F64, WEFT_U8};
    uint64_t at = 0;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)wefti_philox_u32(random_seed, 0, i);
    for (int round = 0; round < 60; round++) {
        weft_desc desc = {dtypes[pick(&at, 4)], 1 + (int)pick(&at, 4), {0}};
        for (int d = 0; d < desc.rank; d++) desc.shape[d] = pick(&at, 7); /* 0 too */
        int dimension = (int)pick(&at, desc.rank), ranks = 1 + (int)pick(&at, 7);
        weft_checkpoint_slice_rule cut = {"w", dimension};
        wefti_safetensors_item item = {"w", desc, data};
        char name[40];
        (void)snprintf(name, sizeof name, "round%d", round);
        const char *prefix = in(f, name);
        const char *one = in(f, "one.safetensors");
        write_items(one, &item, 1);
        ASSERT_OK(split(one, ranks, &cut, 1, prefix));
        const char *slices[7];
        int64_t begin = 0;
        for (int r = 0; r < ranks; r++) {
            wefti_safetensors *file = NULL;
            slices[r] = slice_of(f, prefix, r, ranks);
            ASSERT_OK(wefti_safetensors_open(slices[r], &file));
            const wefti_safetensors_entry *e = wefti_safetensors_find(file, "w");
            assert_int_equal(begin, r * desc.shape[dimension] / ranks); /* as layouts cut */
            assert_slice(e, data, &desc, dimension, begin);
            begin += e->desc.shape[dimension];
            wefti_safetensors_close(file);
        }
        assert_int_equal(begin, desc.shape[dimension]);
        (void)snprintf(name, sizeof name, "round%d.safetensors", round);
        const char *joined = in(f, name);
        ASSERT_OK(merge(slices, ranks, &cut, 1, joined));
        assert_same_file(one, joined);
    }
}

/* ---- ranks named by files ---- */

static void expect_cuts(const fixture *f, const weft_checkpoint_slice_rule *cuts, int count,
                        const char *expected) {
    static float data[16];
    const char *path = in(f, "names.safetensors"), *prefix = in(f, "names");
    wefti_safetensors_item items[] = {
        {"h.0.w", {WEFT_F32, 2, {4, 4}}, data},         {"h.0.w.m", {WEFT_F32, 2, {4, 4}}, data},
        {"h.1.w", {WEFT_BF16, 2, {4, 4}}, data},        {"h.1.w.m", {WEFT_F32, 2, {4, 4}}, data},
        {"moments.h.1.w", {WEFT_F32, 2, {4, 4}}, data}, {"step", {WEFT_I64, 0, {0}}, data},
    };
    write_items(path, items, 6);
    char is[100] = "", *text = NULL;
    ASSERT_OK(weft_checkpoint_split(path, 1, cuts, count, prefix, 0, &text));
    for (int i = 0; i < 6; i++) {
        char line[40];
        (void)snprintf(line, sizeof line, "\n  %s ", items[i].name);
        const char *from = strstr(text, line), *along = NULL;
        assert_non_null(from);
        along = strstr(from, "dimension ");
        const char *end = strchr(from + 1, '\n');
        (void)snprintf(is + strlen(is), sizeof is - strlen(is), "%c",
                       along && along < end ? along[10] : '-');
    }
    weft_checkpoint_text_free(text);
    assert_string_equal(is, expected);
    assert_int_equal(unlink(slice_of(f, prefix, 0, 1)), 0);
}

static void what_is_said_last_counts(void **state) {
    const fixture *f = *state;
    expect_cuts(f, NULL, 0, "------");
    expect_cuts(f, (weft_checkpoint_slice_rule[]){{"h.0.w", 1}}, 1, "11----");
    expect_cuts(f, (weft_checkpoint_slice_rule[]){{"h.[0-9].w", 1}, {"h.1.w", 0}}, 2, "11000-");
    expect_cuts(f, (weft_checkpoint_slice_rule[]){{"h.1.w", 0}, {"h.*", 1}}, 2, "11111-");
    expect_cuts(f, (weft_checkpoint_slice_rule[]){{"h.*", 1}, {"h.1.w.m", -1}}, 2, "111-1-");
    expect_cuts(f, (weft_checkpoint_slice_rule[]){{"*", 0}, {"step", -1}, {"*.m", 1}}, 3, "01010-");
    expect_cuts(f, (weft_checkpoint_slice_rule[]){{"*", -1}, {"h.0.w", 0}}, 2, "00----");
}

/* ---- our own checkpoints ---- */

static void steps_are_sources_too(void **state) {
    const fixture *f = *state;
    ASSERT_OK(write_step(f->dir, 1, 0));
    ASSERT_OK(write_step(f->dir, 2, 0));
    const char *prefix = in(f, "own"), *whole = in(f, "own.safetensors");
    const weft_checkpoint_slice_rule cut = {"h.0.attn.weight", 0};
    ASSERT_OK(split(f->dir, 2, &cut, 1, prefix));
    const char *slices[] = {slice_of(f, prefix, 0, 2), slice_of(f, prefix, 1, 2)};
    ASSERT_OK(merge(slices, 2, &cut, 1, whole));
    wefti_safetensors *file = NULL;
    ASSERT_OK(wefti_safetensors_open(whole, &file));
    model m;
    model_make(&m, 2);
    assert_int_equal(wefti_safetensors_count(file), MODEL_TENSORS);
    for (int i = 0; i < MODEL_TENSORS; i++) {
        const wefti_safetensors_entry *e = wefti_safetensors_find(file, m.tensors[i].name);
        assert_non_null(e);
        assert_memory_equal(BYTES_OF(e), m.tensors[i].data, (size_t)e->bytes);
    }
    wefti_safetensors_close(file);
    const char *steps[] = {path_in(f->dir, "step-000000000001"), f->dir};
    ASSERT_STATUS(WEFT_E_ARG, merge(steps, 2, NULL, 0, in(f, "x.safetensors")));
    ASSERT_MESSAGE("step 2|slice 0");
    /* the last step is damaged: an older step is not taken instead */
    put_file(path_in(path_in(f->dir, "step-000000000002"), "model.safetensors"), "x", 1);
    ASSERT_STATUS(WEFT_E_CORRUPT, split(f->dir, 2, &cut, 1, in(f, "y")));
    ASSERT_MESSAGE("name|directory");
    ASSERT_OK(split(path_in(f->dir, "step-000000000001"), 2, &cut, 1, in(f, "y")));
}

/* Of a model's directory model.safetensors counts alone. What a file of torch says of its place in
 * a whole tensor does not count: the rules say it. */
static void files_are_taken_as_they_are(void **state) {
    const fixture *f = *state;
    static float data[16] = {1, 2, 3};
    const weft_checkpoint_slice_rule cut = {"w", 0};
    const wefti_safetensors_item item = {"w", {WEFT_F32, 2, {2, 4}}, data};
    const wefti_safetensors_pair plain = {"format", "pt"};
    const wefti_safetensors_pair torch = {"DCP_SHARDING_INFO", "{\"w\":{\"saved_offsets\":[4,0]}}"};
    const char *dir = in(f, "model"), *shard = in(f, "shard.safetensors"), *prefix = in(f, "s");
    const char *slices[] = {slice_of(f, prefix, 0, 2), slice_of(f, prefix, 1, 2)};
    ASSERT_OK(wefti_dir_make(dir));
    ASSERT_OK(wefti_safetensors_write(path_in(dir, "adapter.safetensors"), &item, 1, &torch, 1));
    ASSERT_OK(wefti_safetensors_write(path_in(dir, "model.safetensors"), &item, 1, &plain, 1));
    ASSERT_OK(wefti_safetensors_write(shard, &item, 1, &torch, 1));
    for (int i = 0; i < 2; i++) {
        const char *whole = in(f, i ? "0.safetensors" : "1.safetensors");
        ASSERT_OK(split(i ? shard : dir, 2, &cut, 1, prefix));
        ASSERT_OK(merge(slices, 2, &cut, 1, whole));
        wefti_safetensors *file = NULL;
        ASSERT_OK(wefti_safetensors_open(whole, &file));
        assert_int_equal(wefti_safetensors_count(file), 1);
        assert_memory_equal(BYTES_OF(wefti_safetensors_at(file, 0)), data, sizeof data / 2);
        wefti_safetensors_close(file);
        for (int r = 0; r < 2; r++) assert_int_equal(unlink(slices[r]), 0);
    }
    const char *twice[] = {shard, dir};
    ASSERT_OK(merge(twice, 2, &cut, 1, in(f, "2.safetensors")));
}

/* ---- slices that do not fit ---- */

static const char *one_tensor(const fixture *f, const char *file, const char *name, weft_desc desc,
                              float first) {
    static float data[64];
    data[0] = first;
    const char *path = in(f, file);
    wefti_safetensors_item item = {name, desc, data};
    write_items(path, &item, 1);
    return path;
}

static void refuses(const fixture *f, weft_status code, const char *a, const char *b,
                    weft_checkpoint_slice_rule cut, const char *why) {
    const char *slices[] = {a, b}, *path = in(f, "refused.safetensors");
    weft_status status = merge(slices, 2, &cut, cut.match ? 1 : 0, path);
    if (status != code) fail_msg("%d instead of %d for \"%s\"", status, code, why);
    ASSERT_MESSAGE(why);
    assert_false(wefti_exists(path));
}

static void slices_that_do_not_fit(void **state) {
    const fixture *f = *state;
    const weft_desc desc = {WEFT_F32, 2, {2, 4}};
    const weft_checkpoint_slice_rule rows = {"w", 0}, whole = {"w", -1}, none = {NULL, 0};
    const char *a = one_tensor(f, "a.safetensors", "w", desc, 1);
    const char *b = one_tensor(f, "b.safetensors", "w", desc, 2);
    const char *wide = one_tensor(f, "wide.safetensors", "w", (weft_desc){WEFT_F32, 2, {2, 5}}, 1);
    refuses(f, WEFT_E_SHAPE, a, wide, rows, "f32[2, 4] in slice 0 and f32[2, 5] in slice 1");
    refuses(f, WEFT_E_SHAPE, a, wide, whole, "whole");
    refuses(f, WEFT_E_MISMATCH, a, wide, none, "along|dimension");
    refuses(f, WEFT_E_MISMATCH, a, b, none, "along|dimension");
    refuses(f, WEFT_E_MISMATCH, a, b, whole, "whole");
    const weft_desc half = {WEFT_BF16, 2, {2, 4}}, flat = {WEFT_F32, 1, {8}};
    refuses(f, WEFT_E_SHAPE, a, one_tensor(f, "c.safetensors", "w", half, 1), rows,
            "and bf16[2, 4] in slice 1");
    refuses(f, WEFT_E_SHAPE, a, one_tensor(f, "d.safetensors", "w", flat, 1), rows,
            "and f32[8] in slice 1");
    refuses(f, WEFT_E_SHAPE, a, one_tensor(f, "e.safetensors", "v", desc, 1), rows,
            "\"w\"|slice 0");
    wefti_safetensors_item two[] = {{"w", desc, "0123456789012345678901234567890"},
                                    {"v", flat, "0123456789012345678901234567890"}};
    write_items(in(f, "two.safetensors"), two, 2);
    refuses(f, WEFT_E_SHAPE, a, in(f, "two.safetensors"), rows, "\"v\"|slice 0");
    refuses(f, WEFT_E_ARG, a, b, (weft_checkpoint_slice_rule){"v*", 0}, "v*");
    refuses(f, WEFT_E_ARG, a, b, (weft_checkpoint_slice_rule){"[w", 0}, "pattern");
    refuses(f, WEFT_E_ARG, a, b, (weft_checkpoint_slice_rule){"", 0}, "''");
    refuses(f, WEFT_E_ARG, a, b, (weft_checkpoint_slice_rule){"w", 8},
            "along dimension 8; there are");
    refuses(f, WEFT_E_ARG, a, b, (weft_checkpoint_slice_rule){"w", -2},
            "along dimension -2; there are");
    refuses(f, WEFT_E_SHAPE, a, b, (weft_checkpoint_slice_rule){"w", 2}, "dimension 2");
    assert_int_equal(merge((const char *const[]){a, a}, 2, &rows, -2, in(f, "few.safetensors")),
                     WEFT_E_ARG);
    ASSERT_MESSAGE("there are -2 rules");
    refuses(f, WEFT_E_NOT_FOUND, a, in(f, "none.safetensors"), rows, "slice 1");
    put_file(in(f, "cut.safetensors"), "\3\0\0\0\0\0\0\0{}", 10);
    refuses(f, WEFT_E_CORRUPT, a, in(f, "cut.safetensors"), rows, "cut.safetensors");
    static const char f8[] = "\x3d\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],"
                             "\"data_offsets\":[0,2]}}   12";
    put_file(in(f, "f8.safetensors"), f8, sizeof f8 - 1);
    refuses(f, WEFT_E_NO_IMPL, in(f, "f8.safetensors"), a, rows, "of F8_E4M3");
    refuses(f, WEFT_E_NO_IMPL, a, in(f, "f8.safetensors"), rows, "slice 1|of F8_E4M3");
}

/* Slices that name their rank are joined in the order of ranks. Some ranks may be missing. A rank
 * that is not a number is ignored. */
static void slices_in_another_order(void **state) {
    const fixture *f = *state;
    const weft_checkpoint_slice_rule cut = {"w", 0};
    static const struct {
        const char *rank[3], *why; /* NULL: they are joined */
    } rows[] = {
        {{"0", "1", "2"}, NULL},
        {{"0", "4", "10"}, NULL},
        {{NULL, NULL, NULL}, NULL},
        {{"2", NULL, "3"}, NULL},
        {{"0", "-1", "x"}, NULL},
        {{"0", "10", "2"}, "rank 2|slice 1"},
        {{"1", "1", "2"}, "rank 1|slice 0"},
        {{"2", NULL, "1"}, "rank 1|slice 0"},
    };
    static float data[4];
    wefti_safetensors_item item = {"w", {WEFT_F32, 1, {4}}, data};
    const char *joined = in(f, "joined.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *slices[3];
        for (int r = 0; r < 3; r++)
            write_slice(slices[r] = in(f, names[r]), &item, 1, rows[i].rank[r], NULL);
        weft_status status = merge(slices, 3, &cut, 1, joined);
        assert_int_equal(status, rows[i].why ? WEFT_E_ARG : WEFT_OK);
        if (rows[i].why) ASSERT_MESSAGE(rows[i].why);
        assert_int_equal(wefti_exists(joined), !rows[i].why);
        if (rows[i].why) continue;
        wefti_safetensors *file = NULL;
        int64_t pairs = 0;
        ASSERT_OK(wefti_safetensors_open(joined, &file));
        (void)wefti_safetensors_metadata(file, &pairs);
        assert_int_equal(pairs, 1); /* the format only: the whole belongs to no rank */
        wefti_safetensors_close(file);
        assert_int_equal(unlink(joined), 0);
    }
}

/* If slices name the number of ranks, all must be of one set. Slices without that number are not
 * checked for completeness. */
static void slices_that_are_missing(void **state) {
    const fixture *f = *state;
    const weft_checkpoint_slice_rule cut = {"w", 0};
    const char *whole = one_tensor(f, "a.safetensors", "w", (weft_desc){WEFT_F32, 2, {6, 4}}, 1);
    const char *two = in(f, "two"), *three = in(f, "three"), *joined = in(f, "j.safetensors");
    ASSERT_OK(split(whole, 2, &cut, 1, two));
    ASSERT_OK(split(whole, 3, &cut, 1, three));
    const char *a = slice_of(f, three, 0, 3), *b = slice_of(f, three, 1, 3);
    const char *c = slice_of(f, three, 2, 3), *other = slice_of(f, two, 1, 2);
    const struct {
        const char *slices[3], *why; /* NULL: they are joined */
    } rows[] = {
        {{b, c}, "3|rank 0"},      {{a, c}, "3|rank 1"},  {{a, b}, "3|rank 2"}, {{a}, "3|rank 1"},
        {{a, other}, "2|slice 0"}, {{a, b, whole}, NULL}, {{a, b, c}, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int count = 0;
        while (count < 3 && rows[i].slices[count]) count++;
        weft_status status = merge(rows[i].slices, count, &cut, 1, joined);
        assert_int_equal(status, rows[i].why ? WEFT_E_ARG : WEFT_OK);
        if (rows[i].why) ASSERT_MESSAGE(rows[i].why);
        assert_int_equal(wefti_exists(joined), !rows[i].why);
        if (!rows[i].why) assert_int_equal(unlink(joined), 0);
    }
    const char *all[] = {a, b, c};
    ASSERT_OK(merge(all, 3, &cut, 1, joined));
    ASSERT_OK(merge(&joined, 1, &cut, 1, in(f, "k.safetensors"))); /* it names no number of ranks */
}

/* Slices of unlike steps make no whole, whether a step's manifest or a file says it. */
static void slices_of_other_steps(void **state) {
    const fixture *f = *state;
    const weft_checkpoint_slice_rule cut = {"w", 0};
    static float data[4];
    wefti_safetensors_item item = {"w", {WEFT_F32, 1, {4}}, data};
    const char *slices[] = {in(f, names[0]), in(f, names[1])}, *joined = in(f, "j.safetensors");
    for (int differ = 1; differ >= 0; differ--) {
        for (int s = 0; s < 2; s++) {
            wefti_safetensors_pair step = {"step", s && differ ? "30" : "20"};
            ASSERT_OK(wefti_safetensors_write(slices[s], &item, 1, &step, 1));
        }
        assert_int_equal(merge(slices, 2, &cut, 1, joined), differ ? WEFT_E_ARG : WEFT_OK);
        if (differ) ASSERT_MESSAGE("step 30|slice 0");
    }
}

static void states_of_another_shape(void **state) {
    const fixture *f = *state;
    static float data[16];
    wefti_safetensors_item items[] = {{"w", {WEFT_F32, 2, {4, 4}}, data},
                                      {"w.row", {WEFT_F32, 1, {4}}, data},
                                      {"w.steps", {WEFT_F32, 0, {0}}, data}};
    const char *path = in(f, "a.safetensors");
    write_items(path, items, 3);
    const weft_checkpoint_slice_rule cuts[] = {{"w", 1}, {"w.row", -1}};
    ASSERT_STATUS(WEFT_E_SHAPE, split(path, 2, cuts, 1, in(f, "x")));
    ASSERT_MESSAGE("w.row|f32[4]");
    ASSERT_OK(split(path, 2, cuts, 2, in(f, "x")));
}

static void nothing_is_written_over(void **state) {
    const fixture *f = *state;
    const weft_checkpoint_slice_rule rows = {"w", 0};
    const char *a = one_tensor(f, "a.safetensors", "w", (weft_desc){WEFT_F32, 2, {2, 4}}, 1);
    const char *prefix = in(f, "p");
    ASSERT_STATUS(WEFT_E_ARG, merge(&a, 1, &rows, 1, a));
    ASSERT_MESSAGE("exists|written");
    ASSERT_STATUS(WEFT_E_ARG, merge(&a, 1, &rows, 1, in(f, "whole.bin")));
    ASSERT_MESSAGE(".safetensors");
    ASSERT_STATUS(WEFT_E_ARG, merge(&a, 0, &rows, 1, in(f, "w.safetensors")));
    ASSERT_STATUS(WEFT_E_ARG, split(a, 0, &rows, 1, prefix));
    ASSERT_STATUS(WEFT_E_ARG, split(a, 100001, &rows, 1, prefix));
    put_file(slice_of(f, prefix, 2, 3), "x", 1);
    ASSERT_STATUS(WEFT_E_ARG, split(a, 3, &rows, 1, prefix));
    assert_false(wefti_exists(slice_of(f, prefix, 0, 3)));
    ASSERT_STATUS(WEFT_E_NOT_FOUND, split(a, 2, &rows, 1, in(f, "no/such/p")));
    ASSERT_OK(weft_checkpoint_split(a, 2, &rows, 1, prefix, 0, NULL)); /* a caller that needs no
                                                                        * report */
}

static void failures_leave_nothing(void **state) {
    const fixture *f = *state;
    const char *slices[RANKS], *whole = in(f, "whole.safetensors");
    const char *prefix = in(f, "part");
    for (int r = 0; r < RANKS; r++) write_rank(slices[r] = in(f, names[r]), r);
    const char *made[] = {whole, slice_of(f, prefix, 0, 2), slice_of(f, prefix, 1, 2)};
    for (int kind = 0; kind < WEFTI_FAULT_KINDS; kind++)
        for (int way = 0; way < 2; way++)
            for (int64_t nth = 0;; nth++) {
                wefti_fault_arm((wefti_fault_kind)kind, nth, false, EIO);
                weft_status status = way ? split(slices[0], 2, layers, 2, prefix)
                                         : merge(slices, RANKS, layers, 2, whole);
                int64_t calls = wefti_fault_count((wefti_fault_kind)kind);
                wefti_fault_arm((wefti_fault_kind)kind, -1, false, 0);
                for (int i = 0; i < 3; i++) {
                    bool wanted = status >= 0 && (i > 0) == (way == 1);
                    if (wefti_exists(made[i]) != wanted)
                        fail_msg("call %lld fails, %s", (long long)nth, made[i]);
                    if (wanted) assert_int_equal(unlink(made[i]), 0);
                }
                if (calls <= nth) {
                    ASSERT_OK(status);
                    break;
                }
                if (status < 0 && status != WEFT_E_IO && status != WEFT_E_NOMEM)
                    fail_msg("call %lld: %s", (long long)nth, weft_error_message());
            }
}

int main(void) {
    random_seed = test_seed(11);
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)
    const struct CMUnitTest tests[] = {
        TEST(joined_cut_and_joined_again), TEST(any_shape_and_number),
        TEST(what_is_said_last_counts),    TEST(steps_are_sources_too),
        TEST(slices_that_do_not_fit),      TEST(states_of_another_shape),
        TEST(files_are_taken_as_they_are), TEST(slices_in_another_order),
        TEST(slices_of_other_steps),       TEST(slices_that_are_missing),
        TEST(nothing_is_written_over),     TEST(failures_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
