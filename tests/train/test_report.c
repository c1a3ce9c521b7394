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

/* Each pass of each cell has its work, also of the cell whose passes run as one: the products of a
 * backward pass are two for one of the forward pass. */
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

/* Parameters, optimizer, packed weights and the rest are the predicted peak, but for the states and
 * a few scalars. */
static void memory_adds_up(void **state) {
    (void)state;
    static const char *const precisions[] = {"train.precision=f32", "train.precision=bf16"};
    for (int p = 0; p < 2; p++) {
        words w = {.count = 0};
        weft_job *job;
        add_words(&w, WITH("model.layers=2", "model.hidden=64", "model.heads=4", "model.context=32",
                           "model.vocab=1000", "train.batch=4", "data.validation=0"));
        weft_model_report *r = report_of(&w, WITH(precisions[p]), &job);
        int64_t sum =
            r->parameter_bytes + r->optimizer_bytes + r->packed_bytes + r->transient_bytes;
        assert_true(r->predicted_peak_bytes >= sum && r->predicted_peak_bytes < sum + 4096);
        weft_model_report_free(r);
        weft_job_free(job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_passes_have_their_work),
        cmocka_unit_test(memory_adds_up),
    };
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
