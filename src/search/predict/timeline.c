/* A simulation as the trace that a real run writes (docs/reference/format-trace.md), with the same
 * names, and with a counter of the memory in use. Ranks that do the same at the same times have one
 * timeline.
 */
#include <stdio.h>

#include "exec/exec.h"
#include "program/print.h"
#include "search/predict/predict.h"

typedef struct timeline {
    wefti_trace *trace;
    int32_t *lane_of; /* [ranks]: of the lowest rank of each class */
} timeline;

static int64_t nanoseconds(int64_t picoseconds) {
    return (picoseconds + 500) / 1000;
}

static weft_status add(void *context, const wefti_sim_span *s) {
    static const char *const phases[] = {"forward", "backward", "update", "other"};
    const timeline *t = context;
    const int32_t lane = t->lane_of[s->rank];
    const int64_t begin = nanoseconds(s->begin), end = nanoseconds(s->end);
    const wefti_instruction *x = s->code;
    switch (s->track) {
    case WEFTI_SPAN_STEP:
        wefti_trace_counter(t->trace, lane, "memory", begin, (double)s->step->used_bytes);
        wefti_trace_counter(t->trace, lane, "memory alive", begin, (double)s->step->alive_bytes);
        if (s->step->kind == WEFTI_STEP_CALL)
            wefti_trace_event(t->trace, lane, WEFTI_TRACK_CELLS, s->step->name,
                              phases[s->step->phase], begin, end, 0, 0);
        break;
    case WEFTI_SPAN_COMPUTE:
        wefti_trace_event(t->trace, lane, WEFTI_TRACK_KERNELS,
                          x && x->node  ? x->node->op->name
                          : x && x->add ? "add"
                                        : "copy",
                          x && x->node ? "predicted" : "move", begin, end, x ? x->cost.flops : 0,
                          x ? x->cost.bytes : 0);
        break;
    case WEFTI_SPAN_TRANSFER:
        wefti_trace_event(t->trace, lane, WEFTI_TRACK_COMMUNICATION,
                          wefti_transfer_kind_text(s->transfer->kind),
                          wefti_transfer_what(s->step, x, s->transfer), begin, end, 0,
                          (double)wefti_transfer_bytes(s->transfer));
        break;
    }
    return WEFT_OK;
}

static weft_status name_lanes(timeline *t, const weft_prediction *p) {
    for (int32_t i = 0; i < p->class_count; i++) {
        const weft_rank_prediction *r = &p->classes[i];
        char name[64];
        t->lane_of[r->rank] = i;
        if (r->count == 1)
            (void)snprintf(name, sizeof name, "device %d", r->rank);
        else
            (void)snprintf(name, sizeof name, "device %d (and %d like it)", r->rank, r->count - 1);
        WEFT_TRY(wefti_trace_name(t->trace, i, r->rank, name));
    }
    return WEFT_OK;
}

/* The simulation runs once more, now that its classes are known. */
weft_status wefti_predict_trace(const wefti_match_classes *classes,
                                const wefti_predict_options *options, const weft_prediction *p,
                                const char *path) {
    timeline t = {.trace = NULL};
    wefti_predict_options traced = *options;
    weft_prediction *again = NULL;
    WEFT_NEW_ARRAY(t.lane_of, int32_t, p->ranks);
    weft_status status = wefti_trace_open(path, p->class_count, WEFTI_TRACE_SIMULATED, &t.trace);
    if (status >= 0) {
        traced.span = add;
        traced.context = &t;
        status = name_lanes(&t, p);
        if (status >= 0) status = wefti_predict(classes, &traced, &again);
        weft_status closed = wefti_trace_close(t.trace);
        if (status >= 0) status = closed;
    }
    weft_prediction_free(again);
    wefti_free(t.lane_of);
    return status;
}
