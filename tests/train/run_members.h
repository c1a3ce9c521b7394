/* Training runs of which each rank of a world is a member. */
#ifndef WEFT_TESTS_TRAIN_RUN_MEMBERS_H
#define WEFT_TESTS_TRAIN_RUN_MEMBERS_H

#include "run_layouts.h"
#include "session/world_fixture.h"

typedef struct member {
    const weft_job *job, *another; /* another: before it */
    record record;
} member;

static inline weft_status run_member(void *context, weft_world *world) {
    member *m = context;
    weft_train_events events =
        WEFT_STRUCT(weft_train_events, .context = &m->record, .start = on_start, .step = on_step,
                    .validation = on_validation, .checkpoint = on_checkpoint, .note = on_note,
                    .stop = &m->record.stop);
    return weft_train_run_in(world, m->job, &events, &m->record.result);
}

/* One job on all ranks, or, other != NULL, another one on rank 1. */
static inline void run_all(const words *w, const words *other, int count, member *members,
                           rank_of_world *ranks) {
    weft_job *job = job_of(w), *another = other ? job_of(other) : NULL;
    for (int r = 0; r < count; r++) members[r].job = r == 1 && other ? another : job;
    run_world(count, run_member, members, sizeof *members, ranks);
    weft_job_free(job);
    weft_job_free(another);
}

static inline void assert_same_record(const record *one, const record *many, const char *what) {
    assert_int_equal(one->first, many->first);
    assert_int_equal(one->last, many->last);
    for (int64_t s = one->first; s <= one->last; s++)
        if (memcmp(&one->losses[s], &many->losses[s], sizeof(double)) ||
            (!isnan(one->norms[s]) && memcmp(&one->norms[s], &many->norms[s], sizeof(double))))
            fail_msg("%s: the loss of step %lld is %.17g, in one process %.17g", what, (long long)s,
                     many->losses[s], one->losses[s]);
    assert_memory_equal(one->validations, many->validations, sizeof one->validations);
    assert_int_equal(one->validated, many->validated);
    assert_int_equal(one->checkpoints, many->checkpoints);
    assert_int_equal(one->predicted, many->predicted);
    assert_int_equal(many->predicted, many->result.observed_peak_bytes);
}

#endif
