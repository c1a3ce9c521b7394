/* Saves a session as a step of a run's directory, and loads one. All ranks write their pieces into
 * files that rank 0 has created; the step is the same for every plan and number of ranks.
 *
 * 1. Rank 0 locks the directory and prepares the step. Every other rank looks for it.
 * 2. Rank 0 creates the files, then the others open them. A thread of each rank writes its pieces,
 *    while the session goes on; before an update changes a tensor, it waits for that tensor.
 * 3. When all parts are written, the ranks send the sums of their pieces to rank 0.
 * 4. Rank 0 completes the step. Until it renames the directory, the step does not exist. */
#include <string.h>

#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/step_dir.h"
#include "session/mend/mend.h"
#include "session/tensors.h"

typedef struct wefti_session_saving {
    char *dir;
    int64_t step;
    wefti_checkpoint_lock *lock; /* rank 0's */
    wefti_checkpoint_job *job;
    wefti_checkpoint_tensor *tensors;
    wefti_checkpoint_piece *pieces;
    int64_t count, piece_count, states; /* states: how many come first, which passes change */
    int64_t *place;                     /* [tensors of the session]: number here, -1: not saved */
    int64_t *
        last; /* [tensors of the session]: of parameters, the number of the last optimizer tensor */
} saving;

static void saving_free(saving *v) {
    if (!v) return;
    wefti_checkpoint_lock_close(v->lock);
    wefti_free(v->dir);
    wefti_free(v->tensors);
    wefti_free(v->pieces);
    wefti_free(v->place);
    wefti_free(v->last);
    wefti_free(v);
}

/* ---- what is saved ---- */

/* The pieces of the tensor that this process has, and that count. */
static weft_status add_pieces(weft_session *s, saving *v, int index, wefti_checkpoint_tensor *out) {
    wefti_view *view;
    int32_t found;
    WEFT_TRY(wefti_session_view(s, 0, &view));
    WEFT_TRY(wefti_session_pieces(s, 0, index, s->pieces, &found));
    WEFT_TRY(wefti_host_copies_push_piece(s, view, index, s->pieces, found));
    out->pieces = v->pieces + v->piece_count;
    for (int32_t k = 0; k < found; k++) {
        const wefti_session_piece *p = &s->pieces[k];
        if (!p->counts || !p->data) continue;
        v->pieces[v->piece_count++] = (wefti_checkpoint_piece){p->box, p->data, p->device};
        out->piece_count++;
    }
    return WEFT_OK;
}

static weft_status add_tensor(weft_session *s, saving *v, int index, bool with_pieces) {
    weft_tensor_info info;
    WEFT_TRY(weft_session_tensor(s, 0, index, &info));
    wefti_checkpoint_tensor *t = &v->tensors[v->count];
    *t = (wefti_checkpoint_tensor){.name = info.name,
                                   .role = info.role == WEFT_ROLE_OPTIMIZER
                                               ? WEFTI_CHECKPOINT_OPTIMIZER
                                               : WEFTI_CHECKPOINT_MODEL,
                                   .desc = info.desc,
                                   .whole = info.desc};
    if (with_pieces) WEFT_TRY(add_pieces(s, v, index, t));
    v->last[index] = v->count;
    v->place[index] = v->count++;
    return WEFT_OK;
}

/* The optimizer tensors of a parameter. */
static weft_status add_owned(weft_session *s, saving *v, int param, bool with_pieces) {
    const int total = weft_session_tensors(s, 0);
    for (int i = 0; i < total; i++) {
        int owner, state;
        wefti_session_owner(s, 0, i, &owner, &state);
        if (owner == param) WEFT_TRY(add_tensor(s, v, i, with_pieces));
    }
    return WEFT_OK;
}

/* States first, because the next forward pass changes them. Then each parameter with its optimizer
 * tensors, from the last to the first, as backward passes complete gradients. */
static weft_status list_tensors(weft_session *s, saving *v, bool with_pieces) {
    const int total = weft_session_tensors(s, 0);
    WEFT_NEW_ARRAY(v->tensors, wefti_checkpoint_tensor, total + 1);
    WEFT_NEW_ARRAY(v->pieces, wefti_checkpoint_piece, (int64_t)total * s->devices + 1);
    WEFT_NEW_ARRAY(v->place, int64_t, total + 1);
    WEFT_NEW_ARRAY(v->last, int64_t, total + 1);
    for (int i = 0; i < total; i++) v->place[i] = -1;
    const weft_role roles[] = {WEFT_ROLE_STATE, WEFT_ROLE_PARAM};
    for (int k = 0; k < 2; k++) {
        for (int i = total - 1; i >= 0; i--) {
            weft_tensor_info info;
            WEFT_TRY(weft_session_tensor(s, 0, i, &info));
            if (info.role != roles[k]) continue;
            WEFT_TRY(add_tensor(s, v, i, with_pieces));
            if (k == 1) WEFT_TRY(add_owned(s, v, i, with_pieces));
            v->last[i] = v->count - 1;
        }
        if (k == 0) v->states = v->count;
    }
    return WEFT_OK;
}

/* In mode MANUAL the ranks' tensors are slices of which the session does not know the whole. */
static weft_status check_mode(const weft_session *s) {
    WEFT_REQUIRE(!s->plan || s->plan->mode != WEFT_PARALLEL_MANUAL, WEFT_E_ARG,
                 "in mode manual the session does not know how ranks split tensors: use "
                 "weft_session_save_local and weft_session_load_local");
    return WEFT_OK;
}

static weft_status agree(const weft_session *s, weft_status status) {
    return s->agreement ? wefti_agree(s->agreement, status) : status;
}

/* ---- beginning ---- */

/* Called from the threads of all devices, for each parameter whose update begins: it changes the
 * optimizer tensors, too. */
static void before_update(void *context, int32_t rank, int32_t tensor) {
    weft_session *s = context;
    const saving *v = s->saving;
    const int number = v ? wefti_session_number(s, 0, rank, tensor) : -1;
    if (number < 0 || v->place[number] < 0) return;
    for (int64_t i = v->place[number]; i <= v->last[number]; i++)
        wefti_checkpoint_wait_tensor(v->job, i);
}

static weft_status begin_job(const weft_session *s, saving *v, wefti_checkpoint_duty duty,
                             const weft_session_save_options *options) {
    const wefti_checkpoint_pair random[] = {{"generator", "philox4x32-10"}};
    const wefti_checkpoint_meta meta = {.step = v->step,
                                        .data_position = options->position,
                                        .seed = s->options.seed,
                                        .optimizer =
                                            s->options.optimizer.kind == WEFT_NO_OPTIMIZER
                                                ? NULL
                                                : wefti_optimizer_text(s->options.optimizer.kind),
                                        .random = {random, 1}};
    const wefti_checkpoint_options how = {.duty = duty, .keep = options->keep};
    return wefti_checkpoint_begin(v->dir, &meta, v->tensors, v->count, &how, &v->job);
}

/* Rank 0's directory, with a number by which the others know it. */
static weft_status prepare(const weft_session *s, saving *v, uint64_t *out_number) {
    if (s->me != 0) return WEFT_OK;
    WEFT_TRY(wefti_checkpoint_lock_open(v->dir, &v->lock));
    return s->agreement ? wefti_checkpoint_prepare(v->dir, v->step, out_number) : WEFT_OK;
}

static weft_status begin_together(const weft_session *s, saving *v, weft_status status,
                                  const weft_session_save_options *options) {
    uint64_t number = 0;
    if (status >= 0) status = prepare(s, v, &number);
    const bool prepared = s->me == 0 && status >= 0;
    status = agree(s, status);
    if (status >= 0) status = wefti_agree_broadcast(s->agreement, WEFT_OK, &number, sizeof number);
    if (status >= 0 && s->me != 0 && !wefti_checkpoint_sees(v->dir, v->step, number))
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "%s is another directory here than on rank 0: all ranks must see one "
                            "directory",
                            v->dir);
    status = agree(s, status);
    if (status >= 0 && s->me == 0) status = begin_job(s, v, WEFTI_CHECKPOINT_LEADS, options);
    status = agree(s, status);
    if (status >= 0 && s->me != 0) status = begin_job(s, v, WEFTI_CHECKPOINT_JOINS, options);
    status = agree(s, status);
    if (status >= 0) return WEFT_OK;
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (v->job)
        wefti_checkpoint_cancel(v->job);
    else if (prepared)
        wefti_checkpoint_unprepare(v->dir, v->step);
    v->job = NULL;
    return wefti_failure_tell(&failure);
}

static weft_status begin_alone(const weft_session *s, saving *v, weft_status status,
                               const weft_session_save_options *options) {
    WEFT_TRY(status);
    WEFT_TRY(prepare(s, v, NULL));
    return begin_job(s, v, WEFTI_CHECKPOINT_ALONE, options);
}

static weft_status prepare_saving(weft_session *s, const char *dir,
                                  const weft_session_save_options *options, saving *v) {
    WEFT_REQUIRE(dir && *dir, WEFT_E_ARG, "weft_session_save needs a directory");
    WEFT_REQUIRE(options->keep >= 0 && options->position >= 0, WEFT_E_ARG,
                 "weft_session_save: keep is %lld and position %lld; both are at least 0",
                 (long long)options->keep, (long long)options->position);
    WEFT_REQUIRE(s->accumulated == 0, WEFT_E_ARG,
                 "weft_session_save: %d microbatches of a step are there; save between two steps",
                 s->accumulated);
    v->dir = wefti_strdup(dir);
    WEFT_REQUIRE(v->dir, WEFT_E_NOMEM, "no memory to save a session");
    return list_tensors(s, v, true);
}

static weft_status start(weft_session *s, const char *dir,
                         const weft_session_save_options *options) {
    static const weft_session_save_options none = {0};
    saving *v;
    WEFT_TRY(check_mode(s));
    WEFT_REQUIRE(!s->saving, WEFT_E_ARG,
                 "step %lld is still being saved: call weft_session_save_wait first",
                 (long long)s->saving->step);
    WEFT_TRY(wefti_session_start_in_world(s));
    if (!options) options = &none;
    WEFT_NEW_ARRAY(v, saving, 1);
    v->step = s->step;
    weft_status status = prepare_saving(s, dir, options, v);
    status =
        s->agreement ? begin_together(s, v, status, options) : begin_alone(s, v, status, options);
    if (status < 0) {
        wefti_failure failure;
        wefti_failure_keep(status, &failure);
        saving_free(v);
        return wefti_failure_tell(&failure);
    }
    s->saving = v;
    wefti_session_before_update(s, before_update, s);
    for (int64_t i = 0; i < v->states; i++) wefti_checkpoint_wait_tensor(v->job, i);
    return WEFT_OK;
}

/* ---- completing ---- */

/* Rank 0 gets the sums of all ranks, and completes the step. all: [ranks][tensors and the bytes] */
static weft_status send_sums(const weft_session *s, saving *v) {
    int64_t bytes = 0, *offsets;
    uint64_t *own;
    char *all;
    const uint32_t *sums = wefti_checkpoint_sums(v->job, &bytes);
    WEFT_NEW_ARRAY(own, uint64_t, v->count + 1);
    for (int64_t i = 0; i < v->count; i++) own[i] = sums[i];
    own[v->count] = (uint64_t)bytes;
    weft_status status = wefti_agree_gather(s->agreement, own,
                                            (v->count + 1) * (int64_t)sizeof *own, &all, &offsets);
    wefti_free(own);
    WEFT_TRY(status);
    uint32_t *total = s->me == 0 ? wefti_calloc((size_t)v->count + 1, sizeof *total) : NULL;
    const uint64_t *of = (const uint64_t *)(const void *)all;
    bytes = 0;
    for (int32_t r = 0; r < s->devices && total; r++, of += v->count + 1) {
        for (int64_t i = 0; i < v->count; i++) total[i] ^= (uint32_t)of[i];
        bytes += (int64_t)of[v->count];
    }
    wefti_free(offsets);
    status =
        s->me != 0 || total ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory to save a session");
    if (total) wefti_checkpoint_complete(v->job, total, bytes);
    wefti_free(total);
    return status;
}

static weft_status finish_together(const weft_session *s, saving *v) {
    wefti_checkpoint_wait_written(v->job);
    weft_status status = agree(s, wefti_checkpoint_written(v->job));
    if (status >= 0) status = agree(s, send_sums(s, v));
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    if (status >= 0 && s->me == 0)
        status = wefti_checkpoint_finish(v->job, NULL);
    else
        wefti_checkpoint_cancel(v->job);
    v->job = NULL;
    return failure.status < 0 ? wefti_failure_tell(&failure) : agree(s, status);
}

static weft_status finish(weft_session *s) {
    saving *v = s->saving;
    if (!v) return WEFT_OK;
    s->saving = NULL;
    wefti_session_before_update(s, NULL, NULL);
    weft_status status =
        s->agreement ? finish_together(s, v) : wefti_checkpoint_finish(v->job, NULL);
    if (status < 0) status = wefti_prefix(status, "step %lld of %s", (long long)v->step, v->dir);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    saving_free(v);
    return failure.status < 0 ? wefti_failure_tell(&failure) : WEFT_OK;
}

void wefti_session_saving_end(weft_session *s) {
    saving *v = s->saving;
    s->saving = NULL;
    if (v && v->job) wefti_checkpoint_cancel(v->job);
    saving_free(v);
}

void wefti_session_saving_captured(const weft_session *s) {
    if (s->saving) wefti_checkpoint_wait_all(s->saving->job);
}

weft_status weft_session_save_start(weft_session *session, const char *dir,
                                    const weft_session_save_options *options) {
    WEFT_REQUIRE(!session->mends, WEFT_E_ARG,
                 "a session with recovery saves with weft_session_save: a write in the background "
                 "would not survive the loss of a process");
    return wefti_session_settle(session, start(session, dir, options));
}

weft_status weft_session_save_test(weft_session *session) {
    if (!session->saving) return WEFT_OK;
    const bool together = session->agreement != NULL;
    return (together ? wefti_checkpoint_written(session->saving->job)
                     : wefti_checkpoint_poll(session->saving->job)) == WEFT_PENDING
               ? WEFT_PENDING
               : WEFT_OK; /* also after a failure, which the wait tells */
}

weft_status weft_session_save_wait(weft_session *session) {
    return wefti_session_settle(session, finish(session));
}

weft_status weft_session_save(weft_session *session, const char *dir,
                              const weft_session_save_options *options) {
    weft_status status = start(session, dir, options);
    return wefti_session_settle(session, status < 0 ? status : finish(session));
}

/* ---- loading ---- */

typedef struct loaded {
    const wefti_checkpoint_entry *entry;
} loaded;

static weft_status copy_out(void *context, int64_t first, int64_t count, void *out) {
    const wefti_checkpoint_entry *e = ((const loaded *)context)->entry;
    const int64_t size = (int64_t)weft_dtype_bytes(e->desc.dtype);
    return wefti_reader_at(e->reader, e->at + first * size, count * size, out);
}

/* What all ranks get from rank 0's checkpoint, besides the tensors. */
typedef struct loaded_place {
    int64_t step, position;
} loaded_place;

/* Whether the run has the step, as far as its names say. `dir` may also be the step's own. */
static weft_status find_step(const char *dir, int64_t step) {
    bool own = false, found;
    int64_t *steps = NULL, count = 0;
    WEFT_TRY(wefti_step_is(dir, &own));
    if (own) return WEFT_OK;
    WEFT_TRY(wefti_checkpoint_list(dir, &steps, &count));
    found = count == 0; /* opening says what is wrong then */
    for (int64_t i = 0; i < count; i++) found |= steps[i] == step;
    const int64_t last = count ? steps[count - 1] : 0;
    wefti_free(steps);
    WEFT_REQUIRE(found, WEFT_E_NOT_FOUND, "%s has no step %lld; its newest is %lld", dir,
                 (long long)step, (long long)last);
    return WEFT_OK;
}

/* Rank 0. Checks every byte, and that the tensors are the session's, before anything changes. */
static weft_status open_step(const weft_session *s, const saving *v, const char *dir, int64_t step,
                             wefti_checkpoint **out, loaded_place *p) {
    WEFT_REQUIRE(dir && *dir, WEFT_E_ARG, "weft_session_load needs a directory");
    WEFT_REQUIRE(step >= WEFTI_CHECKPOINT_LATEST, WEFT_E_ARG,
                 "weft_session_load: step %lld; it is a step's number, or -1 for the newest",
                 (long long)step);
    if (s->me != 0) return WEFT_OK;
    if (step >= 0) WEFT_TRY(find_step(dir, step));
    WEFT_TRY(wefti_checkpoint_open(dir, step, out, NULL));
    WEFT_TRY(wefti_checkpoint_compare(*out, WEFTI_CHECKPOINT_MODEL, v->tensors, v->count));
    WEFT_TRY(wefti_checkpoint_compare(*out, WEFTI_CHECKPOINT_OPTIMIZER, v->tensors, v->count));
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(*out);
    *p = (loaded_place){meta->step, meta->data_position};
    return WEFT_OK;
}

static weft_status fill(weft_session *s, const saving *v, const wefti_checkpoint *c) {
    const int total = weft_session_tensors(s, 0);
    for (int i = 0; i < total; i++) {
        if (v->place[i] < 0) continue;
        const wefti_checkpoint_tensor *t = &v->tensors[v->place[i]];
        loaded from = {c ? wefti_checkpoint_find(c, t->role, t->name) : NULL};
        const int64_t elems = weft_desc_elems(&t->desc);
        if (elems) WEFT_TRY(wefti_session_fill(s, 0, i, 0, elems, copy_out, &from));
    }
    return WEFT_OK;
}

static weft_status load(weft_session *s, const char *dir, int64_t step, int64_t *out_position) {
    wefti_checkpoint *c = NULL;
    loaded_place p = {0};
    saving v = {0};
    WEFT_TRY(check_mode(s));
    WEFT_REQUIRE(!s->saving, WEFT_E_ARG,
                 "step %lld is still being saved: call weft_session_save_wait first",
                 (long long)s->saving->step);
    WEFT_TRY(wefti_session_start_in_world(s));
    weft_status status = list_tensors(s, &v, false);
    if (status >= 0) status = open_step(s, &v, dir, step, &c, &p);
    status = agree(s, status);
    if (status >= 0 && s->agreement)
        status = wefti_agree_broadcast(s->agreement, WEFT_OK, &p, sizeof p);
    if (status >= 0) status = fill(s, &v, c);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    wefti_checkpoint_close(c);
    wefti_free(v.tensors);
    wefti_free(v.pieces);
    wefti_free(v.place);
    wefti_free(v.last);
    if (failure.status < 0) return wefti_failure_tell(&failure);
    WEFT_TRY(weft_session_set_step(s, p.step));
    if (out_position) *out_position = p.position;
    return WEFT_OK;
}

weft_status weft_session_load(weft_session *session, const char *dir, int64_t step,
                              int64_t *out_position) {
    return wefti_session_settle(session, load(session, dir, step, out_position));
}
