/* Processors that the devices of a host share, or those of several hosts. Each rank stays on one of
 * them (weft keeps its threads and processes there), and kernels of one processor's ranks run one
 * after the other. Ranks that share are walked one by one: which of them waits depends on all
 * others of its processor. */
#include "simulate/parts.h"

weft_status wefti_sim_share(wefti_sim *sim) {
    const wefti_machine_model *m = sim->options->machine;
    if (wefti_model_sharing(m, sim->world) <= 1) return WEFT_OK;
    int64_t count = 0;
    for (int32_t r = 0; r < sim->world; r++)
        if (wefti_model_processor(m, r) >= count) count = wefti_model_processor(m, r) + 1;
    sim->processors = wefti_arena_alloc(sim->arena, (size_t)count * sizeof(int64_t));
    WEFT_REQUIRE(sim->processors, WEFT_E_NOMEM, "no memory to simulate %d ranks", sim->world);
    return WEFT_OK;
}

bool wefti_sim_is_ahead(const wefti_sim *sim, const wefti_sim_rank *r) {
    if (!sim->processors) return false;
    if (sim->heaped > 0 && sim->ranks[sim->heap[0]].now.at < r->now.at) return true;
    if (!sim->ready_count) return false;
    const wefti_sim_ready *x = &sim->ready[0]; /* it may wake ranks */
    return x->channel->open[x->number - x->channel->begin].when.at < r->now.at;
}

int64_t wefti_sim_begin(wefti_sim *sim, const wefti_sim_rank *r, int64_t duration) {
    if (!sim->processors || duration == 0) return r->now.at;
    int64_t *free = &sim->processors[wefti_model_processor(sim->options->machine, r->rank)];
    const int64_t begin = *free > r->now.at ? *free : r->now.at;
    *free = begin + duration;
    return begin;
}
