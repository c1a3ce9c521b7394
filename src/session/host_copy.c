/* Host copies: buffers for weft_session_local on devices with memory that the host cannot reach.
 *
 * Between passes the buffer of a parameter, a state, an optimizer tensor or an input holds the
 * current value. A pass begins by copying it to the device, and ends by copying changed values
 * back. Direct devices have no host copies: there the caller gets the memory itself. */
#include "session/tensors.h"

struct wefti_host_copy {
    wefti_host_copy *next;
    const wefti_view *view; /* NULL: programs share the tensor */
    wefti_tensor_role role;
    int32_t rank; /* the tensor's place: */
    wefti_location at;
    wefti_home home;
    void *data; /* the caller's */
};

static bool is_shared(wefti_tensor_role role) {
    return role <= WEFTI_TENSOR_OPTIMIZER;
}

/* By a pass, for the caller to read. */
static bool is_made(wefti_tensor_role role) {
    return role == WEFTI_TENSOR_OUTPUT || role == WEFTI_TENSOR_GRADIENT;
}

static wefti_host_copy *find(const weft_session *s, const wefti_view *view, int index,
                             const wefti_session_piece *piece) {
    bool shared = is_shared(view->tensors[index].role);
    wefti_host_copy *c = s->host_copies;
    while (c && (c->rank != piece->rank || !wefti_location_equal(c->at, piece->at) ||
                 c->view != (shared ? NULL : view)))
        c = c->next;
    return c;
}

static weft_status push(const wefti_host_copy *c) {
    return wefti_home_write(&c->home, 0, c->home.bytes, c->data);
}

static weft_status pull(const wefti_host_copy *c) {
    return wefti_home_read(&c->home, 0, c->home.bytes, c->data);
}

weft_status wefti_host_copy_of(weft_session *s, const wefti_view *view, int index,
                               const wefti_session_piece *piece, void **out) {
    const wefti_view_tensor *t = &view->tensors[index];
    *out = wefti_home_memory(&piece->home);
    if (*out || !wefti_home_exists(&piece->home)) return WEFT_OK;
    wefti_host_copy *c = find(s, view, index, piece);
    if (!c) {
        WEFT_NEW(c, wefti_host_copy);
        *c = (wefti_host_copy){.next = s->host_copies,
                               .view = is_shared(t->role) ? NULL : view,
                               .role = t->role,
                               .rank = piece->rank,
                               .at = piece->at,
                               .home = piece->home};
        c->data = wefti_calloc(1, (size_t)c->home.bytes + 1);
        weft_status status =
            c->data ? pull(c) : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a copy of '%s'", t->name);
        if (status < 0) {
            wefti_free(c->data);
            wefti_free(c);
            return status;
        }
        s->host_copies = c;
    }
    *out = c->data;
    return WEFT_OK;
}

/* A first pass computes the outputs anew. Later sections read outputs that the caller may have
 * changed. */
weft_status wefti_host_copies_push(const weft_session *s, const wefti_view *view,
                                   wefti_section section) {
    for (const wefti_host_copy *c = s->host_copies; c; c = c->next) {
        bool reads = !is_made(c->role) || section != WEFTI_SECTION_FIRST;
        bool begins = section <= WEFTI_SECTION_LAST;            /* a pass */
        if (c->role == WEFTI_TENSOR_INPUT && !begins) continue; /* the pass is over */
        if (reads && (!c->view || c->view == view)) WEFT_TRY(push(c));
    }
    return WEFT_OK;
}

/* Inputs belong to the caller, and a pass may have reused their memory: they are not copied back.
 */
weft_status wefti_host_copies_pull(const weft_session *s, const wefti_view *view) {
    for (const wefti_host_copy *c = s->host_copies; c; c = c->next)
        if (!c->view || (c->view == view && is_made(c->role))) WEFT_TRY(pull(c));
    return WEFT_OK;
}

weft_status wefti_host_copies_push_piece(const weft_session *s, const wefti_view *view, int index,
                                         const wefti_session_piece *pieces, int32_t count) {
    if (!s->host_copies || !is_shared(view->tensors[index].role)) return WEFT_OK;
    for (int32_t i = 0; i < count; i++) {
        const wefti_host_copy *c =
            wefti_home_exists(&pieces[i].home) ? find(s, view, index, &pieces[i]) : NULL;
        if (c) WEFT_TRY(push(c));
    }
    return WEFT_OK;
}

weft_status wefti_host_copy_refresh(const weft_session *s, const wefti_view *view, int index,
                                    const wefti_session_piece *piece) {
    const wefti_host_copy *c = s->host_copies ? find(s, view, index, piece) : NULL;
    return c ? pull(c) : WEFT_OK;
}

void wefti_host_copies_move(weft_session *s, const wefti_workers *to) {
    for (wefti_host_copy *c = s->host_copies; c; c = c->next)
        c->home = wefti_rank_device_home(wefti_workers_device(to, c->rank), c->at, c->home.bytes);
}

void wefti_host_copies_destroy(weft_session *s) {
    while (s->host_copies) {
        wefti_host_copy *c = s->host_copies;
        s->host_copies = c->next;
        wefti_free(c->data);
        wefti_free(c);
    }
}
