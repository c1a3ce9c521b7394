/* A process and those that it works with: see party.h. */
#include "session/party.h"

#include "base/memory.h"

weft_status wefti_party_join(wefti_party *p, weft_world *world) {
    if (!world || weft_world_size(world) == 1) return WEFT_OK;
    p->world = world;
    p->follows = weft_world_rank(world) > 0;
    return wefti_agreement_of(world, &p->agreement);
}

bool wefti_party_agreed(const wefti_party *p) {
    return !p->agreement || wefti_agreement_failed(p->agreement);
}

weft_status wefti_party_agree(const wefti_party *p, weft_status status) {
    return p->agreement ? wefti_agree(p->agreement, status) : status;
}

weft_status wefti_party_broadcast(const wefti_party *p, weft_status status, void *data,
                                  size_t bytes) {
    if (!p->agreement) return status;
    return wefti_agree_broadcast(p->agreement, status, data, (int64_t)bytes);
}

weft_status wefti_party_same(const wefti_party *p, weft_status status, const wefti_job_fact *facts,
                             int count) {
    return p->agreement ? wefti_agree_same(p->agreement, status, facts, count) : status;
}

weft_status wefti_party_share_text(const wefti_party *p, weft_status status, char **text,
                                   int64_t *bytes) {
    WEFT_TRY(wefti_party_broadcast(p, status, bytes, sizeof *bytes));
    if (!p->agreement || *bytes == 0) return WEFT_OK;
    status = WEFT_OK;
    if (p->follows && !(*text = wefti_calloc((size_t)*bytes + 1, 1)))
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for a text of %lld bytes", (long long)*bytes);
    WEFT_TRY(wefti_party_agree(p, status));
    return wefti_party_broadcast(p, WEFT_OK, *text, (size_t)*bytes);
}

weft_status wefti_party_any(const wefti_party *p, bool own, bool *out) {
    *out = own;
    if (!p->agreement) return WEFT_OK;
    bool *all = wefti_calloc((size_t)weft_world_size(p->world), sizeof *all);
    const weft_status status = wefti_agree_records(p->agreement, &own, sizeof own, all);
    for (int r = 0; r < weft_world_size(p->world) && status >= 0; r++) *out |= all[r];
    wefti_free(all);
    return status;
}

weft_status wefti_party_tell(const wefti_party *p, weft_status status) {
    return wefti_party_agreed(p) ? status : wefti_fail_world(p->world, status);
}

weft_status wefti_party_end(const wefti_party *p, weft_status status) {
    if (!p->agreement) return status;
    if (status >= 0 || status == WEFT_E_STOPPED) return wefti_party_agree(p, status);
    if (status != WEFT_E_PEER) (void)wefti_name_rank(status, wefti_party_rank(p));
    return wefti_party_tell(p, status);
}
