/* Steps that are given up, and made again: see the section of session/session.h. */
#include "session/parts.h"

void wefti_session_halt_when(weft_session *s, wefti_halted *call, void *context) {
    s->halted = call;
    s->halted_context = context;
}

/* An update that communicates cannot be made by one rank alone. */
static bool updates_alone(const weft_session *s) {
    return !s->world || !wefti_section_communicates(s->views[0]->own, WEFTI_SECTION_UPDATE);
}

wefti_session_standing wefti_session_stands(const weft_session *s) {
    const bool has = !s->torn && !s->newcomer;
    return (wefti_session_standing){.step = has ? s->step : -1,
                                    .ready = s->ready && has && updates_alone(s)};
}

/* ---- giving up ---- */

/* The programs of all views bound to a device, which has the memory of the one before. */
static weft_status move_device(void *context, wefti_rank_device *device, int32_t rank) {
    const weft_session *s = context;
    for (int64_t i = 0; i < s->view_count; i++)
        WEFT_TRY(wefti_rank_device_bind(device, s->views[i]->programs[rank]));
    return wefti_rank_device_take(device, wefti_workers_device(s->workers, rank));
}

static void forget_reads(const weft_session *s) {
    for (int64_t i = 0; i < s->view_count; i++)
        for (int64_t t = 0; t < s->views[i]->count; t++) {
            wefti_comm_unbind(s->views[i]->reads[t]);
            s->views[i]->reads[t] = NULL;
        }
}

/* A newcomer agrees with all ranks on each of its graphs, as at the begin of the job. */
static weft_status answer(weft_session *s) {
    const wefti_bf16_compute bf16 = s->bf16;
    for (int64_t i = 0; i < s->view_count; i++) {
        weft_status status = wefti_session_same_job(s, s->views[i]->model, WEFT_OK);
        const wefti_bf16_compute theirs = s->bf16;
        s->bf16 = bf16;
        WEFT_TRY(status);
        if (theirs != bf16)
            status = WEFT_RAISE(WEFT_E_MISMATCH,
                                "a new process computes products in bf16 another way than rank %d",
                                s->me);
        WEFT_TRY(wefti_agree(s->agreement, status));
        WEFT_TRY(wefti_view_gather_sites(s, s->views[i]));
    }
    return WEFT_OK;
}

/* Moves this process's device to the world's communicator. */
static weft_status move(weft_session *s, bool newcomers) {
    wefti_workers *workers = NULL;
    forget_reads(s);
    WEFT_TRY(wefti_agreement_of(s->world, &s->agreement));
    if (newcomers) WEFT_TRY(answer(s));
    weft_status status = wefti_session_create_workers(s, &workers);
    if (status >= 0)
        status = wefti_workers_name(workers, wefti_workers_run(workers, move_device, s));
    status = wefti_agree(s->agreement, status);
    if (status < 0) {
        wefti_workers_destroy(workers);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    wefti_rank_device *to = wefti_workers_device(workers, s->me);
    wefti_host_copies_move(s, wefti_workers_device(s->workers, s->me), to,
                           s->views[0]->sites[s->me].facts.peak_bytes);
    wefti_workers_destroy(s->workers);
    s->workers = workers;
    wefti_session_observe_devices(s);
    return WEFT_OK;
}

weft_status wefti_session_arrive(weft_session *s) {
    WEFT_TRY(wefti_session_start(s));
    s->newcomer = true;
    return WEFT_OK;
}

weft_status wefti_session_abandon(weft_session *s, bool newcomers) {
    WEFT_REQUIRE(s->options.recovery, WEFT_E_ARG,
                 "a step can be made again only if the session has recovery");
    s->accumulated = 0;
    wefti_session_take_inputs(s, 0);
    if (!s->world || !s->workers) return WEFT_OK;
    if (wefti_rank_device_comm(wefti_workers_device(s->workers, s->me)) == s->world->comm)
        return WEFT_OK;
    return move(s, newcomers);
}

/* ---- going on ---- */

typedef struct advance_record {
    int64_t step;
    double scale, norm; /* of its last update: a rank that is behind may not know the norm of all
                           gradients. The rank may be in a later update by now */
} advance_record;

static weft_status catch_up(weft_session *s, int64_t target, const advance_record *all) {
    const wefti_session_standing at = wefti_session_stands(s);
    if (at.step < 0) return WEFT_OK; /* it gets its state from another rank */
    WEFT_REQUIRE(target == at.step || (target == at.step + 1 && at.ready), WEFT_E_MISMATCH,
                 "rank %d has the state after %lld updates%s, and cannot go to %lld", s->me,
                 (long long)at.step, at.ready ? " and the next gradients" : "", (long long)target);
    s->ready = false;
    if (target == at.step) return WEFT_OK;
    for (int32_t r = 0; r < s->devices && s->world; r++)
        if (all[r].step == target) {
            s->scale = all[r].scale;
            s->norm = all[r].norm;
        }
    return wefti_session_apply(s);
}

weft_status wefti_session_advance(weft_session *s, int64_t target) {
    if (!s->world) return catch_up(s, target, NULL);
    const advance_record own = {wefti_session_stands(s).step, s->made_scale, s->made_norm};
    advance_record *all;
    WEFT_NEW_ARRAY(all, advance_record, s->devices);
    weft_status status = wefti_agree_records(s->agreement, &own, sizeof own, all);
    if (status >= 0) status = wefti_agree(s->agreement, catch_up(s, target, all));
    wefti_free(all);
    return status;
}

double wefti_session_norm(const weft_session *s) {
    return s->made_norm;
}

/* ---- beginning again ---- */

static weft_status begin_device(void *context, wefti_rank_device *device, int32_t rank) {
    return wefti_session_init_device(context, device, rank);
}

weft_status wefti_session_begin_again(weft_session *s) {
    weft_status status = WEFT_OK;
    if (s->workers)
        status = wefti_workers_name(s->workers, wefti_workers_run(s->workers, begin_device, s));
    if (s->world) status = wefti_agree(s->agreement, status);
    WEFT_TRY(status);
    s->step = 0;
    s->torn = s->ready = s->newcomer = false;
    return WEFT_OK;
}
