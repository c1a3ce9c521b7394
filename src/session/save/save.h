/* Saves the tensors of a session as steps of a run's directory, while the session goes on, and
 * loads them: the one way for training runs and for programs.
 *
 * A saver knows which tensors are saved under which names, and how far the step under way is. Its
 * owner adds what else a step holds. All collective calls are made by all ranks of the session. */
#ifndef WEFTI_SESSION_SAVE_H
#define WEFTI_SESSION_SAVE_H

#include "checkpoint/checkpoint.h"
#include "session/agree.h"
#include "session/session.h"

/* A tensor of the session in checkpoints. */
typedef struct wefti_saved_tensor {
    int tensor;     /* number in program 0 of the session */
    int64_t first;  /* first element: files may store a part as a tensor */
    char *name;     /* in files */
    weft_desc desc; /* in files */
    wefti_checkpoint_role role;
} wefti_saved_tensor;

/* In the order in which the session changes them: the states, which the next forward pass changes,
 * and then each parameter with its optimizer tensors, from the last one to the first. The order is
 * the model's and not the plan's, so files are the same for all plans. */
typedef struct wefti_saved_list {
    wefti_saved_tensor *tensors;
    int64_t count, room, states; /* the first `states` are the model's states */
    int64_t *first, *last_of; /* [tensors of the session]: range in `tensors`, optimizer included;
                                 first -1: not saved */
    bool *apart; /* [count]: rank 0 gathers the tensor, since some rank that has a piece does not
                    see the directory. NULL: none */
} wefti_saved_list;
void wefti_saved_list_free(wefti_saved_list *list);
/* Fills an empty list. `add` is called for each parameter and state of the session. It adds the
 * tensors of files that hold it, and those that hold its optimizer tensors. `owned` has the numbers
 * of these, by state of the optimizer's rule; -1: none. */
enum { WEFTI_SAVED_STATES_MOST = 4 };
typedef weft_status wefti_saved_add(void *context, wefti_saved_list *list, int tensor,
                                    const weft_tensor_info *info,
                                    const int owned[WEFTI_SAVED_STATES_MOST]);
weft_status wefti_saved_list_create(weft_session *session, wefti_saved_add *add, void *context,
                                    wefti_saved_list *out) WEFT_CHECKED;
/* `desc` is that of files; the tensor begins at element `first` of the session's. */
weft_status wefti_saved_list_add(wefti_saved_list *list, int tensor, int64_t first,
                                 const char *name, const weft_desc *desc,
                                 wefti_checkpoint_role role) WEFT_CHECKED;

/* pieces.c: all pieces of tensor `index`, as wefti_session_pieces, and the whole that they are of.
 * In mode MANUAL weft_session_split tells both; WEFT_E_ARG if it does not. */
weft_status wefti_saved_pieces(weft_session *session, int index, wefti_session_piece *out,
                               int32_t *out_count, weft_desc *out_whole) WEFT_CHECKED;

/* How far the step under way is (states.c). All ranks are in the same state. */
typedef enum wefti_save_state {
    WEFTI_SAVE_NONE,
    WEFTI_SAVE_PARTS,    /* each rank writes its part */
    WEFTI_SAVE_WRITTEN,  /* all ranks know that no rank is busy with its part any more */
    WEFTI_SAVE_COMMITS,  /* the sums are exchanged, and the step is renamed into place */
    WEFTI_SAVE_COMMITTED /* all ranks know that no rank is busy with that any more */
} wefti_save_state;

/* What a process is about to write. `options` have what a saver knows: duty, slices, and how it
 * supplies gathered tensors. */
typedef struct wefti_save_part {
    const char *dir;
    int64_t now; /* seconds since 1970, for sliced steps alike on all ranks */
    const wefti_checkpoint_tensor *tensors;
    int64_t count;
    wefti_checkpoint_options options;
} wefti_save_part;

/* Which steps stay behind a new one: see wefti_checkpoint_prune_spaced. keep 0: all. */
typedef struct wefti_save_keep {
    int64_t keep, spacing, best;
} wefti_save_keep;

typedef struct wefti_save_owner {
    /* Calls wefti_checkpoint_begin with the part, and with what else the step holds. */
    weft_status (*begin)(void *context, const wefti_save_part *part, wefti_checkpoint_job **out);
    wefti_save_keep (*keeps)(void *context);       /* asked when a sliced step is whole */
    void (*written)(void *context);                /* the step is in place. NULL: no call */
    void (*note)(void *context, const char *text); /* NULL: no call */
    void *context;
} wefti_save_owner;

typedef struct wefti_delivery wefti_delivery; /* gather.c */

typedef struct wefti_saver {
    wefti_save_owner owner;
    weft_session *session;
    weft_world *world;          /* NULL: one process */
    wefti_agreement *agreement; /* the world's; NULL: one process, or the world is being mended */
    const char *dir;            /* "": nothing is saved */
    bool sliced;                /* in a world, each rank writes a directory of its own */
    wefti_saved_list list;
    wefti_save_state state;
    int64_t step;             /* that is being written, or was written last */
    wefti_failure part;       /* why this rank could not begin its part */
    wefti_delivery *delivery; /* tensors on their way to the checkpoint being written */
    wefti_checkpoint_job *writing;
    wefti_checkpoint_lock *lock;        /* of the directory, on rank 0 */
    wefti_checkpoint_lock *slices_lock; /* of the directory of this rank */
} wefti_saver;

/* Gives up the step under way, without other ranks, and frees all that the saver has. */
void wefti_saver_close(wefti_saver *v);

static inline int32_t wefti_saver_rank(const wefti_saver *v) {
    return v->world ? weft_world_rank(v->world) : 0;
}
static inline bool wefti_saver_follows(const wefti_saver *v) {
    return wefti_saver_rank(v) > 0;
}
static inline bool wefti_saver_is_sliced(const wefti_saver *v) {
    return v->sliced && v->world;
}

/* ---- saving: states.c ---- */

/* The step under way. A failure to write that all ranks have agreed on ends neither the session nor
 * earlier steps: it goes to *out_unwritten, on all ranks alike. Other failures are returned: the
 * ranks are not in the same place any more. */
/* Collective: begins to write `step`, after the end of the write under way. */
weft_status wefti_saver_save(wefti_saver *v, int64_t step, weft_status *out_unwritten) WEFT_CHECKED;
/* The same during a run: a failure to write becomes a note. */
weft_status wefti_saver_save_meanwhile(wefti_saver *v, int64_t step) WEFT_CHECKED;
/* Collective: waits for the write under way. */
weft_status wefti_saver_finish(wefti_saver *v, weft_status *out_unwritten) WEFT_CHECKED;
/* Once a step, on all ranks: goes on if no rank is busy. A failure to write becomes a note. */
weft_status wefti_saver_poll(wefti_saver *v) WEFT_CHECKED;
/* Whether this rank is busy with the write, and what all ranks have heard of each other about it.
 */
bool wefti_saver_is_writing(const wefti_saver *v);
void wefti_saver_hear_writing(wefti_saver *v, bool some_rank);
/* After a failure of the run. A write that needs ranks which may be gone is given up. */
weft_status wefti_saver_end(wefti_saver *v) WEFT_CHECKED;
/* The same before the world is mended: the step under way ends whole, or absent (true). */
bool wefti_saver_cut(wefti_saver *v);
/* Without other ranks: ends the thread that writes, and its step unless that is in place. */
void wefti_saver_drop(wefti_saver *v);
/* Before the session changes tensor `number` of program 0, and what belongs to it: waits until the
 * step under way has captured it. */
void wefti_saver_wait_tensor(const wefti_saver *v, int number);

/* Takes the lock of the directory (rank 0), or of the directory of this rank. Both again if the
 * directory was replaced. */
weft_status wefti_saver_lock(wefti_saver *v) WEFT_CHECKED;
weft_status wefti_saver_lock_slices(wefti_saver *v) WEFT_CHECKED;
/* After all ranks have loaded step `restored` (0: none), and rank R has locked its directory:
 * removes later sliced steps of this rank that are unfinished. */
weft_status wefti_saver_clean(const wefti_saver *v, int64_t restored) WEFT_CHECKED;
/* Removes sliced steps that `keep` does not keep, after all ranks have step `good`. */
weft_status wefti_saver_prune_slices(wefti_saver *v, const wefti_save_keep *keep,
                                     int64_t good) WEFT_CHECKED;
/* The saved tensors with the pieces that this process has; one block, wefti_free. Starts the
 * session, which is collective. */
weft_status wefti_saver_tensors(wefti_saver *v, wefti_checkpoint_tensor **out) WEFT_CHECKED;

/* ---- loading: load.c ---- */

/* Collective, for tensors that compare equal with the list. `c`: rank 0's checkpoint; NULL on other
 * ranks. Each rank reads what it needs, or rank 0 reads everything if some rank does not see the
 * directory. verified: every byte of `c` was checked when it was opened. WEFT_E_CORRUPT on all
 * ranks if tensors are damaged: the session then holds a mixture. */
weft_status wefti_saver_load(wefti_saver *v, wefti_checkpoint *c, bool verified) WEFT_CHECKED;

#endif
