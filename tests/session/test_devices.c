/* Sessions over several devices. Under every plan the result equals the result of one device, and
 * memory is as predicted. A caller reads and writes whole tensors. If a device fails, the others
 * stop. */
#include "device_cases.h"

#include <unistd.h>

#include "base/io.h"
#include "base/json/json.h"

static void any_plan_gives_the_result_of_one_device(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const plan_case *c = &cases[i];
        weft_graph *graph, *one_graph;
        weft_session *s = session_for(c, true, &graph), *one = session_for(c, false, &one_graph);
        assert_int_equal(weft_session_devices(s), c->devices);
        for (int k = 0; k < 3; k++) {
            double want = train_step(one, c, k), is = train_step(s, c, k);
            if (!(fabs(is - want) <= 1e-5 * fabs(want)))
                fail_msg("%s: loss %d is %.8g, not %.8g", c->name, k, is, want);
        }
        double apart = difference(one, s, WEFT_ROLE_PARAM);
        if (!(apart < 2e-3)) fail_msg("%s: parameters are %g apart", c->name, apart);
        if (weft_session_check_replicas(s) < 0) fail_msg("%s: %s", c->name, weft_error_message());
        check_memory(s, c);
        end_session(s, graph);
        end_session(one, one_graph);
    }
}

/* Ranks may have devices of unlike kinds. Each kind here has the same kernels, so no bit changes.
 */
static void unlike_kinds_compute_the_same(void **state) {
    (void)state;
    static const char *const kinds[] = {"host", "host,fenced", "fenced,host,host"};
    const char *before = getenv("WEFT_DEVICE");
    char *kept = strdup(before ? before : "");
    for (int i = 0; i < CASES; i++) {
        const plan_case *c = &cases[i];
        enum { KINDS = sizeof kinds / sizeof *kinds };
        weft_graph *graph[KINDS];
        weft_session *s[KINDS];
        double losses[KINDS];
        for (int k = 0; k < KINDS; k++) {
            (void)setenv("WEFT_DEVICE", kinds[k], 1);
            s[k] = session_for(c, true, &graph[k]);
            losses[k] = train_step(s[k], c, 0);
            losses[k] = train_step(s[k], c, 1);
            check_memory(s[k], c);
            if (losses[k] != losses[0] || difference(s[0], s[k], WEFT_ROLE_PARAM) != 0)
                fail_msg("%s on %s: the loss is %.17g, not %.17g", c->name, kinds[k], losses[k],
                         losses[0]);
        }
        for (int k = 0; k < KINDS; k++) end_session(s[k], graph[k]);
    }
    (void)setenv("WEFT_DEVICE", kept, 1);
    free(kept);
}

/* However gradients are joined into buckets, each sum is the same. */
static void fusion_changes_no_bit(void **state) {
    (void)state;
    static const char *const names[] = {"2 data", "4 data, clipped", "2 data, accumulated",
                                        "4 data, gradients split", "2 data 2 tensor, states split"};
    static const char *const collectives[] = {"allreduce", "allgather", "reducescatter"};
    for (int i = 0; i < 5; i++) {
        const plan_case *c = case_of(names[i]);
        weft_graph *graph[WEFT_FUSIONS];
        weft_session *s[WEFT_FUSIONS];
        double losses[WEFT_FUSIONS];
        for (int mode = 0; mode < WEFT_FUSIONS; mode++) {
            weft_session_options o = weft_session_defaults();
            weft_plan *plan = plan_of(c);
            int ends[] = {3, 7};
            for (int k = 0; k < (mode == WEFT_FUSION_INDEX ? 1 : 3); k++)
                ASSERT_OK(weft_plan_fusion(plan, collectives[k], (weft_fusion_mode)mode, 3000,
                                           mode == WEFT_FUSION_INDEX ? 2 : 0, ends));
            o.seed = SEED;
            o.threads = 2;
            o.clip = c->clip;
            o.microbatches = microbatches_of(c);
            o.plan = plan;
            graph[mode] = tiny_gpt2(WEFT_USE_TRAIN, BATCH / o.microbatches, 0.2, WEFT_F32);
            s[mode] = session_of(graph[mode], o);
            weft_plan_destroy(plan);
            for (int k = 0; k < 3; k++) losses[mode] = train_step(s[mode], c, k);
            if (losses[mode] != losses[0] || difference(s[0], s[mode], WEFT_ROLE_PARAM) != 0)
                fail_msg(
                    "%s, fusion mode %d: the loss is %.17g, not %.17g, parameters are %g apart",
                    c->name, mode, losses[mode], losses[0],
                    difference(s[0], s[mode], WEFT_ROLE_PARAM));
        }
        for (int mode = 0; mode < WEFT_FUSIONS; mode++) end_session(s[mode], graph[mode]);
    }
}

/* A plan may say more than how to split, also on one device. No bit changes. On one device a plan
 * itself takes no memory: gradients are freed as soon as they are used. */
static void recomputation_is_planned_cell_by_cell(void **state) {
    (void)state;
    enum { CASES = 4 };
    int64_t saved[CASES], peak[CASES];
    double losses[CASES];
    for (int devices = 1; devices <= 2; devices++) {
        for (int cells = 0; cells < CASES; cells++) { /* no plan's, one of two, both, none */
            static const char *const match[] = {NULL, "h.1", "h.*", "nothere"};
            weft_session_options o = weft_session_defaults();
            weft_graph *graph = tiny_gpt2(WEFT_USE_TRAIN, BATCH, 0.2, WEFT_F32);
            weft_plan *plan;
            ASSERT_OK(weft_plan_create(devices, &plan));
            if (cells)
                ASSERT_OK(weft_plan_recompute(plan, WEFT_RECOMPUTE_FULL, match[cells], false));
            o.threads = 2;
            o.seed = SEED;
            o.plan = plan;
            weft_session *s = session_of(graph, o);
            weft_plan_destroy(plan);
            for (int k = 0; k < 4; k++) {
                feed_rows(s, 0, (uint64_t)k, 0);
                ASSERT_OK(weft_session_step(s, 1e-2, &losses[cells]));
            }
            saved[cells] = weft_session_memory_of(s).saved_bytes;
            for (int r = 0; r < devices; r++) {
                int64_t predicted, observed;
                ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
                assert_int_equal(predicted, observed);
                peak[cells] = predicted;
            }
            end_session(s, graph);
        }
        assert_true(saved[2] < saved[1] && saved[1] < saved[0]);
        assert_int_equal(peak[3], peak[0]);
        for (int cells = 1; cells < CASES; cells++)
            assert_memory_equal(&losses[cells], &losses[0], sizeof *losses);
    }
}

/* ---- whole tensors ---- */

/* Every element of every piece equals the element of the whole tensor. */
static int count_pieces(weft_session *s, int tensor, const weft_tensor_info *info,
                        const float *data) {
    wefti_session_piece pieces[8];
    int64_t strides[WEFT_MAX_RANK];
    int32_t found;
    int counting = 0;
    wefti_strides(&info->desc, strides);
    ASSERT_OK(wefti_session_pieces(s, 0, tensor, pieces, &found));
    for (int32_t p = 0; p < found; p++) {
        const wefti_region *box = &pieces[p].box;
        wefti_mapping m;
        counting += pieces[p].counts;
        ASSERT_OK(wefti_home_map(&pieces[p].home, 0, pieces[p].home.bytes, WEFTI_ACCESS_READ, &m));
        for (int64_t e = 0; e < wefti_region_elems(box, info->desc.rank); e++) {
            int64_t at = 0, rest = e;
            for (int d = info->desc.rank - 1; d >= 0; rest /= box->size[d--])
                at += (box->begin[d] + rest % box->size[d]) * strides[d];
            assert_true(((float *)m.data)[e] == data[at]);
        }
        ASSERT_OK(wefti_home_unmap(&m, WEFT_OK));
    }
    assert_true(counting >= 1);
    return counting;
}

/* Written tensors read back equal, and every copy on every device is the same. */
static void tensors_go_in_and_out_whole(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const plan_case *c = &cases[i];
        weft_graph *graph, *one_graph;
        weft_session *s = session_for(c, true, &graph), *one = session_for(c, false, &one_graph);
        int count = weft_session_tensors(s, 0), kept = 0, pieces = 0;
        assert_int_equal(weft_session_tensors(one, 0), count);
        assert_true(difference(one, s, WEFT_ROLE_PARAM) == 0); /* start values are global */
        for (int t = 0; t < count; t++) {
            weft_tensor_info info, same;
            ASSERT_OK(weft_session_tensor(s, 0, t, &info));
            ASSERT_OK(weft_session_find(one, 0, info.name, &same));
            assert_true(wefti_desc_equal(&info.desc, &same.desc) && info.role == same.role);
            if (info.role == WEFT_ROLE_INPUT || info.role == WEFT_ROLE_OUTPUT) continue;
            float *data = malloc((size_t)info.bytes), *back = malloc((size_t)info.bytes);
            for (int64_t e = 0; e < weft_desc_elems(&info.desc); e++)
                data[e] = wefti_philox_normal(77, wefti_stream_of(info.name), (uint64_t)e);
            ASSERT_OK(weft_session_write(s, 0, info.name, data, (size_t)info.bytes));
            ASSERT_OK(weft_session_read(s, 0, info.name, back, (size_t)info.bytes));
            assert_memory_equal(data, back, (size_t)info.bytes);
            pieces += count_pieces(s, t, &info, data);
            kept++;
            assert_int_equal(weft_session_write(s, 0, info.name, data, (size_t)info.bytes - 4),
                             WEFT_E_SHAPE);
            free(data);
            free(back);
        }
        /* where something is to be split it is */
        assert_int_equal(pieces > kept, c->level > 0 || c->splits[0].match != NULL);
        end_session(s, graph);
        end_session(one, one_graph);
    }
}

/* ---- failures ---- */

/* A token that no vocabulary has, in the last device's rows alone. */
static void feed_bad_row(weft_session *s) {
    weft_tensor_info info;
    feed_rows(s, 0, 0, 0);
    ASSERT_OK(weft_session_find(s, 0, "tokens", &info));
    int32_t *data = calloc(1, (size_t)info.bytes);
    data[weft_desc_elems(&info.desc) - 1] = 1 << 20;
    ASSERT_OK(weft_session_feed(s, 0, "tokens", data, (size_t)info.bytes));
    free(data);
}

static void a_device_that_fails_stops_the_others(void **state) {
    (void)state;
    static const char *const names[] = {"2 data", "8 data", "3 data, uneven",
                                        "2 data 2 tensor, states split"};
    for (int i = 0; i < 4; i++) {
        const plan_case *c = case_of(names[i]);
        weft_graph *graph, *one_graph;
        weft_session *s = session_for(c, true, &graph), *one = session_for(c, false, &one_graph);
        (void)train_step(s, c, 0);
        (void)train_step(one, c, 0);
        for (int round = 1; round < 4; round++) {
            char last[32];
            feed_bad_row(s);
            weft_status status =
                c->clip > 0 ? weft_session_accumulate(s, NULL) : weft_session_step(s, 1e-3, NULL);
            assert_int_equal(status, WEFT_E_NUMERIC);
            (void)snprintf(last, sizeof last, "device %d: ", c->devices - 1);
            bool named = has_facts(weft_error_message(), c->axis[0].name ? "device " : last);
            if (!named || !has_facts(weft_error_message(), "by embedding"))
                fail_msg("%s: %s", c->name, weft_error_message());
            double want = train_step(one, c, round), is = train_step(s, c, round);
            if (!(fabs(is - want) <= 1e-5 * fabs(want)))
                fail_msg("%s: after a failure the loss is %.8g, not %.8g", c->name, is, want);
        }
        end_session(s, graph);
        end_session(one, one_graph);
    }
}

/* The cell where it began is named, whichever device found it first. */
static void a_loss_that_is_not_finite_is_found(void **state) {
    (void)state;
    static const char *const names[] = {"2 data", "2 tensor", "4 data, all split", "2 stages"};
    for (int i = 0; i < 4; i++) {
        const plan_case *c = case_of(names[i]);
        weft_graph *graph;
        weft_session *s = session_for(c, true, &graph);
        weft_tensor_info info;
        double loss;
        ASSERT_OK(weft_session_find(s, 0, "h.1.mlp.c_fc.bias", &info));
        float *data = calloc(1, (size_t)info.bytes), *back = malloc((size_t)info.bytes);
        data[info.desc.shape[0] - 1] = NAN;
        ASSERT_OK(weft_session_write(s, 0, info.name, data, (size_t)info.bytes));
        ASSERT_FAILS(WEFT_E_NUMERIC, "'h.1'", try_step(s, c, 0, &loss));
        ASSERT_OK(weft_session_read(s, 0, info.name, back, (size_t)info.bytes));
        assert_true(isnan(back[info.desc.shape[0] - 1]) && back[0] == 0); /* nothing was updated */
        free(data);
        free(back);
        end_session(s, graph);
    }
}

static void limits_are_of_each_device(void **state) {
    (void)state;
    const plan_case *c = case_of("2 data 2 tensor, states split");
    weft_graph *graph;
    weft_session *s = session_for(c, true, &graph);
    int64_t most = 0, unused;
    for (int r = 0; r < c->devices; r++) {
        int64_t predicted, observed;
        ASSERT_OK(weft_session_device_memory(s, r, &predicted, &observed));
        if (predicted > most) most = predicted;
    }
    assert_int_equal(weft_session_memory_of(s).predicted_peak_bytes, most);
    const int64_t programs = weft_session_memory_of(s).program_bytes;
    assert_int_equal(weft_session_device_memory(s, c->devices, &unused, &unused), WEFT_E_ARG);
    weft_session_destroy(s);
    weft_session_options o = weft_session_defaults();
    weft_plan *plan = plan_of(c);
    o.plan = plan;
    o.clip = c->clip;
    o.threads = 2;
    o.memory_bytes = most + programs;
    ASSERT_OK(weft_session_create(graph, &o, &s));
    weft_session_destroy(s);
    o.memory_bytes = most - 1;
    ASSERT_FAILS(WEFT_E_NOMEM, "device ", weft_session_create(graph, &o, &s));
    weft_plan_destroy(plan);
    weft_graph_destroy(graph);
}

/* ---- gradients ---- */

/* All rows but the first, read alone, are those of the whole tensor. */
static void rows_are_of_the_whole(weft_session *s, const weft_tensor_info *info) {
    const int64_t row = info->bytes / info->desc.shape[0];
    const size_t bytes = (size_t)(info->bytes - row);
    char *whole = malloc((size_t)info->bytes), *rows = malloc(bytes + 1);
    ASSERT_OK(weft_session_read(s, 0, info->name, whole, (size_t)info->bytes));
    ASSERT_OK(weft_session_read_rows(s, 0, info->name, 1, rows, bytes));
    assert_memory_equal(rows, whole + row, bytes);
    free(whole);
    free(rows);
}

/* Gradients that lie as partial sums on several devices are read as their sum. Writing them is
 * refused. */
static void gradients_are_read_whole(void **state) {
    (void)state;
    static const char *const names[] = {"2 data", "3 data, uneven", "4 tensor", "4 data 2 tensor",
                                        "4 data, gradients split"};
    for (int i = 0; i < 5; i++) {
        const plan_case *c = case_of(names[i]);
        weft_graph *graph[2];
        weft_session *s[2];
        int gradients = 0, refused = 0;
        for (int k = 0; k < 2; k++) {
            weft_session_options o = weft_session_defaults();
            weft_plan *plan = k ? plan_of(c) : NULL;
            o.seed = SEED;
            o.threads = 2;
            o.keep_gradients = true;
            o.plan = plan;
            graph[k] = tiny_gpt2(WEFT_USE_TRAIN, BATCH, 0.2, WEFT_F32);
            ASSERT_OK(weft_session_create(graph[k], &o, &s[k]));
            weft_plan_destroy(plan);
            feed_rows(s[k], 0, 3, 0);
            ASSERT_OK(weft_session_accumulate(s[k], NULL));
        }
        double apart = difference(s[0], s[1], WEFT_ROLE_OUTPUT);
        if (!(apart < 1e-4)) fail_msg("%s: gradients are %g apart", c->name, apart);
        for (int t = 0; t < weft_session_tensors(s[0], 0); t++) {
            weft_tensor_info info;
            ASSERT_OK(weft_session_tensor(s[0], 0, t, &info));
            if (strncmp(info.name, "grad:", 5) != 0) continue;
            rows_are_of_the_whole(s[1], &info);
            float *data = calloc(1, (size_t)info.bytes);
            refused += weft_session_write(s[1], 0, info.name, data, (size_t)info.bytes) < 0;
            gradients++;
            free(data);
        }
        assert_true(gradients > 10 && (refused > 0 || c->level > 1 || c->axis[0].name));
        for (int k = 0; k < 2; k++) end_session(s[k], graph[k]);
    }
}

/* The norm of the gradients of a batch in two microbatches on four devices. */
static double norm_of(bool sum, weft_dataset dataset) {
    double norm = 0;
    weft_session_options o = weft_session_defaults();
    weft_plan *plan;
    weft_session *s;
    weft_graph *g = tiny_gpt2(WEFT_USE_TRAIN, BATCH / 2, 0, WEFT_F32);
    ASSERT_OK(weft_plan_create(4, &plan));
    ASSERT_OK(weft_plan_accumulate(plan, 2));
    ASSERT_OK(weft_plan_gradients_sum(plan, sum));
    ASSERT_OK(weft_plan_dataset(plan, dataset));
    o.clip = 1e9;
    o.threads = 2;
    o.plan = plan; /* its microbatches too */
    ASSERT_OK(weft_session_create(g, &o, &s));
    for (int m = 0; m < 2; m++) {
        feed_rows(s, 0, 3, m * BATCH / 2);
        ASSERT_OK(weft_session_accumulate(s, NULL));
    }
    ASSERT_OK(weft_session_update(s, 1e-3, &norm));
    end_session(s, g);
    weft_plan_destroy(plan);
    return norm;
}

/* If the caller asks for sums, the norm is the norm of the mean times the number of means. Devices
 * that all have the whole batch have one mean together, not one each. */
static void gradients_may_be_summed(void **state) {
    (void)state;
    double mean = norm_of(false, WEFT_DATASET_DATA_PARALLEL);
    double same = norm_of(false, WEFT_DATASET_FULL_BATCH);
    assert_true(fabs(same / mean - 1) < 1e-5);
    assert_true(fabs(norm_of(true, WEFT_DATASET_DATA_PARALLEL) / mean - 8) < 1e-5);
    assert_true(fabs(norm_of(true, WEFT_DATASET_FULL_BATCH) / mean - 2) < 1e-5);
}

/* ---- traces ---- */

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part)) count++;
    return count;
}

static void traces_show_every_device(void **state) {
    (void)state;
    const plan_case *c = case_of("2 data 2 tensor, states split");
    weft_graph *graph;
    weft_session *s = session_for(c, true, &graph);
    char path[200], word[64], *text;
    int64_t bytes;
    const char *directory = getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%s/weft-test-devices-XXXXXX",
                   directory ? directory : P_tmpdir);
    int file = mkstemp(path);
    assert_true(file >= 0 && close(file) == 0);
    ASSERT_OK(weft_session_trace(s, path));
    (void)train_step(s, c, 0);
    ASSERT_OK(weft_session_trace(s, NULL));
    ASSERT_OK(wefti_file_read(path, 1 << 26, &text, &bytes));
    for (int r = 0; r < c->devices; r++) {
        (void)snprintf(word, sizeof word, "{\"name\":\"device %d\"}", r);
        assert_int_equal(count_of(text, word), 1);
        for (int track = 0; track < 3; track++) {
            (void)snprintf(word, sizeof word, "\"pid\":%d,\"tid\":%d,\"ts\"", r, track);
            assert_true(count_of(text, word) > 10);
        }
    }
    assert_true(count_of(text, "\"name\":\"all_reduce\",\"cat\":\"") > 4 * 4);
    assert_true(count_of(text, "\"args\":{\"bytes\":") > 4 * 4);
    wefti_free(text);
    assert_int_equal(unlink(path), 0);
    end_session(s, graph);
}

/* An event of a trace: a kernel, or a transfer from its post to its end. */
typedef struct span {
    int64_t device, track;
    double begin, end;
} span;

static int read_spans(const char *text, int64_t bytes, span *out, int most) {
    static const wefti_json_limits limits = {16, 100, 1 << 20};
    const wefti_json *root, *events;
    wefti_arena *arena;
    int count = 0;
    ASSERT_OK(wefti_arena_create(&arena));
    ASSERT_OK(wefti_json_parse(arena, text, bytes, &limits, &root));
    ASSERT_OK(wefti_json_array(root, "traceEvents", &events));
    WEFTI_JSON_EACH(event, events) {
        const wefti_json *ts = wefti_json_get(event, "ts"), *dur = wefti_json_get(event, "dur");
        if (!ts || count == most) continue;
        span *s = &out[count++];
        ASSERT_OK(wefti_json_int(event, "pid", &s->device));
        ASSERT_OK(wefti_json_int(event, "tid", &s->track));
        s->begin = ts->kind == WEFTI_JSON_INT ? (double)ts->as.integer : ts->as.real;
        s->end = dur->kind == WEFTI_JSON_INT ? (double)dur->as.integer : dur->as.real;
        s->end += s->begin;
    }
    wefti_arena_destroy(arena);
    return count;
}

/* A transfer that is posted, and waited for after other work, spans that work. Transfers of one
 * track follow each other. */
static void a_transfer_is_traced_from_its_post(void **state) {
    (void)state;
    enum { MOST_SPANS = 20000 };
    const plan_case *c = case_of("2 stages");
    weft_graph *graph;
    weft_session *s = session_for(c, true, &graph);
    char path[200], *text;
    int64_t bytes;
    int spanned = 0;
    const char *directory = getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%s/weft-test-posts-XXXXXX",
                   directory ? directory : P_tmpdir);
    int file = mkstemp(path);
    assert_true(file >= 0 && close(file) == 0);
    ASSERT_OK(weft_session_trace(s, path));
    (void)train_step(s, c, 0);
    ASSERT_OK(weft_session_trace(s, NULL));
    ASSERT_OK(wefti_file_read(path, 1 << 26, &text, &bytes));
    span *all = calloc(MOST_SPANS, sizeof *all);
    assert_non_null(all);
    int count = read_spans(text, bytes, all, MOST_SPANS);
    for (int t = 0; t < count; t++)
        for (int k = 0; k < count && all[t].track >= 2; k++) {
            const span *transfer = &all[t], *other = &all[k];
            if (t == k || other->device != transfer->device) continue;
            spanned +=
                other->track == 1 && transfer->begin <= other->begin && other->end <= transfer->end;
            if (other->track == transfer->track && transfer->track < 2 + 15)
                assert_true(other->end <= transfer->begin + 0.002 ||
                            transfer->end <= other->begin + 0.002);
        }
    assert_true(spanned > 0);
    free(all);
    wefti_free(text);
    assert_int_equal(unlink(path), 0);
    end_session(s, graph);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_gives_the_result_of_one_device),
        cmocka_unit_test(unlike_kinds_compute_the_same),
        cmocka_unit_test(fusion_changes_no_bit),
        cmocka_unit_test(recomputation_is_planned_cell_by_cell),
        cmocka_unit_test(tensors_go_in_and_out_whole),
        cmocka_unit_test(a_device_that_fails_stops_the_others),
        cmocka_unit_test(a_loss_that_is_not_finite_is_found),
        cmocka_unit_test(limits_are_of_each_device),
        cmocka_unit_test(gradients_are_read_whole),
        cmocka_unit_test(gradients_may_be_summed),
        cmocka_unit_test(traces_show_every_device),
        cmocka_unit_test(a_transfer_is_traced_from_its_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
