/* The program builder's own structures, shared by its files. */
#ifndef WEFTI_PROGRAM_BUILD_H
#define WEFTI_PROGRAM_BUILD_H

#include "base/philox.h"
#include "base/text.h"
#include "program/program.h"

enum { WEFTI_MAX_OUT_CALL = 64 };

/* A buffer of the arena while the program is being built. Times are step numbers over all sections
 * in order. */
typedef struct wefti_buffer {
    wefti_lifetime life;
    bool persistent; /* offset fixed at the bottom of the arena */
    const char *name;
} wefti_buffer;

/* An argument before offsets are known: `delta` bytes into buffer `buffer`. -1: unused. */
typedef struct wefti_buffer_ref {
    int32_t buffer;
    int64_t delta;
} wefti_buffer_ref;

typedef struct wefti_draft_step {
    wefti_step step;
    wefti_buffer_ref *args;
    int32_t arg_count;
    int32_t frame; /* buffer, -1 */
} wefti_draft_step;

/* One call of the root, with what differentiation found for it. */
typedef struct wefti_call_plan {
    const weft_node *node;
    bool differentiated;
    bool joint;   /* forward and backward in one routine: the call that makes the loss */
    int32_t grad; /* index in program->grads */
    int32_t forward, backward[2]; /* routines; backward: writing, adding (per section) */
} wefti_call_plan;

typedef struct wefti_program_builder {
    const wefti_program_spec *spec;
    wefti_program *p;
    weft_graph *g;
    const weft_body *root;
    wefti_arena *scratch;
    wefti_buffer *buffers;
    int64_t buffer_count, buffer_cap;
    wefti_draft_step *steps[WEFTI_SECTIONS];
    int64_t step_count[WEFTI_SECTIONS], step_cap[WEFTI_SECTIONS];
    int32_t now; /* time of the step being added */
    wefti_call_plan *calls;
    int32_t call_count;
    int32_t *output_buffer; /* per root value that is a named output: its buffer, -1 */
    char **grad_masks;      /* per gradient: which inputs and outputs, as 0 and 1 */
    int64_t mask_cap;
    int32_t *value_buffer;  /* per root value: buffer of the current section, -1 */
    int32_t *gradient;      /* per root value: buffer of its gradient, -1 */
    bool *gradient_started; /* something was written there in this section or before */
    bool *needs;            /* per root value: a gradient is wanted */
    bool *has_gradient;
    int32_t *param_index;   /* per root value: index of its tensor, -1 */
    int32_t *last_backward; /* per root value: last call (in backward order) that contributes */
    bool unnamed;           /* memory for a name was missing */
    bool eager;             /* update a parameter as soon as its gradient is complete */
    int64_t grad_cap, routine_cap, tensor_cap, body_cap;
    int32_t scalars, one, norms; /* buffers, -1: none */
    int32_t *tensor_buffer;      /* per tensor of the program */
    int64_t tensor_buffer_cap;
    struct routine_key {
        const weft_body *body;
        int kind;
        char *accumulate; /* per output '0'/'1' */
        int32_t routine;
    } * keys;
    int64_t key_count, key_cap;
} wefti_program_builder;

/* buffers.c */
weft_status wefti_buffer_add(wefti_program_builder *b, int64_t bytes, const char *name,
                             int32_t *out) WEFT_CHECKED;
weft_status wefti_buffer_persistent(wefti_program_builder *b, int64_t bytes, const char *name,
                                    int32_t *out) WEFT_CHECKED;
void wefti_buffer_use(wefti_program_builder *b, int32_t buffer); /* now */
weft_status
wefti_buffers_finish(wefti_program_builder *b) WEFT_CHECKED; /* places; fills offsets of steps */

/* joint.c: forward and backward of one cell as one body. Inputs: the cell's, then one per given
 * output gradient (in order of outputs); outputs: the cell's, then backward's. */
weft_status wefti_joint_body(weft_graph *g, const wefti_cell_grad *grad, const bool *given,
                             weft_body **out) WEFT_CHECKED;

#endif
