/* Programs as text: what one rank does, step by step. */
#ifndef WEFTI_PRINT_H
#define WEFTI_PRINT_H

#include "program/program.h"

const char *wefti_phase_text(const wefti_step *step);
const char *wefti_section_text(wefti_section section);

/* What a transfer moves: "h.3.attn.c_proj:linear", "gradient of h.3.mlp.c_fc.weight". `code` is the
 * instruction of the step's routine, NULL for the step's own transfer. `what` is the part that says
 * it within the step, borrowed; `name` the whole of it, in the caller's buffer. Both are the same
 * on all members. */
const char *wefti_transfer_what(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer);
const char *wefti_transfer_name(const wefti_step *step, const wefti_instruction *code,
                                const wefti_transfer *transfer, char *buffer, size_t bytes);

#endif
