/* The limit of a device's memory. */
#ifndef WEFTI_LIMIT_H
#define WEFTI_LIMIT_H

#include "program/program.h"

/* WEFT_E_NOMEM if the program's peak is above `limit` bytes (0: no limit). The message says what
 * the largest buffers are, and what would fit; with several devices it names the rank. `trains`:
 * the program has an optimizer. */
weft_status wefti_program_within(const wefti_program *program, int64_t limit, bool trains,
                                 int32_t devices) WEFT_CHECKED;

#endif
