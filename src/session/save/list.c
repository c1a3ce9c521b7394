/* The list of saved tensors, and their pieces in this process. */
#include "base/text.h"
#include "session/save/parts.h"

void wefti_saved_list_free(wefti_saved_list *list) {
    for (int64_t i = 0; i < list->count; i++) wefti_free(list->tensors[i].name);
    wefti_free(list->tensors);
    wefti_free(list->first);
    wefti_free(list->last_of);
    wefti_free(list->apart);
    *list = (wefti_saved_list){0};
}

weft_status wefti_saved_list_add(wefti_saved_list *list, int tensor, int64_t first,
                                 const char *name, const weft_desc *desc,
                                 wefti_checkpoint_role role) {
    WEFT_TRY(WEFT_GROW(list->tensors, list->count, list->room));
    wefti_saved_tensor *s = &list->tensors[list->count];
    *s = (wefti_saved_tensor){.tensor = tensor, .first = first, .desc = *desc, .role = role};
    s->name = wefti_strdup(name);
    WEFT_REQUIRE(s->name, WEFT_E_NOMEM, "no memory for the list of saved tensors");
    list->count++;
    return WEFT_OK;
}

typedef int owned_states[WEFTI_SAVED_STATES_MOST];

/* The numbers of the optimizer tensors of each parameter. */
static weft_status find_owned(const weft_session *session, owned_states **out) {
    const int count = weft_session_tensors(session, 0);
    owned_states *of;
    WEFT_NEW_ARRAY(of, owned_states, count + 1);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < WEFTI_SAVED_STATES_MOST; k++) of[i][k] = -1;
    for (int i = 0; i < count; i++) {
        int param, state;
        wefti_session_owner(session, 0, i, &param, &state);
        if (param >= 0) of[param][state] = i;
    }
    *out = of;
    return WEFT_OK;
}

static weft_status fill(weft_session *session, wefti_saved_add *add, void *context,
                        const owned_states *owned, wefti_saved_list *list) {
    static const weft_role roles[] = {WEFT_ROLE_STATE, WEFT_ROLE_PARAM};
    for (int k = 0; k < 2; k++) {
        for (int i = weft_session_tensors(session, 0) - 1; i >= 0; i--) {
            weft_tensor_info info;
            WEFT_TRY(weft_session_tensor(session, 0, i, &info));
            if (info.role != roles[k]) continue;
            list->first[i] = list->count;
            WEFT_TRY(add(context, list, i, &info, owned[i]));
            list->last_of[i] = list->count - 1;
        }
        if (k == 0) list->states = list->count;
    }
    return WEFT_OK;
}

weft_status wefti_saved_list_create(weft_session *session, wefti_saved_add *add, void *context,
                                    wefti_saved_list *out) {
    const int count = weft_session_tensors(session, 0);
    owned_states *owned = NULL;
    WEFT_NEW_ARRAY(out->first, int64_t, count + 1);
    WEFT_NEW_ARRAY(out->last_of, int64_t, count + 1);
    for (int i = 0; i < count; i++) out->first[i] = out->last_of[i] = -1;
    WEFT_TRY(find_owned(session, &owned));
    weft_status status = fill(session, add, context, owned, out);
    wefti_free(owned);
    return status;
}

void wefti_saver_wait_tensor(const wefti_saver *v, int number) {
    if (!v->writing || number < 0 || v->list.first[number] < 0) return;
    for (int64_t i = v->list.first[number]; i <= v->list.last_of[number]; i++)
        wefti_checkpoint_wait_tensor(v->writing, i);
}

void wefti_saver_wait_states(const wefti_saver *v) {
    for (int64_t i = 0; i < v->list.states; i++) wefti_checkpoint_wait_tensor(v->writing, i);
}

weft_status wefti_saver_tensors(wefti_saver *v, wefti_checkpoint_tensor **out) {
    size_t devices = (size_t)weft_session_devices(v->session), count = (size_t)v->list.count;
    size_t head = (count + 1) * sizeof **out;
    wefti_checkpoint_tensor *list =
        wefti_calloc(1, head + count * devices * sizeof(wefti_checkpoint_piece));
    wefti_checkpoint_piece *next =
        list ? (wefti_checkpoint_piece *)(void *)((char *)list + head) : NULL;
    wefti_session_piece *pieces = wefti_calloc(devices, sizeof *pieces);
    weft_status status =
        list && pieces ? WEFT_OK : WEFT_RAISE(WEFT_E_NOMEM, "no memory for the list of tensors");
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        const wefti_saved_tensor *s = &v->list.tensors[i];
        const bool apart = v->list.apart && v->list.apart[i];
        weft_desc whole;
        int32_t found = 0;
        status = wefti_saved_pieces(v->session, s->tensor, pieces, &found, &whole);
        if (status < 0) break;
        list[i] = (wefti_checkpoint_tensor){.name = s->name,
                                            .role = s->role,
                                            .desc = s->desc,
                                            .pieces = apart ? NULL : next,
                                            .later = apart && !wefti_saver_follows(v),
                                            .whole = whole,
                                            .first = s->first};
        for (int32_t k = 0; k < found && !apart; k++)
            if (pieces[k].counts && wefti_home_exists(&pieces[k].home)) {
                *next++ = (wefti_checkpoint_piece){pieces[k].box, pieces[k].home};
                list[i].piece_count++;
            }
    }
    wefti_free(pieces);
    if (status < 0) {
        wefti_free(list);
        return status;
    }
    *out = list;
    return WEFT_OK;
}
