/* Checks replicas: devices that hold the same region of a parameter must have the same bytes there.
 *
 * Devices that update replicas independently drift apart if a gradient was not reduced, for example
 * in a model that communicates by hand and averages only its loss. The printed loss does not show
 * that. The check compares digests, so it sends little. */
#include "base/digest/digest.h"
#include "session/mend/mend.h"
#include "session/tensors.h"

/* Digests of all parameters on all devices: [devices, tensors]. */
typedef struct comparison {
    weft_session *session;
    wefti_view *view;
    uint64_t *digests;
} comparison;

static uint64_t *digest_at(const comparison *c, int32_t rank, int64_t tensor) {
    return &c->digests[rank * c->view->count + tensor];
}

static weft_status digest_home(const wefti_home *home, uint64_t *digest) {
    *digest = 5;
    for (int64_t at = 0, part; at < home->bytes; at += part) {
        wefti_mapping m;
        part = home->bytes - at < WEFTI_HOME_BLOCK ? home->bytes - at : WEFTI_HOME_BLOCK;
        WEFT_TRY(wefti_home_map(home, at, part, WEFTI_ACCESS_READ, &m));
        *digest = wefti_digest_bytes(*digest, m.data, (size_t)part);
        WEFT_TRY(wefti_home_unmap(&m, WEFT_OK));
    }
    return WEFT_OK;
}

static weft_status digest_own(comparison *c) {
    wefti_session_piece *pieces = c->session->pieces;
    int32_t count;
    for (int64_t i = 0; i < c->view->count; i++) {
        const wefti_view_tensor *t = &c->view->tensors[i];
        if (t->role != WEFTI_TENSOR_PARAM) continue;
        WEFT_TRY(wefti_session_pieces(c->session, 0, (int)i, pieces, &count));
        for (int32_t p = 0; p < count; p++) {
            if (wefti_home_exists(&pieces[p].home))
                WEFT_TRY(digest_home(&pieces[p].home, digest_at(c, pieces[p].rank, i)));
        }
    }
    return WEFT_OK;
}

/* In a world: each rank sends the digests of its own device. */
static weft_status gather(comparison *c) {
    weft_session *s = c->session;
    int64_t *offsets, bytes = c->view->count * (int64_t)sizeof *c->digests;
    char *all;
    if (!s->world) return WEFT_OK;
    WEFT_TRY(wefti_agree_gather(s->agreement, digest_at(c, s->me, 0), bytes, &all, &offsets));
    memcpy(c->digests, all, (size_t)bytes * (size_t)s->devices);
    wefti_free(offsets);
    return WEFT_OK;
}

/* ---- finding the wrong device ---- */

/* How many devices hold the region of piece p with the same bytes. *out_replicas: how many hold the
 * region at all. */
static int32_t agreeing(const comparison *c, int64_t tensor, int32_t count, int32_t p,
                        int32_t *out_replicas) {
    const wefti_session_piece *pieces = c->session->pieces;
    int32_t agree = 0;
    *out_replicas = 0;
    for (int32_t q = 0; q < count; q++) {
        if (!wefti_regions_equal(&pieces[p].box, &pieces[q].box,
                                 c->view->tensors[tensor].whole.rank))
            continue;
        ++*out_replicas;
        agree += *digest_at(c, pieces[p].rank, tensor) == *digest_at(c, pieces[q].rank, tensor);
    }
    return agree;
}

/* Blames the device with the bytes that the fewest devices share; of equals, the last one. */
static weft_status judge(const comparison *c, int64_t tensor) {
    const wefti_session_piece *pieces = c->session->pieces;
    int32_t count, wrong = -1, fewest = 0, of = 0;
    WEFT_TRY(wefti_session_pieces(c->session, 0, (int)tensor, c->session->pieces, &count));
    for (int32_t p = 0; p < count; p++) {
        int32_t replicas, agree = agreeing(c, tensor, count, p, &replicas);
        if (agree == replicas || (wrong >= 0 && agree > fewest)) continue;
        wrong = p;
        fewest = agree;
        of = replicas;
    }
    if (wrong < 0) return WEFT_OK;
    int32_t other = 0; /* the first replica that differs */
    while (!wefti_regions_equal(&pieces[wrong].box, &pieces[other].box,
                                c->view->tensors[tensor].whole.rank) ||
           *digest_at(c, pieces[wrong].rank, tensor) == *digest_at(c, pieces[other].rank, tensor))
        other++;
    WEFT_FAIL(WEFT_E_MISMATCH,
              "replicas of parameter '%s' differ between rank %d and rank %d; %d ranks hold these "
              "elements, and %d of them have the values of rank %d. Either the gradients are not "
              "reduced over all replicas, or one replica was written alone",
              c->view->tensors[tensor].name, pieces[wrong].rank, pieces[other].rank, of, fewest,
              pieces[wrong].rank);
}

static weft_status try_check_replicas(weft_session *s) {
    comparison c = {.session = s};
    WEFT_TRY(wefti_session_view(s, 0, &c.view));
    WEFT_TRY(wefti_session_start(s));
    if (s->devices == 1) return WEFT_OK;
    size_t cells = (size_t)c.view->count * (size_t)s->devices;
    c.digests = wefti_calloc(cells + 1, sizeof *c.digests);
    weft_status status =
        c.digests ? digest_own(&c) : WEFT_RAISE(WEFT_E_NOMEM, "no memory to compare replicas");
    if (s->world) status = wefti_agree(s->agreement, status);
    if (status >= 0) status = gather(&c);
    for (int64_t i = 0; i < c.view->count && status >= 0; i++)
        if (c.view->tensors[i].role == WEFTI_TENSOR_PARAM) status = judge(&c, i);
    wefti_free(c.digests);
    if (status < 0) return wefti_note(status, __func__, __FILE__, __LINE__);
    return WEFT_OK;
}

weft_status weft_session_check_replicas(weft_session *s) {
    return wefti_session_settle(s, try_check_replicas(s));
}
