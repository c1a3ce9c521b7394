/* Saves a session as a step of a run's directory, and loads one, for programs: the options and the
 * errors of the public calls. How it is done is told in session/save, as for training runs. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "checkpoint/step_dir.h"
#include "session/mend/mend.h"
#include "session/save/save.h"
#include "session/tensors.h"

/* What a program saves or loads. */
typedef struct program_saver {
    wefti_saver saver; /* first: weft_session.saving points to it */
    char *dir;
    weft_session_save_options options;
} program_saver;

static void saver_free(program_saver *p) {
    if (!p) return;
    wefti_saver_close(&p->saver);
    wefti_free(p->dir);
    wefti_free(p);
}

/* ---- what is saved ---- */

static weft_status add_one(weft_session *s, wefti_saved_list *list, int tensor,
                           wefti_checkpoint_role role) {
    weft_tensor_info info;
    weft_desc whole;
    int32_t count;
    WEFT_TRY(weft_session_tensor(s, 0, tensor, &info));
    WEFT_TRY(wefti_saved_pieces(s, tensor, s->pieces, &count, &whole));
    return wefti_saved_list_add(list, tensor, 0, info.name, &whole, role);
}

/* Under the names of the session, each as one tensor. */
static weft_status add_tensor(void *context, wefti_saved_list *list, int tensor,
                              const weft_tensor_info *info,
                              const int owned[WEFTI_SAVED_STATES_MOST]) {
    weft_session *s = context;
    (void)info;
    WEFT_TRY(add_one(s, list, tensor, WEFTI_CHECKPOINT_MODEL));
    for (int k = 0; k < WEFTI_SAVED_STATES_MOST; k++)
        if (owned[k] >= 0) WEFT_TRY(add_one(s, list, owned[k], WEFTI_CHECKPOINT_OPTIMIZER));
    return WEFT_OK;
}

/* ---- saving ---- */

static weft_status begin(void *context, const wefti_save_part *part, wefti_checkpoint_job **out) {
    const program_saver *p = context;
    const weft_session *s = p->saver.session;
    const wefti_checkpoint_pair random[] = {{"generator", "philox4x32-10"}};
    const wefti_checkpoint_meta meta = {.step = p->saver.step,
                                        .data_position = p->options.position,
                                        .seed = s->options.seed,
                                        .optimizer =
                                            s->options.optimizer.kind == WEFT_NO_OPTIMIZER
                                                ? NULL
                                                : wefti_optimizer_text(s->options.optimizer.kind),
                                        .random = {random, 1}};
    wefti_checkpoint_options options = part->options;
    options.keep = options.slicing ? 0 : p->options.keep;
    return wefti_checkpoint_begin(part->dir, &meta, part->tensors, part->count, &options, out);
}

static wefti_save_keep keeps(void *context) {
    return (wefti_save_keep){.keep = ((const program_saver *)context)->options.keep};
}

static weft_status saver_create(weft_session *s, const char *dir, program_saver **out) {
    program_saver *p;
    WEFT_NEW(p, program_saver);
    *out = p;
    p->saver = (wefti_saver){.owner = {.begin = begin, .keeps = keeps, .context = p},
                             .session = s,
                             .world = s->world,
                             .agreement = s->agreement};
    p->dir = wefti_strdup(dir);
    p->saver.dir = p->dir;
    WEFT_REQUIRE(p->dir, WEFT_E_NOMEM, "no memory to save a session");
    return wefti_saved_list_create(s, add_tensor, s, &p->saver.list);
}

/* Called from the threads of all devices, for each parameter whose update begins: it changes the
 * optimizer tensors, too. */
static void before_update(void *context, int32_t rank, int32_t tensor) {
    const weft_session *s = context;
    if (s->saving) wefti_saver_wait_tensor(s->saving, wefti_session_number(s, 0, rank, tensor));
}

static weft_status agree(const weft_session *s, weft_status status) {
    return s->agreement ? wefti_agree(s->agreement, status) : status;
}

static weft_status end_with(program_saver *p, weft_status status) {
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    saver_free(p);
    return failure.status < 0 ? wefti_failure_tell(&failure) : WEFT_OK;
}

/* Other ranks may be in weft_session_save_wait. */
static weft_status check_none_under_way(const weft_session *s) {
    if (!s->saving) return WEFT_OK;
    return wefti_fail_world(
        s->world,
        WEFT_RAISE(WEFT_E_ARG, "step %lld is still being saved: call weft_session_save_wait first",
                   (long long)s->saving->step));
}

static weft_status prepare(weft_session *s, const char *dir,
                           const weft_session_save_options *options, program_saver **out) {
    WEFT_REQUIRE(dir && *dir, WEFT_E_ARG, "weft_session_save needs a directory");
    WEFT_REQUIRE(options->keep >= 0 && options->position >= 0, WEFT_E_ARG,
                 "weft_session_save: keep is %lld and position %lld; both are at least 0",
                 (long long)options->keep, (long long)options->position);
    WEFT_REQUIRE(s->accumulated == 0, WEFT_E_ARG,
                 "weft_session_save: %d microbatches of a step are there; save between two steps",
                 s->accumulated);
    WEFT_TRY(saver_create(s, dir, out));
    (*out)->options = *options;
    (*out)->saver.sliced = options->sliced;
    return WEFT_OK;
}

/* `background`: the caller goes on while files are written. */
static weft_status start(weft_session *s, const char *dir, const weft_session_save_options *options,
                         bool background) {
    weft_session_save_options own = weft_session_save_defaults();
    program_saver *p = NULL;
    weft_status unwritten = WEFT_OK;
    WEFT_TRY(check_none_under_way(s));
    WEFT_TRY(wefti_session_start_in_world(s));
    weft_status status = wefti_struct_take("weft_session_save_options", options, &own);
    if (status >= 0 && background && s->mends)
        status = WEFT_RAISE(WEFT_E_ARG,
                            "a session with recovery saves with weft_session_save: a write in the "
                            "background would not survive the loss of a process");
    if (status >= 0) status = prepare(s, dir, &own, &p);
    wefti_job_fact how = {
        .name = "save", .verb = "saves", .advice = "all ranks save slices, or none"};
    (void)snprintf(how.text, sizeof how.text, "%s", own.sliced ? "slices" : "whole tensors");
    if (s->agreement) status = wefti_agree_same(s->agreement, status, &how, 1);
    if (status >= 0) status = wefti_saver_save(&p->saver, s->survivor.step, &unwritten);
    if (status >= 0) status = unwritten;
    if (status < 0) return end_with(p, status);
    s->saving = &p->saver;
    wefti_session_before_update(s, before_update, s);
    return WEFT_OK;
}

static weft_status finish(weft_session *s) {
    wefti_saver *v = s->saving;
    weft_status unwritten = WEFT_OK;
    if (!v) return WEFT_OK;
    weft_status status = wefti_saver_finish(v, &unwritten);
    if (status >= 0) status = unwritten;
    if (status < 0) status = wefti_prefix(status, "%s", v->dir);
    s->saving = NULL;
    wefti_session_before_update(s, NULL, NULL);
    return end_with((program_saver *)v, status);
}

void wefti_session_saving_end(weft_session *s) {
    program_saver *p = (program_saver *)s->saving;
    s->saving = NULL;
    saver_free(p);
    for (int64_t i = 0; i < s->split_count; i++) wefti_free(s->splits[i].match);
    wefti_free(s->splits);
    s->splits = NULL;
    s->split_count = s->split_room = 0;
}

void wefti_session_saving_captured(const weft_session *s) {
    if (s->saving && s->saving->writing) wefti_checkpoint_wait_all(s->saving->writing);
}

weft_status weft_session_save_start(weft_session *session, const char *dir,
                                    const weft_session_save_options *options) {
    return wefti_session_settle(session, start(session, dir, options, true));
}

weft_status weft_session_save_test(weft_session *session) {
    return session->saving && wefti_saver_is_writing(session->saving) ? WEFT_PENDING : WEFT_OK;
}

weft_status weft_session_save_wait(weft_session *session) {
    return wefti_session_settle(session, finish(session));
}

weft_status weft_session_save(weft_session *session, const char *dir,
                              const weft_session_save_options *options) {
    weft_status status = start(session, dir, options, false);
    return wefti_session_settle(session, status < 0 ? status : finish(session));
}

/* ---- loading ---- */

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

/* In a world the ranks find damage when they read the tensors. One process reads every byte first.
 * `below`: the newest step below it, in place of `step`. */
static weft_status open_step(const weft_session *s, const char *dir, int64_t step, int64_t below,
                             wefti_checkpoint **out) {
    bool own = false;
    if (!s->world) return wefti_checkpoint_open(dir, step, out, NULL);
    WEFT_TRY(wefti_step_is(dir, &own));
    if (own) return wefti_checkpoint_open_quick(dir, out);
    WEFT_TRY(wefti_checkpoint_open_unread(dir, step >= 0 ? step + 1 : below, out, NULL));
    if (step < 0 || wefti_checkpoint_meta_of(*out)->step == step) return WEFT_OK;
    wefti_checkpoint_close(*out);
    *out = NULL;
    return wefti_checkpoint_open(dir, step, out, NULL); /* says what is wrong with it */
}

/* Rank 0: a step with the session's tensors. */
static weft_status open_fitting(const weft_session *s, const program_saver *p, int64_t step,
                                int64_t below, wefti_checkpoint **out, loaded_place *place) {
    wefti_checkpoint_tensor *expected;
    const wefti_saved_list *list = &p->saver.list;
    if (s->me != 0) return WEFT_OK;
    if (step >= 0) WEFT_TRY(find_step(p->dir, step));
    WEFT_TRY(open_step(s, p->dir, step, below, out));
    WEFT_NEW_ARRAY(expected, wefti_checkpoint_tensor, list->count + 1);
    for (int64_t i = 0; i < list->count; i++)
        expected[i] = (wefti_checkpoint_tensor){.name = list->tensors[i].name,
                                                .role = list->tensors[i].role,
                                                .desc = list->tensors[i].desc};
    weft_status status = WEFT_OK;
    for (int role = 0; role < WEFTI_CHECKPOINT_ROLES && status >= 0; role++)
        status = wefti_checkpoint_compare(*out, (wefti_checkpoint_role)role, expected, list->count);
    wefti_free(expected);
    WEFT_TRY(status);
    const wefti_checkpoint_meta *meta = wefti_checkpoint_meta_of(*out);
    *place = (loaded_place){meta->step, meta->data_position};
    return WEFT_OK;
}

/* Loads the step, or the newest one below `below`. *place tells which, also if it is damaged. */
static weft_status load_one(weft_session *s, program_saver *p, int64_t step, int64_t below,
                            loaded_place *place) {
    wefti_checkpoint *c = NULL;
    weft_status status = agree(s, open_fitting(s, p, step, below, &c, place));
    if (status >= 0 && s->agreement)
        status = wefti_agree_broadcast(s->agreement, WEFT_OK, place, sizeof *place);
    if (status >= 0) status = wefti_saver_load(&p->saver, c, true);
    wefti_failure failure;
    wefti_failure_keep(status, &failure);
    wefti_checkpoint_close(c);
    return failure.status < 0 ? wefti_failure_tell(&failure) : WEFT_OK;
}

/* If the ranks find damage in the newest step, they take the one before. */
static weft_status load_good(weft_session *s, program_saver *p, int64_t step, loaded_place *place) {
    for (int64_t below = INT64_MAX;;) {
        *place = (loaded_place){.step = -1};
        const weft_status status = load_one(s, p, step, below, place);
        if (status != WEFT_E_CORRUPT || step >= 0 || place->step < 0 || !s->agreement ||
            !wefti_agreement_failed(s->agreement))
            return status;
        below = place->step;
    }
}

static weft_status prepare_load(weft_session *s, const char *dir, int64_t step,
                                program_saver **out) {
    WEFT_REQUIRE(dir && *dir, WEFT_E_ARG, "weft_session_load needs a directory");
    WEFT_REQUIRE(step >= WEFTI_CHECKPOINT_LATEST, WEFT_E_ARG,
                 "weft_session_load: step %lld; it is a step's number, or -1 for the newest",
                 (long long)step);
    return saver_create(s, dir, out);
}

static weft_status load(weft_session *s, const char *dir, int64_t step, int64_t *out_position) {
    program_saver *p = NULL;
    loaded_place place = {0};
    WEFT_TRY(check_none_under_way(s));
    WEFT_TRY(wefti_session_start_in_world(s));
    weft_status status = agree(s, prepare_load(s, dir, step, &p));
    if (status >= 0) status = load_good(s, p, step, &place);
    WEFT_TRY(end_with(p, status));
    WEFT_TRY(weft_session_set_step(s, place.step));
    if (out_position) *out_position = place.position;
    return WEFT_OK;
}

weft_status weft_session_load(weft_session *session, const char *dir, int64_t step,
                              int64_t *out_position) {
    return wefti_session_settle(session, load(session, dir, step, out_position));
}
