/* Transfers with members on other hosts: the engine between hosts carries them out, and whoever
 * waits carries on with both. A rank that waits for another host while its neighbours need its
 * share of a sum would else stop them all. */
#include "comm/host/host.h"

struct wefti_host_internode {
    wefti_endpoint base;
    wefti_host *host;
    wefti_endpoint *internode;
    char *text;
    uint32_t posted, completed, waited;
    bool finished[WEFTI_COMM_DEPTH];
    bool listed;
    wefti_host_internode *next; /* among those under way */
};

/* Tells these endpoints from others. */
static const wefti_comm_engine far_engine = {
    .name = "host",
    .post = wefti_host_internode_post,
    .wait = wefti_host_internode_wait,
    .test = wefti_host_internode_test,
    .unbind = wefti_host_internode_unbind,
};

bool wefti_host_is_internode(const wefti_endpoint *endpoint) {
    return endpoint->engine == &far_engine;
}

static void complete(wefti_host_internode *e) {
    e->finished[e->completed++ % WEFTI_COMM_DEPTH] = true;
}

/* What failed there fails here. */
static void adopt_failure(wefti_shm_rank *local, weft_status status) {
    local->at_fault = status == WEFT_E_MISMATCH;
    wefti_shm_break(local, weft_error_rank(), "%s", weft_error_message());
}

static bool carry_on(wefti_shm_rank *local) {
    wefti_host *host = (wefti_host *)local;
    bool happened = false;
    for (wefti_host_internode **at = &host->under_way; *at && !wefti_shm_broken(local);) {
        wefti_host_internode *e = *at;
        weft_status status = WEFT_OK;
        while (e->completed != e->posted &&
               (status = e->internode->engine->test(e->internode)) == WEFT_OK) {
            complete(e);
            happened = true;
        }
        if (status < 0) adopt_failure(local, status);
        if (e->completed == e->posted) {
            e->listed = false;
            *at = e->next;
            local->other_work.count--;
        } else {
            at = &e->next;
        }
    }
    return happened;
}

static void attend(wefti_shm_rank *local, bool on) {
    wefti_comm *internode = ((wefti_host *)local)->internode;
    if (internode->engine->attend) internode->engine->attend(internode, on);
}
static void idle(wefti_shm_rank *local, int64_t ns) {
    wefti_comm *internode = ((wefti_host *)local)->internode;
    if (internode->engine->idle) internode->engine->idle(internode, ns);
}

weft_status wefti_host_internode_bind(wefti_host *host, const wefti_transfer *t,
                                      wefti_endpoint **out) {
    WEFT_REQUIRE(host->internode, WEFT_E_ARG,
                 "a transfer has members on several hosts, and there is no communicator between "
                 "hosts");
    wefti_host_internode *e;
    WEFT_NEW(e, wefti_host_internode);
    e->base.engine = &far_engine;
    e->host = host;
    e->text = wefti_format("%s of %s (%s, %lld elements)", wefti_transfer_kind_text(t->kind),
                           t->name ? t->name : "a tensor", weft_dtype_text(t->dtype),
                           (long long)wefti_region_elems(&t->have[t->me], t->rank));
    weft_status status = e->text ? host->internode->engine->bind(host->internode, t, &e->internode)
                                 : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a transfer");
    if (status < 0) {
        wefti_free(e->text);
        wefti_free(e);
        return status;
    }
    host->local.other_work.carry_on = carry_on;
    host->local.other_work.attend = attend;
    host->local.other_work.idle = idle;
    *out = &e->base;
    return WEFT_OK;
}

/* The engine between hosts gives memory back too: its waits fail once nothing touches it. */
static weft_status fail(wefti_host_internode *e) {
    wefti_shm_rank *local = &e->host->local;
    wefti_failure failure;
    wefti_failure_keep(wefti_shm_fail(local), &failure);
    wefti_comm_break(e->host->internode, failure.rank, failure.message);
    for (; e->completed != e->posted; e->completed++)
        (void)e->internode->engine->wait(e->internode);
    return wefti_failure_tell(&failure);
}

weft_status wefti_host_internode_post(wefti_endpoint *base, const void *source, void *destination) {
    wefti_host_internode *e = (wefti_host_internode *)base;
    wefti_shm_rank *local = &e->host->local;
    if (e->posted - e->waited >= WEFTI_COMM_DEPTH)
        return wefti_comm_too_many_posts(&local->comm, e->text);
    if (wefti_shm_broken(local)) return fail(e);
    e->internode->call = base->call;
    weft_status status = e->internode->engine->post(e->internode, source, destination);
    if (status < 0) {
        if (status <= WEFT_E_PEER) adopt_failure(local, status);
        return status;
    }
    e->finished[e->posted++ % WEFTI_COMM_DEPTH] = false;
    if (e->listed) return WEFT_OK;
    e->listed = true;
    e->next = e->host->under_way;
    e->host->under_way = e;
    local->other_work.count++;
    return WEFT_OK;
}

static weft_status check(wefti_host_internode *e) {
    if (wefti_shm_broken(&e->host->local)) return fail(e);
    if (e->posted == e->waited) return wefti_comm_not_posted(&e->host->local.comm, e->text);
    return WEFT_OK;
}

weft_status wefti_host_internode_wait(wefti_endpoint *base) {
    wefti_host_internode *e = (wefti_host_internode *)base;
    WEFT_TRY(check(e));
    if (wefti_shm_wait_until(&e->host->local, &e->finished[e->waited % WEFTI_COMM_DEPTH], e->text) <
        0)
        return fail(e);
    e->waited++;
    return WEFT_OK;
}

weft_status wefti_host_internode_test(wefti_endpoint *base) {
    wefti_host_internode *e = (wefti_host_internode *)base;
    WEFT_TRY(check(e));
    (void)wefti_shm_progress(&e->host->local);
    if (!e->finished[e->waited % WEFTI_COMM_DEPTH])
        return wefti_shm_broken(&e->host->local) ? fail(e) : WEFT_PENDING;
    e->waited++;
    wefti_position_end_wait(e->host->local.comm.position, false);
    return WEFT_OK;
}

void wefti_host_internode_unbind(wefti_endpoint *base) {
    wefti_host_internode *e = (wefti_host_internode *)base;
    wefti_shm_rank *local = &e->host->local;
    if (e->posted != e->waited && !wefti_shm_broken(local))
        wefti_shm_break(local, WEFT_RANK_OWN, "%s was given up while under way", e->text);
    if (wefti_shm_broken(local)) (void)fail(e);
    for (wefti_host_internode **at = &e->host->under_way; *at; at = &(*at)->next)
        if (*at == e) {
            *at = e->next;
            local->other_work.count--;
            break;
        }
    e->internode->engine->unbind(e->internode);
    wefti_free(e->text);
    wefti_free(e);
}
