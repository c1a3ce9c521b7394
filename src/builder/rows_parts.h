/* Functions that rows.c, rows_tiers.c and rows_look_ups.c share. */
#ifndef WEFTI_ROWS_PARTS_H
#define WEFTI_ROWS_PARTS_H

#include "builder/build.h"

/* rows.c: this device's piece of a table. */
void wefti_rows_piece(const wefti_emitter *b, int32_t value, wefti_region *out);

/* rows_tiers.c: adds a call of one op with `count` operands and one result. args: the operands,
 * then the result, unless it shares memory with an operand. */
weft_status wefti_rows_call(wefti_emitter *b, wefti_section s, wefti_phase phase, const char *name,
                            const char *op, int count, const weft_desc *in, const wefti_attr *attrs,
                            const wefti_buffer_ref *args) WEFT_CHECKED;

#endif
