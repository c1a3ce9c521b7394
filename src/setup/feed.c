/* Batches of data on their way to a session: see feed.h. */
#include "setup/feed.h"

#include <string.h>

weft_status wefti_built_feed_rows(wefti_built *m, int program, const wefti_batch *b,
                                  int64_t first) {
    weft_desc in = weft_data_input(m->data), target = weft_data_target(m->data);
    int64_t in_row = weft_desc_bytes(&in), target_row = weft_desc_bytes(&target);
    WEFT_TRY(weft_session_feed(m->session, program, m->model.objective->input,
                               (const unsigned char *)b->input + first * in_row,
                               (size_t)(m->batch.micro * in_row)));
    return weft_session_feed(m->session, program, m->model.objective->target,
                             (const unsigned char *)b->target + first * target_row,
                             (size_t)(m->batch.micro * target_row));
}

/* If that fails, the pass reads what it needs. */
void wefti_built_feed_ahead(wefti_built *m, int program, const wefti_batch *b) {
    const weft_desc in = weft_data_input(m->data);
    const weft_status told =
        weft_session_feed_ahead(m->session, program, m->model.objective->input, b->input,
                                (size_t)(m->batch.micro * weft_desc_bytes(&in)));
    (void)told;
}

/* Widens rows [*begin, *end) of a microbatch by those of input `name` that this process needs. */
static weft_status add_rows(const wefti_built *m, int program, const char *name,
                            wefti_session_piece *pieces, int64_t *begin, int64_t *end) {
    const int64_t micro = m->batch.micro;
    weft_tensor_info info;
    int index = 0;
    int32_t found;
    for (;; index++) {
        WEFT_TRY(weft_session_tensor(m->session, program, index, &info));
        if (info.role == WEFT_ROLE_INPUT && !strcmp(info.name, name)) break;
    }
    int64_t height = info.desc.rank ? info.desc.shape[0] : 1;
    WEFT_TRY(wefti_session_pieces(m->session, program, index, pieces, &found));
    for (int32_t k = 0; k < found; k++) {
        const wefti_region *box = &pieces[k].box;
        if (!wefti_home_exists(&pieces[k].home) || !wefti_region_elems(box, info.desc.rank))
            continue;
        int64_t first = box->begin[0] * micro / height,
                last = ((box->begin[0] + box->size[0]) * micro + height - 1) / height;
        if (*begin == *end || first < *begin) *begin = first;
        if (last > *end) *end = last;
    }
    return WEFT_OK;
}

weft_status wefti_built_choose_rows(const wefti_built *m, int program, wefti_feed_options *o) {
    const wefti_objective *objective = m->model.objective;
    wefti_session_piece *pieces;
    if (!m->setup->party.world) return WEFT_OK;
    WEFT_NEW_ARRAY(pieces, wefti_session_piece, weft_session_devices(m->session));
    o->group = m->batch.micro;
    weft_status status = add_rows(m, program, objective->input, pieces, &o->own_begin, &o->own_end);
    if (status >= 0)
        status = add_rows(m, program, objective->target, pieces, &o->own_begin, &o->own_end);
    wefti_free(pieces);
    return status;
}

weft_status wefti_open_feed(const wefti_feed_options *o, void **out_block, wefti_feed **out) {
    int64_t bytes;
    WEFT_TRY(wefti_feed_bytes(o, &bytes));
    /* zeros, so that rows of other ranks take no memory */
    unsigned char *raw = wefti_calloc((size_t)bytes + 64, 1);
    WEFT_REQUIRE(raw, WEFT_E_NOMEM, "no memory for %lld bytes of prepared batches",
                 (long long)bytes);
    void *block = (void *)(((uintptr_t)raw + 63) & ~(uintptr_t)63);
    weft_status status = wefti_feed_create(o, block, out);
    if (status < 0) {
        wefti_free(raw);
        return status;
    }
    *out_block = raw;
    return WEFT_OK;
}
