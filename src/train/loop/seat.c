/* A process that takes the place of a rank, while the run of the others goes on: what it gets from
 * one of them, and how it sets up. */
#include <string.h>

#include "plan/plan.h"
#include "train/loop/loop.h"

/* The message of the teller: this, the plan's text, the files beside the model. */
typedef struct briefing_head {
    weft_model_config config;
    weft_train_step under_way;
    wefti_training_ratings ratings;
    int64_t plan_bytes, side_bytes; /* the plan without the zero at its end */
    weft_bf16_compute bf16;
} briefing_head;

/* ---- telling ---- */

static weft_status pack(const wefti_training *t, char **out, int64_t *out_bytes) {
    const wefti_side_files *side = &t->setup.side;
    char *plan = NULL;
    briefing_head h;
    memset(&h, 0, sizeof h);
    if (t->built->searched) WEFT_TRY(wefti_plan_print(t->built->searched, &plan));
    h.config = t->built->model.config;
    h.under_way = t->progress.under_way;
    h.ratings = t->progress.ratings;
    h.bf16 = t->built->session ? weft_session_bf16(t->built->session) : t->built->model.bf16;
    h.plan_bytes = plan ? (int64_t)strlen(plan) : 0;
    h.side_bytes = side->bytes;
    *out_bytes = (int64_t)sizeof h + h.plan_bytes + h.side_bytes;
    *out = wefti_alloc((size_t)*out_bytes);
    if (*out) {
        memcpy(*out, &h, sizeof h);
        if (plan) memcpy(*out + sizeof h, plan, (size_t)h.plan_bytes);
        if (side->bytes) memcpy(*out + sizeof h + h.plan_bytes, side->data, (size_t)h.side_bytes);
    }
    wefti_free(plan);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory to tell a new process of the run");
    return WEFT_OK;
}

/* What the teller knows of the run, on all ranks. The caller frees *offsets, with which *all goes.
 */
static weft_status tell(wefti_training *t, int32_t teller, char **all, int64_t **offsets) {
    char *own = NULL;
    int64_t bytes = 0;
    weft_status status = WEFT_OK;
    if (weft_world_rank(t->setup.party.world) == teller) status = pack(t, &own, &bytes);
    status = wefti_party_agree(&t->setup.party, status);
    if (status >= 0)
        status = wefti_agree_gather(t->setup.party.agreement, own, bytes, all, offsets);
    wefti_free(own);
    return status;
}

weft_status wefti_training_brief(wefti_training *t, int32_t teller) {
    char *all;
    int64_t *offsets;
    WEFT_TRY(tell(t, teller, &all, &offsets));
    wefti_free(offsets);
    return wefti_party_agree(&t->setup.party, WEFT_OK); /* the newcomer has set up */
}

/* ---- hearing ---- */

static char *text_of(const char *from, int64_t bytes) {
    char *text = wefti_calloc((size_t)bytes + 1, 1);
    if (text) memcpy(text, from, (size_t)bytes);
    return text;
}

static weft_status unpack(wefti_training *t, const char *told, int64_t bytes, wefti_briefing *b) {
    briefing_head h;
    WEFT_REQUIRE(bytes >= (int64_t)sizeof h, WEFT_E_MISMATCH,
                 "the other ranks tell a new process %lld bytes, which is another form than this "
                 "build's",
                 (long long)bytes);
    memcpy(&h, told, sizeof h);
    const int64_t rest = bytes - (int64_t)sizeof h;
    WEFT_REQUIRE(h.plan_bytes >= 0 && h.side_bytes >= 0 && h.plan_bytes <= rest &&
                     h.side_bytes == rest - h.plan_bytes,
                 WEFT_E_MISMATCH, "the other ranks are of another build than this process");
    b->config = h.config;
    b->bf16 = h.bf16;
    t->progress.under_way = h.under_way;
    t->progress.ratings = h.ratings;
    t->built->model.bf16 = h.bf16;
    if (h.plan_bytes) b->plan = text_of(told + sizeof h, h.plan_bytes);
    char *side = h.side_bytes ? text_of(told + sizeof h + h.plan_bytes, h.side_bytes) : NULL;
    WEFT_REQUIRE((b->plan || !h.plan_bytes) && (side || !h.side_bytes), WEFT_E_NOMEM,
                 "no memory to hear of the run");
    return side ? wefti_side_files_take(&t->setup.side, side, h.side_bytes) : WEFT_OK;
}

/* What a rank that was there before has of its own stays. */
static weft_status hear(wefti_training *t, bool has_own, const char *told, int64_t bytes,
                        wefti_briefing *out) {
    const wefti_side_files side = t->setup.side;
    const weft_train_step under_way = t->progress.under_way;
    const wefti_training_ratings ratings = t->progress.ratings;
    if (has_own) t->setup.side = (wefti_side_files){0};
    weft_status status = unpack(t, told, bytes, out);
    wefti_free(out->plan);
    out->plan = NULL;
    if (!has_own) return status;
    wefti_side_files_free(&t->setup.side);
    t->setup.side = side;
    t->progress.under_way = under_way;
    t->progress.ratings = ratings;
    return status;
}

weft_status wefti_training_share_briefing(wefti_training *t, int32_t teller, bool has_own,
                                          wefti_briefing *out) {
    char *all;
    int64_t *offsets;
    *out = (wefti_briefing){.bf16 = WEFT_BF16_AUTO, .anew = true};
    WEFT_TRY(tell(t, teller, &all, &offsets));
    weft_status status =
        hear(t, has_own, all + offsets[teller], offsets[teller + 1] - offsets[teller], out);
    wefti_free(offsets);
    return wefti_party_agree(&t->setup.party, status);
}

/* Without the other ranks, which have no time for agreements. */
static weft_status set_up(wefti_training *t, const char *told, int64_t bytes) {
    wefti_briefing b = {.bf16 = WEFT_BF16_AUTO};
    wefti_agreement *agreement = t->setup.party.agreement;
    weft_status status = unpack(t, told, bytes, &b);
    t->setup.party.agreement = NULL;
    t->setup.briefing = &b;
    if (status >= 0) status = wefti_training_lock(t);
    if (status >= 0) status = wefti_built_prepare(t->built);
    t->setup.briefing = NULL;
    t->setup.party.agreement = agreement;
    wefti_free(b.plan);
    return status;
}

weft_status wefti_training_be_briefed(wefti_training *t, int32_t teller) {
    char *all;
    int64_t *offsets;
    WEFT_TRY(wefti_party_agree(&t->setup.party, WEFT_OK));
    WEFT_TRY(wefti_agree_gather(t->setup.party.agreement, NULL, 0, &all, &offsets));
    weft_status status = set_up(t, all + offsets[teller], offsets[teller + 1] - offsets[teller]);
    wefti_free(offsets);
    return wefti_party_agree(&t->setup.party, status);
}
