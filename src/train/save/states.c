/* The states of the checkpoint under way, and what leads from one to the next:
 *
 *   event                      one process      whole tensors       slices
 *   begin                      -> COMMITS       -> PARTS            -> PARTS
 *   no rank is busy: PARTS     -                -> WRITTEN          -> WRITTEN
 *   WRITTEN, all have written  -                -> COMMITS          -> COMMITS
 *   no rank is busy: COMMITS   -> COMMITTED     -> COMMITTED        -> COMMITTED
 *   COMMITTED, all have it     -> NONE          -> NONE             -> NONE
 *   some rank has failed       -> NONE          -> NONE             -> NONE
 *   the world breaks           -                -> NONE             -> NONE
 *
 * The ranks hear at each step whether some rank is busy (train/together.c), and go on together
 * behind it. At the end of a run they wait. Before they leave WRITTEN and COMMITTED they agree on
 * what each one has come to. So all ranks are always in the same state, and know of the same
 * failure. */
#include "base/clock.h"
#include "train/save/save.h"

/* How this run saves. */
typedef enum save_kind { ALONE, TOGETHER, SLICED, SAVE_KINDS } save_kind;

typedef enum save_event { BEGIN, PARTS_WRITTEN, COMMITTED, FAILED, SAVE_EVENTS } save_event;

/* What an event does, and the state that it leads to. */
typedef struct save_row {
    weft_status (*act)(wefti_training *t);
    wefti_save_state to;
} save_row;

static save_kind kind_of(const wefti_training *t) {
    return !t->ranks.world ? ALONE : wefti_training_is_sliced(t) ? SLICED : TOGETHER;
}

/* ---- what the events do ---- */

void wefti_training_drop_write(wefti_training *t) {
    wefti_delivery_end(t->saving.delivery);
    wefti_checkpoint_cancel(t->saving.writing);
    wefti_delivery_destroy(t->saving.delivery);
    t->saving.writing = NULL;
    t->saving.delivery = NULL;
    t->saving.state = WEFTI_SAVE_NONE;
}

static weft_status drop(wefti_training *t) {
    wefti_training_drop_write(t);
    return WEFT_OK;
}

/* Ranks that have put their part into place remove it: readers would find a step with holes. */
static weft_status drop_sliced(wefti_training *t) {
    const bool commits = t->saving.state >= WEFTI_SAVE_COMMITS;
    wefti_training_drop_write(t);
    if (commits) wefti_training_remove_slices(t);
    return WEFT_OK;
}

/* The step is in place. */
static weft_status end(wefti_training *t) {
    char *note = NULL;
    wefti_checkpoint_job *job = t->saving.writing;
    t->saving.writing = NULL;
    WEFT_TRY(wefti_checkpoint_finish(job, &note));
    wefti_delivery_destroy(t->saving.delivery);
    t->saving.delivery = NULL;
    if (note) wefti_training_note(t, "%s", note);
    wefti_free(note);
    wefti_training_report_written(t);
    return WEFT_OK;
}

static weft_status end_sliced(wefti_training *t) {
    WEFT_TRY(end(t));
    if (wefti_training_prune_slices(t) >= 0) return WEFT_OK;
    wefti_training_note(t, "step %lld is written, but: %s", (long long)t->saving.committed_step,
                        weft_error_message());
    wefti_error_clear();
    return WEFT_OK;
}

static const save_row rows[SAVE_EVENTS][SAVE_KINDS] = {
    [BEGIN] = {{wefti_training_begin_alone, WEFTI_SAVE_COMMITS},
               {wefti_training_begin_together, WEFTI_SAVE_PARTS},
               {wefti_training_begin_sliced, WEFTI_SAVE_PARTS}},
    [PARTS_WRITTEN] = {{NULL, WEFTI_SAVE_NONE}, /* one process has no parts */
                       {wefti_training_sum_together, WEFTI_SAVE_COMMITS},
                       {wefti_training_sum_sliced, WEFTI_SAVE_COMMITS}},
    [COMMITTED] = {{end, WEFTI_SAVE_NONE}, {end, WEFTI_SAVE_NONE}, {end_sliced, WEFTI_SAVE_NONE}},
    [FAILED] = {{drop, WEFTI_SAVE_NONE}, {drop, WEFTI_SAVE_NONE}, {drop_sliced, WEFTI_SAVE_NONE}},
};

/* ---- from state to state ---- */

/* Collective. A failure on which the ranks have agreed ends the checkpoint only. */
static weft_status fail(wefti_training *t, weft_status status, weft_status *out_unwritten) {
    const bool agreed = !t->ranks.agreement || wefti_agreement_failed(t->ranks.agreement);
    wefti_failure failure;
    (void)wefti_prefix(status, "the checkpoint of step %lld", (long long)t->saving.writing_step);
    wefti_failure_keep(status, &failure);
    status = agreed ? rows[FAILED][kind_of(t)].act(t) : drop(t);
    if (agreed && t->ranks.agreement) status = wefti_agree(t->ranks.agreement, status);
    WEFT_TRY(status);
    *out_unwritten = wefti_failure_tell(&failure);
    return agreed ? WEFT_OK : *out_unwritten;
}

static weft_status happen(wefti_training *t, save_event event, weft_status *out_unwritten) {
    const save_row *row = &rows[event][kind_of(t)];
    const weft_status status = row->act(t);
    if (status < 0) return fail(t, status, out_unwritten);
    t->saving.state = row->to;
    return WEFT_OK;
}

/* What this rank has come to in its state; WEFT_PENDING: it is busy. */
static weft_status outcome(const wefti_training *t) {
    wefti_checkpoint_job *job = t->saving.writing;
    if (t->saving.part.status < 0) return wefti_failure_tell(&t->saving.part);
    if (!job) return WEFT_OK;
    return t->saving.state < WEFTI_SAVE_COMMITS ? wefti_checkpoint_written(job)
                                                : wefti_checkpoint_poll(job);
}

/* Collective, when no rank is busy. */
static weft_status go_on(wefti_training *t, weft_status *out_unwritten) {
    weft_status status = outcome(t);
    if (t->ranks.agreement) status = wefti_agree(t->ranks.agreement, status);
    if (status < 0) return fail(t, status, out_unwritten);
    return happen(t, t->saving.state < WEFTI_SAVE_COMMITS ? PARTS_WRITTEN : COMMITTED,
                  out_unwritten);
}

static void wait(const wefti_training *t) {
    if (!t->saving.writing) return;
    if (t->saving.state < WEFTI_SAVE_COMMITS)
        wefti_checkpoint_wait_written(t->saving.writing);
    else
        wefti_checkpoint_wait_done(t->saving.writing);
}

static void note_unwritten(const wefti_training *t, weft_status status) {
    if (status < 0) wefti_training_note(t, "%s; the run continues", weft_error_message());
}

bool wefti_training_is_writing(const wefti_training *t) {
    return (t->saving.state == WEFTI_SAVE_PARTS || t->saving.state == WEFTI_SAVE_COMMITS) &&
           outcome(t) == WEFT_PENDING;
}

void wefti_training_hear_writing(wefti_training *t, bool some_rank) {
    if (some_rank) return;
    if (t->saving.state == WEFTI_SAVE_PARTS) t->saving.state = WEFTI_SAVE_WRITTEN;
    if (t->saving.state == WEFTI_SAVE_COMMITS) t->saving.state = WEFTI_SAVE_COMMITTED;
}

weft_status wefti_training_poll(wefti_training *t) {
    weft_status unwritten = WEFT_OK;
    if (!t->ranks.agreement) wefti_training_hear_writing(t, wefti_training_is_writing(t));
    if (t->saving.state == WEFTI_SAVE_WRITTEN || t->saving.state == WEFTI_SAVE_COMMITTED)
        WEFT_TRY(go_on(t, &unwritten));
    note_unwritten(t, unwritten);
    return WEFT_OK;
}

weft_status wefti_training_finish_write(wefti_training *t, weft_status *out_unwritten) {
    *out_unwritten = WEFT_OK;
    while (t->saving.state != WEFTI_SAVE_NONE) {
        wait(t);
        WEFT_TRY(go_on(t, out_unwritten));
    }
    return WEFT_OK;
}

weft_status wefti_training_save(wefti_training *t, weft_status *out_unwritten) {
    *out_unwritten = WEFT_OK;
    if (!t->job->checkpoint.dir[0]) return WEFT_OK;
    WEFT_TRY(wefti_training_finish_write(t, out_unwritten));
    note_unwritten(t, *out_unwritten);
    *out_unwritten = WEFT_OK;
    t->saving.begun_ns = wefti_now_ns();
    t->saving.writing_step = t->progress.step;
    wefti_failure_keep(WEFT_OK, &t->saving.part);
    return happen(t, BEGIN, out_unwritten);
}

weft_status wefti_training_save_meanwhile(wefti_training *t) {
    weft_status unwritten;
    WEFT_TRY(wefti_training_save(t, &unwritten));
    note_unwritten(t, unwritten);
    return WEFT_OK;
}

/* ---- when ranks may be gone ---- */

static bool needs_others(const wefti_training *t) {
    return kind_of(t) == SLICED || (kind_of(t) == TOGETHER && t->saving.state < WEFTI_SAVE_COMMITS);
}

/* Without the other ranks, none of which is needed any more. */
static weft_status end_alone(wefti_training *t) {
    wefti_failure failure;
    wait(t);
    weft_status status = outcome(t);
    if (status >= 0) status = end(t);
    (void)wefti_prefix(status, "the checkpoint of step %lld", (long long)t->saving.writing_step);
    wefti_failure_keep(status, &failure);
    wefti_training_drop_write(t);
    return status < 0 ? wefti_failure_tell(&failure) : WEFT_OK;
}

bool wefti_training_cut_write(wefti_training *t) {
    if (t->saving.state == WEFTI_SAVE_NONE) return false;
    const bool cut = needs_others(t);
    if (cut)
        wefti_training_drop_write(t);
    else
        note_unwritten(t, end_alone(t));
    return cut && t->saving.writing_step == t->progress.step;
}

weft_status wefti_training_end_write(wefti_training *t) {
    weft_status unwritten;
    if (t->saving.state == WEFTI_SAVE_NONE) return WEFT_OK;
    if (!t->ranks.agreement || wefti_agreement_failed(t->ranks.agreement)) {
        WEFT_TRY(wefti_training_finish_write(t, &unwritten));
        return unwritten;
    }
    if (!needs_others(t)) return end_alone(t);
    wefti_training_drop_write(t);
    if (t->ranks.follows) return WEFT_OK;
    WEFT_FAIL(WEFT_E_STOPPED,
              "the checkpoint of step %lld is given up: not all ranks had written their parts",
              (long long)t->saving.writing_step);
}
