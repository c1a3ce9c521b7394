/* Routines: a body compiled to a flat list of prepared kernels whose operands are references into
 * the caller's arguments or into the routine's own frame. */
#ifndef WEFTI_ROUTINE_H
#define WEFTI_ROUTINE_H

#include "backend/backend.h"
#include "graph/graph.h"

/* Where an operand lies: arg >= 0: offset into that argument; WEFTI_REF_FRAME: into the frame;
 * NONE: absent. */
enum { WEFTI_REF_FRAME = -1, WEFTI_REF_NONE = -2 };
typedef struct wefti_ref {
    int32_t arg;
    int64_t offset;
} wefti_ref;

typedef struct wefti_instruction {
    const weft_node *node; /* NULL: copy `bytes` from in[0] to out[0] */
    wefti_kernel *kernel;  /* NULL: communication, a copy or addition, or a dry build */
    int64_t workspace_bytes;
    wefti_ref *in, *out;
    wefti_ref workspace;
    int64_t bytes; /* of a copy or addition */
    bool add;      /* node NULL: out[0] += in[0], elements of `dtype` */
    weft_dtype dtype;
    int32_t transfer; /* communication: its number in the program's partition, kernel NULL; -1 */
    bool joined;      /* communication: the next one too is posted before this one is waited for */
    wefti_cost cost;
} wefti_instruction;

/* A compiled body. Arguments in order: body inputs, body outputs (the first `outputs` of them),
 * saved block (if saved_bytes > 0). */
typedef struct wefti_routine {
    weft_body *body;
    const weft_body *unfused; /* as it was cut, or as the graph has it */
    wefti_instruction *code;
    int32_t code_count;
    int32_t inputs, outputs, args; /* args: all of them */
    int32_t saved_arg;             /* -1: none */
    int64_t saved_bytes;
    int64_t frame_bytes;
    int32_t *alias; /* per output: the input argument whose memory it is (in-place ops), or -1 */
} wefti_routine;

/* How a body becomes a routine. Saved values are addressed inside the saved block: `in_saved[i]` /
 * `out_saved[o]` is the offset in the block, or -1 for an ordinary argument. */
typedef struct wefti_routine_spec {
    weft_body *body;
    const int64_t *in_saved, *out_saved; /* NULL: none */
    int64_t saved_bytes;
    const bool *accumulate; /* per output: add to what is there; NULL: none */
    bool late;              /* add when all else is done */
    wefti_prepare prepare;
    const wefti_backend *const *backends;
} wefti_routine_spec;

weft_status wefti_routine_compile(const wefti_routine_spec *spec, wefti_routine **out) WEFT_CHECKED;
void wefti_routine_destroy(wefti_routine *routine);

#endif
