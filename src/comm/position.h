/* The position of a rank, for watchers in other threads: the control plane names the rank that
 * others wait for. A rank writes its position when a step begins, and when a wait goes on after
 * the spinning. A watcher copies it. */
#ifndef WEFTI_POSITION_H
#define WEFTI_POSITION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"

enum { WEFTI_POSITION_TEXT = 160 };

typedef struct wefti_standing {
    int64_t step;     /* of the training run, from 1; 0: none yet */
    uint64_t done;    /* transfers waited for to their end */
    bool waiting;     /* for others, in the transfer `what`; false: computing */
    int64_t since_ns; /* monotonic: since when it waits, or computes: its last wait, the step's
                         beginning, or the look at it that found further transfers done */
    int64_t moved_ns; /* monotonic: when data was last seen to come or go */
    char what[WEFTI_POSITION_TEXT]; /* "all_reduce of h.3.attn.c_proj (f32, 768 elements)" */
} wefti_standing;

typedef struct wefti_position wefti_position;

weft_status wefti_position_create(wefti_position **out) WEFT_CHECKED;
void wefti_position_destroy(wefti_position *position);
/* All of these do nothing when `position` is NULL. */
void wefti_position_step(wefti_position *position, int64_t step);
void wefti_position_begin_wait(wefti_position *position, const char *what);
/* Cheap: counts; leaves the waiting state if it was begun. */
void wefti_position_end_wait(wefti_position *position, bool begun);
/* Neither waits nor computes, but is being mended, say; "": computes again. A wait that a failure
 * ended counts no more. */
void wefti_position_enter(wefti_position *position, const char *what);
/* For watchers: data comes or goes right now. */
void wefti_position_moved(wefti_position *position);
wefti_standing wefti_position_read(wefti_position *position);

#endif
