/* Checkpoints of a training run: written whole or not at all, verified when read, readable
 * elsewhere.
 *
 * DIR/step-000000000100/ holds the model as a Hugging Face directory (config.json and
 * model*.safetensors under the model's parameter names), the optimizer state
 * (optimizer-*.safetensors, tensors `<parameter>.<state>`), and manifest.json: what the run needs
 * to go on with the same bits, and a CRC32C of every byte of the step. A step is written into a
 * hidden sibling, synced, and renamed into place last; one without a valid manifest does not exist.
 * The format is described in docs/format-checkpoint.md.
 *
 * Writing overlaps with training: parameters and optimizer state stand still from one update to the
 * next, so a thread captures the live tensors during forward and backward, and the trainer asks
 * before it changes one (wefti_checkpoint_wait_tensor). Nothing is copied twice. The idea of
 * overlapping the snapshot with compute: Mohan et al., "CheckFreq", FAST'21, section 4. */
#ifndef WEFTI_CHECKPOINT_H
#define WEFTI_CHECKPOINT_H

#include <stdbool.h>

#include "device/device.h"
#include "base/reader.h"
#include "base/status.h"
#include "layout/layout.h"
#include "weft/types.h"

typedef enum wefti_checkpoint_role {
    WEFTI_CHECKPOINT_MODEL,
    WEFTI_CHECKPOINT_OPTIMIZER,
    WEFTI_CHECKPOINT_ROLES
} wefti_checkpoint_role;

typedef struct wefti_checkpoint_pair {
    const char *key, *value;
} wefti_checkpoint_pair;

typedef struct wefti_checkpoint_pairs {
    const wefti_checkpoint_pair *items;
    int64_t count;
} wefti_checkpoint_pairs;

typedef struct wefti_checkpoint_loss {
    int64_t step;
    double loss;
} wefti_checkpoint_loss;

/* What a run needs beside its tensors. Texts are UTF-8; numbers in pairs are text, printed so that
 * they read back exactly ("%.17g"). Pair keys are unique within their list. */
typedef struct wefti_checkpoint_meta {
    int64_t step;          /* updates done, >= 0 */
    int64_t data_position; /* samples consumed, in the one global order */
    uint64_t seed;
    const char *optimizer;           /* "adamw"; NULL: none */
    wefti_checkpoint_pairs settings; /* of the optimizer and schedule */
    wefti_checkpoint_pairs random;   /* state of the random generators beyond seed and position */
    wefti_checkpoint_pairs
        compute; /* isa, matmul path, threads: to resume with the same arithmetic */
    wefti_checkpoint_pairs notes;        /* anything else */
    const wefti_checkpoint_loss *losses; /* the tail of the loss history, may be empty */
    int64_t loss_count;
    /* Filled in by reading, ignored by writing. */
    uint64_t fingerprint; /* hash of the model tensors' names and shapes */
    const char *weft_version;
} wefti_checkpoint_meta;

/* A part of a tensor: the box that lies contiguously at `data`. */
typedef struct wefti_checkpoint_piece {
    wefti_region box;
    const void *data;     /* memory of `device` */
    wefti_device *device; /* NULL: of the host */
} wefti_checkpoint_piece;

/* A tensor to write, or one that is expected. Names are unique within their role. What is written
 * of a tensor in pieces is what would be written of the whole: files do not tell how it was split.
 */
typedef struct wefti_checkpoint_tensor {
    const char *name;
    wefti_checkpoint_role role;
    weft_desc desc;
    const void *data;   /* live memory; not read by wefti_checkpoint_compare */
    const char *layout; /* how it is split; NULL: "replicated", the whole tensor */
    /* In place of `data`: the elements from `first` on of a tensor `whole` that lies in pieces,
     * whose boxes cover it, each element once. NULL: none. */
    const wefti_checkpoint_piece *pieces;
    int64_t piece_count;
    weft_desc whole;
    int64_t first;
    bool later; /* neither of these: wefti_checkpoint_options.take gives it when it is wanted */
} wefti_checkpoint_tensor;

/* A text file to put beside the model: config.json, tokenizer.json. */
typedef struct wefti_checkpoint_text {
    const char *name, *text;
} wefti_checkpoint_text;

typedef struct wefti_checkpoint_options {
    int64_t shard_bytes; /* largest tensor file, 0: 4 GiB; a larger tensor has a file of its own */
    int64_t keep;        /* after the commit prune to this many steps; 0: prune nothing */
    int nice;            /* added to the writer thread's niceness, 0 to 19 */
    const wefti_checkpoint_text *texts; /* may be NULL */
    int64_t text_count;
    /* For tensors that come later: the writing thread asks for one after the other, in the order of
     * capture. `take` waits for tensor `index`, NULL: the step is given up; `give_back` is told
     * when it has been captured, and -1 when no more will be asked for. */
    const void *(*take)(void *context, int64_t index);
    void (*give_back)(void *context, int64_t index);
    void *context;
} wefti_checkpoint_options;

/* ---- writing ---- */

typedef struct wefti_checkpoint_job wefti_checkpoint_job;

/* Start writing DIR/step-N in a thread of its own. Everything but the tensors' bytes is copied;
 * tensor i may change once wefti_checkpoint_wait_tensor(job, i) has returned. Tensors are captured
 * in the given order (larger element sizes first), so give them in the order in which the update
 * walks them. An existing step N is replaced. `options` may be NULL. The caller holds the lock of
 * `dir`, which exists. */
weft_status wefti_checkpoint_begin(const char *dir, const wefti_checkpoint_meta *meta,
                                   const wefti_checkpoint_tensor *tensors, int64_t count,
                                   const wefti_checkpoint_options *options,
                                   wefti_checkpoint_job **out) WEFT_CHECKED;
/* Blocks until tensor `index` is captured, or the job has failed and no longer looks at it. NULL
 * job: returns. */
void wefti_checkpoint_wait_tensor(wefti_checkpoint_job *job, int64_t index);
void wefti_checkpoint_wait_all(wefti_checkpoint_job *job); /* all tensors captured */
/* Nanoseconds that callers have spent blocked in the two calls above. */
int64_t wefti_checkpoint_waited_ns(const wefti_checkpoint_job *job);
/* WEFT_PENDING while the thread works, then WEFT_OK or the failure. Does not end the job. */
weft_status wefti_checkpoint_poll(wefti_checkpoint_job *job);
/* Wait for the thread and end the job. On failure nothing is left of the step, and earlier ones
 * stand. `out_note` (may be NULL) receives NULL, or a text about what failed after the commit
 * (pruning); wefti_free it. NULL job: WEFT_OK. */
weft_status wefti_checkpoint_finish(wefti_checkpoint_job *job, char **out_note) WEFT_CHECKED;
/* Give the step up: the thread stops at the next tensor, the job ends, and nothing is left, unless
 * the step was already in place. */
void wefti_checkpoint_cancel(wefti_checkpoint_job *job);
/* Begin and finish in one call. */
weft_status wefti_checkpoint_write(const char *dir, const wefti_checkpoint_meta *meta,
                                   const wefti_checkpoint_tensor *tensors, int64_t count,
                                   const wefti_checkpoint_options *options,
                                   char **out_note) WEFT_CHECKED;

/* ---- the directory of a run ---- */

enum { WEFTI_CHECKPOINT_LATEST = -1 }; /* in place of a step */

/* One run per directory: makes `dir` if needed, takes DIR/.lock (flock, released with the process),
 * and removes what an interrupted run left behind. WEFT_E_ARG naming the process when another holds
 * it, and for the directory of a step. */
typedef struct wefti_checkpoint_lock wefti_checkpoint_lock;
weft_status wefti_checkpoint_lock_open(const char *dir, wefti_checkpoint_lock **out) WEFT_CHECKED;
/* Where `dir` was removed, or another put in its place, since *lock was taken: takes it anew. On
 * failure *lock stays as it is. */
weft_status wefti_checkpoint_lock_keep(const char *dir, wefti_checkpoint_lock **lock) WEFT_CHECKED;
void wefti_checkpoint_lock_close(wefti_checkpoint_lock *lock);

/* Steps with a valid manifest, ascending (NULL and 0 when there are none or `dir` is absent);
 * wefti_free. */
weft_status wefti_checkpoint_list(const char *dir, int64_t **out_steps,
                                  int64_t *out_count) WEFT_CHECKED;
/* Delete all but the `keep` >= 1 newest steps; never the newest good one or a newer one: it is
 * verified before an older one goes. Without a good one nothing is deleted. */
weft_status wefti_checkpoint_prune(const char *dir, int64_t keep) WEFT_CHECKED;
/* The same when step `good` is known to be good, having just been written and synced: nothing is
 * read back. */
weft_status wefti_checkpoint_prune_below(const char *dir, int64_t keep, int64_t good) WEFT_CHECKED;

/* ---- reading ---- */

typedef struct wefti_checkpoint wefti_checkpoint;

/* A tensor of an open checkpoint; borrowed until it is closed. */
typedef struct wefti_checkpoint_entry {
    const char *name, *layout, *file;
    wefti_checkpoint_role role;
    weft_desc desc;
    const wefti_reader *reader; /* of its file, where it lies at byte `at` */
    int64_t at, bytes;
    uint32_t crc32c;
} wefti_checkpoint_entry;

/* Open a step and verify every checksum. `path` is a run's directory, or a step's own. With
 * WEFTI_CHECKPOINT_LATEST a damaged step is skipped for the one before it, and `out_note` (may be
 * NULL) says which and why (NULL: none was skipped; wefti_free). WEFT_E_NOT_FOUND when there is no
 * step, WEFT_E_CORRUPT when none is good. */
weft_status wefti_checkpoint_open(const char *path, int64_t step, wefti_checkpoint **out,
                                  char **out_note) WEFT_CHECKED;
void wefti_checkpoint_close(wefti_checkpoint *c);
const char *wefti_checkpoint_path(const wefti_checkpoint *c); /* of the step's directory */
const wefti_checkpoint_meta *wefti_checkpoint_meta_of(const wefti_checkpoint *c);
/* Value of a key in a list of pairs, NULL when absent. */
const char *wefti_checkpoint_value(const wefti_checkpoint_pairs *pairs, const char *key);
int64_t wefti_checkpoint_count(const wefti_checkpoint *c);
const wefti_checkpoint_entry *wefti_checkpoint_at(const wefti_checkpoint *c, int64_t index);
const wefti_checkpoint_entry *wefti_checkpoint_find(const wefti_checkpoint *c,
                                                    wefti_checkpoint_role role, const char *name);
/* Copy a tensor out, checksum verified on the copied bytes. WEFT_E_NOT_FOUND, WEFT_E_SHAPE when it
 * is not `desc`, WEFT_E_CORRUPT. */
weft_status wefti_checkpoint_read(const wefti_checkpoint *c, wefti_checkpoint_role role,
                                  const char *name, const weft_desc *desc, void *dst) WEFT_CHECKED;
/* WEFT_E_SHAPE with a message naming the first five tensors that are missing, unexpected or of
 * another shape or dtype, when the checkpoint's tensors of `role` are not exactly the expected ones
 * of that role. */
weft_status wefti_checkpoint_compare(const wefti_checkpoint *c, wefti_checkpoint_role role,
                                     const wefti_checkpoint_tensor *expected,
                                     int64_t count) WEFT_CHECKED;

/* Every byte of one step's directory against its manifest. */
weft_status wefti_checkpoint_verify(const char *step_path) WEFT_CHECKED;

#endif
