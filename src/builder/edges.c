/* The edges of a pipeline: values that one stage makes and another reads, and parameters that
 * several stages read. */
#include "builder/decide.h"

/* Whether all microbatches may be in flight on an edge. Between neighbours, forward and backward
 * passes alternate, so one channel is enough. An edge that skips a stage is sent long before it is
 * read, and gpipe sends all values before it receives gradients. */
static bool all_under_way(const wefti_decisions *dec, int32_t maker, int32_t reader) {
    return dec->calls[reader].part != dec->calls[maker].part + 1 ||
           dec->spec->plan->pipeline.schedule == WEFT_PIPELINE_GPIPE;
}

/* Channels enough that no send waits for a microbatch that the schedule receives later. All
 * schedules but gpipe have at most 2 S microbatches (of `copies`) in flight on S stages. */
static int32_t most_channels(const wefti_decisions *dec) {
    int32_t all = dec->micros > 1 ? dec->spec->microbatches : 1;
    int32_t most = (all + WEFTI_EDGE_UNDER_WAY - 1) / WEFTI_EDGE_UNDER_WAY;
    int32_t bound = dec->stages * dec->copies;
    bool gpipe = dec->spec->plan->pipeline.schedule == WEFT_PIPELINE_GPIPE;
    return gpipe || most < bound ? most : bound;
}

static weft_status add_edge(wefti_decisions *dec, int32_t v, int32_t maker, int32_t reader) {
    int32_t to = dec->calls[reader].stage, from = dec->calls[maker].stage;
    int32_t most = most_channels(dec);
    bool back = dec->calls[reader].differentiated && dec->has_gradient[v];
    if (back) {
        const wefti_cell_grad *grad = &dec->grads[dec->calls[reader].grad];
        bool wanted = false;
        for (int i = 0; i < dec->calls[reader].node->inputs; i++)
            wanted |= dec->calls[reader].node->in[i] == v && grad->gradient_out[i] >= 0;
        back = wanted;
    }
    for (int64_t i = 0; i < dec->edge_count; i++) {
        wefti_edge *x = &dec->edges[i];
        if (x->value != v || x->to_stage != to) continue;
        if (all_under_way(dec, maker, reader)) x->channels = most;
        if (back && x->last_call < 0) x->last_call = reader;
        if (dec->calls[x->first_call].fused) x->first_call = reader;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(dec->edges, dec->edge_count, dec->edge_cap));
    wefti_edge *x = &dec->edges[dec->edge_count++];
    *x = (wefti_edge){.value = v,
                      .from_call = maker,
                      .from_stage = from,
                      .to_stage = to,
                      .first_call = reader,
                      .last_call = back ? reader : -1,
                      .channels = dec->micros > 1 ? dec->copies : 1};
    if (all_under_way(dec, maker, reader)) x->channels = most;
    return WEFT_OK;
}

static weft_status find_edges(wefti_decisions *dec) {
    int32_t *maker;
    WEFT_TRY(wefti_new_indices(dec->scratch, dec->root->value_count, &maker));
    for (int32_t k = 0; k < dec->call_count; k++) {
        const weft_node *n = dec->calls[k].node;
        for (int o = 0; o < n->outputs; o++) maker[n->out[o]] = k;
        for (int i = 0; i < n->inputs; i++) {
            int32_t v = n->in[i];
            if (v < 0 || maker[v] < 0 || dec->calls[maker[v]].stage == dec->calls[k].stage)
                continue;
            WEFT_TRY(add_edge(dec, v, maker[v], k));
        }
    }
    return WEFT_OK;
}

/* Finds the parameters that several stages read. */
static weft_status find_tied(wefti_decisions *dec) {
    int32_t *reader; /* the last stage that reads the value */
    WEFT_TRY(wefti_new_indices(dec->scratch, dec->root->value_count, &reader));
    for (int32_t k = 0; k < dec->call_count; k++) {
        const wefti_call_plan *call = &dec->calls[k];
        for (int i = 0; i < call->node->inputs; i++) {
            int32_t v = call->node->in[i];
            if (v < 0) continue;
            if (reader[v] >= 0 && reader[v] != call->stage) {
                int32_t before = dec->tied[v] < 0 ? reader[v] : dec->tied[v];
                dec->tied[v] = before < call->stage ? before : call->stage;
            }
            reader[v] = call->stage;
        }
    }
    return WEFT_OK;
}

/* Whether this stage sums the gradient of a tied parameter with other stages. */
static bool sums_tied(const wefti_decisions *dec, int32_t v) {
    if (dec->root->values[v].kind != WEFTI_VALUE_PARAM || dec->tied[v] < 0 || !dec->has_gradient[v])
        return false;
    for (int32_t k = 0; k < dec->call_count; k++)
        if (dec->calls[k].mine && wefti_call_reads(&dec->calls[k], v)) return true;
    return false;
}

/* Finds the layouts on the meshes of the stages with which this stage communicates. */
static weft_status find_remote(wefti_decisions *dec) {
    for (int64_t i = 0; i < dec->edge_count; i++) {
        const wefti_edge *x = &dec->edges[i];
        if (x->from_stage != dec->stage && x->to_stage != dec->stage) continue;
        WEFT_TRY(wefti_decide_remote(dec, x->from_stage));
        WEFT_TRY(wefti_decide_remote(dec, x->to_stage));
    }
    for (int64_t i = 0; i < dec->root->in_count && dec->spec->optimizer; i++) {
        int32_t v = dec->root->in[i];
        if (!sums_tied(dec, v)) continue;
        for (int32_t k = 0; k < dec->call_count; k++)
            if (wefti_call_reads(&dec->calls[k], v))
                WEFT_TRY(wefti_decide_remote(dec, dec->calls[k].stage));
    }
    return WEFT_OK;
}

weft_status wefti_decide_edges(wefti_decisions *dec) {
    if (dec->stages <= 1) return WEFT_OK;
    WEFT_TRY(find_edges(dec));
    WEFT_TRY(find_tied(dec));
    return find_remote(dec);
}
