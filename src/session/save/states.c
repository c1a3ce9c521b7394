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
 * The ranks of a run hear at each step whether some rank is busy, and go on together behind it. At
 * the end of a run, and in programs, they wait. Before they leave WRITTEN and COMMITTED they agree
 * on what each one has come to. So all ranks are always in the same state, and know of the same
 * failure. */
#include "base/text.h"
#include "session/save/parts.h"

/* How this run saves. */
typedef enum save_kind { ALONE, TOGETHER, SLICED, SAVE_KINDS } save_kind;

typedef enum save_event { BEGIN, PARTS_WRITTEN, COMMITTED, FAILED, SAVE_EVENTS } save_event;

/* What an event does, and the state that it leads to. */
typedef struct save_row {
    weft_status (*act)(wefti_saver *v);
    wefti_save_state to;
} save_row;

static save_kind kind_of(const wefti_saver *v) {
    return !v->world ? ALONE : wefti_saver_is_sliced(v) ? SLICED : TOGETHER;
}

static void note(const wefti_saver *v, const char *text) {
    if (v->owner.note && text) v->owner.note(v->owner.context, text);
}

/* ---- what the events do ---- */

void wefti_saver_drop(wefti_saver *v) {
    wefti_delivery_end(v->delivery);
    wefti_checkpoint_cancel(v->writing);
    wefti_delivery_destroy(v->delivery);
    v->writing = NULL;
    v->delivery = NULL;
    v->state = WEFTI_SAVE_NONE;
}

static weft_status drop(wefti_saver *v) {
    wefti_saver_drop(v);
    return WEFT_OK;
}

/* Ranks that have put their part into place remove it: readers would find a step with holes. */
static weft_status drop_sliced(wefti_saver *v) {
    const bool commits = v->state >= WEFTI_SAVE_COMMITS;
    wefti_saver_drop(v);
    if (commits) wefti_saver_remove_slices(v);
    return WEFT_OK;
}

/* The step is in place. */
static weft_status end(wefti_saver *v) {
    char *late = NULL;
    wefti_checkpoint_job *job = v->writing;
    v->writing = NULL;
    WEFT_TRY(wefti_checkpoint_finish(job, &late));
    wefti_delivery_destroy(v->delivery);
    v->delivery = NULL;
    note(v, late);
    wefti_free(late);
    if (v->owner.written) v->owner.written(v->owner.context);
    return WEFT_OK;
}

static weft_status end_sliced(wefti_saver *v) {
    WEFT_TRY(end(v));
    const wefti_save_keep keep = v->owner.keeps(v->owner.context);
    const weft_status status = wefti_saver_prune_slices(v, &keep, v->step);
    if (status >= 0) return WEFT_OK;
    (void)wefti_prefix(status, "step %lld is written, but", (long long)v->step);
    note(v, weft_error_message());
    wefti_error_clear();
    return WEFT_OK;
}

static const save_row rows[SAVE_EVENTS][SAVE_KINDS] = {
    [BEGIN] = {{wefti_saver_begin_alone, WEFTI_SAVE_COMMITS},
               {wefti_saver_begin_together, WEFTI_SAVE_PARTS},
               {wefti_saver_begin_sliced, WEFTI_SAVE_PARTS}},
    [PARTS_WRITTEN] = {{NULL, WEFTI_SAVE_NONE}, /* one process has no parts */
                       {wefti_saver_sum, WEFTI_SAVE_COMMITS},
                       {wefti_saver_sum, WEFTI_SAVE_COMMITS}},
    [COMMITTED] = {{end, WEFTI_SAVE_NONE}, {end, WEFTI_SAVE_NONE}, {end_sliced, WEFTI_SAVE_NONE}},
    [FAILED] = {{drop, WEFTI_SAVE_NONE}, {drop, WEFTI_SAVE_NONE}, {drop_sliced, WEFTI_SAVE_NONE}},
};

/* ---- from state to state ---- */

/* Collective. A failure on which the ranks have agreed ends the checkpoint only. */
static weft_status fail(wefti_saver *v, weft_status status, weft_status *out_unwritten) {
    const bool agreed = !v->agreement || wefti_agreement_failed(v->agreement);
    wefti_failure failure;
    (void)wefti_prefix(status, "the checkpoint of step %lld", (long long)v->step);
    wefti_failure_keep(status, &failure);
    status = agreed ? rows[FAILED][kind_of(v)].act(v) : drop(v);
    if (agreed && v->agreement) status = wefti_agree(v->agreement, status);
    WEFT_TRY(status);
    *out_unwritten = wefti_failure_tell(&failure);
    return agreed ? WEFT_OK : *out_unwritten;
}

static weft_status happen(wefti_saver *v, save_event event, weft_status *out_unwritten) {
    const save_row *row = &rows[event][kind_of(v)];
    const weft_status status = row->act(v);
    if (status < 0) return fail(v, status, out_unwritten);
    v->state = row->to;
    return WEFT_OK;
}

/* What this rank has come to in its state; WEFT_PENDING: it is busy. */
static weft_status outcome(const wefti_saver *v) {
    wefti_checkpoint_job *job = v->writing;
    if (v->part.status < 0) return wefti_failure_tell(&v->part);
    if (!job) return WEFT_OK;
    return v->state < WEFTI_SAVE_COMMITS ? wefti_checkpoint_written(job)
                                         : wefti_checkpoint_poll(job);
}

/* Collective, when no rank is busy. */
static weft_status go_on(wefti_saver *v, weft_status *out_unwritten) {
    weft_status status = outcome(v);
    if (v->agreement) status = wefti_agree(v->agreement, status);
    if (status < 0) return fail(v, status, out_unwritten);
    return happen(v, v->state < WEFTI_SAVE_COMMITS ? PARTS_WRITTEN : COMMITTED, out_unwritten);
}

static void wait(const wefti_saver *v) {
    if (!v->writing) return;
    if (v->state < WEFTI_SAVE_COMMITS)
        wefti_checkpoint_wait_written(v->writing);
    else
        wefti_checkpoint_wait_done(v->writing);
}

static void note_unwritten(const wefti_saver *v, weft_status status) {
    if (status >= 0) return;
    wefti_text text = {0};
    wefti_text_add(&text, "%s; the run continues", weft_error_message());
    char *words = wefti_text_take(&text);
    note(v, words);
    wefti_free(words);
}

bool wefti_saver_is_writing(const wefti_saver *v) {
    return (v->state == WEFTI_SAVE_PARTS || v->state == WEFTI_SAVE_COMMITS) &&
           outcome(v) == WEFT_PENDING;
}

void wefti_saver_hear_writing(wefti_saver *v, bool some_rank) {
    if (some_rank) return;
    if (v->state == WEFTI_SAVE_PARTS) v->state = WEFTI_SAVE_WRITTEN;
    if (v->state == WEFTI_SAVE_COMMITS) v->state = WEFTI_SAVE_COMMITTED;
}

weft_status wefti_saver_poll(wefti_saver *v) {
    weft_status unwritten = WEFT_OK;
    if (!v->agreement) wefti_saver_hear_writing(v, wefti_saver_is_writing(v));
    if (v->state == WEFTI_SAVE_WRITTEN || v->state == WEFTI_SAVE_COMMITTED)
        WEFT_TRY(go_on(v, &unwritten));
    note_unwritten(v, unwritten);
    return WEFT_OK;
}

weft_status wefti_saver_finish(wefti_saver *v, weft_status *out_unwritten) {
    *out_unwritten = WEFT_OK;
    while (v->state != WEFTI_SAVE_NONE) {
        wait(v);
        WEFT_TRY(go_on(v, out_unwritten));
    }
    return WEFT_OK;
}

weft_status wefti_saver_save(wefti_saver *v, int64_t step, weft_status *out_unwritten) {
    *out_unwritten = WEFT_OK;
    if (!v->dir[0]) return WEFT_OK;
    WEFT_TRY(wefti_saver_finish(v, out_unwritten));
    note_unwritten(v, *out_unwritten);
    *out_unwritten = WEFT_OK;
    v->step = step;
    wefti_failure_keep(WEFT_OK, &v->part);
    return happen(v, BEGIN, out_unwritten);
}

weft_status wefti_saver_save_meanwhile(wefti_saver *v, int64_t step) {
    weft_status unwritten;
    WEFT_TRY(wefti_saver_save(v, step, &unwritten));
    note_unwritten(v, unwritten);
    return WEFT_OK;
}

/* ---- when ranks may be gone ---- */

static bool needs_others(const wefti_saver *v) {
    return kind_of(v) == SLICED || (kind_of(v) == TOGETHER && v->state < WEFTI_SAVE_COMMITS);
}

/* Without the other ranks, none of which is needed any more. */
static weft_status end_alone(wefti_saver *v) {
    wefti_failure failure;
    wait(v);
    weft_status status = outcome(v);
    if (status >= 0) status = end(v);
    (void)wefti_prefix(status, "the checkpoint of step %lld", (long long)v->step);
    wefti_failure_keep(status, &failure);
    wefti_saver_drop(v);
    return status < 0 ? wefti_failure_tell(&failure) : WEFT_OK;
}

bool wefti_saver_cut(wefti_saver *v) {
    if (v->state == WEFTI_SAVE_NONE) return false;
    const bool cut = needs_others(v);
    if (cut)
        wefti_saver_drop(v);
    else
        note_unwritten(v, end_alone(v));
    return cut;
}

weft_status wefti_saver_end(wefti_saver *v) {
    weft_status unwritten;
    if (v->state == WEFTI_SAVE_NONE) return WEFT_OK;
    if (!v->agreement || wefti_agreement_failed(v->agreement)) {
        WEFT_TRY(wefti_saver_finish(v, &unwritten));
        return unwritten;
    }
    if (!needs_others(v)) return end_alone(v);
    wefti_saver_drop(v);
    if (wefti_saver_follows(v)) return WEFT_OK;
    WEFT_FAIL(WEFT_E_STOPPED,
              "the checkpoint of step %lld is given up: not all ranks had written their parts",
              (long long)v->step);
}

void wefti_saver_close(wefti_saver *v) {
    wefti_saver_drop(v);
    wefti_checkpoint_lock_close(v->lock);
    wefti_checkpoint_lock_close(v->slices_lock);
    v->lock = v->slices_lock = NULL;
    wefti_saved_list_free(&v->list);
}
