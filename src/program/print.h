/* Programs as text: the steps of one rank. */
#ifndef WEFTI_PRINT_H
#define WEFTI_PRINT_H

#include "program/program.h"

/* Prints the program of one rank: its place, memory, schedule with all transfers, cells with the
 * layouts of their operands and results, and tensors. `plan` is the plan of the build, NULL for one
 * device. The result is plain text, or one JSON object (docs/reference/format-program.md);
 * wefti_free it. */
weft_status wefti_program_print(const wefti_program *program, const weft_plan *plan,
                                char **out) WEFT_CHECKED;
weft_status wefti_program_json(const wefti_program *program, const weft_plan *plan,
                               char **out) WEFT_CHECKED;

/* The largest buffers at the peak, in descending order, and the time of the peak: "wte.weight 147.2
 * MiB, ... (at once in backward of h.11)"; wefti_free it. */
weft_status wefti_program_largest(const wefti_program *program, int count, char **out) WEFT_CHECKED;

/* For both printers: an operand of a cell and its layout. */
typedef struct wefti_operand_info {
    const char *name;           /* name in the first call */
    weft_desc here, whole;      /* equal without a plan */
    const wefti_layout *layout; /* NULL: whole */
} wefti_operand_info;
typedef struct wefti_cell_use {
    const wefti_routine *routine;
    const wefti_step *first; /* the first step that calls it */
    int32_t calls;
    double flops;
} wefti_cell_use;
/* Routines in the order of their first calls; out[i] for i < *out_count; wefti_free it. */
weft_status wefti_cells_used(const wefti_program *program, wefti_cell_use **out,
                             int32_t *out_count) WEFT_CHECKED;
wefti_operand_info wefti_cell_operand(const wefti_program *program, const wefti_cell_use *use,
                                      int32_t arg); /* inputs, then outputs */
const char *wefti_tensor_role_text(wefti_tensor_role role);
/* Sets *out to transfer number *at of a step, from 0; false after the last one. Waits have no
 * transfers: their posts have them. `code` NULL: the step's own transfer. */
typedef struct wefti_step_transfer {
    const wefti_instruction *code;
    const wefti_transfer *transfer;
    int64_t gives, gets, receives; /* bytes: all that it has, all that it wants, and the part of
                                      this from other members */
    bool joined;
} wefti_step_transfer;
bool wefti_step_transfer_next(const wefti_program *program, const wefti_step *step, int32_t *at,
                              wefti_step_transfer *out);

const char *wefti_phase_text(const wefti_step *step);
/* "store" or "fetch": a copy to host memory, or from it to device memory. */
const char *wefti_copy_text(const wefti_step *step);
const char *wefti_section_text(wefti_section section);

/* Names of the value that a transfer moves: "h.3.attn.c_proj:linear", "gradient of
 * h.3.mlp.c_fc.weight". `code` is the instruction of the step's routine, NULL for the step's own
 * transfer. wefti_transfer_what: the name within the step, borrowed. wefti_transfer_name: the full
 * name, in the caller's buffer. Both are equal on all members. */
const char *wefti_transfer_what(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer);
const char *wefti_transfer_name(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer, char *buffer, size_t bytes);

#endif
