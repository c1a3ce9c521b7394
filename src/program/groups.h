/* Groups of ranks by how they lie on the meshes, for worlds of which one rank of each class is
 * built. Every rank of a class is in a group that lies alike, and the place gives the ranks of all.
 */
#ifndef WEFTI_GROUPS_H
#define WEFTI_GROUPS_H

#include "program/match.h"

typedef enum wefti_group_form {
    WEFTI_GROUP_ALONG,  /* all ranks of a stage that differ along `axes` only */
    WEFTI_GROUP_AT,     /* one rank of each stage in `firsts`, all with one place in their stages */
    WEFTI_GROUP_STAGES, /* all ranks of the stages in `firsts` */
} wefti_group_form;

typedef struct wefti_group_place {
    wefti_group_form form;
    wefti_axes axes;
    int32_t stages, *firsts; /* the first ranks of the stages, ascending */
} wefti_group_place;

/* The mesh of the stage of a rank. */
const wefti_mesh *wefti_group_mesh(const wefti_match_classes *classes, int32_t rank);
/* Says how the group of a transfer lies, in *out, whose `firsts` has room for all members. False:
 * the group lies in none of these ways. */
bool wefti_group_find_place(const wefti_match_classes *classes, const wefti_transfer *t,
                            wefti_group_place *out);
bool wefti_group_places_equal(const wefti_group_place *a, const wefti_group_place *b);
/* The number of ranks in each group that lies so; the group's ranks, ascending, for one rank. */
int32_t wefti_group_size(const wefti_match_classes *classes, const wefti_group_place *place);
void wefti_group_ranks(const wefti_match_classes *classes, const wefti_group_place *place,
                       int32_t rank, int32_t *out);
/* Whether a rank is the lowest one of its group. */
bool wefti_group_is_lowest(const wefti_match_classes *classes, const wefti_group_place *place,
                           int32_t rank);

#endif
