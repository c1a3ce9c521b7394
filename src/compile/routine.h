/* Routines: a body compiled to a flat list of prepared kernels. Operands refer to the caller's
 * arguments or to the routine's own frame. */
#ifndef WEFTI_ROUTINE_H
#define WEFTI_ROUTINE_H

#include "backend/kinds.h"
#include "graph/graph.h"

/* The place of an operand, in the space of what contains it. arg >= 0: offset into that argument;
 * WEFTI_REF_FRAME: offset into the frame; WEFTI_REF_NONE: absent. */
enum { WEFTI_REF_FRAME = -1, WEFTI_REF_NONE = -2 };
typedef struct wefti_ref {
    int32_t arg;
    int64_t offset;
} wefti_ref;

typedef struct wefti_instruction {
    const weft_node *node; /* NULL: copy `bytes` from in[0] to out[0] */
    wefti_kernel *kernel;  /* NULL: communication, a copy or addition, or a dry build */
    int64_t workspace_bytes;
    int64_t kernel_bytes; /* memory of the kernel; in a dry build, of the one that it stands for */
    wefti_ref *in, *out;
    wefti_ref workspace;
    int64_t bytes; /* of a copy or addition */
    bool add;      /* node NULL: out[0] += in[0], elements of `dtype` */
    weft_dtype dtype;
    int32_t transfer; /* communication: index in the program's partition, kernel NULL; -1: none */
    bool joined;      /* communication: the next transfer is posted before this one is waited for */
    wefti_cost cost;
} wefti_instruction;

/* A compiled body. Arguments, in order: the body's inputs, the first `outputs` of its outputs, and
 * the saved block if saved_bytes > 0. */
typedef struct wefti_routine {
    weft_body *body;
    const weft_body *unfused; /* the partitioned body, or the graph's own */
    wefti_instruction *code;
    int32_t code_count, code_cap;
    int32_t inputs, outputs, args; /* args: total number of arguments */
    int32_t saved_arg;             /* -1: none */
    int64_t saved_bytes;
    int64_t frame_bytes;
    int32_t *alias; /* per output: the input argument whose memory it shares (in-place ops), or
                       -1 */
} wefti_routine;

/* The input of compilation. `in_saved[i]` or `out_saved[o]` is a value's offset in the saved block,
 * or -1 for an ordinary argument. */
typedef struct wefti_routine_spec {
    weft_body *body;
    const int64_t *in_saved, *out_saved; /* NULL: none */
    int64_t saved_bytes;
    const bool *accumulate; /* per output: add to the present content; NULL: none */
    bool late;              /* add at the end of the routine */
    wefti_prepare prepare;
    const wefti_backend *const *backends;
} wefti_routine_spec;

weft_status wefti_routine_compile(const wefti_routine_spec *spec, wefti_routine **out) WEFT_CHECKED;
void wefti_routine_destroy(wefti_routine *routine);
/* Bytes that a routine and its kernels have requested from the allocator. A dry routine states the
 * bytes of the routine that it stands for. */
int64_t wefti_routine_bytes(const wefti_routine *routine);

#endif
