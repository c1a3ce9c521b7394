/* Reading tensors from the pieces of all devices.
 *
 * Each rank wants rows of a tensor: all of them, some, or none. One process copies them. Several
 * processes move them slab by slab, so that no more than a block of a tensor is staged. Pieces that
 * count come first, then the terms of sums. Every rank adds the terms itself, in the order of a
 * single process, so that the sum has the same bits. */
#include "comm/home_region.h"
#include "layout/slab.h"
#include "session/mend/mend.h"
#include "session/tensors.h"

typedef struct tensor_read {
    weft_session *s;
    wefti_view *v;
    int index;
    int32_t pieces;           /* in s->pieces */
    wefti_transfer_kind kind; /* of the pieces that count, between processes */
    wefti_region *wants;      /* [devices], between processes; of a scalar: see wefti_region_1d */
    wefti_region mine;        /* what this rank wants */
    void *data;               /* an array of it */
} tensor_read;

static const weft_desc *whole_of(const tensor_read *r) {
    return &r->v->tensors[r->index].whole;
}

/* Rows [first, first + count); empty if count is 0. */
static wefti_region region_of_rows(const weft_desc *whole, int64_t first, int64_t count) {
    wefti_region box = wefti_whole_region(whole);
    if (count == 0) return (wefti_region){{0}, {0}};
    box.begin[0] = first;
    box.size[0] = count;
    return box;
}

static bool is_largest(const tensor_read *r, const wefti_session_piece *piece) {
    const wefti_view_tensor *t = &r->v->tensors[r->index];
    return r->v->sites[piece->rank].tensors[t->local[piece->rank]].layout.max != 0;
}

static weft_status term_room(const tensor_read *r, int64_t elems, void **out) {
    const weft_desc *whole = whole_of(r);
    *out = wefti_alloc((size_t)elems * weft_dtype_bytes(whole->dtype));
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to read '%s'", r->v->tensors[r->index].name);
    return WEFT_OK;
}

/* ---- one process ---- */

static weft_status add_own_term(const tensor_read *r, const wefti_session_piece *piece,
                                const wefti_region *part) {
    const weft_desc *whole = whole_of(r);
    const int64_t all = wefti_region_elems(part, whole->rank),
                  most = WEFTI_HOME_BLOCK / (int64_t)weft_dtype_bytes(whole->dtype);
    weft_desc local = *whole;
    weft_status status = WEFT_OK;
    void *term;
    for (int d = 0; d < whole->rank; d++) local.shape[d] = part->size[d];
    WEFT_TRY(term_room(r, all < most ? all : most, &term));
    for (int64_t at = 0, count; at < all && status >= 0; at += count) {
        wefti_region slab;
        count = wefti_slab(&local, at, all - at < most ? all - at : most, &slab);
        for (int d = 0; d < whole->rank; d++) slab.begin[d] += part->begin[d];
        status = wefti_home_read_region(&piece->home, &piece->box, whole, &slab, &slab, term);
        if (status >= 0)
            wefti_add_terms(whole, &slab, term, is_largest(r, piece), &r->mine, r->data);
    }
    wefti_free(term);
    return status;
}

static weft_status read_here(const tensor_read *r) {
    const weft_desc *whole = whole_of(r);
    for (int terms = 0; terms < 2; terms++)
        for (int32_t i = 0; i < r->pieces; i++) {
            const wefti_session_piece *p = &r->s->pieces[i];
            wefti_region part;
            if (terms ? !p->term : !p->counts) continue;
            if (!wefti_region_intersect(&r->mine, &p->box, whole->rank, &part)) continue;
            WEFT_TRY(
                terms ? add_own_term(r, p, &part)
                      : wefti_home_read_region(&p->home, &p->box, whole, &part, &r->mine, r->data));
        }
    return WEFT_OK;
}

/* ---- several processes ---- */

/* Sets what each rank has of a slab and wants of it. `term`: the only piece; NULL: those that
 * count. *out: this process's piece; NULL: none. False: nothing is to be moved. */
static bool set_regions(const tensor_read *r, wefti_region slab, const wefti_session_piece *term,
                        wefti_session_transfer *c, const wefti_session_piece **out) {
    const weft_desc *whole = whole_of(r);
    const int rank = c->what.rank;
    bool wanted = false;
    wefti_region part = slab = wefti_region_1d(whole, slab);
    *out = NULL;
    for (int32_t i = 0; i < r->pieces; i++) {
        const wefti_session_piece *p = &r->s->pieces[i];
        const wefti_region box = wefti_region_1d(whole, p->box);
        if (term ? p != term : !p->counts) continue;
        if (!wefti_region_intersect(&slab, &box, rank, &part)) continue;
        c->what.have[p->rank] = part;
        if (wefti_home_exists(&p->home)) *out = p;
    }
    if (term && !wefti_region_elems(&c->what.have[term->rank], rank)) return false;
    const wefti_region all = term ? part : slab;
    for (int32_t k = 0; k < r->s->devices; k++)
        wanted |= wefti_region_intersect(&all, &r->wants[k], rank, &c->what.want[k]);
    return wanted;
}

/* The endpoint of a small tensor that all ranks read is kept for its next reading. */
static weft_status run_transfer(const tensor_read *r, const wefti_session_transfer *c, bool kept,
                                const void *source, void *destination) {
    wefti_endpoint **endpoint = &r->v->reads[r->index];
    if (!kept) return wefti_world_transfer_run(r->s->agreement, &c->what, source, destination);
    if (!*endpoint) WEFT_TRY(wefti_world_transfer_bind(r->s->agreement, &c->what, endpoint));
    return wefti_comm_run(*endpoint, source, destination);
}

static weft_status move_slab(const tensor_read *r, const wefti_region *slab,
                             const wefti_session_piece *term, wefti_session_transfer *c) {
    const weft_desc *whole = whole_of(r);
    const int64_t size = (int64_t)weft_dtype_bytes(whole->dtype);
    const bool kept =
        !term && r->kind == WEFTI_TRANSFER_ALL_GATHER && weft_desc_bytes(whole) <= WEFTI_HOME_BLOCK;
    const wefti_session_piece *piece;
    wefti_mapping m = {.data = NULL};
    void *room = NULL, *to = NULL;
    int64_t first, count;
    if (!set_regions(r, *slab, term, c, &piece)) return WEFT_OK;
    const wefti_region *have = &c->what.have[r->s->me], *want = &c->what.want[r->s->me];
    const bool takes = wefti_region_elems(want, c->what.rank) > 0;
    if (takes && term) {
        WEFT_TRY(term_room(r, wefti_region_elems(want, c->what.rank), &room));
        to = room;
    } else if (takes) {
        wefti_region_span(want, &r->mine, whole->rank, &first, &count);
        to = (char *)r->data + first * size;
    }
    weft_status status = WEFT_OK;
    if (piece) {
        wefti_region_span(have, &piece->box, whole->rank, &first, &count);
        status = wefti_home_map(&piece->home, first * size, count * size, WEFTI_ACCESS_READ, &m);
    }
    if (status >= 0) status = wefti_home_unmap(&m, run_transfer(r, c, kept, m.data, to));
    if (status >= 0 && room)
        wefti_add_terms(whole, want, room, is_largest(r, term), &r->mine, r->data);
    wefti_free(room);
    return status;
}

static weft_status bring_slab(const tensor_read *r, const wefti_region *slab,
                              const wefti_session_piece *term) {
    const wefti_transfer_kind kind = !term ? r->kind
                                     : r->kind == WEFTI_TRANSFER_ALL_GATHER
                                         ? WEFTI_TRANSFER_BROADCAST
                                         : WEFTI_TRANSFER_SEND;
    wefti_session_transfer c;
    WEFT_TRY(wefti_session_transfer_begin(r->s, &r->v->tensors[r->index], kind, &c));
    weft_status status = move_slab(r, slab, term, &c);
    wefti_free(c.boxes);
    return status;
}

/* Collective. Slabs are of the rows from the first to the last one that any rank wants. */
static weft_status bring(const tensor_read *r) {
    const weft_desc *whole = whole_of(r);
    const int64_t all = weft_desc_elems(whole), height = whole->rank ? whole->shape[0] : 1,
                  most = WEFTI_HOME_BLOCK / (int64_t)weft_dtype_bytes(whole->dtype);
    int64_t begin = height, end = 0;
    for (int32_t k = 0; k < r->s->devices && all; k++) {
        const wefti_region *rows = &r->wants[k];
        if (!rows->size[0]) continue;
        if (rows->begin[0] < begin) begin = rows->begin[0];
        if (rows->begin[0] + rows->size[0] > end) end = rows->begin[0] + rows->size[0];
    }
    if (begin >= end) return WEFT_OK;
    for (int64_t at = begin * (all / height), last = end * (all / height), part; at < last;
         at += part) {
        wefti_region slab;
        part = wefti_slab(whole, at, last - at < most ? last - at : most, &slab);
        WEFT_TRY(bring_slab(r, &slab, NULL));
        for (int32_t i = 0; i < r->pieces; i++)
            if (r->s->pieces[i].term) WEFT_TRY(bring_slab(r, &slab, &r->s->pieces[i]));
    }
    return WEFT_OK;
}

/* ---- whole tensors ---- */

static weft_status new_wants(tensor_read *r) {
    r->wants = wefti_calloc((size_t)r->s->devices, sizeof *r->wants);
    WEFT_REQUIRE(r->wants, WEFT_E_NOMEM, "no memory to read '%s'", r->v->tensors[r->index].name);
    return WEFT_OK;
}

static weft_status try_read(weft_session *s, int program, const char *name, void *data,
                            size_t bytes) {
    tensor_read r = {.s = s, .kind = WEFTI_TRANSFER_ALL_GATHER, .data = data};
    WEFT_TRY(
        wefti_session_locate_together(s, program, name, data, bytes, &r.v, &r.index, &r.pieces));
    r.mine = wefti_whole_region(whole_of(&r));
    if (!s->world) return read_here(&r);
    weft_status status = new_wants(&r);
    for (int32_t k = 0; k < s->devices && status >= 0; k++)
        r.wants[k] = wefti_region_1d(whole_of(&r), r.mine);
    if (status >= 0) status = bring(&r);
    wefti_free(r.wants);
    return wefti_fail_world(s->world, status);
}

weft_status weft_session_read(weft_session *s, int program, const char *name, void *data,
                              size_t bytes) {
    return wefti_session_settle(s, try_read(s, program, name, data, bytes));
}

weft_status wefti_session_collect(weft_session *s, int program, int index, int64_t first,
                                  int64_t count, void *out) {
    tensor_read r = {.s = s, .index = index, .kind = WEFTI_TRANSFER_GATHER, .data = out};
    WEFT_TRY(wefti_session_view(s, program, &r.v));
    WEFT_TRY(wefti_session_pieces(s, program, index, s->pieces, &r.pieces));
    if (!count) return WEFT_OK;
    const weft_desc *whole = whole_of(&r);
    const int64_t row = weft_desc_elems(whole) / (whole->rank ? whole->shape[0] : 1);
    weft_status status = new_wants(&r);
    if (status >= 0) {
        r.wants[0] = whole->rank ? region_of_rows(whole, first / row, count / row)
                                 : wefti_region_1d(whole, wefti_whole_region(whole));
        r.mine = r.wants[s->me];
        status = bring(&r);
    }
    wefti_free(r.wants);
    return wefti_fail_world(s->world, status);
}

/* ---- rows ---- */

static weft_status check_rows(tensor_read *r, int64_t first, size_t bytes) {
    const weft_desc *whole = whole_of(r);
    const char *name = r->v->tensors[r->index].name;
    WEFT_REQUIRE(whole->rank > 0, WEFT_E_ARG, "'%s' is one number, without rows", name);
    WEFT_REQUIRE(r->data || !bytes, WEFT_E_ARG, "the data of '%s' are NULL", name);
    int64_t height = whole->shape[0], row = height ? weft_desc_bytes(whole) / height : 0;
    WEFT_REQUIRE(bytes == 0 || (row > 0 && bytes % (size_t)row == 0), WEFT_E_SHAPE,
                 "'%s' is %s: %zu bytes are not a whole number of its rows", name,
                 wefti_desc_text(whole).text, bytes);
    int64_t count = row > 0 ? (int64_t)(bytes / (size_t)row) : 0;
    WEFT_REQUIRE(first >= 0 && count <= height && first <= height - count, WEFT_E_SHAPE,
                 "'%s' has %lld rows, not rows %lld to %lld", name, (long long)height,
                 (long long)first, (long long)(first + count) - 1);
    r->mine = region_of_rows(whole, first, count);
    return WEFT_OK;
}

/* Every rank gets the rows of all. */
static weft_status gather_rows(tensor_read *r) {
    weft_session *s = r->s;
    const int64_t mine[2] = {r->mine.begin[0], r->mine.size[0]};
    int64_t *all;
    WEFT_NEW_ARRAY(all, int64_t, 2 * s->devices);
    weft_status status = wefti_agree_records(s->agreement, mine, sizeof mine, all);
    for (int32_t k = 0; k < s->devices && status >= 0; k++)
        r->wants[k] = region_of_rows(whole_of(r), all[2 * k], all[2 * k + 1]);
    wefti_free(all);
    return status;
}

static weft_status try_read_rows(weft_session *s, int program, const char *name, int64_t first,
                                 void *data, size_t bytes) {
    tensor_read r = {.s = s, .kind = WEFTI_TRANSFER_SEND, .data = data};
    WEFT_TRY(wefti_session_start_in_world(s));
    weft_status status = wefti_session_look_up(s, program, name, &r.v, &r.index);
    if (status >= 0) status = check_rows(&r, first, bytes);
    if (status >= 0) status = wefti_session_pieces(s, program, r.index, s->pieces, &r.pieces);
    if (!s->world) return status < 0 ? status : read_here(&r);
    if (status >= 0) status = new_wants(&r);
    status = wefti_agree(s->agreement, status);
    if (status >= 0) {
        status = gather_rows(&r);
        if (status >= 0) status = bring(&r);
        status = wefti_fail_world(s->world, status);
    }
    wefti_free(r.wants);
    return status;
}

weft_status weft_session_read_rows(weft_session *s, int program, const char *name, int64_t first,
                                   void *data, size_t bytes) {
    return wefti_session_settle(s, try_read_rows(s, program, name, first, data, bytes));
}
