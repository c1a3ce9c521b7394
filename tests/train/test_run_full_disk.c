/* A disk that is full when a run saves: each way to save, by each way to end. A run that ends well
 * has its last step on the disk. Any other run says why, and which step is there. */
#include "run_kinds.h"

#include <errno.h>
#include <signal.h>

#include "base/fault.h"

enum { STEPS = 6, FIRST = 2 }; /* FIRST: the step that still has space in some cases */

/* When rank 0 sees the disk fill up, and how the run ends. */
typedef struct event {
    const char *name;
    int signal;       /* that comes in step STEPS - 1; 0: the run makes all of its steps */
    int64_t full;     /* after the report of this step, or of the checkpoint FIRST if that is it */
    bool space_again; /* once the run has noticed it */
} event;

static const event events[] = {
    {"the end, nothing saved", 0, 1, false},
    {"the end, an old step", 0, FIRST, false},
    {"SIGTERM, nothing saved", SIGTERM, 1, false},
    {"SIGTERM, an old step", SIGTERM, FIRST, false},
    {"SIGINT, an old step", SIGINT, FIRST, false},
    {"space again before the end", 0, FIRST, true},
    {"space again before SIGTERM", SIGTERM, 1, true},
};
enum { EVENTS = sizeof events / sizeof *events };

typedef struct rank_run {
    const weft_job *job;
    const event *event;
    bool leads;
    record record;
} rank_run;

static void fill_disk(void) {
    wefti_fault_arm(WEFTI_FAULT_IO, 0, true, ENOSPC);
}

static void step_then_full(void *context, const weft_train_step *s) {
    rank_run *r = context;
    on_step(&r->record, s);
    if (s->step == r->event->full && s->step < FIRST) fill_disk();
    if (s->step == STEPS - 1) r->record.stop = r->event->signal;
}

static void checkpoint_then_full(void *context, int64_t step, const char *path) {
    rank_run *r = context;
    on_checkpoint(&r->record, step, path);
    if (step == FIRST && r->event->full == FIRST) fill_disk();
}

static void note_then_space(void *context, const char *text) {
    rank_run *r = context;
    on_note(&r->record, text);
    if (r->event->space_again) disarm_faults();
}

static weft_status run_rank(void *context, weft_world *world) {
    rank_run *r = context;
    weft_train_events e = WEFT_STRUCT(weft_train_events, .context = r, .stop = &r->record.stop);
    if (r->leads) {
        e.step = step_then_full;
        e.checkpoint = checkpoint_then_full;
        e.note = note_then_space;
    }
    return weft_train_run_in(world, r->job, &e, &r->record.result);
}

/* Runs the job on all ranks; their statuses and messages lie in `ranks`. */
static void run_kind(const kind *k, const event *e, const weft_job *job, rank_run *runs,
                     rank_of_world *ranks) {
    memset(runs, 0, MOST_RANKS * sizeof *runs);
    for (int r = 0; r < k->ranks; r++) runs[r] = (rank_run){.job = job, .event = e};
    runs[0].leads = true;
    if (k->ranks > 1) {
        run_world(k->ranks, run_rank, runs, sizeof *runs, ranks);
    } else {
        ranks[0].status = run_rank(&runs[0], NULL);
        (void)snprintf(ranks[0].message, sizeof ranks[0].message, "%s", weft_error_message());
    }
    disarm_faults();
}

/* Steps in a folder by their names, as text. */
static void names_of(const kind *k, int rank, char *out, size_t bytes) {
    size_t used = 0;
    out[0] = '\0';
    for (int64_t s = 1; s <= STEPS; s++) {
        char path[700];
        if (k->sliced)
            (void)snprintf(path, sizeof path, "%s/rank_%d/step-%012lld", in_root("run"), rank,
                           (long long)s);
        else
            (void)snprintf(path, sizeof path, "%s", step_path("run", s));
        if (wefti_exists(path))
            used += (size_t)snprintf(out + used, bytes - used, " %lld", (long long)s);
    }
}

/* All ranks have the same steps, and the newest of them is good. */
static int64_t newest_good(const kind *k, const char *what) {
    char first[100], other[100], *note = NULL;
    wefti_checkpoint *c = NULL;
    names_of(k, 0, first, sizeof first);
    for (int r = 1; r < k->ranks; r++) {
        names_of(k, r, other, sizeof other);
        if (strcmp(first, other) != 0)
            fail_msg("%s: rank 0 has the steps%s, rank %d has%s", what, first, r, other);
    }
    if (!first[0]) return 0;
    ASSERT_OK(wefti_checkpoint_open(in_root("run"), WEFTI_CHECKPOINT_LATEST, &c, &note));
    if (note) fail_msg("%s: %s", what, note);
    const int64_t step = wefti_checkpoint_meta_of(c)->step;
    wefti_checkpoint_close(c);
    return step;
}

/* What 0 and 143 promise. */
static void assert_saved(const kind *k, const record *r, const char *what) {
    wefti_checkpoint *c;
    if (newest_good(k, what) != r->result.steps)
        fail_msg("%s: step %lld is not on the disk", what, (long long)r->result.steps);
    ASSERT_OK(wefti_checkpoint_open(r->result.checkpoint, WEFTI_CHECKPOINT_LATEST, &c, NULL));
    assert_int_equal(wefti_checkpoint_meta_of(c)->step, r->result.steps);
    wefti_checkpoint_close(c);
}

static void assert_fails(const kind *k, const event *e, const rank_of_world *ranks,
                         const char *what) {
    const bool old = e->full == FIRST;
    for (int r = 0; r < k->ranks; r++)
        if (ranks[r].status >= 0 || ranks[r].status == WEFT_E_STOPPED ||
            !strstr(ranks[r].message, "No space left"))
            fail_msg("%s: rank %d ends with %d, \"%s\"", what, r, ranks[r].status,
                     ranks[r].status < 0 ? ranks[r].message : "");
    if (!has_facts(ranks[0].message, old ? "step 2|kept" : "no checkpoint") ||
        !has_facts(ranks[0].message, e->signal ? "step 5" : "step 6"))
        fail_msg("%s: \"%s\"", what, ranks[0].message);
    assert_int_equal(newest_good(k, what), old ? FIRST : 0);
}

static void walk(const kind *k, const event *e) {
    static rank_run runs[MOST_RANKS];
    rank_of_world ranks[MOST_RANKS];
    char what[200];
    (void)snprintf(what, sizeof what, "%s, %s", k->devices.name, e->name);
    words w = job_words(STEPS);
    add_devices(&w, &k->devices);
    add_words(&w, WITH(dir_word("run"), "checkpoint.every=2", "checkpoint.keep=1",
                       k->sliced ? "checkpoint.sliced=true" : "checkpoint.sliced=false"));
    weft_job *job = job_of(&w);
    run_kind(k, e, job, runs, ranks);
    if (e->space_again) {
        for (int r = 0; r < k->ranks; r++)
            if (ranks[r].status != (e->signal ? WEFT_E_STOPPED : WEFT_OK))
                fail_msg("%s: rank %d: %d, %s", what, r, ranks[r].status, ranks[r].message);
        assert_note(&runs[0].record, "No space");
        assert_saved(k, &runs[0].record, what);
    } else {
        assert_fails(k, e, ranks, what);
    }
    /* With space the same command goes on to the end. */
    const event none = {"space", 0, -1, false};
    run_kind(k, &none, job, runs, ranks);
    for (int r = 0; r < k->ranks; r++)
        if (ranks[r].status < 0) fail_msg("%s, again: %s", what, ranks[r].message);
    assert_int_equal(runs[0].record.result.steps, STEPS);
    assert_saved(k, &runs[0].record, what);
    weft_job_free(job);
    ASSERT_OK(wefti_remove_tree(in_root("run")));
}

static void a_good_end_has_its_step_on_the_disk(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int e = 0; e < EVENTS; e++) walk(&kinds[k], &events[e]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_good_end_has_its_step_on_the_disk)};
    return cmocka_run_group_tests(tests, data_setup, data_teardown);
}
