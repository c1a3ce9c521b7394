/* Runs a compiled routine on operands that its caller finds. */
#ifndef WEFTI_ROUTINE_RUN_H
#define WEFTI_ROUTINE_RUN_H

#include "compile/routine.h"

/* The memory of an operand. The pointer is valid only for the stream's device; NULL: absent. */
typedef struct wefti_operand {
    unsigned char *data;
    wefti_space space;
} wefti_operand;

/* One call of a routine. The caller owns all members. */
typedef struct wefti_routine_call {
    const wefti_routine *routine;
    const char *name;     /* of the cell, for messages */
    const wefti_run *run; /* its stream takes kernels, copies and additions */
    /* Finds the memory of an operand: an offset in an argument or in the frame. `written`: the
     * instruction writes so many bytes there; 0: it reads. */
    wefti_operand (*at)(void *context, wefti_ref ref, int64_t written);
    /* Called around each instruction; both NULL: not. An error of `ended` ends the run. */
    void (*begins)(void *context, const wefti_instruction *x);
    weft_status (*ended)(void *context, const wefti_instruction *x);
    void *context;
    wefti_space space; /* in which all operands lie */
} wefti_routine_call;

/* Runs code[*k] and the instructions behind it, until code[end] or a transfer, which the caller
 * carries out. *k is the number of the next instruction. Allocates nothing. */
weft_status wefti_routine_run(const wefti_routine_call *call, int32_t *k, int32_t end) WEFT_CHECKED;

#endif
