/* Steps that are given up, and made again: see the section of session/session.h. */
#include "session/parts.h"

void wefti_session_halt_when(weft_session *s, wefti_halted *call, void *context) {
    s->halted = call;
    s->halted_context = context;
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

weft_status wefti_session_same_graph(const weft_session *s, int32_t graph) {
    if (!wefti_world_mends(s->world)) return WEFT_OK;
    int32_t *all = wefti_calloc((size_t)s->world->size, sizeof *all);
    weft_status status = wefti_agree_records(s->agreement, &graph, sizeof graph, all);
    for (int32_t r = 0; r < s->world->size && status >= 0; r++)
        if (all[r] != all[0])
            status = wefti_blame(
                WEFT_RAISE(WEFT_E_MISMATCH,
                           "the processes of the job do not add the same graphs to their sessions: "
                           "rank %d has another number of them than rank 0",
                           r),
                r);
    wefti_free(all);
    return status;
}

/* A newcomer agrees with all ranks on each of its graphs, as at the begin of the job. */
weft_status wefti_session_tell_graphs(weft_session *s) {
    for (int64_t i = 0; i < s->view_count; i++) {
        WEFT_TRY(wefti_session_same_graph(s, (int32_t)i));
        WEFT_TRY(wefti_session_same_job(s, s->views[i]->model, false, WEFT_OK));
        WEFT_TRY(wefti_agree(s->agreement, WEFT_OK)); /* the newcomer has built its programs */
        WEFT_TRY(wefti_view_gather_sites(s, s->views[i]));
    }
    return WEFT_OK;
}

/* Moves this process's device to the world's communicator. */
static weft_status move(weft_session *s, bool newcomers) {
    wefti_workers *workers = NULL;
    forget_reads(s);
    WEFT_TRY(wefti_agreement_of(s->world, &s->agreement));
    if (newcomers) WEFT_TRY(wefti_session_tell_graphs(s));
    if (newcomers) WEFT_TRY(wefti_session_same_graph(s, WEFTI_NO_GRAPH));
    weft_status status = wefti_session_create_workers(s, &workers);
    if (status >= 0)
        status = wefti_workers_name(workers, wefti_workers_run(workers, move_device, s));
    status = wefti_agree(s->agreement, status);
    if (status < 0) {
        wefti_workers_destroy(workers);
        return wefti_note(status, __func__, __FILE__, __LINE__);
    }
    wefti_host_copies_move(s, workers);
    wefti_workers_destroy(s->workers);
    s->workers = workers;
    s->copied = false;
    wefti_session_observe_devices(s);
    return WEFT_OK;
}

void wefti_session_stop(weft_session *s) {
    forget_reads(s);
    wefti_workers_destroy(s->workers);
    s->workers = NULL;
}

weft_status wefti_session_arrive(weft_session *s) {
    WEFT_TRY(wefti_session_start(s));
    s->survivor = wefti_survivor_new();
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

static weft_status catch_up(weft_session *s, int64_t target, const advance_record *all,
                            int32_t ranks) {
    const wefti_stand at = wefti_survivor_stands(&s->survivor);
    const wefti_survivor_way way = wefti_survivor_mend(&s->survivor, target);
    WEFT_REQUIRE(way != WEFTI_SURVIVOR_CANNOT, WEFT_E_MISMATCH,
                 "rank %d has the state after %lld updates%s, and cannot go to %lld", s->me,
                 (long long)at.step, at.ready ? " and the next gradients" : "", (long long)target);
    if (way != WEFTI_SURVIVOR_UPDATES) return WEFT_OK;
    for (int32_t r = 0; r < ranks; r++)
        if (all[r].step == target) {
            s->scale = all[r].scale;
            s->norm = all[r].norm;
        }
    return wefti_session_apply(s);
}

weft_status wefti_session_advance_among(weft_session *s, wefti_agreement *agreement, int32_t size,
                                        int64_t target) {
    advance_record own = {.step = -1}, *all = wefti_calloc((size_t)size, sizeof *all);
    if (s)
        own =
            (advance_record){wefti_survivor_stands(&s->survivor).step, s->made_scale, s->made_norm};
    weft_status status = wefti_agree_records(agreement, &own, sizeof own, all);
    if (status >= 0) status = wefti_agree(agreement, s ? catch_up(s, target, all, size) : WEFT_OK);
    wefti_free(all);
    return status;
}

weft_status wefti_session_advance(weft_session *s, int64_t target) {
    if (!s->world) return catch_up(s, target, NULL, 0);
    return wefti_session_advance_among(s, s->agreement, s->devices, target);
}

weft_status wefti_session_gather_again(weft_session *s) {
    const bool scattered = s->survivor.phase == WEFTI_SURVIVOR_SCATTERED;
    bool any = false;
    if (!s->world) return wefti_session_gather(s);
    bool *all = wefti_calloc((size_t)s->devices, sizeof *all);
    weft_status status = wefti_agree_records(s->agreement, &scattered, sizeof scattered, all);
    for (int32_t r = 0; r < s->devices && status >= 0; r++) any |= all[r];
    wefti_free(all);
    if (status < 0 || !any) return status;
    wefti_survivor_scatter(&s->survivor);
    return wefti_session_gather(s);
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
    wefti_survivor_moved(&s->survivor, 0, true); /* until its owner has read all */
    return WEFT_OK;
}
