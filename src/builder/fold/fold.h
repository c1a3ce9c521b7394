/* Folding: ranks with programs of one form are built once.
 *
 * Two ranks of a stage are equal if their programs have the same steps, ops, sizes and memory. Then
 * the programs differ only in values that follow from the ranks' coordinates: begins of pieces in
 * attributes and offsets, and the ranks of their groups. A class holds equal ranks; its
 * representative is the lowest of them, and the only one that is built. The classes of all other
 * ranks follow from what that build has read of its coordinates (layout/rank_reads.h), so the cost
 * grows with the number of classes. What holds for the representative holds for each rank of its
 * class: peak, steps, costs, bytes received. program/match.h matches classes for all ranks. */
#ifndef WEFTI_FOLD_H
#define WEFTI_FOLD_H

#include "builder/spec.h"

typedef struct wefti_rank_class {
    int32_t rank;  /* the representative */
    int32_t count; /* how many ranks are of this class */
    int32_t stage;
    wefti_program **programs; /* [graphs]: of the representative */
} wefti_rank_class;

typedef struct wefti_rank_classes {
    wefti_rank_class *classes; /* in the order of their representatives */
    int32_t count;
    int64_t cap;
    int32_t ranks, graphs;
    int32_t *class_of; /* [ranks] */
} wefti_rank_classes;

typedef struct wefti_fold {
    const weft_plan *plan; /* NULL: one rank */
    int32_t graphs;        /* programs of a rank */
    void *context;
    /* Builds the programs of a rank, one after the other: programs[0 .. graphs - 1]. */
    weft_status (*build)(void *context, int32_t rank, wefti_program **programs);
    /* After each build; may destroy programs and set them to NULL. `done`: ranks with a class.
     * NULL: nothing. */
    weft_status (*found)(void *context, wefti_rank_class *which, int32_t done);
} wefti_fold;

/* Finds the classes of all ranks. The result is for wefti_rank_classes_destroy. */
weft_status wefti_rank_classes_find(const wefti_fold *fold, wefti_rank_classes **out) WEFT_CHECKED;
void wefti_rank_classes_destroy(wefti_rank_classes *classes);
static inline const wefti_rank_class *wefti_rank_class_of(const wefti_rank_classes *classes,
                                                          int32_t rank) {
    return &classes->classes[classes->class_of[rank]];
}

/* A digest of the form of a program: everything that equal ranks have in common. */
uint64_t wefti_program_form(const wefti_program *program);

#endif
