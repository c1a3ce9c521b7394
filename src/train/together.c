/* What the processes of a training run settle with each other: when to stop, and what rank 0 alone
 * has read or decided. See train/agree.h for what lies below. */
#include "train/run.h"

weft_status wefti_training_join(wefti_training *t, weft_world *world) {
    if (!world || weft_world_size(world) == 1) return WEFT_OK;
    t->world = world;
    t->follows = weft_world_rank(world) > 0;
    return wefti_agreement_of(world, &t->agreement);
}

static int asked(const wefti_training *t) {
    return t->events && t->events->stop ? *t->events->stop : 0;
}

int64_t wefti_training_observed(const wefti_training *t) {
    int64_t here = weft_session_memory_of(t->session).observed_peak_bytes;
    return here > t->observed_peak ? here : t->observed_peak;
}

/* Told at every step: whether to stop, and the memory in use, which only its device knows. */
typedef struct step_card {
    int64_t observed_peak, stop;
} step_card;

weft_status wefti_training_stops(wefti_training *t, bool *out) {
    if (!t->agreement) t->stopping = asked(t);
    t->result->stop = t->stopping;
    *out = t->stopping != 0;
    if (!t->agreement || t->stopping) return WEFT_OK;
    step_card card = {wefti_training_observed(t), asked(t)}, *all;
    WEFT_NEW_ARRAY(all, step_card, weft_world_size(t->world));
    weft_status status = wefti_agree_cards(t->agreement, &card, sizeof card, all);
    for (int r = 0; r < weft_world_size(t->world) && status >= 0; r++) {
        if (all[r].observed_peak > t->observed_peak) t->observed_peak = all[r].observed_peak;
        if (all[r].stop && !t->stopping) t->stopping = (int)all[r].stop;
    }
    wefti_free(all);
    t->result->stop = t->stopping;
    *out = t->stopping != 0;
    return status;
}

weft_status wefti_training_tell(wefti_training *t, weft_status status, void *data, size_t bytes) {
    if (!t->agreement) return status;
    return wefti_agree_spread(t->agreement, status, data, (int64_t)bytes);
}
