/* Reading rows: each rank asks for rows of a tensor, whichever devices have them. */
#include "session/mend/mend.h"
#include "session/tensors.h"

typedef struct row_read {
    weft_session *s;
    const wefti_view *view;
    const wefti_view_tensor *t;
    int32_t pieces;        /* in s->pieces */
    wefti_region rows;     /* of this rank */
    wefti_region *of_rank; /* [devices]: the rows of each rank; NULL in one process */
    void *data;
} row_read;

/* A region of rows [first, first + count); empty if count is 0. */
static wefti_region region_of_rows(const weft_desc *whole, int64_t first, int64_t count) {
    wefti_region box = wefti_whole_region(whole);
    if (count == 0) return (wefti_region){{0}, {0}};
    box.begin[0] = first;
    box.size[0] = count;
    return box;
}

static weft_status check(row_read *r, int64_t first, size_t bytes) {
    const weft_desc *whole = &r->t->whole;
    WEFT_REQUIRE(whole->rank > 0, WEFT_E_ARG, "'%s' is one number, without rows", r->t->name);
    WEFT_REQUIRE(r->data || !bytes, WEFT_E_ARG, "the data of '%s' are NULL", r->t->name);
    int64_t height = whole->shape[0], row = height ? weft_desc_bytes(whole) / height : 0;
    WEFT_REQUIRE(bytes == 0 || (row > 0 && bytes % (size_t)row == 0), WEFT_E_SHAPE,
                 "'%s' is %s: %zu bytes are not a whole number of its rows", r->t->name,
                 wefti_desc_text(whole).text, bytes);
    int64_t count = row > 0 ? (int64_t)(bytes / (size_t)row) : 0;
    WEFT_REQUIRE(first >= 0 && count <= height && first <= height - count, WEFT_E_SHAPE,
                 "'%s' has %lld rows, not rows %lld to %lld", r->t->name, (long long)height,
                 (long long)first, (long long)(first + count) - 1);
    r->rows = region_of_rows(whole, first, count);
    return WEFT_OK;
}

/* Adds a term to the rows in `data`. `part`: of the piece; its elements are at `from`. */
static void add_rows(const row_read *r, const wefti_session_piece *piece, const wefti_region *part,
                     void *from) {
    const int32_t rank = piece->rank;
    bool largest = r->view->sites[rank].tensors[r->t->local[rank]].layout.max != 0;
    wefti_session_piece term = {.rank = rank, .box = *part, .data = from};
    term.box.begin[0] -= r->rows.begin[0];
    wefti_add_term(&r->t->whole, &term, largest, r->data);
}

/* ---- one process ---- */

static weft_status add_own_term(const row_read *r, const wefti_session_piece *piece,
                                const wefti_region *part) {
    const weft_desc *whole = &r->t->whole;
    size_t size = weft_dtype_bytes(whole->dtype);
    wefti_mapping m;
    void *term = wefti_alloc((size_t)wefti_region_elems(part, whole->rank) * size);
    WEFT_REQUIRE(term, WEFT_E_NOMEM, "no memory to read '%s'", r->t->name);
    weft_status status = wefti_piece_map(whole, piece, WEFTI_ACCESS_READ, &m);
    if (status >= 0) {
        wefti_region_copy(part, &piece->box, m.data, part, term, whole->rank, size);
        status = wefti_device_unmap(&m, WEFT_OK);
    }
    if (status >= 0) add_rows(r, piece, part, term);
    wefti_free(term);
    return status;
}

static weft_status copy_own(const row_read *r, const wefti_session_piece *piece,
                            const wefti_region *part) {
    const weft_desc *whole = &r->t->whole;
    wefti_mapping m;
    WEFT_TRY(wefti_piece_map(whole, piece, WEFTI_ACCESS_READ, &m));
    wefti_region_copy(part, &piece->box, m.data, &r->rows, r->data, whole->rank,
                      weft_dtype_bytes(whole->dtype));
    return wefti_device_unmap(&m, WEFT_OK);
}

static weft_status read_here(const row_read *r) {
    for (int terms = 0; terms < 2; terms++)
        for (int32_t i = 0; i < r->pieces; i++) {
            const wefti_session_piece *p = &r->s->pieces[i];
            wefti_region part;
            if (terms ? !p->term : !p->counts) continue;
            if (!wefti_region_intersect(&r->rows, &p->box, r->t->whole.rank, &part)) continue;
            WEFT_TRY(terms ? add_own_term(r, p, &part) : copy_own(r, p, &part));
        }
    return WEFT_OK;
}

/* ---- a world ---- */

/* Every rank gets the rows of all, which a transfer needs. */
static weft_status gather_rows(row_read *r) {
    weft_session *s = r->s;
    const int64_t mine[2] = {r->rows.begin[0], r->rows.size[0]};
    int64_t *all;
    WEFT_NEW_ARRAY(all, int64_t, 2 * s->devices);
    weft_status status = wefti_agree_records(s->agreement, mine, sizeof mine, all);
    for (int32_t k = 0; k < s->devices && status >= 0; k++)
        r->of_rank[k] = region_of_rows(&r->t->whole, all[2 * k], all[2 * k + 1]);
    wefti_free(all);
    return status;
}

static weft_status bring_counted(const row_read *r) {
    const weft_desc *whole = &r->t->whole;
    const wefti_session_piece *mine = NULL;
    wefti_session_transfer c;
    wefti_mapping m = {.data = NULL};
    WEFT_TRY(wefti_session_transfer_begin(r->s, r->t, WEFTI_TRANSFER_SEND, &c));
    for (int32_t i = 0; i < r->pieces; i++) {
        const wefti_session_piece *p = &r->s->pieces[i];
        if (!p->counts || !wefti_region_elems(&p->box, whole->rank)) continue;
        c.what.have[p->rank] = p->box;
        if (p->data) mine = p;
    }
    for (int32_t k = 0; k < r->s->devices; k++) c.what.want[k] = r->of_rank[k];
    weft_status status = mine ? wefti_piece_map(whole, mine, WEFTI_ACCESS_READ, &m) : WEFT_OK;
    if (status >= 0)
        status = wefti_device_unmap(
            &m, wefti_world_transfer_run(r->s->agreement, &c.what, m.data, r->data));
    wefti_free(c.boxes);
    return status;
}

/* Sends the rows of a term to each rank that asks for them. The rank adds them. */
static weft_status bring_term(const row_read *r, const wefti_session_piece *piece) {
    const weft_desc *whole = &r->t->whole;
    const int rank = whole->rank;
    wefti_session_transfer c;
    wefti_region part;
    wefti_mapping m = {.data = NULL};
    void *term = NULL;
    if (!wefti_region_elems(&piece->box, rank)) return WEFT_OK;
    WEFT_TRY(wefti_session_transfer_begin(r->s, r->t, WEFTI_TRANSFER_SEND, &c));
    c.what.have[piece->rank] = piece->box;
    for (int32_t k = 0; k < r->s->devices; k++)
        if (wefti_region_intersect(&r->of_rank[k], &piece->box, rank, &part)) c.what.want[k] = part;
    bool wanted = wefti_region_intersect(&r->rows, &piece->box, rank, &part);
    weft_status status = WEFT_OK;
    if (wanted && !(term = wefti_alloc((size_t)wefti_region_elems(&part, rank) *
                                       weft_dtype_bytes(whole->dtype))))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to read '%s'", r->t->name);
    if (status >= 0 && piece->data) status = wefti_piece_map(whole, piece, WEFTI_ACCESS_READ, &m);
    if (status >= 0)
        status = wefti_device_unmap(
            &m, wefti_world_transfer_run(r->s->agreement, &c.what, m.data, term));
    wefti_free(c.boxes);
    if (status >= 0 && wanted) add_rows(r, piece, &part, term);
    wefti_free(term);
    return status;
}

static weft_status bring(const row_read *r) {
    WEFT_TRY(bring_counted(r));
    for (int32_t i = 0; i < r->pieces; i++)
        if (r->s->pieces[i].term) WEFT_TRY(bring_term(r, &r->s->pieces[i]));
    return WEFT_OK;
}

static weft_status read_across(row_read *r) {
    WEFT_TRY(gather_rows(r));
    return wefti_fail_world(r->s->world, bring(r));
}

static weft_status try_read_rows(weft_session *s, int program, const char *name, int64_t first,
                                 void *data, size_t bytes) {
    row_read r = {.s = s, .data = data};
    wefti_view *v = NULL;
    int index = 0;
    WEFT_TRY(wefti_session_start_in_world(s));
    weft_status status = wefti_session_look_up(s, program, name, &v, &index);
    if (status >= 0) {
        r.view = v;
        r.t = &v->tensors[index];
        status = check(&r, first, bytes);
    }
    if (status >= 0) status = wefti_session_pieces(s, program, index, s->pieces, &r.pieces);
    if (!s->world) return status < 0 ? status : read_here(&r);
    if (status >= 0 && !(r.of_rank = wefti_calloc((size_t)s->devices, sizeof *r.of_rank)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to read '%s'", name);
    status = wefti_agree(s->agreement, status);
    if (status >= 0) status = read_across(&r);
    wefti_free(r.of_rank);
    return status;
}

weft_status weft_session_read_rows(weft_session *s, int program, const char *name, int64_t first,
                                   void *data, size_t bytes) {
    return wefti_session_settle(s, try_read_rows(s, program, name, first, data, bytes));
}
