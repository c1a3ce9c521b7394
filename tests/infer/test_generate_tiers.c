/* Text generation with parameters in tiers below device memory. The texts are those of a model in
 * device memory: on one device, on several and in a world, one text or several at once. All
 * programs share the homes of parameters. Copies begin a call ahead. Tiers have the bytes that are
 * predicted, and several texts share a reading. */
#include "generate_fixture.h"

#include <errno.h>

#include "base/fault.h"
#include "exec/exec.h"
#include "infer/generator.h"
#include "plan/plan.h"
#include "program/program.h"
#include "session/parts.h"
#include "session/world_fixture.h"

enum { VOCAB = 256, CONTEXT = 90, PROMPTS = 4, TOKENS = 8, MOST_COPIES = 64 };

typedef struct rules {
    const char *name, *offload;
} rules;

static const rules cases[] = {
    {"disk", "memory.offload=[{match: \"*\", what: parameters, to: disk}]"},
    {"host", "memory.offload=[{match: \"*\", what: parameters, to: host}]"},
    {"some", "memory.offload=[{match: \"*\", what: parameters, to: host}, {match: \"*.0.*\", what: "
             "parameters, to: disk}, {match: \"*.1.*\", what: parameters, to: device}, {match: "
             "\"*\", what: optimizer, to: disk}]"},
};
enum { CASES = sizeof cases / sizeof *cases };

static weft_job *memory_of(const rules *r) {
    char path[700];
    const char *words[] = {r->offload, path};
    weft_job *job;
    (void)snprintf(path, sizeof path, "memory.disk.path=%s", data_root);
    ASSERT_OK(weft_job_load(NULL, words, 2, &job));
    return job;
}

static const char *model_of(weft_family family) {
    weft_model_config c = config_of(family, CONTEXT, VOCAB);
    return saved_run(&c, weft_family_text(family));
}

/* ---- programs ---- */

/* Returns the number of copies of a pass that are under way while a call runs. */
static int check_program(const wefti_program *p) {
    int32_t posted[MOST_COPIES], calls[MOST_COPIES];
    int count = 0, now = 0, ahead = 0;
    for (int32_t k = 0; k < p->step_count[WEFTI_SECTION_FIRST]; k++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][k];
        now += step->kind == WEFTI_STEP_CALL;
        if (!wefti_step_copy(p, step)) continue;
        if (step->kind != WEFTI_STEP_WAIT) {
            assert_true(count < MOST_COPIES);
            posted[count] = step->move;
            calls[count++] = now;
            continue;
        }
        int i = 0;
        while (i < count && posted[i] != step->move) i++;
        assert_true(i < count);
        ahead += calls[i] < now;
        posted[i] = posted[--count];
        calls[i] = calls[count];
    }
    assert_int_equal(count, 0);
    return ahead;
}

/* Parameters take no room twice. On the disk each begins a block, in host memory an aligned byte.
 */
static void check_homes(const wefti_program *p, wefti_footprint all) {
    int64_t bytes[WEFTI_SPACES] = {0};
    for (int32_t i = 0; i < p->tensor_count; i++) {
        const wefti_tensor *t = &p->tensors[i];
        const wefti_space space = wefti_location_space(t->home);
        const int64_t unit = space == WEFTI_SPACE_DISK ? 4096 : 64;
        if (t->role == WEFTI_TENSOR_PARAM)
            bytes[space] += (weft_desc_bytes(&t->desc) + unit - 1) / unit * unit;
    }
    for (int s = WEFTI_SPACE_HOST; s < WEFTI_SPACES; s++)
        assert_true(wefti_footprint_bytes(all, (wefti_space)s) <= bytes[s]);
}

static void check_session(const weft_session *s, bool observed) {
    int ahead = 0;
    for (int32_t r = 0; r < s->devices; r++) {
        if (!wefti_session_has(s, r)) continue;
        const wefti_footprint all = wefti_session_footprint(s, r, s->view_count);
        for (int64_t v = 0; v < s->view_count; v++)
            ahead += check_program(s->views[v]->programs[r]);
        check_homes(s->views[0]->programs[r], all);
        for (int space = 0; space < WEFTI_SPACES; space++) {
            const int64_t most = wefti_footprint_bytes(all, (wefti_space)space),
                          peak = wefti_rank_device_observed_peak(
                              wefti_workers_device(s->workers, r), (wefti_space)space);
            assert_true(peak <= most);
            if (observed || space > 0) assert_int_equal(peak, most);
        }
    }
    assert_true(ahead > 0);
}

/* One device has whole tensors, so the checkpoint's file, of f32, lends all that need no
 * conversion. */
static void check_lent(const weft_session *s) {
    const wefti_program *p = s->views[0]->programs[0];
    int64_t sum = 0;
    for (int32_t i = 0; i < p->tensor_count; i++)
        if (p->tensors[i].role == WEFTI_TENSOR_PARAM && p->tensors[i].desc.dtype == WEFT_F32 &&
            wefti_location_space(p->tensors[i].home) == WEFTI_SPACE_DISK)
            sum += weft_desc_bytes(&p->tensors[i].desc);
    assert_int_equal(weft_session_memory_of(s).lent_bytes, sum);
}

/* ---- texts ---- */

/* Prompts shorter and longer than a piece, and one that fills the context. */
static const int64_t lengths[PROMPTS] = {1, 9, 70, 85};

typedef struct texts {
    const char *checkpoint;
    const weft_job *memory;
    int devices;
    int64_t rows;
    weft_dtype precision;
    text text[PROMPTS];
    int64_t shown, calls[2]; /* to the file system: of one text, of all */
    weft_generator_info info;
} texts;

static void take_text(void *context, const weft_generated *made) {
    texts *t = context;
    take(&t->text[t->shown++], made->text, made->bytes);
}

static weft_status write_all(texts *t, weft_generator *g, const char *prompt) {
    weft_prompt prompts[PROMPTS];
    for (int n = 0; n < PROMPTS; n++)
        prompts[n] = (weft_prompt){.text = prompt, .bytes = lengths[n], .tokens = TOKENS};
    const weft_generate_options how =
        WEFT_STRUCT(weft_generate_options, .tokens = TOKENS, .context = t);
    return weft_generator_run_many(g, prompts, PROMPTS, &how, take_text);
}

static weft_status write_each(texts *t, weft_generator *g, const char *prompt) {
    weft_status status = WEFT_OK;
    for (int n = 0; n < PROMPTS && status >= 0; n++) {
        const weft_generate_options how =
            WEFT_STRUCT(weft_generate_options, .tokens = TOKENS, .temperature = n % 2, .seed = 5,
                        .context = &t->text[n], .text = take);
        status = weft_generator_run(g, prompt, lengths[n], &how, NULL);
    }
    return status;
}

static weft_status write_texts(void *context, weft_world *world) {
    texts *t = context;
    char prompt[200];
    weft_generator *g;
    const weft_generator_options o = WEFT_STRUCT(
        weft_generator_options, .threads = 1, .devices = t->devices, .memory = t->memory,
        .world = world, .rows = t->rows, .precision = t->precision);
    for (int i = 0; i < 200; i++) prompt[i] = (char)(i * 37 + i / 5);
    for (int n = 0; n < PROMPTS; n++) t->text[n].used = 0;
    t->shown = 0;
    TRY(weft_generator_open(t->checkpoint, &o, &g));
    t->info = weft_generator_info_of(g);
    const weft_status status = t->rows ? write_all(t, g, prompt) : write_each(t, g, prompt);
    if (status >= 0 && t->memory) check_session(g->session, !t->rows && !t->devices);
    if (!t->devices && !world) check_lent(g->session);
    weft_generator_close(g);
    return status;
}

static void assert_same(const texts *one, const texts *other, const char *family,
                        const char *what) {
    for (int n = 0; n < PROMPTS; n++)
        if (other->text[n].used != one->text[n].used ||
            memcmp(other->text[n].data, one->text[n].data, (size_t)one->text[n].used) != 0)
            fail_msg("%s, %s: text %d differs", family, what, n);
}

static void in_world(const texts *like, const texts *one, const char *family) {
    enum { RANKS = 2 };
    rank_of_world ranks[RANKS];
    texts *members = calloc(RANKS, sizeof *members);
    for (int r = 0; r < RANKS; r++) members[r] = *like;
    run_world(RANKS, write_texts, members, sizeof *members, ranks);
    assert_all_ok(ranks, RANKS, family);
    for (int r = 0; r < RANKS; r++) assert_same(one, &members[r], family, "in a world");
    free(members);
}

/* With each case of rules, the text of the model in device memory. */
static void compare(weft_family family, texts like) {
    const char *name = weft_family_text(family);
    texts *one = calloc(1, sizeof *one), *tiers = calloc(1, sizeof *tiers);
    *one = like;
    if (write_texts(one, NULL) < 0) fail_msg("%s: %s", name, weft_error_message());
    assert_int_equal(one->info.host_bytes + one->info.disk_bytes, 0);
    for (int c = 0; c < CASES; c++) {
        weft_job *job = memory_of(&cases[c]);
        *tiers = like;
        tiers->memory = job;
        if (write_texts(tiers, NULL) < 0)
            fail_msg("%s, %s: %s", name, cases[c].name, weft_error_message());
        assert_same(one, tiers, name, cases[c].name);
        assert_int_equal(tiers->info.disk_bytes > 0, c != 1);
        assert_int_equal(tiers->info.host_bytes > 0, c != 0);
        if (like.devices > 1) in_world(tiers, one, name);
        weft_job_free(job);
    }
    free(one);
    free(tiers);
}

static void tiers_change_no_text(void **state) {
    (void)state;
    static const weft_family families[] = {WEFT_FAMILY_GPT2, WEFT_FAMILY_LLAMA,
                                           WEFT_FAMILY_MIXTRAL};
    for (int f = 0; f < 3; f++) {
        char path[600];
        (void)snprintf(path, sizeof path, "%s", model_of(families[f]));
        compare(families[f], (texts){.checkpoint = path});
        compare(families[f], (texts){.checkpoint = path, .devices = 2});
        if (f > 1) continue;
        compare(families[f],
                (texts){.checkpoint = path, .rows = 3 + f, .precision = f ? WEFT_BF16 : WEFT_F32});
    }
}

/* ---- memory.offload: auto ---- */

enum { UNITS = 5, PARTS = 4 };
/* The runs of blocks and the large parameters that move by themselves. */
static const char *const units[UNITS] = {"wte.*", "wpe.*", "h.0.*", "h.1.*", "ln_f.*"};

/* weft chooses, with `limit` bytes of device memory. */
static weft_job *auto_of(int64_t limit) {
    const rules choice = {"auto", "memory.offload=auto"};
    weft_job *job = memory_of(&choice);
    job->memory.device_bytes = limit;
    return job;
}

static int64_t copied_by_a_token(const weft_generator *g) {
    const wefti_program *p = g->session->views[0]->programs[0];
    int64_t bytes = 0;
    for (int32_t k = 0; k < p->step_count[WEFTI_SECTION_FIRST]; k++) {
        const wefti_step *step = &p->steps[WEFTI_SECTION_FIRST][k];
        const wefti_program_move *copy = wefti_step_copy(p, step);
        if (copy && step->kind == WEFTI_STEP_POST) bytes += copy->bytes;
    }
    return bytes;
}

/* The bytes that a token copies with these units on the disk. */
static int64_t try_units(const char *path, int chosen, int64_t *out_peak) {
    const rules none = {"none", "memory.offload=[]"};
    weft_job *job = memory_of(&none);
    weft_plan *plan;
    weft_generator *g;
    ASSERT_OK(weft_plan_create(1, &plan));
    for (int u = 0; u < UNITS; u++)
        if (chosen >> u & 1)
            ASSERT_OK(weft_plan_offload(plan, units[u], WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_DISK));
    ASSERT_OK(weft_generator_open(path,
                                  &WEFT_STRUCT(weft_generator_options, .threads = 1,
                                               .context = CONTEXT, .plan = plan, .memory = job),
                                  &g));
    const int64_t bytes = copied_by_a_token(g);
    *out_peak = weft_generator_info_of(g).peak_bytes;
    weft_generator_close(g);
    weft_plan_destroy(plan);
    weft_job_free(job);
    return bytes;
}

/* For limits from what nothing moved needs to what all moved need: auto holds the limit, and copies
 * as little as the best of all choices, within 2 %. */
static void auto_is_the_best_choice(void **state) {
    (void)state;
    int64_t bytes[1 << UNITS], peak[1 << UNITS], least = INT64_MAX;
    char path[600];
    (void)snprintf(path, sizeof path, "%s", model_of(WEFT_FAMILY_GPT2));
    for (int c = 0; c < 1 << UNITS; c++) {
        bytes[c] = try_units(path, c, &peak[c]);
        if (peak[c] < least) least = peak[c];
    }
    for (int part = 0; part <= PARTS; part++) {
        const int64_t limit = peak[0] - (peak[0] - least) * part / PARTS;
        int64_t best = INT64_MAX;
        weft_generator *g;
        weft_job *job = auto_of(limit);
        for (int c = 0; c < 1 << UNITS; c++)
            if (peak[c] <= limit && bytes[c] < best) best = bytes[c];
        ASSERT_OK(weft_generator_open(
            path,
            &WEFT_STRUCT(weft_generator_options, .threads = 1, .context = CONTEXT, .memory = job),
            &g));
        const weft_generator_info info = weft_generator_info_of(g);
        const int64_t own = copied_by_a_token(g);
        print_message("limit %lld: %lld bytes are copied, %lld by the best choice\n",
                      (long long)limit, (long long)own, (long long)best);
        assert_true(info.peak_bytes <= limit);
        assert_true(own * 100 <= best * 102);
        assert_int_equal(own > 0, part > 0);
        if (part) ASSERT_FACTS(info.note, "memory.offload|auto|parameters|to");
        weft_generator_close(g);
        weft_job_free(job);
    }
}

/* On one device, on several and in a world, one text or several at once. */
static void auto_changes_no_text(void **state) {
    (void)state;
    static const texts like[] = {{.rows = 3}, {.devices = 2}, {.precision = WEFT_BF16}};
    texts *one = calloc(1, sizeof *one), *tiers = calloc(1, sizeof *tiers);
    char path[600];
    (void)snprintf(path, sizeof path, "%s", model_of(WEFT_FAMILY_GPT2));
    for (int i = 0; i < 3; i++) {
        *one = *tiers = like[i];
        one->checkpoint = tiers->checkpoint = path;
        ASSERT_OK(write_texts(one, NULL));
        weft_job *job = auto_of(one->info.peak_bytes - (16 << 10));
        tiers->memory = job;
        ASSERT_OK(write_texts(tiers, NULL));
        assert_same(one, tiers, "gpt2", "auto");
        assert_true(tiers->info.host_bytes + tiers->info.disk_bytes > 0);
        if (like[i].devices > 1) in_world(tiers, one, "gpt2");
        weft_job_free(job);
    }
    free(one);
    free(tiers);
}

/* ---- what a reading serves ---- */

static int64_t calls_of(weft_generator *g, int64_t prompts) {
    weft_prompt p[PROMPTS];
    for (int n = 0; n < PROMPTS; n++)
        p[n] = (weft_prompt){.text = "a prompt", .bytes = 3 + n, .tokens = TOKENS};
    const weft_generate_options how = WEFT_STRUCT(weft_generate_options, .tokens = TOKENS);
    wefti_fault_arm(WEFTI_FAULT_IO, INT64_MAX, false, 0);
    ASSERT_OK(weft_generator_run_many(g, p, prompts, &how, NULL));
    const int64_t calls = wefti_fault_count(WEFTI_FAULT_IO);
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    return calls;
}

static void several_texts_share_a_reading(void **state) {
    (void)state;
    weft_generator *g;
    weft_job *job = memory_of(&cases[0]);
    ASSERT_OK(weft_generator_open(
        model_of(WEFT_FAMILY_GPT2),
        &WEFT_STRUCT(weft_generator_options, .threads = 1, .rows = PROMPTS, .memory = job), &g));
    const int64_t one = calls_of(g, 1), all = calls_of(g, PROMPTS);
    print_message("%lld calls for one text, %lld for %d\n", (long long)one, (long long)all,
                  PROMPTS);
    assert_true(one > TOKENS && all < one + one / 2);
    weft_generator_close(g);
    weft_job_free(job);
}

/* ---- what goes wrong ---- */

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    char path[600];
    weft_generator *g;
    weft_job *job = memory_of(&cases[0]);
    weft_plan *plan;
    (void)snprintf(path, sizeof path, "%s", model_of(WEFT_FAMILY_GPT2));
    const weft_generator_options o =
        WEFT_STRUCT(weft_generator_options, .threads = 1, .memory = job);
    job->memory.disk.path = "/no/such/folder";
    ASSERT_FAILS(WEFT_E_NOT_FOUND, "memory.disk.path|/no/such/folder",
                 weft_generator_open(path, &o, &g));
    job->memory.disk.path = data_root;
    job->memory.disk.size_bytes = 4096;
    ASSERT_FAILS(WEFT_E_NOMEM, "memory.disk.size|4096", weft_generator_open(path, &o, &g));
    job->memory.disk.size_bytes = 0;
    job->device.memory_bytes = 4096;
    ASSERT_FAILS(WEFT_E_NOMEM, "device.memory", weft_generator_open(path, &o, &g));
    weft_job_free(job);
    ASSERT_OK(weft_plan_create(1, &plan));
    ASSERT_OK(weft_plan_offload(plan, "*", WEFT_OFFLOAD_PARAMETERS, WEFT_TIER_DISK));
    const weft_generator_options bare =
        WEFT_STRUCT(weft_generator_options, .threads = 1, .plan = plan);
    ASSERT_FAILS(WEFT_E_ARG, "memory.disk.path", weft_generator_open(path, &bare, &g));
    weft_plan_destroy(plan);
}

/* The disk fails while a text is made. */
static void a_failing_disk_is_told(void **state) {
    (void)state;
    weft_generator *g;
    weft_job *job = memory_of(&cases[0]);
    const weft_generate_options how = WEFT_STRUCT(weft_generate_options, .tokens = TOKENS);
    ASSERT_OK(weft_generator_open(model_of(WEFT_FAMILY_GPT2),
                                  &WEFT_STRUCT(weft_generator_options, .threads = 1, .memory = job),
                                  &g));
    wefti_fault_arm(WEFTI_FAULT_IO, 40, false, EIO);
    ASSERT_FAILS(WEFT_E_IO, data_root, weft_generator_run(g, "abc", 3, &how, NULL));
    wefti_fault_arm(WEFTI_FAULT_IO, -1, false, 0);
    weft_generator_close(g);
    weft_job_free(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_change_no_text),
        cmocka_unit_test(auto_is_the_best_choice),
        cmocka_unit_test(auto_changes_no_text),
        cmocka_unit_test(several_texts_share_a_reading),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_failing_disk_is_told),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
