/* Buddies: state that no other device has is also kept by a second device, its holder.
 *
 * With recovery and buddies, the holder of a device (its ward) keeps copies of all tensors that the
 * ward updates. Before the commit of a step it receives the ward's complete gradients, and the
 * states that the ward's passes have changed. Behind the commit it makes the ward's update as well,
 * with the same kernels, so that both have the same bits. docs/design/buddies.md has the rules. */
#ifndef WEFTI_BUDDY_H
#define WEFTI_BUDDY_H

#include "builder/build.h"

typedef struct wefti_buddy wefti_buddy;

/* ---- pairs.c: which device keeps copies for which. The same on all ranks. ---- */

/* The holder of a device lies some places further along an axis of its mesh, or has the same place
 * some stages later. Ends meet, so each device has one ward and one holder. */
typedef struct wefti_buddy_pairs {
    int axis;     /* -1: none, but stages */
    int32_t step; /* places or stages; 0: the device is alone */
} wefti_buddy_pairs;

/* Of the devices of a stage. It takes the pairs of which most lie on different hosts. host: of each
 * device; NULL: all devices are on one host. Fails if the stage has no second device. */
weft_status wefti_buddy_pairs_of(const weft_plan *plan, const int32_t *host, int32_t stage,
                                 wefti_buddy_pairs *out) WEFT_CHECKED;
int32_t wefti_buddy_holder(const weft_plan *plan, wefti_buddy_pairs pairs, int32_t rank);
int32_t wefti_buddy_ward(const weft_plan *plan, wefti_buddy_pairs pairs, int32_t rank);

/* ---- items.c: what is copied ---- */

/* A tensor that a device updates, or keeps, and its piece of it. */
typedef struct wefti_buddy_item {
    int32_t value;       /* of the root */
    wefti_layout layout; /* of the pieces */
    bool trained;        /* it has a gradient */
    bool changes;        /* a state that passes change */
    bool shared;         /* the holder has the same piece of its own */
    int32_t message;     /* the message that its gradient or its new value is part of; -1: none */
    int32_t next;        /* the next item of this message; -1: none */
} wefti_buddy_item;

typedef struct wefti_buddy_items {
    int32_t stage, count, messages;
    wefti_mesh mesh;
    wefti_buddy_item *items; /* none if each device of the stage has a replica */
    int32_t *first;          /* [messages]: the first item of each */
} wefti_buddy_items;

/* Of the devices of a stage, in the order of the model. */
weft_status wefti_buddy_items_of(wefti_emitter *b, wefti_buddy_pairs pairs, int32_t stage,
                                 wefti_buddy_items *out) WEFT_CHECKED;
/* A device's piece of an item. */
weft_desc wefti_buddy_piece(const wefti_emitter *b, const wefti_buddy_items *list,
                            const wefti_buddy_item *item, int32_t rank);

/* ---- buddy.c: the steps. Nothing happens without buddies. ---- */

/* In section NORM, once all gradients are complete: moves them to the holders. */
weft_status wefti_buddy_exchange(wefti_emitter *b) WEFT_CHECKED;
/* In section UPDATE: updates the copies, and lists them in the program. */
weft_status wefti_buddy_update(wefti_emitter *b) WEFT_CHECKED;
/* Once buffers have places. */
void wefti_buddy_place(wefti_emitter *b);

#endif
