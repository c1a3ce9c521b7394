/* What a build reads of its rank's coordinates.
 *
 * A build is a function of the model, the plan, the rank's stage and the rank's coordinates on the
 * mesh of that stage. It writes down each answer about the coordinates on which the form of its
 * program depends: steps, ops, sizes, memory. If another rank of the stage would get the same
 * answers, its build takes the same course, and its program has the same form. So a rank's class is
 * found without building the rank. Begins of pieces are not written down: they are values in
 * attributes and offsets, and change with the rank. */
#ifndef WEFTI_RANK_READS_H
#define WEFTI_RANK_READS_H

#include "layout/layout.h"

typedef enum wefti_rank_read_kind {
    WEFTI_READ_SIZE,  /* the size of the rank's part of a dimension */
    WEFTI_READ_SIZES, /* the sizes of the parts of all ranks that differ along `axes`, the last ones
                         of the split, only */
    WEFTI_READ_NEIGHBOR, /* the size of the part of the rank `step` places further along one axis */
    WEFTI_READ_OVERLAP,  /* how much of the rank's part lies in its part of another split */
    WEFTI_READ_FIRST,    /* whether the rank is the first one along all axes of a set */
    WEFTI_READ_PLACE     /* the rank's coordinates along a set of axes */
} wefti_rank_read_kind;

typedef struct wefti_rank_read {
    wefti_rank_read_kind kind;
    wefti_axes axes;       /* FIRST, PLACE, SIZES, NEIGHBOR */
    int32_t step;          /* NEIGHBOR */
    wefti_dim_split split; /* SIZE, SIZES, NEIGHBOR, OVERLAP */
    wefti_dim_split other; /* OVERLAP */
    int64_t size;          /* all with a split: of the whole dimension */
} wefti_rank_read;

/* Zero: nothing is read. */
typedef struct wefti_rank_reads {
    wefti_rank_read *items;
    int64_t count, cap;
    bool lost; /* memory for a read was missing: the list is useless */
} wefti_rank_reads;

/* Each adds a read, unless all ranks get the same answer or the list has it. `reads` may be NULL:
 * nothing happens. layout: the sizes of the rank's region. counts: whether wefti_layout_counts. */
void wefti_rank_reads_part(wefti_rank_reads *reads, const wefti_mesh *mesh, int64_t size,
                           const wefti_dim_split *split);
void wefti_rank_reads_layout(wefti_rank_reads *reads, const wefti_mesh *mesh,
                             const weft_desc *whole, const wefti_layout *layout);
/* The sizes of the region of the rank `step` places further along an axis, whose ends meet. */
void wefti_rank_reads_neighbor(wefti_rank_reads *reads, const wefti_mesh *mesh,
                               const weft_desc *whole, const wefti_layout *layout, int axis,
                               int32_t step);
void wefti_rank_reads_first(wefti_rank_reads *reads, const wefti_mesh *mesh, wefti_axes axes);
void wefti_rank_reads_counts(wefti_rank_reads *reads, const wefti_mesh *mesh,
                             const wefti_layout *layout);
void wefti_rank_reads_place(wefti_rank_reads *reads, const wefti_mesh *mesh, wefti_axes axes);
/* A transfer over `axes` between two layouts: sizes of both regions, and whatever else the bytes
 * that a member receives, or the regions of its group, depend on. */
void wefti_rank_reads_move(wefti_rank_reads *reads, const wefti_mesh *mesh, const weft_desc *whole,
                           const wefti_layout *from, const wefti_layout *to, wefti_axes axes);
/* Adds all reads of another list. */
void wefti_rank_reads_join(wefti_rank_reads *to, const wefti_rank_reads *from);
/* Whether two ranks of the mesh, given by their coordinates, get the same answers. */
bool wefti_rank_reads_same(const wefti_rank_reads *reads, const wefti_mesh *mesh,
                           const int32_t a[WEFTI_MAX_AXES], const int32_t b[WEFTI_MAX_AXES]);
void wefti_rank_reads_free(wefti_rank_reads *reads);

#endif
