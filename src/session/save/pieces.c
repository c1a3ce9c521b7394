/* The pieces of saved tensors, and, in mode MANUAL, the whole tensors that ranks hold parts of.
 *
 * There the session sees one tensor of one shape on every rank, as if all were replicas. What the
 * program has said with weft_session_split makes them regions of a larger tensor. */
#include "base/text.h"
#include "session/parts.h"
#include "session/save/parts.h"

/* Of one tensor: for each dimension, how many parts, and the distance of their ranks. */
typedef struct splits {
    int32_t parts[WEFT_MAX_RANK], stride[WEFT_MAX_RANK];
    bool found;
} splits;

bool wefti_saves_by_hand(const weft_session *s) {
    return s->plan && s->plan->mode == WEFT_PARALLEL_MANUAL;
}

/* The parameter of an optimizer tensor of its shape; -1: none. Both are split alike. */
static int parameter_of(const weft_session *s, int index, const weft_tensor_info *info,
                        weft_tensor_info *out) {
    int param, state;
    wefti_session_owner(s, 0, index, &param, &state);
    if (param < 0 || weft_session_tensor(s, 0, param, out) < 0) return -1;
    bool same = out->desc.rank == info->desc.rank;
    for (int d = 0; d < info->desc.rank && same; d++)
        same = out->desc.shape[d] == info->desc.shape[d];
    return same ? param : -1;
}

static void take_split(const wefti_session_split *split, int32_t ranks, splits *out) {
    const int d = split->dimension;
    if (!out->found || d < 0) *out = (splits){.found = true};
    if (d < 0) return;
    out->parts[d] = split->count ? split->count : ranks;
    out->stride[d] = split->stride ? split->stride : 1;
}

static weft_status check_splits(const splits *how, const weft_tensor_info *info, int32_t ranks) {
    WEFT_REQUIRE(how->found, WEFT_E_ARG,
                 "in mode manual the session does not know how ranks split '%.200s': say it with "
                 "weft_session_split (dimension -1: not at all)",
                 info->name);
    for (int d = 0; d < WEFT_MAX_RANK; d++) {
        const int64_t count = how->parts[d], stride = how->stride[d];
        WEFT_REQUIRE(count == 0 || d < info->desc.rank, WEFT_E_SHAPE,
                     "'%.200s' is %s: weft_session_split says that it is split along dimension %d",
                     info->name, wefti_desc_text(&info->desc).text, d);
        WEFT_REQUIRE(count == 0 || (count * stride <= ranks && ranks % (count * stride) == 0),
                     WEFT_E_ARG,
                     "weft_session_split: groups of %lld ranks, %lld apart, do not divide the %d "
                     "ranks that have '%.200s'",
                     (long long)count, (long long)stride, (int)ranks, info->name);
    }
    return WEFT_OK;
}

/* `ranks`: that have the tensor. A scalar is whole everywhere. */
static weft_status find_splits(const weft_session *s, int index, const weft_tensor_info *info,
                               int32_t ranks, splits *out) {
    weft_tensor_info param;
    const bool owned = parameter_of(s, index, info, &param) >= 0;
    *out = (splits){.found = info->desc.rank == 0 || ranks == 1};
    for (int64_t i = 0; i < s->split_count; i++)
        if (wefti_glob_match(s->splits[i].match, info->name) ||
            (owned && wefti_glob_match(s->splits[i].match, param.name)))
            take_split(&s->splits[i], ranks, out);
    return check_splits(out, info, ranks);
}

/* Places the pieces in the whole tensor. Piece k has part p_d = k / stride_d mod parts_d along
 * dimension d. It counts if k is the sum of all p_d stride_d: of each region that is one piece at
 * most, and the first of them if the strides fit into each other. */
static weft_status place_pieces(const splits *how, const weft_tensor_info *info,
                                wefti_session_piece *pieces, int32_t count, weft_desc *whole) {
    const int rank = info->desc.rank;
    int64_t parts = 1, counting = 0;
    for (int d = 0; d < rank; d++) {
        if (!how->parts[d]) continue;
        whole->shape[d] *= how->parts[d];
        parts *= how->parts[d];
    }
    for (int32_t k = 0; k < count; k++) {
        wefti_region *box = &pieces[k].box;
        int64_t first = 0;
        for (int d = 0; d < rank; d++) {
            if (!how->parts[d]) continue;
            const int32_t part = k / how->stride[d] % how->parts[d];
            box->begin[d] = part * info->desc.shape[d];
            first += (int64_t)part * how->stride[d];
        }
        pieces[k].term = false;
        pieces[k].counts = first == k;
        counting += pieces[k].counts;
    }
    WEFT_REQUIRE(counting == parts, WEFT_E_ARG,
                 "weft_session_split: of the %lld parts of '%.200s' the ranks have %lld: splits "
                 "along several dimensions need groups of unlike strides",
                 (long long)parts, info->name, (long long)counting);
    return WEFT_OK;
}

weft_status wefti_saved_pieces(weft_session *s, int index, wefti_session_piece *out,
                               int32_t *out_count, weft_desc *out_whole) {
    weft_tensor_info info;
    splits how;
    WEFT_TRY(weft_session_tensor(s, 0, index, &info));
    WEFT_TRY(wefti_session_pieces(s, 0, index, out, out_count));
    *out_whole = info.desc;
    if (!wefti_saves_by_hand(s)) return WEFT_OK;
    WEFT_TRY(find_splits(s, index, &info, *out_count, &how));
    return place_pieces(&how, &info, out, *out_count, out_whole);
}

weft_status weft_session_split(weft_session *s, const char *match, int dimension, int count,
                               int stride) {
    WEFT_REQUIRE(wefti_saves_by_hand(s), WEFT_E_ARG,
                 "weft_session_split is for plans in mode manual: other plans say themselves how "
                 "tensors are split");
    WEFT_REQUIRE(match && *match && wefti_glob_valid(match), WEFT_E_ARG,
                 "weft_session_split: '%.200s' is not a pattern for names of tensors",
                 match ? match : "");
    WEFT_REQUIRE(dimension >= -1 && dimension < WEFT_MAX_RANK, WEFT_E_ARG,
                 "weft_session_split: dimension %d; there are 0 to %d, and -1 for none", dimension,
                 WEFT_MAX_RANK - 1);
    WEFT_REQUIRE(count >= 0 && stride >= 0, WEFT_E_ARG,
                 "weft_session_split: groups of %d ranks, %d apart; both are at least 0", count,
                 stride);
    WEFT_REQUIRE(!s->saving, WEFT_E_ARG,
                 "weft_session_split: a step is being saved: call weft_session_save_wait first");
    bool matched = false;
    for (int i = 0; i < weft_session_tensors(s, 0) && !matched; i++) {
        weft_tensor_info info;
        WEFT_TRY(weft_session_tensor(s, 0, i, &info));
        matched = wefti_glob_match(match, info.name);
    }
    WEFT_REQUIRE(matched, WEFT_E_NOT_FOUND, "weft_session_split: '%.200s' matches no tensor",
                 match);
    char *copy = wefti_strdup(match);
    WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for the splits of a session");
    weft_status status = WEFT_GROW(s->splits, s->split_count, s->split_room);
    if (status < 0) {
        wefti_free(copy);
        return status;
    }
    s->splits[s->split_count++] = (wefti_session_split){copy, dimension, count, stride};
    return WEFT_OK;
}
