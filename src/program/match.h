/* All ranks' programs against each other, before the first step.
 *
 * The programs' communication is played through, all ranks together, without data: every rank posts
 * and waits in its own order until it needs others, as an executor would. Posts of one group and
 * tag meet by their number. A wait is over when all members of the group have posted: stricter than
 * engines are, so that what passes cannot lock up on any of them, whatever they buffer. What is
 * refused, with WEFT_E_MISMATCH and both sides in the message:
 *
 * - posts that meet and are not the same transfer (kind, reduction, dtype, boxes) of the same value
 *   in the same call and microbatch: wrong order, missing, doubled or altered transfers;
 * - ranks that wait for each other in a circle, or for one whose program ends: who waits for whom;
 * - posts that nobody waits for, waits without a post, more than WEFTI_COMM_DEPTH posts under way;
 * - transfers that are no legal ones, or do not fit their operands.
 *
 * Each section must be complete in itself: nothing is under way from one to the next. Deadlocks of
 * message passing found by playing the program: Vo et al., "Formal verification of practical MPI
 * programs", PPoPP 2009; here no message races with another, so that one order stands for all. */
#ifndef WEFTI_MATCH_H
#define WEFTI_MATCH_H

#include "program/program.h"

/* programs[r] is that of rank r; all of one world of `count` ranks. */
weft_status wefti_programs_match(const wefti_program *const *programs, int32_t count) WEFT_CHECKED;

#endif
