/* The state of one training run, for the files of this folder and below. */
#ifndef WEFTI_TRAIN_TRAINING_H
#define WEFTI_TRAIN_TRAINING_H

#include <stdatomic.h>

#include "setup/setup.h"

typedef struct wefti_metrics wefti_metrics;
/* What is done of a step and behind it, in this order. */
typedef enum wefti_training_stage {
    WEFTI_STAGE_STEPPING, /* the next step has begun */
    WEFTI_STAGE_STEPPED,
    WEFTI_STAGE_VALIDATED,
    WEFTI_STAGE_SAVED
} wefti_training_stage;

/* A step whose state is, or will be, on the disk, with its validation loss; -1: none. */
typedef struct wefti_rated_step {
    int64_t step;
    double loss;
} wefti_rated_step;

/* What the validations say (loop/ratings.c), alike on all ranks; of jobs that ask for it. */
typedef struct wefti_training_ratings {
    int64_t step;               /* of the last validation that counted, -1: none */
    double lowest;              /* loss of all so far */
    int64_t not_improved;       /* validations since */
    wefti_rated_step best;      /* on the disk, and kept there */
    wefti_rated_step candidate; /* the better one that was found last */
} wefti_training_ratings;

typedef struct wefti_training_progress {
    int64_t step;               /* updates done */
    int64_t position;           /* samples consumed */
    wefti_training_stage stage; /* what is done after that step */
    /* The last steps of which this rank has reported the loss, and a validation. */
    int64_t reported, validated;
    wefti_training_ratings ratings;
    weft_train_step under_way; /* the step that was begun last, as far as it is known */
    double begun_s;
} wefti_training_progress;

/* loop/ratings.c */
wefti_training_ratings wefti_training_no_ratings(void);

/* Of a run without a step. Nothing is left to do behind its start. */
static inline wefti_training_progress wefti_training_begun(void) {
    return (wefti_training_progress){.stage = WEFTI_STAGE_SAVED,
                                     .reported = -1,
                                     .validated = -1,
                                     .ratings = wefti_training_no_ratings()};
}

/* What the ranks of a run know of each other. */
typedef struct wefti_training_ranks {
    bool ended;            /* the job has failed: there is no world to mend */
    int stopping;          /* the agreed reason (weft_train_result.stop), 0: none */
    bool stop_file_is_bad; /* checkpoint.stop_file had no JSON when last read, which was noted */
    int64_t observed_peak; /* of all ranks, when last exchanged */
} wefti_training_ranks;

typedef struct wefti_training_saving {
    wefti_saver saver; /* use wefti_training_saver, which keeps it up to date */
    int64_t committed_step;
    int64_t begun_ns; /* when the run, or the last write of it, began; for checkpoint.seconds */
    bool due;         /* checkpoint.seconds: the ranks have agreed to save before the next step */
    atomic_bool touched;        /* the step has begun to change parameters on this rank */
    _Atomic int64_t blocked_ns; /* updates have waited for the checkpoint, since the last step; of
                                   all devices of this process */
} wefti_training_saving;

/* The record of the run (train/record/record.h). */
typedef struct wefti_training_record {
    bool resumes; /* the run goes on from a checkpoint of its directory */
    bool reused;  /* with the plan and the machine of the record */
    bool measuring;
    int64_t done;                        /* steps of this process */
    int64_t steps;                       /* that were measured */
    double seconds[WEFTI_PROFILE_STEPS]; /* of each */
} wefti_training_record;

typedef struct wefti_training_span {
    weft_train_part part;
    int64_t begin_ns, end_ns;
} wefti_training_span;

/* What the run does now, and how long it has done what (time.c). Times are of wefti_now_ns. */
typedef struct wefti_training_time {
    weft_train_part part, before_opening;                    /* now; while data are opened */
    int64_t begun_ns;                                        /* the process */
    int64_t entered_ns;                                      /* when it began with `part` */
    int64_t since_ns;                                        /* `ns` has all before */
    int64_t ns[WEFT_TRAIN_PARTS], told_ns[WEFT_TRAIN_PARTS]; /* told: up to the last lap */
    int64_t waited_ns;          /* wefti_session_waited, up to the last step */
    bool traced;                /* spans are kept, for a trace */
    wefti_training_span *spans; /* parts that have ended */
    int64_t span_count, span_room;
    int64_t meetings[WEFTI_TRACE_MEETINGS][2]; /* when all ranks left the exchange before a step */
    int meeting_count;
} wefti_training_time;

typedef struct wefti_training {
    wefti_setup setup;
    wefti_built *built;  /* for the present size of the world */
    wefti_built *former; /* while the world changes its size */
    const weft_job *given_job;
    const weft_train_events *events, *given_events; /* given_events: of the rank that reports */
    weft_train_result *result;
    bool mended; /* the world was mended during this run */
    wefti_metrics *metrics;
    wefti_training_progress progress;
    wefti_training_ranks ranks;
    wefti_training_saving saving;
    wefti_training_record record;
    wefti_training_time time;
    double peak_flops; /* per second, of all devices; 0: not known */
    double step_flops; /* of the model, in a step */
} wefti_training;

/* time.c: the clock of a run. Starts it; `joining_ns` of the time before was spent on joining the
 * world. */
void wefti_training_begin_time(wefti_training *t, int64_t joining_ns);
/* From now on the run does `part`. Returns what it did before. */
weft_train_part wefti_training_enter(wefti_training *t, weft_train_part part);
/* Some of the time since the last lap counts to another part. */
void wefti_training_move_time(wefti_training *t, weft_train_part from, weft_train_part to,
                              int64_t ns);
/* Seconds by part: since the last lap, and in all. */
void wefti_training_lap(wefti_training *t, double out[WEFT_TRAIN_PARTS]);
void wefti_training_total(wefti_training *t, double out[WEFT_TRAIN_PARTS]);
double wefti_training_age(const wefti_training *t); /* seconds since the process began */
/* Adds the parts to the session's trace, before that ends. */
void wefti_training_trace_parts(wefti_training *t);
/* All ranks begin the step that follows now. */
void wefti_training_meet(wefti_training *t);
int64_t wefti_resident_bytes(void); /* of this process; 0: not known */

/* loop/run.c */
void wefti_training_close(wefti_training *t);
/* Whether train.stop_after ends the run, and whether the run has made all of its steps. */
static inline bool wefti_training_has_stalled(const wefti_training *t) {
    const int64_t most = t->built->job->train.stop_after;
    return most > 0 && t->progress.ratings.not_improved >= most;
}
static inline bool wefti_training_is_over(const wefti_training *t) {
    return t->progress.step >= t->built->job->train.steps || wefti_training_has_stalled(t);
}
/* loop/resize.c: after an attempt to go on in a world of another size. whole: the old parts of the
 * run end; otherwise the run has them again, and the new ones end. Without an attempt: nothing. */
void wefti_training_end_resize(wefti_training *t, bool whole);
/* together.c: what the ranks agree on before a step: whether some rank was asked to stop, whether
 * parts of a checkpoint are complete, and whether one is due. `data`: whether this rank has the
 * data of the step; if one has not, all fail. */
weft_status wefti_training_stops(wefti_training *t, weft_status data, bool *out) WEFT_CHECKED;
/* stop_file.c: whether this rank's checkpoint.stop_file asks for the end of the run. A file without
 * JSON, which may be half written, does not, and gives a note. */
bool wefti_training_file_asks(wefti_training *t);
/* stop.c: the thread of a rank that ends a wait in which nobody answers after a request to stop.
 * A wait counts as vain after 2 s. The world then fails, and leaving it takes 2 s more at most.
 * *out NULL: no thread is needed. */
typedef struct wefti_stopper wefti_stopper;
weft_status wefti_stopper_start(weft_world *world, const volatile int *asked,
                                wefti_stopper **out) WEFT_CHECKED;
/* Ends the thread. True: it has ended a wait. NULL is legal. */
bool wefti_stopper_end(wefti_stopper *stopper);

/* The highest byte used on any device; for other processes, when last exchanged. */
int64_t wefti_training_observed(const wefti_training *t);

#endif
