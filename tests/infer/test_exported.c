/* Exported models: every family and split runs again without job and checkpoint and gives the same
 * bits, in one process and in a world; damaged, missing and mixed files are refused. */
#include "infer_fixture.h"

#include "infer/exported.h"

enum { MOST_OUTPUT = 6 * 8 * 300, SAMPLES = 6 };

typedef struct trial {
    const family *f;
    char checkpoint[600];
    int64_t samples, length, each;
    unsigned char input[6 * 144 * 4];
    char folder[600];
    const weft_job *job; /* NULL: from the folder */
    bool exports;
    int devices;
    float output[MOST_OUTPUT];
} trial;

static void fill(trial *t, const weft_infer_info *info) {
    t->samples = SAMPLES;
    t->length = t->f->language ? info->input.shape[0] : 0;
    t->each = weft_desc_elems(&info->output);
    const int64_t elems = SAMPLES * weft_desc_elems(&info->input);
    assert_in_range(elems, 1, (int64_t)sizeof t->input / 4);
    assert_in_range(SAMPLES * t->each, 1, MOST_OUTPUT);
    for (int64_t i = 0; i < elems; i++) {
        const uint32_t dice = wefti_philox_u32(9, 4, (uint64_t)i) % 256;
        if (t->length)
            ((int32_t *)(void *)t->input)[i] = (int32_t)dice;
        else
            ((float *)(void *)t->input)[i] = (float)dice / 255;
    }
}

/* Opens from job and checkpoint, or from the folder; computes; exports. */
static weft_status use(void *context, weft_world *world) {
    trial *t = context;
    weft_infer *model;
    const weft_infer_options o = WEFT_STRUCT(
        weft_infer_options, .checkpoint = t->job ? t->checkpoint : t->folder, .threads = 1);
    TRY(weft_infer_open(world, t->job, &o, &model));
    const weft_infer_info info = weft_infer_info_of(model);
    t->devices = info.devices;
    if (!t->samples) fill(t, &info);
    weft_status status = weft_infer_run(model, t->samples, t->length, t->input, t->output);
    if (status >= 0 && t->exports) status = weft_infer_export(model, t->folder);
    weft_infer_close(model);
    return status;
}

static void assert_equal(const trial *a, const trial *b, const char *what) {
    assert_int_equal(a->devices, b->devices);
    if (memcmp(a->output, b->output, (size_t)(a->samples * a->each) * sizeof(float)) != 0)
        fail_msg("%s, %s: the exported model has other logits", a->f->name, what);
}

static void make_folder_name(trial *t) {
    static int number;
    (void)snprintf(t->folder, sizeof t->folder, "%s-%d", in_root("exported"), number++);
}

static void in_world(const trial *one, int devices, bool exports, const weft_job *job,
                     const char *what) {
    rank_of_world ranks[MOST_RANKS];
    trial *members = calloc((size_t)devices, sizeof *members);
    for (int r = 0; r < devices; r++) {
        members[r] = *one;
        members[r].job = job;
        members[r].exports = exports;
        memset(members[r].output, 0, sizeof members[r].output);
    }
    run_world(devices, use, members, sizeof *members, ranks);
    assert_all_ok(ranks, devices, what);
    for (int r = 0; r < devices; r++) assert_equal(one, &members[r], what);
    free(members);
}

static void on_split(const family *f, const char *checkpoint, const split *p, int number) {
    const char *name = p ? p->name : "one device";
    weft_job *job = job_on(f, p);
    trial *one = calloc(1, sizeof *one), *again;
    one->f = f;
    (void)snprintf(one->checkpoint, sizeof one->checkpoint, "%s", checkpoint);
    make_folder_name(one);
    one->job = job;
    one->exports = true;
    if (use(one, NULL) < 0) fail_msg("%s, %s: %s", f->name, name, weft_error_message());
    again = malloc(sizeof *again);
    *again = *one;
    again->job = NULL;
    again->exports = false;
    memset(again->output, 0, sizeof again->output);
    if (use(again, NULL) < 0) fail_msg("%s, %s: %s", f->name, name, weft_error_message());
    assert_equal(one, again, name);
    /* in a world, from the same folder; and a world's folder in one process */
    if (p && number % 3 == 0) {
        in_world(one, p->devices, false, NULL, name);
        make_folder_name(one);
        in_world(one, p->devices, true, job, name);
        (void)snprintf(again->folder, sizeof again->folder, "%s", one->folder);
        if (use(again, NULL) < 0) fail_msg("%s, %s: %s", f->name, name, weft_error_message());
        assert_equal(one, again, name);
    }
    weft_job_free(job);
    free(one);
    free(again);
}

/* accept 32(d) */
static void exported_models_give_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < FAMILY_COUNT; i++) {
        const family *f = &families[i];
        record run = {.first = 0};
        char checkpoint[600];
        (void)snprintf(checkpoint, sizeof checkpoint, "%s", train(f, &run));
        on_split(f, checkpoint, NULL, 1);
        for (int k = 0; k < PLAN_COUNT; k++) on_split(f, checkpoint, &plans[k], k + i);
        const split tensor = tensor_split(f), expert = expert_split(), sequence = sequence_split();
        if (f->language) on_split(f, checkpoint, &sequence, i);
        if (f->tensor_parallel) on_split(f, checkpoint, &tensor, i);
        if (f->experts) on_split(f, checkpoint, &expert, i);
        ASSERT_OK(wefti_remove_tree(in_root(f->name)));
    }
}

/* ---- damage ---- */

static char *file_in(const char *folder, const char *name) {
    static char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static weft_status open_again(const char *folder) {
    weft_infer *model;
    const weft_infer_options o =
        WEFT_STRUCT(weft_infer_options, .checkpoint = folder, .threads = 1);
    weft_status status = weft_infer_open(NULL, NULL, &o, &model);
    if (status >= 0) weft_infer_close(model);
    return status;
}

/* A folder of two stages. */
static void make_folder(trial *t) {
    const family *f = &families[0];
    record run = {.first = 0};
    weft_job *job = job_on(f, &plans[2]);
    t->f = f;
    (void)snprintf(t->checkpoint, sizeof t->checkpoint, "%s", train(f, &run));
    make_folder_name(t);
    t->job = job;
    t->exports = true;
    ASSERT_OK(use(t, NULL));
    ASSERT_OK(open_again(t->folder));
    ASSERT_FAILS(WEFT_E_ARG, "exists", use(t, NULL));
    t->job = NULL;
    weft_job_free(job);
}

static void every_damaged_byte_is_noticed(void **state) {
    (void)state;
    static const char *const names[] = {"exported.json", "graph.txt", "plan.json",
                                        "rank-0.safetensors", "rank-1.safetensors"};
    trial *t = calloc(1, sizeof *t);
    make_folder(t);
    for (int n = 0; n < 5; n++) {
        char *bytes;
        int64_t count;
        ASSERT_OK(wefti_file_read(file_in(t->folder, names[n]), 1 << 24, &bytes, &count));
        for (uint64_t round = 0; round < (n ? 12U : 60U); round++) {
            const int64_t at =
                n ? wefti_philox_u32(round, 7, (uint64_t)n) % count : (int64_t)round * 7 % count;
            const char kept = bytes[at];
            bytes[at] ^= (char)(1 << wefti_philox_u32(round, 8, (uint64_t)n) % 7);
            const bool blank = n == 0 && strchr(" \n\t", bytes[at]) && strchr(" \n\t", kept);
            ASSERT_OK(wefti_file_write(file_in(t->folder, names[n]), bytes, (size_t)count));
            const weft_status status = open_again(t->folder);
            if (status >= 0 && !blank)
                fail_msg("byte %d of %s: damage is not noticed", (int)at, names[n]);
            if (n && (status != WEFT_E_CORRUPT || !strstr(weft_error_message(), names[n])))
                fail_msg("%s: %s", names[n], weft_error_message());
            bytes[at] = kept;
        }
        ASSERT_OK(wefti_file_write(file_in(t->folder, names[n]), bytes, (size_t)count / 2));
        assert_true(open_again(t->folder) < 0);
        ASSERT_OK(wefti_remove_tree(file_in(t->folder, names[n])));
        ASSERT_FAILS(WEFT_E_NOT_FOUND, names[n], open_again(t->folder));
        ASSERT_OK(wefti_file_write(file_in(t->folder, names[n]), bytes, (size_t)count));
        ASSERT_OK(open_again(t->folder));
        wefti_free(bytes);
    }
    free(t);
}

/* ---- what is refused ---- */

/* Replaces a part of a file, and its checksum. */
static void change(const char *folder, const char *name, const char *key, const char *from,
                   const char *to) {
    char *text, *facts, changed[1 << 16], line[80];
    int64_t bytes;
    uint32_t before, after;
    ASSERT_OK(wefti_exported_sum(file_in(folder, name), &before));
    ASSERT_OK(wefti_file_read(file_in(folder, name), 1 << 20, &text, &bytes));
    char *at = strstr(text, from);
    assert_non_null(at);
    (void)snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                   at + strlen(from));
    ASSERT_OK(wefti_file_write(file_in(folder, name), changed, strlen(changed)));
    wefti_free(text);
    if (!key) return;
    ASSERT_OK(wefti_exported_sum(file_in(folder, name), &after));
    ASSERT_OK(wefti_file_read(file_in(folder, "exported.json"), 1 << 20, &facts, &bytes));
    (void)snprintf(line, sizeof line, "%x", before);
    at = strstr(facts, line);
    assert_non_null(at);
    (void)snprintf(changed, sizeof changed, "%.*s%x%s", (int)(at - facts), facts, after,
                   at + strlen(line));
    ASSERT_OK(wefti_file_write(file_in(folder, "exported.json"), changed, strlen(changed)));
    wefti_free(facts);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    trial *t = calloc(1, sizeof *t);
    make_folder(t);
    weft_infer *model;
    weft_infer_options o = WEFT_STRUCT(weft_infer_options, .checkpoint = t->folder, .batch = 2);
    ASSERT_FAILS(WEFT_E_ARG, "batch", weft_infer_open(NULL, NULL, &o, &model));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "nothere", open_again(in_root("nothere")));
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "exported.json", open_again(t->checkpoint));
    rank_of_world ranks[MOST_RANKS];
    trial *three = calloc(3, sizeof *three);
    for (int r = 0; r < 3; r++) {
        three[r] = *t;
        three[r].exports = false;
    }
    run_world(3, use, three, sizeof *three, ranks);
    for (int r = 0; r < 3; r++) assert_true(ranks[r].status < 0);
    assert_rank_fails(&ranks[0], 0, WEFT_E_ARG, "2|3");
    free(three);
    /* a graph with another shape than the weights, and one that is no graph; both with their
     * checksums */
    change(t->folder, "exported.json", NULL, "\"gpt2\"", "\"lenet\"");
    assert_true(open_again(t->folder) < 0);
    change(t->folder, "exported.json", NULL, "\"lenet\"", "\"gpt2\"");
    change(t->folder, "exported.json", NULL, "\"vocab\": 256", "\"vocab\": 255");
    ASSERT_FAILS(WEFT_E_CORRUPT, "gpt2", open_again(t->folder));
    change(t->folder, "exported.json", NULL, "\"vocab\": 255", "\"vocab\": 256");
    ASSERT_OK(open_again(t->folder));
    change(t->folder, "graph.txt", "graph", "weft-graph 1", "weft-graph 9");
    ASSERT_FAILS(WEFT_E_ARG, "graph.txt", open_again(t->folder));
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exported_models_give_the_same_bits),
        cmocka_unit_test(every_damaged_byte_is_noticed),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
