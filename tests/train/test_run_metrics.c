/* The files of a run's metrics, read as other programs read them. JSON lines, and TensorBoard's
 * records with their checksums and protobuf fields, are decoded here from their descriptions. */
#include "run_fixture.h"

#include <errno.h>

#include "base/json/json.h"

/* ---- JSON lines ---- */

static const wefti_json *member(const wefti_json *object, const char *key) {
    const wefti_json *value = wefti_json_get(object, key);
    if (!value) fail_msg("a line has no \"%s\"", key);
    return value;
}

static double number_of(const wefti_json *object, const char *key) {
    const wefti_json *value = member(object, key);
    assert_true(value->kind == WEFTI_JSON_REAL || value->kind == WEFTI_JSON_INT);
    return value->kind == WEFTI_JSON_INT ? (double)value->as.integer : value->as.real;
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-8 * fabs(b) + 1e-30;
}

static void json_lines_hold_every_step(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_word(&w, "train.log=%s", in_root("log.jsonl"));
    record first = {.stop_after = 12}, rest = {.first = 0};
    const char *const more[] = {dir_word("logged"), "train.eval_every=10", "train.clip=1", NULL};
    assert_int_equal(run_with(&w, more, &first), WEFT_E_STOPPED);
    ASSERT_OK(run_with(&w, more, &rest)); /* appends */
    memcpy(rest.losses + 1, first.losses + 1, 12 * sizeof *rest.losses);
    memcpy(rest.norms + 1, first.norms + 1, 12 * sizeof *rest.norms);
    rest.validations[10] = first.validations[10];
    char *text;
    int64_t bytes;
    wefti_arena *arena;
    ASSERT_OK(wefti_file_read(in_root("log.jsonl"), 1 << 20, &text, &bytes));
    ASSERT_OK(wefti_arena_create(&arena));
    int steps = 0, validations = 0;
    for (char *line = text, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        const wefti_json *object;
        const wefti_json_limits limits = {4, 32, 32};
        ASSERT_OK(wefti_json_parse(arena, line, end - line, &limits, &object));
        int64_t step = member(object, "step")->as.integer;
        if (wefti_json_get(object, "validation_loss")) {
            validations++;
            assert_true(near(number_of(object, "validation_loss"), rest.validations[step]));
            continue;
        }
        assert_int_equal(step, ++steps);
        assert_true(near(number_of(object, "loss"), rest.losses[step]));
        assert_true(near(number_of(object, "gradient_norm"), rest.norms[step]));
        assert_true(number_of(object, "learning_rate") > 0);
        assert_true(number_of(object, "tokens_per_second") > 0);
        assert_true(number_of(object, "seconds") > 0);
    }
    assert_int_equal(steps, RUN_STEPS);
    assert_int_equal(validations, 3);
    wefti_arena_destroy(arena);
    wefti_free(text);
}

static void a_cut_line_takes_none_with_it(void **state) {
    (void)state;
    static const char cut[] = "{\"step\": 1}\n{\"step\": 2, \"lo";
    words w = tiny_mlp();
    record r = {.first = 0};
    char *text;
    int64_t bytes;
    add_word(&w, "train.log=%s", put_file("cut.jsonl", cut, sizeof cut - 1));
    ASSERT_OK(run_with(&w, WITH("train.steps=1"), &r));
    ASSERT_OK(wefti_file_read(in_root("cut.jsonl"), 1 << 20, &text, &bytes));
    assert_memory_equal(text, cut, sizeof cut - 1);
    assert_memory_equal(text + sizeof cut - 1, "\n{\"step\": 1, ", 13);
    wefti_free(text);
    ASSERT_OK(run_with(&w, WITH("train.steps=1"), &r)); /* whole now: no empty line comes in */
    ASSERT_OK(wefti_file_read(in_root("cut.jsonl"), 1 << 20, &text, &bytes));
    assert_null(strstr(text, "\n\n"));
    wefti_free(text);
}

/* ---- TensorBoard ---- */

/* CRC-32C bit by bit (RFC 3720, appendix B.4), masked as the record format says. */
static uint32_t masked_crc(const unsigned char *data, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static uint32_t word_at(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* One field of a protobuf message; moves *at behind it. */
typedef struct field {
    uint64_t number, wire, value; /* value: of varints */
    const unsigned char *data;
    size_t bytes;
} field;

static uint64_t varint(const unsigned char **at, const unsigned char *end) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        assert_true(*at < end);
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    fail_msg("a varint without end");
    return 0;
}

static field next_field(const unsigned char **at, const unsigned char *end) {
    field f = {.number = 0};
    uint64_t key = varint(at, end);
    f.number = key >> 3;
    f.wire = key & 7;
    if (f.wire == 0) f.value = varint(at, end);
    f.bytes = f.wire == 1 ? 8 : f.wire == 5 ? 4 : f.wire == 2 ? (size_t)varint(at, end) : 0;
    f.data = *at;
    assert_true((size_t)(end - *at) >= f.bytes);
    *at += f.bytes;
    return f;
}

typedef struct event {
    int64_t step;
    char version[32], tag[64];
    float value;
    double wall_time;
} event;

static void read_value(const field *summary, event *out) {
    const unsigned char *at = summary->data, *end = at + summary->bytes;
    field value = next_field(&at, end);
    assert_int_equal(value.number, 1);
    assert_true(at == end);
    for (at = value.data, end = at + value.bytes; at < end;) {
        field f = next_field(&at, end);
        if (f.number == 1) (void)snprintf(out->tag, sizeof out->tag, "%.*s", (int)f.bytes, f.data);
        if (f.number == 2) memcpy(&out->value, f.data, sizeof out->value);
    }
}

static event read_event(const unsigned char *data, size_t bytes) {
    event e = {.step = 0};
    for (const unsigned char *at = data, *end = data + bytes; at < end;) {
        field f = next_field(&at, end);
        if (f.number == 1) memcpy(&e.wall_time, f.data, sizeof e.wall_time);
        if (f.number == 2) e.step = (int64_t)f.value;
        if (f.number == 3)
            (void)snprintf(e.version, sizeof e.version, "%.*s", (int)f.bytes, f.data);
        if (f.number == 5) read_value(&f, &e);
    }
    return e;
}

static void tensorboard_reads_every_record(void **state) {
    (void)state;
    words w = tiny_mlp();
    add_word(&w, "train.tensorboard=%s/board", data_root);
    record r = {.first = 0};
    ASSERT_OK(run_with(&w, WITH("train.eval_every=10"), &r));
    char **names, *text, path[600];
    int64_t count, bytes;
    ASSERT_OK(wefti_dir_list(in_root("board"), &names, &count));
    assert_int_equal(count, 1);
    assert_memory_equal(names[0], "events.out.tfevents.", 20);
    (void)snprintf(path, sizeof path, "%s/%s", in_root("board"), names[0]);
    wefti_free(names);
    ASSERT_OK(wefti_file_read(path, 1 << 20, &text, &bytes));
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    int losses = 0, rates = 0, norms = 0, speeds = 0, validations = 0, accuracies = 0;
    for (int number = 0; at < end; number++) {
        assert_true(end - at >= 12);
        uint64_t length = word_at(at) | (uint64_t)word_at(at + 4) << 32;
        assert_int_equal(word_at(at + 8), masked_crc(at, 8));
        assert_true((uint64_t)(end - at) >= length + 16);
        assert_int_equal(word_at(at + 12 + length), masked_crc(at + 12, (size_t)length));
        event e = read_event(at + 12, (size_t)length);
        at += length + 16;
        assert_true(e.wall_time > 1.6e9);
        if (number == 0) {
            assert_string_equal(e.version, "brain.Event:2");
            continue;
        }
        if (!strcmp(e.tag, "train/loss")) {
            assert_int_equal(e.step, ++losses);
            assert_true(e.value == (float)r.losses[e.step]);
        } else if (!strcmp(e.tag, "train/learning_rate")) {
            assert_true(e.value == (float)r.rates[e.step]);
            rates++;
        } else if (!strcmp(e.tag, "train/gradient_norm")) {
            assert_true(e.value == (float)r.norms[e.step]);
            norms++;
        } else if (!strcmp(e.tag, "validation/loss")) {
            assert_true(e.value == (float)r.validations[e.step]);
            validations++;
        } else {
            speeds += !strcmp(e.tag, "train/samples_per_second");
            accuracies += !strcmp(e.tag, "validation/accuracy");
        }
    }
    wefti_free(text);
    assert_int_equal(losses, RUN_STEPS);
    assert_int_equal(rates, RUN_STEPS);
    assert_int_equal(norms, RUN_STEPS);
    assert_int_equal(speeds, RUN_STEPS);
    assert_int_equal(validations, 3);
    assert_int_equal(accuracies, 3);
}

/* Two of one process, begun in the same second. */
static void each_run_has_a_board_of_its_own(void **state) {
    (void)state;
    words w = tiny_mlp();
    record r = {.first = 0};
    char **names;
    int64_t count;
    add_word(&w, "train.tensorboard=%s/boards", data_root);
    for (int i = 0; i < 3; i++) ASSERT_OK(run_with(&w, WITH("train.steps=1"), &r));
    ASSERT_OK(wefti_dir_list(in_root("boards"), &names, &count));
    assert_int_equal(count, 3);
    wefti_free(names);
}

/* ---- files that cannot be written ---- */

static void step_then_full_disk(void *context, const weft_train_step *s) {
    on_step(context, s);
    if (s->step == 10) wefti_fault_arm(WEFTI_FAULT_IO, 0, true, ENOSPC);
}
static void note_then_space(void *context, const char *text) {
    on_note(context, text);
    disarm_faults();
}

/* The run completes its training, reports the missing metrics at once, and ends with an error. */
static void a_full_disk_costs_the_metrics_only(void **state) {
    (void)state;
    words w = tiny_gpt2();
    add_word(&w, "train.log=%s", in_root("full.jsonl"));
    add_word(&w, "%s", dir_word("full"));
    weft_job *job = job_of(&w);
    record r = {.first = 0};
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &r, .step = step_then_full_disk,
                    .note = note_then_space, .stop = &r.stop);
    ASSERT_FAILS(WEFT_E_IO, "full.jsonl|No space", weft_train_run(job, &events, &r.result));
    weft_job_free(job);
    assert_note(&r, "full.jsonl|No space");
    assert_int_equal(r.notes, 1);
    assert_int_equal(r.last, RUN_STEPS);
    int64_t newest;
    (void)steps_in("full", &newest);
    assert_int_equal(newest, RUN_STEPS);
}

static void bad_places_are_refused_before_the_first_step(void **state) {
    (void)state;
    words w = tiny_gpt2(), log = w, board = w;
    record r = {.first = 0};
    add_word(&log, "train.log=%s", data_root);
    ASSERT_FAILS(WEFT_E_IO, "train.log", run_words(&log, &r));
    add_word(&board, "train.tensorboard=%s/below", in_root("text"));
    ASSERT_FAILS(WEFT_E_IO, "text", run_words(&board, &r));
    assert_int_equal(r.last, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_lines_hold_every_step),
        cmocka_unit_test(a_cut_line_takes_none_with_it),
        cmocka_unit_test(tensorboard_reads_every_record),
        cmocka_unit_test(each_run_has_a_board_of_its_own),
        cmocka_unit_test(a_full_disk_costs_the_metrics_only),
        cmocka_unit_test(bad_places_are_refused_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
