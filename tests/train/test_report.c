/* The table of a job's model: work of every cell in both passes, memory that adds up. */
#include "run_fixture.h"

static weft_model_report *report_of(const words *w, const char *const *more, weft_job **out_job) {
    words all = *w;
    weft_model_report *r;
    add_words(&all, more);
    *out_job = job_of(&all);
    ASSERT_OK(weft_job_report(*out_job, &r));
    return r;
}

/* Each pass of each cell has its work, also the cell with fused forward-backward. A backward pass
 * has two products for each product of the forward pass. */
static void both_passes_have_their_work(void **state) {
    (void)state;
    words w = {.count = 0};
    add_words(&w,
              WITH("model.family=gpt2", "model.layers=2", "model.hidden=64", "model.heads=4",
                   "model.context=32", "model.vocab=1000", "train.batch=4", "data.validation=0"));
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        weft_job *job;
        weft_model_report *r = report_of(
            &w, WITH(accumulate == 1 ? "train.accumulate=1" : "train.accumulate=2"), &job);
        double forward = 0, backward = 0;
        assert_int_equal(r->cell_count, 4);
        for (int i = 0; i < r->cell_count; i++) {
            const weft_cell_info *c = &r->cells[i];
            assert_true(c->forward_flops > 0 && c->backward_flops > c->forward_flops);
            if (i > 0) assert_true(c->backward_flops < 3 * c->forward_flops);
            forward += c->forward_flops;
            backward += c->backward_flops;
        }
        double head = 2.0 * (4.0 / accumulate) * 32 * 64 * 1000;
        assert_true(r->cells[3].forward_flops >= head && r->cells[3].forward_flops < 1.2 * head);
        assert_true(r->forward_flops == forward * accumulate);
        assert_true(r->backward_flops == backward * accumulate);
        weft_model_report_free(r);
        weft_job_free(job);
    }
}

/* Only the named cells compute their forward pass again, without their last product, because no
 * gradient reads its result. Nothing else changes. */
static void recomputed_work_is_counted(void **state) {
    (void)state;
    enum { ROWS = 4 * 32, HIDDEN = 64, CELLS = 5 };
    words w = {.count = 0};
    weft_job *job;
    add_words(&w,
              WITH("model.family=gpt2", "model.layers=3", "model.hidden=64", "model.heads=4",
                   "model.context=32", "model.vocab=100", "train.batch=4", "data.validation=0"));
    double last = 2.0 * ROWS * 4 * HIDDEN * HIDDEN, forward[CELLS], backward[CELLS];
    for (int k = 0; k < 4; k++) {
        static const char *const more[][3] = {
            {"parallel.recompute=none", NULL},
            {"parallel.recompute.mode=full", "parallel.recompute.cells=[h.1]", NULL},
            {"parallel.recompute.mode=full", "parallel.recompute.cells=[h.*]", NULL},
            {"parallel.recompute.mode=selective", "parallel.recompute.cells=[h.*]", NULL}};
        weft_model_report *r = report_of(&w, more[k], &job);
        assert_int_equal(r->cell_count, CELLS);
        for (int c = 0; c < CELLS; c++) {
            const weft_cell_info *cell = &r->cells[c];
            double most = k ? forward[c] - last : 0,
                   again = k ? cell->backward_flops - backward[c] : 0;
            bool block = c > 0 && c < CELLS - 1, named = block && (k > 1 || (k == 1 && c == 2));
            if (k == 0) {
                forward[c] = cell->forward_flops;
                backward[c] = cell->backward_flops;
            }
            assert_true(cell->forward_flops == forward[c]);
            if (!named)
                assert_true(again == 0);
            else if (k == 3) /* the cheap part */
                assert_true(again > 0 && again < 0.1 * most);
            else
                assert_true(again > 0.98 * most && again <= most);
            if (named) assert_true(k == 3 || cell->saved_bytes == 0);
        }
        weft_model_report_free(r);
        weft_job_free(job);
    }
}

/* Parameters, optimizer, packed weights and the rest add up to the predicted peak, except for the
 * states and a few scalars. */
static void memory_adds_up(void **state) {
    (void)state;
    static const char *const precisions[] = {"train.precision=f32", "train.precision=bf16"};
    for (int p = 0; p < 2; p++) {
        words w = {.count = 0};
        weft_job *job;
        add_words(&w, WITH("model.layers=2", "model.hidden=64", "model.heads=4", "model.context=32",
                           "model.vocab=1000", "train.batch=4", "data.validation=0"));
        weft_model_report *r = report_of(&w, WITH(precisions[p]), &job);
        int64_t sum = r->parameter_bytes + r->optimizer_bytes + r->transient_bytes;
        assert_true(r->predicted_peak_bytes >= sum && r->predicted_peak_bytes < sum + 4096);
        weft_model_report_free(r);
        weft_job_free(job);
    }
}

/* The same model on one device and split over several. */
static void cells_lie_on_several_devices(void **state) {
    (void)state;
    static const struct {
        const char *words[5];
        int devices;
        const char *layout; /* of h.1's result */
        int parts;          /* into which h.1's parameters are cut */
    } plans[] = {
        {{"parallel.devices=4"}, 4, "[dp, -, -]", 1},
        {{"parallel.devices=2", "parallel.mesh={tp: 2}"}, 2, "[-, -, -]", 1},
        {{"parallel.devices=4", "parallel.optimizer.level=3"}, 4, "[dp, -, -]", 4},
        {{"parallel.devices=4", "parallel.pipeline.stages=2", "train.accumulate=2"},
         4,
         "[dp, -, -]",
         1},
        {{"parallel.devices=2", "parallel.pipeline.stages=2", "train.accumulate=4",
          "parallel.pipeline.schedule=interleaved", "parallel.pipeline.virtual_stages=2"},
         2,
         "[-, -, -]",
         1},
    };
    static const char *const names[] = {"embed", "h.0", "h.1", "head"};
    words w = {.count = 0};
    weft_job *one_job;
    add_words(&w,
              WITH("model.family=gpt2", "model.layers=2", "model.hidden=64", "model.heads=4",
                   "model.context=32", "model.vocab=1000", "train.batch=8", "data.validation=0"));
    weft_model_report *one = report_of(&w, WITH("train.accumulate=1"), &one_job);
    assert_true(one->devices == 1 && one->peaks[0] == one->predicted_peak_bytes);
    assert_string_equal(one->cells[2].layout, "");
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        const char *more[6] = {NULL};
        weft_job *job;
        memcpy(more, plans[i].words, sizeof plans[i].words);
        weft_model_report *r = report_of(&w, more, &job);
        int64_t most = 0;
        assert_int_equal(r->devices, plans[i].devices);
        for (int d = 0; d < r->devices; d++)
            if (r->peaks[d] > most) most = r->peaks[d];
        assert_int_equal(most, r->predicted_peak_bytes);
        assert_int_equal(r->parameters, one->parameters);
        assert_int_equal(r->cell_count, 4);
        for (int c = 0; c < 4; c++) assert_string_equal(r->cells[c].name, names[c]);
        assert_int_equal(r->cells[1].kind, r->cells[2].kind);
        assert_int_equal(r->kinds, 3);
        assert_string_equal(r->cells[2].layout, plans[i].layout);
        assert_int_equal(r->cells[2].parameters, one->cells[2].parameters);
        int64_t pieces = r->cells[2].device_bytes - r->cells[2].saved_bytes;
        int64_t piece = one->cells[2].parameters * 4 / plans[i].parts;
        /* a bias of [3, 64] is not cut into 4 */
        assert_in_range(pieces, piece, plans[i].parts == 1 ? piece : piece + 3 * 64 * 4);
        if (plans[i].devices == 4) { /* all devices together do the work of one */
            assert_true(fabs(r->forward_flops / one->forward_flops - 1) < 0.01);
            assert_true(fabs(r->backward_flops / one->backward_flops - 1) < 0.01);
        }
        weft_model_report_free(r);
        weft_job_free(job);
    }
    weft_model_report_free(one);
    weft_job_free(one_job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_passes_have_their_work),
        cmocka_unit_test(recomputed_work_is_counted),
        cmocka_unit_test(memory_adds_up),
        cmocka_unit_test(cells_lie_on_several_devices),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
