/* The piece of a tensor on this process's device: its address, and feeding it alone. */
#include <string.h>

#include "session/mend/mend.h"
#include "session/tensors.h"

static weft_status local_piece(weft_session *s, int program, const char *name,
                               wefti_view **out_view, int *out_index, wefti_session_piece *out) {
    int32_t count;
    WEFT_TRY(wefti_session_start_in_world(s));
    WEFT_TRY(wefti_session_look_up(s, program, name, out_view, out_index));
    WEFT_REQUIRE(s->world || s->devices == 1, WEFT_E_ARG,
                 "'%s' lies on %d devices of this process: only whole tensors can be reached", name,
                 s->devices);
    WEFT_TRY(wefti_session_pieces(s, program, *out_index, s->pieces, &count));
    *out = (wefti_session_piece){.rank = s->me};
    for (int32_t i = 0; i < count; i++)
        if (wefti_home_exists(&s->pieces[i].home)) *out = s->pieces[i];
    return WEFT_OK;
}

static weft_status try_local(weft_session *s, int program, const char *name,
                             weft_session_part *out) {
    wefti_session_piece piece;
    wefti_view *v;
    int index;
    WEFT_TRY(local_piece(s, program, name, &v, &index, &piece));
    const wefti_view_tensor *t = &v->tensors[index];
    WEFT_REQUIRE(piece.home.space < WEFTI_SPACE_DISK, WEFT_E_ARG,
                 "'%s' lies on the %s and has no address: call weft_session_read_rows, or "
                 "weft_session_read for the whole tensor",
                 name, wefti_space_text(piece.home.space));
    *out = (weft_session_part){.data = NULL};
    WEFT_TRY(wefti_host_copy_of(s, v, index, &piece, &out->data));
    wefti_view_mark_fed(s, v, index, WEFTI_INPUT_BOUND);
    if (!wefti_home_exists(&piece.home)) return WEFT_OK;
    out->bytes = piece.home.bytes;
    for (int d = 0; d < t->whole.rank; d++) {
        out->begin[d] = piece.box.begin[d];
        out->size[d] = piece.box.size[d];
    }
    if (t->role == WEFTI_TENSOR_INPUT) wefti_session_observe(s, &piece);
    return WEFT_OK;
}

weft_status weft_session_local(weft_session *s, int program, const char *name,
                               weft_session_part *out) {
    return wefti_session_settle(s, try_local(s, program, name, out));
}

static weft_status try_feed_local(weft_session *s, int program, const char *name, const void *data,
                                  size_t bytes) {
    wefti_session_piece piece;
    wefti_view *v;
    int index;
    WEFT_TRY(local_piece(s, program, name, &v, &index, &piece));
    const wefti_view_tensor *t = &v->tensors[index];
    WEFT_REQUIRE(t->role == WEFTI_TENSOR_INPUT, WEFT_E_ARG, "'%s' is not an input", name);
    weft_desc part = t->whole;
    memcpy(part.shape, piece.box.size, sizeof part.shape);
    WEFT_REQUIRE(bytes == (size_t)piece.home.bytes, WEFT_E_SHAPE,
                 "the part of '%s' on this device is %s, %lld bytes, not %zu", name,
                 wefti_desc_text(&part).text, (long long)piece.home.bytes, bytes);
    WEFT_REQUIRE(data || bytes == 0, WEFT_E_ARG, "the data of '%s' are NULL", name);
    wefti_view_mark_fed(s, v, index, WEFTI_INPUT_FED);
    if (bytes == 0) return WEFT_OK;
    WEFT_TRY(wefti_home_write(&piece.home, 0, piece.home.bytes, data));
    wefti_session_observe(s, &piece);
    return wefti_host_copy_refresh(s, v, index, &piece);
}

weft_status weft_session_feed_local(weft_session *s, int program, const char *name,
                                    const void *data, size_t bytes) {
    return wefti_session_settle(s, try_feed_local(s, program, name, data, bytes));
}
