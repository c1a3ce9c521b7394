/* Steps while a program is being built: arguments are buffers without offsets. */
#include <string.h>

#include "builder/build.h"

weft_status wefti_build_begin(wefti_program_builder *b, wefti_section s, wefti_step_kind kind,
                              wefti_phase phase, const char *name, int32_t args,
                              wefti_draft_step **out) {
    WEFT_TRY(WEFT_GROW(b->steps[s], b->step_count[s], b->step_cap[s]));
    wefti_draft_step *d = &b->steps[s][b->step_count[s]];
    memset(d, 0, sizeof *d);
    d->step.kind = kind;
    d->step.phase = phase;
    d->step.name = name;
    d->step.tensor = -1;
    d->step.micro = b->now_micro;
    d->frame = -1;
    d->at = b->now;
    d->arg_count = args;
    WEFT_TRY(wefti_new_array(b->scratch, args, sizeof *d->args, &d->args));
    for (int32_t a = 0; a < args; a++) d->args[a].buffer = -1;
    b->step_count[s]++;
    *out = d;
    return WEFT_OK;
}

void wefti_build_arg(wefti_program_builder *b, wefti_draft_step *d, int32_t arg, int32_t buffer,
                     int64_t delta) {
    d->args[arg] = (wefti_buffer_ref){buffer, delta};
    wefti_buffer_use(b, buffer);
}

/* Sets the frame and the random stream of a routine's call, then advances the time. */
weft_status wefti_build_end(wefti_program_builder *b, wefti_draft_step *d, int32_t routine) {
    const wefti_routine *r = b->p->routines[routine];
    d->step.routine = r;
    d->step.to = r->code_count;
    d->step.parts = 1;
    if (r->frame_bytes > 0)
        WEFT_TRY(wefti_buffer_add(
            b, r->frame_bytes, wefti_build_name(b, "working memory of ", d->step.name), &d->frame));
    d->step.stream = wefti_stream_of(d->step.name);
    b->now++;
    return WEFT_OK;
}

weft_status wefti_build_transfer(wefti_program_builder *b, wefti_section s, wefti_step_kind kind,
                                 const char *name, int32_t transfer, int32_t source,
                                 int32_t destination) {
    if (!name) name = wefti_partition_transfer(b->part, transfer)->name;
    wefti_draft_step *d;
    WEFT_TRY(wefti_build_begin(b, s, kind, WEFTI_OTHER, wefti_build_name(b, "", name), 2, &d));
    if (source >= 0) wefti_build_arg(b, d, 0, source, 0);
    if (destination >= 0) wefti_build_arg(b, d, 1, destination, 0);
    d->step.transfer = transfer;
    b->now++;
    return WEFT_OK;
}
