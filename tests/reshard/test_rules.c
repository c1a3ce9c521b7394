/* Layouts by rules, PATTERN=DIM. Split, merge and reshard agree about them for random tensors,
 * dimensions and numbers of ranks. */
#include "fixture.h"

#include <unistd.h>

enum { ROUNDS = 12, RANKS = 5, PARAMETERS = 3 };

/* Three parameters, each with a state of another type, and rules as a list and as text. */
typedef struct model_by_rules {
    wefti_safetensors_item items[2 * PARAMETERS];
    weft_checkpoint_slice_rule rules[PARAMETERS];
    char text[64];
} model_by_rules;

static void make_model(random_source *r, const unsigned char *data, model_by_rules *m) {
    static const char *const names[2 * PARAMETERS] = {"a", "a.m", "b", "b.m", "c", "moments.c"};
    m->text[0] = '\0';
    for (int i = 0; i < PARAMETERS; i++) {
        const char *name = names[2 * i];
        weft_desc desc = {WEFT_BF16, 1 + (int)pick(r, 3), {0}};
        for (int d = 0; d < desc.rank; d++) desc.shape[d] = pick(r, 9); /* 0 too */
        m->items[2 * i] = (wefti_safetensors_item){name, desc, data + 2 * pick(r, 500)};
        desc.dtype = WEFT_F32;
        m->items[2 * i + 1] =
            (wefti_safetensors_item){names[2 * i + 1], desc, data + 4 * pick(r, 250)};
        const int dimension = (int)pick(r, desc.rank + 1) - 1;
        m->rules[i] = (weft_checkpoint_slice_rule){name, dimension};
        const size_t used = strlen(m->text);
        (void)snprintf(m->text + used, sizeof m->text - used, "%s%s=%c", i ? "," : "", name,
                       dimension < 0 ? '-' : (char)('0' + dimension));
    }
}

static void assert_same_tensors(const char *a, const char *b) {
    wefti_safetensors *x = NULL, *y = NULL;
    ASSERT_OK(wefti_safetensors_open(a, &x));
    ASSERT_OK(wefti_safetensors_open(b, &y));
    assert_int_equal(wefti_safetensors_count(x), wefti_safetensors_count(y));
    for (int64_t k = 0; k < wefti_safetensors_count(x); k++) {
        const wefti_safetensors_entry *e = wefti_safetensors_at(x, k),
                                      *other = wefti_safetensors_at(y, k);
        assert_string_equal(e->name, other->name);
        assert_memory_equal(e->desc.shape, other->desc.shape, sizeof e->desc.shape);
        assert_int_equal(e->bytes, other->bytes);
        unsigned char *bytes = NULL; /* BYTES_OF has room for one tensor */
        ASSERT_OK(wefti_reader_take(other->reader, other->at, other->bytes, &bytes));
        if (e->bytes) assert_memory_equal(BYTES_OF(e), bytes, (size_t)e->bytes);
        wefti_free(bytes);
    }
    wefti_safetensors_close(x);
    wefti_safetensors_close(y);
}

/* The text of rules for so many ranks. */
static const char *rules_for(int ranks, const char *text) {
    static char texts[8][80];
    static int next;
    char *out = texts[next++ % 8];
    (void)snprintf(out, sizeof texts[0], "%d:%s", ranks, text);
    return out;
}

/* Splits `whole` into DIR/s-rank-..., a new directory. */
static void split_into(const char *whole, const model_by_rules *m, int ranks, const char *dir) {
    char prefix[720];
    ASSERT_OK(wefti_dir_make(dir));
    (void)snprintf(prefix, sizeof prefix, "%s/s", dir);
    ASSERT_OK(weft_checkpoint_split(whole, ranks, m->rules, PARAMETERS, prefix, 0, NULL));
}

/* A rank's file of split, or of reshard. */
static const char *file_of(const char *dir, bool of_split, int rank, int ranks) {
    char name[64];
    if (of_split)
        (void)snprintf(name, sizeof name, "s-rank-%05d-of-%05d.safetensors", rank, ranks);
    else
        (void)snprintf(name, sizeof name, "rank_%d/checkpoint_%d.safetensors", rank, rank);
    return path_in(dir, name);
}

static void check_agreement(const fixture *f, const model_by_rules *m, int from, int to) {
    const char *whole = in(f, "whole.safetensors"), *merged = in(f, "merged.safetensors");
    const char *parts = in(f, "parts"), *others = in(f, "others"), *one = in(f, "one");
    const char *direct = in(f, "direct"), *over = in(f, "over"), *slices[RANKS];
    const wefti_safetensors_pair format = {"format", "pt"};
    char expected[32], got[32];
    ASSERT_OK(wefti_safetensors_write(whole, m->items, 2 * PARAMETERS, &format, 1));
    digest_text(whole, NULL, expected);
    split_into(whole, m, from, parts);
    split_into(whole, m, to, others);
    /* slices hold what was split, whoever reads them */
    digest_text(parts, rules_for(from, m->text), got);
    assert_string_equal(got, expected);
    for (int r = 0; r < from; r++) slices[r] = file_of(parts, true, r, from);
    ASSERT_OK(weft_checkpoint_merge(slices, from, m->rules, PARAMETERS, merged, 0, NULL));
    assert_same_file(merged, whole);
    ASSERT_OK(reshard(parts, one, rules_for(from, m->text), NULL));
    assert_same_tensors(path_in(one, "model.safetensors"), whole);
    /* reshard writes the slices of split, from the whole and from other slices */
    ASSERT_OK(reshard(whole, direct, NULL, rules_for(to, m->text)));
    ASSERT_OK(reshard(parts, over, rules_for(from, m->text), rules_for(to, m->text)));
    for (int r = 0; r < to; r++) {
        assert_same_tensors(file_of(direct, false, r, to), file_of(others, true, r, to));
        assert_same_file(file_of(direct, false, r, to), file_of(over, false, r, to));
    }
    /* what the files say and what the rules say is the same */
    digest_text(direct, rules_for(to, m->text), got);
    assert_string_equal(got, expected);
    const char *made[] = {whole, merged, parts, others, one, direct, over};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) ASSERT_OK(wefti_remove_tree(made[i]));
}

static void split_merge_and_reshard_agree(void **state) {
    static unsigned char data[3000];
    random_source r = {.seed = test_seed(31)};
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)wefti_philox_u32(r.seed, 12, i);
    for (int round = 0; round < ROUNDS; round++) {
        model_by_rules m;
        make_model(&r, data, &m);
        const int from = 1 + (int)pick(&r, RANKS);
        check_agreement(*state, &m, from, 1 + (int)pick(&r, RANKS));
    }
}

static void rules_that_do_not_fit(void **state) {
    const fixture *f = *state;
    static float data[16];
    const wefti_safetensors_item items[] = {{"w", {WEFT_F32, 2, {4, 4}}, data},
                                            {"w.row", {WEFT_F32, 1, {4}}, data}};
    const model_by_rules m = {.rules = {{"w", 0}, {"w.row", -1}, {"w*", -1}}};
    const char *whole = in(f, "w.safetensors"), *parts = in(f, "parts"), *out = in(f, "out");
    ASSERT_OK(wefti_safetensors_write(whole, items, 2, NULL, 0));
    static const struct {
        const char *rules;
        weft_status status;
    } to[] = {
        {"w=0", WEFT_E_ARG},        {"0:w=0", WEFT_E_ARG},           {"-1:w=0", WEFT_E_ARG},
        {"100001:w=0", WEFT_E_ARG}, {"2:w", WEFT_E_NOT_FOUND},       {"2:w=", WEFT_E_ARG},
        {"2:w=8", WEFT_E_ARG},      {"2:w=/", WEFT_E_ARG},           {"2:w=10", WEFT_E_ARG},
        {"2:=1", WEFT_E_ARG},       {"2:w=0,", WEFT_E_ARG},          {"2:[w=0", WEFT_E_ARG},
        {"2:v=0,w*=-", WEFT_E_ARG}, {"2:w=2,w.row=-", WEFT_E_SHAPE}, {"2:w=0", WEFT_E_SHAPE},
    };
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        weft_status status = reshard(whole, out, NULL, to[i].rules);
        if (status != to[i].status) fail_msg("%s: %d", to[i].rules, status);
        assert_false(wefti_exists(out));
    }
    split_into(whole, &m, 2, parts); /* the last rule keeps all of them whole */
    ASSERT_STATUS(WEFT_E_MISMATCH, reshard(parts, out, "3:w*=-", NULL));
    ASSERT_STATUS(WEFT_E_ARG, reshard(parts, out, "2:v=0", NULL));
    ASSERT_OK(reshard(parts, out, "2:w*=-", NULL));
    /* of slices that tell their place, rules must tell the same */
    ASSERT_OK(reshard(whole, in(f, "ranks"), NULL, "2:w=1,w.row=0"));
    ASSERT_STATUS(WEFT_E_SHAPE, reshard(in(f, "ranks"), in(f, "x"), "2:w=0,w.row=0", NULL));
    /* a size that no file tells */
    ASSERT_OK(wefti_remove_tree(parts));
    ASSERT_OK(wefti_dir_make(parts));
    ASSERT_OK(wefti_safetensors_write(path_in(parts, "s-rank-00000-of-00002.safetensors"), items, 2,
                                      NULL, 0));
    ASSERT_STATUS(WEFT_E_NOT_FOUND, reshard(parts, in(f, "x"), "2:w=0,w.row=0", NULL));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)
    const struct CMUnitTest tests[] = {
        TEST(split_merge_and_reshard_agree),
        TEST(rules_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
