/* Matching: checks the programs of all ranks against each other before the first step.
 *
 * Matching plays the communication of all programs together, without data. Every rank posts and
 * waits in its own order until it needs other ranks, as an executor would. Posts of one group and
 * tag meet by their number. A wait ends when all members of the group have posted. This is stricter
 * than engines are, so programs that match cannot deadlock on any engine, however much it buffers.
 *
 * Matching refuses the following with WEFT_E_MISMATCH, and names both sides in the message:
 *
 * - Posts that meet but are different transfers (kind, reduction, dtype, regions), or transfers of
 *   different values, calls or microbatches. Causes are wrong order, and missing, doubled or
 *   altered transfers.
 * - Ranks that wait for each other in a circle, or for a rank at the end of its program. The
 *   message lists the chain of waits.
 * - Posts without a wait, waits without a post, and more than WEFTI_COMM_DEPTH posts in flight, of
 *   transfers as of copies between spaces.
 * - Waits that end another post than their own. A wait ends the oldest post of its transfer, so the
 *   post must have the same operand and result in memory.
 * - Transfers that are illegal, or do not fit their operands.
 *
 * Each section must be complete: no move is in flight from one section to the next. Source for
 * finding deadlocks by playing a program: Vo et al., "Formal verification of practical MPI
 * programs", PPoPP 2009. Here messages never race with each other, so one order stands for all. */
#ifndef WEFTI_MATCH_H
#define WEFTI_MATCH_H

#include "program/program.h"

/* programs[r] is the program of rank r; all belong to one world of `count` ranks. */
weft_status wefti_programs_match(const wefti_program *const *programs, int32_t count) WEFT_CHECKED;

/* Matches a world of which only one rank of each class is built (builder/fold/fold.h). The classes
 * play in place of their ranks. A class waits for every class that some rank of it meets in such a
 * group, and its posts must equal theirs up to the ranks and the place of the group. This is
 * stricter than the play of all ranks: if the classes match, all ranks do. */
typedef struct wefti_match_classes {
    const wefti_program *const *programs; /* [count]: of the representatives */
    int32_t count;
    const int32_t *class_of; /* [ranks] */
    int32_t ranks;
} wefti_match_classes;
weft_status wefti_classes_match(const wefti_match_classes *classes) WEFT_CHECKED;

#endif
