/* Checkpoints of a training run: written whole or not at all, verified when read, readable by other
 * tools.
 *
 * DIR/step-000000000100/ holds the model as a Hugging Face directory (config.json and
 * model*.safetensors under the model's parameter names), the optimizer state
 * (optimizer-*.safetensors, tensors `<parameter>.<state>`), and manifest.json. The manifest holds
 * everything else that a run needs to continue with the same bits, and a CRC32C of every byte of
 * the step. A step is written into a hidden sibling directory, synced, and renamed into place last.
 * A directory without a valid manifest is not a step. Format: docs/reference/format-checkpoint.md.
 *
 * Writing overlaps with training. Parameters and optimizer state are constant from one update to
 * the next, so a thread captures the live tensors during forward and backward. Before the trainer
 * changes a tensor it calls wefti_checkpoint_wait_tensor. No second copy of the model is made.
 * Overlapping the snapshot with compute: Mohan et al., "CheckFreq", FAST'21, section 4. */
#ifndef WEFTI_CHECKPOINT_H
#define WEFTI_CHECKPOINT_H

#include <stdbool.h>

#include "device/home.h"
#include "base/reader.h"
#include "base/status.h"
#include "checkpoint/seal/seal.h"
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

/* The state of a run beside its tensors. Texts are UTF-8. Numbers in pairs are text, printed so
 * that they read back exactly ("%.17g"). Keys are unique within their list. */
typedef struct wefti_checkpoint_meta {
    int64_t step;          /* updates done, >= 0 */
    int64_t data_position; /* samples consumed, in the global order */
    uint64_t seed;
    const char *optimizer;           /* "adamw"; NULL: none */
    wefti_checkpoint_pairs settings; /* of the optimizer and schedule */
    wefti_checkpoint_pairs random;   /* state of the random generators beyond seed and position */
    wefti_checkpoint_pairs
        compute; /* isa, matmul path, threads: to resume with the same arithmetic */
    wefti_checkpoint_pairs notes;        /* anything else */
    const wefti_checkpoint_loss *losses; /* the end of the loss history, may be empty */
    int64_t loss_count;
    /* Set by reading, ignored by writing. */
    uint64_t fingerprint; /* hash of the model tensors' names and shapes */
    const char *weft_version;
} wefti_checkpoint_meta;

/* A part of a tensor: a region, and the home that has it. */
typedef struct wefti_checkpoint_piece {
    wefti_region box;
    wefti_home home;
} wefti_checkpoint_piece;

/* A tensor to write, or an expected one. Names are unique within their role. A tensor in pieces is
 * written as the whole tensor: files do not show how it was split. If several processes write a
 * step, `pieces` holds those of this process, and the pieces of all processes cover the tensor. */
typedef struct wefti_checkpoint_tensor {
    const char *name;
    wefti_checkpoint_role role;
    weft_desc desc;
    const void *data;   /* live memory; not read by wefti_checkpoint_compare */
    const char *layout; /* how it is split; NULL: "replicated", the whole tensor */
    /* In place of `data`: elements from `first` on of the tensor `whole`, which lies in pieces. The
     * regions of the pieces cover it, each element once. NULL: no pieces. */
    const wefti_checkpoint_piece *pieces;
    int64_t piece_count;
    weft_desc whole;
    int64_t first;
    /* Instead of the elements from `first` on: this region of `whole`, which lies in one piece and
     * has the tensor's elements in their order. NULL: as above. */
    const wefti_region *part;
    bool
        later; /* neither of these: wefti_checkpoint_options.take supplies it when it is captured */
} wefti_checkpoint_tensor;

/* A file beside the model: config.json, tokenizer.json. */
typedef struct wefti_checkpoint_text {
    const char *name, *text;
    int64_t bytes; /* 0: up to the NUL */
} wefti_checkpoint_text;
int64_t wefti_checkpoint_text_bytes(const wefti_checkpoint_text *t);

/* What a process does for a step. If several processes write one, all pass the same tensors and
 * options, except for the tensors' places. */
typedef enum wefti_checkpoint_duty {
    WEFTI_CHECKPOINT_ALONE, /* writes everything */
    WEFTI_CHECKPOINT_LEADS, /* creates the files, writes its own pieces, completes the step */
    WEFTI_CHECKPOINT_JOINS, /* writes its own pieces into the leader's files */
    WEFTI_CHECKPOINT_SLICES /* writes what its rank has into files of its own (slicing) */
} wefti_checkpoint_duty;

/* A sliced step: every rank writes what it has into a directory of its own, DIR/rank_R. */

enum { WEFTI_CHECKPOINT_SLICES_MOST = 1 << 16 }; /* regions of one tensor */

/* A region of a tensor, which some ranks write. The regions of a tensor cover it, each element
 * once. */
typedef struct wefti_checkpoint_slice {
    int64_t tensor; /* number in `wholes` */
    wefti_region region;
    const int32_t *ranks; /* that write it, ascending */
    int32_t rank_count;
    int64_t own; /* number of the tensor to write that it is; -1: this rank does not write it */
    bool counts; /* this rank adds it to the sum of the tensor: one rank of each region does */
} wefti_checkpoint_slice;

typedef struct wefti_checkpoint_slicing {
    int32_t rank, ranks;
    const wefti_checkpoint_tensor *wholes; /* name, role and desc count */
    int64_t whole_count;
    const wefti_checkpoint_slice *slices; /* in the order of `tensor` */
    int64_t slice_count;
} wefti_checkpoint_slicing;

typedef struct wefti_checkpoint_options {
    wefti_checkpoint_duty duty;
    int64_t shard_bytes; /* largest tensor file, 0: 4 GiB; a larger tensor gets a file of its own */
    int64_t keep;        /* after the commit, prune to this many steps; 0: prune nothing */
    int64_t spacing;     /* wefti_checkpoint_prune_spaced, in seconds */
    int64_t best;        /* a step that is not pruned; 0: none */
    int nice;            /* added to the writer thread's niceness, 0 to 19 */
    const wefti_checkpoint_text *texts; /* may be NULL */
    int64_t text_count;
    const wefti_checkpoint_slicing *slicing; /* of the duty SLICES */
    const wefti_key *key; /* encrypts all files: of the duties ALONE and SLICES; NULL: plain */
    /* For tensors with `later`. The writing thread calls `take` for one tensor after another, in
     * the order of capture. It waits for tensor `index`; NULL gives the step up. After the capture
     * the thread calls `give_back` with the index, and with -1 when it asks for no more. */
    const void *(*take)(void *context, int64_t index);
    void (*give_back)(void *context, int64_t index);
    void *context;
} wefti_checkpoint_options;

/* ---- writing ---- */

typedef struct wefti_checkpoint_job wefti_checkpoint_job;

/* Starts to write DIR/step-N in a thread. Copies everything but the tensors' bytes. Tensor i may
 * change after wefti_checkpoint_wait_tensor(job, i) has returned. Tensors are captured in the given
 * order, but larger element sizes first: pass them in the order of the update. Replaces an existing
 * step N. `options` may be NULL. The caller holds the lock of `dir`, which exists. */
weft_status wefti_checkpoint_begin(const char *dir, const wefti_checkpoint_meta *meta,
                                   const wefti_checkpoint_tensor *tensors, int64_t count,
                                   const wefti_checkpoint_options *options,
                                   wefti_checkpoint_job **out) WEFT_CHECKED;
/* Blocks until tensor `index` is captured, or until the job has failed and reads no more tensors.
 * NULL job: returns. */
void wefti_checkpoint_wait_tensor(wefti_checkpoint_job *job, int64_t index);
void wefti_checkpoint_wait_all(wefti_checkpoint_job *job); /* all tensors captured */
/* Nanoseconds that callers were blocked in the two calls above. */
int64_t wefti_checkpoint_waited_ns(const wefti_checkpoint_job *job);
/* WEFT_PENDING while the thread works, then WEFT_OK or the failure. Does not end the job. */
weft_status wefti_checkpoint_poll(wefti_checkpoint_job *job);
/* Waits for the thread and ends the job. After a failure this step is gone and earlier steps
 * remain. `out_note` (may be NULL) receives NULL, or a text about a failure after the commit
 * (pruning); wefti_free it. NULL job: WEFT_OK. */
weft_status wefti_checkpoint_finish(wefti_checkpoint_job *job, char **out_note) WEFT_CHECKED;
/* Gives the step up: the thread stops at the next tensor and the job ends. Removes the step unless
 * it was already committed. */
void wefti_checkpoint_cancel(wefti_checkpoint_job *job);
/* Begins and finishes in one call: ALONE. */
weft_status wefti_checkpoint_write(const char *dir, const wefti_checkpoint_meta *meta,
                                   const wefti_checkpoint_tensor *tensors, int64_t count,
                                   const wefti_checkpoint_options *options,
                                   char **out_note) WEFT_CHECKED;

/* ---- writing in several processes ---- */

/* The leader prepares the step. All processes examine whether they see its directory; those that do
 * not take no part. The leader begins, and then the others begin. When the part of every process is
 * written, the leader receives the sums and completes the step. Until then the step does not exist.
 * A process that fails reports that, and all others cancel.
 *
 * Makes the directory of step `step`, with a random number in it. */
weft_status wefti_checkpoint_prepare(const char *dir, int64_t step,
                                     uint64_t *out_number) WEFT_CHECKED;
/* Undoes it; for a leader that has not begun. */
void wefti_checkpoint_unprepare(const char *dir, int64_t step);
/* Whether this process finds the prepared directory of the leader under `dir`. */
bool wefti_checkpoint_sees(const char *dir, int64_t step, uint64_t number);
/* The own part: WEFT_PENDING, WEFT_OK when it is on the disk, or its failure. */
weft_status wefti_checkpoint_written(wefti_checkpoint_job *job);
void wefti_checkpoint_wait_done(wefti_checkpoint_job *job);    /* until poll does not say PENDING */
void wefti_checkpoint_wait_written(wefti_checkpoint_job *job); /* until it is not pending */
/* After that: of each tensor, the sum of the own pieces (wefti_crc_sum_of), and how many bytes they
 * have together. Valid until the job ends. */
const uint32_t *wefti_checkpoint_sums(const wefti_checkpoint_job *job, int64_t *out_bytes);
/* The leader completes the step with the XOR of all processes' sums, and the sum of their bytes.
 * Returns at once; poll and finish tell the result. */
void wefti_checkpoint_complete(wefti_checkpoint_job *job, const uint32_t *sums, int64_t bytes);

/* ---- sliced steps ---- */

/* A process writes the regions of its rank as tensors into a step of its own directory, DIR/rank_R.
 * The calls above that number tensors (wait_tensor, sums, complete) number those of
 * `slicing.wholes`. When the own part is written, the processes exchange their sums, and each one
 * completes its step. The sliced step exists where the steps of enough ranks do that each region is
 * there. */

/* DIR/rank_R; wefti_free. */
weft_status wefti_checkpoint_rank_dir(const char *dir, int32_t rank, char **out) WEFT_CHECKED;
/* After all ranks have completed step `good`: removes what no rank prunes in its own folder. These
 * are the whole step `good`, which readers would prefer, and the older whole steps in `dir` beyond
 * `keep` steps. In folders of ranks from `ranks` on, step `good` goes, and each older step that the
 * folder of rank 0 lacks. */
weft_status wefti_checkpoint_prune_sliced(const char *dir, int32_t ranks, int64_t keep,
                                          int64_t best, int64_t good) WEFT_CHECKED;

/* Removes unfinished steps later than `restored` from the folder of a rank. The run goes on from
 * step `restored`, and the rank holds the lock of its folder. */
weft_status wefti_checkpoint_clean_sliced(const char *dir, int32_t rank,
                                          int64_t restored) WEFT_CHECKED;

/* ---- the directory of a run ---- */

enum { WEFTI_CHECKPOINT_LATEST = -1 }; /* in place of a step */

/* One run per directory. Makes `dir` if needed, takes DIR/.lock (flock, released with the process),
 * and removes leftovers of an interrupted run. WEFT_E_ARG if another process holds the lock, with
 * its number, or if `dir` is the directory of a step. If `dir` was made and nothing was put into
 * it, closing the lock removes it. */
typedef struct wefti_checkpoint_lock wefti_checkpoint_lock;
weft_status wefti_checkpoint_lock_open(const char *dir, wefti_checkpoint_lock **out) WEFT_CHECKED;
/* If `dir` was removed or replaced since *lock was taken, takes the lock again. On failure *lock
 * stays as it is. */
weft_status wefti_checkpoint_lock_keep(const char *dir, wefti_checkpoint_lock **lock) WEFT_CHECKED;
void wefti_checkpoint_lock_close(wefti_checkpoint_lock *lock);

/* Finished steps with a valid manifest, ascending; NULL and 0 without steps or without `dir`.
 * wefti_free. */
weft_status wefti_checkpoint_list(const char *dir, int64_t **out_steps,
                                  int64_t *out_count) WEFT_CHECKED;
/* Deletes the steps before the newest good one, except the `keep` - 1 newest of them. All later
 * steps stay. Before it deletes a step, it verifies that a newer one is good. Without a good step
 * it deletes nothing. */
weft_status wefti_checkpoint_prune(const char *dir, int64_t keep) WEFT_CHECKED;
/* The same for a caller that knows that step `good` is good, because it was just written and
 * synced. Reads nothing back. */
weft_status wefti_checkpoint_prune_below(const char *dir, int64_t keep, int64_t good) WEFT_CHECKED;
/* The same, but of the steps beyond `keep` one stays for each `spacing` seconds (0: none): the
 * first, and each that was written at least that long after the last that stays. The time of a step
 * is its note WEFTI_CHECKPOINT_TIME, in seconds since 1970. A step without it goes. Step `best`
 * stays, too; -1: none. */
#define WEFTI_CHECKPOINT_TIME "time"
weft_status wefti_checkpoint_prune_spaced(const char *dir, int64_t keep, int64_t spacing,
                                          int64_t best, int64_t good) WEFT_CHECKED;

/* ---- reading ---- */

typedef struct wefti_checkpoint wefti_checkpoint;

/* A tensor of an open checkpoint; borrowed until the checkpoint is closed. */
typedef struct wefti_checkpoint_entry {
    const char *name, *layout, *file;
    wefti_checkpoint_role role;
    weft_desc desc;
    const wefti_reader *reader; /* of its file, with the tensor at byte `at` */
    int64_t at, bytes;
    uint32_t crc32c;
} wefti_checkpoint_entry;

/* Opens a step and verifies every checksum. `path` is a run's directory, or a step's own. With
 * WEFTI_CHECKPOINT_LATEST a damaged or unfinished step is skipped for the step before it.
 * `out_note` (may be NULL) then lists the skipped steps and why (NULL: none; wefti_free), also
 * beside WEFT_E_NOT_FOUND. WEFT_E_NOT_FOUND without any finished step, WEFT_E_CORRUPT without a
 * good one.
 */
weft_status wefti_checkpoint_open(const char *path, int64_t step, wefti_checkpoint **out,
                                  char **out_note) WEFT_CHECKED;
/* The newest step below `below` of a run's directory, without reading the tensors' bytes: a caller
 * who reads them checks them against `crc32c` of the entries. Otherwise as wefti_checkpoint_open
 * with WEFTI_CHECKPOINT_LATEST. */
weft_status wefti_checkpoint_open_unread(const char *dir, int64_t below, wefti_checkpoint **out,
                                         char **out_note) WEFT_CHECKED;
/* A step, or the newest finished step of a run, which must not be damaged. Checks headers and
 * texts, but not the tensors' bytes. */
weft_status wefti_checkpoint_open_quick(const char *path, wefti_checkpoint **out) WEFT_CHECKED;
/* Of a sliced step: from now on each slice is verified before it is first read, and replicas are
 * read in place of damaged slices. For a caller that has found a wrong checksum of a tensor, or
 * that compares no checksums. True: it was not so before, and reading again may help. False: no
 * replica can help. */
bool wefti_checkpoint_doubt(wefti_checkpoint *c);
/* Reads ranges of tensors, in a process that needs only a part of each, and sums their checksum.
 * The XOR of the sums of all processes gives the checksum of the tensor. */
typedef struct wefti_checkpoint_part wefti_checkpoint_part;
weft_status wefti_checkpoint_part_create(wefti_checkpoint_part **out) WEFT_CHECKED;
void wefti_checkpoint_part_destroy(wefti_checkpoint_part *part);
/* The following calls read this tensor. Its sum begins. */
void wefti_checkpoint_part_begin(wefti_checkpoint_part *part, const wefti_checkpoint_entry *entry);
/* Reads elements [first, first + count). Ranges ascend, and each is read once. */
weft_status wefti_checkpoint_part_read(wefti_checkpoint_part *part, int64_t first, int64_t count,
                                       void *out) WEFT_CHECKED;
uint32_t wefti_checkpoint_part_sum(wefti_checkpoint_part *part); /* ends it */
/* Hint: the process will soon read region `box` of the tensor `whole`, of which the entry holds the
 * elements from `first` on. */
void wefti_checkpoint_soon(const wefti_checkpoint_entry *entry, const weft_desc *whole,
                           int64_t first, const wefti_region *box);
/* A checksum of the step's manifest: equal in all processes that have opened the same step. */
uint32_t wefti_checkpoint_identity(const wefti_checkpoint *c);
void wefti_checkpoint_close(wefti_checkpoint *c);
const char *wefti_checkpoint_path(const wefti_checkpoint *c); /* of the step's directory */
const wefti_checkpoint_meta *wefti_checkpoint_meta_of(const wefti_checkpoint *c);
/* The value of a key in a list of pairs; NULL if absent. */
const char *wefti_checkpoint_value(const wefti_checkpoint_pairs *pairs, const char *key);
int64_t wefti_checkpoint_count(const wefti_checkpoint *c);
const wefti_checkpoint_entry *wefti_checkpoint_at(const wefti_checkpoint *c, int64_t index);
const wefti_checkpoint_entry *wefti_checkpoint_find(const wefti_checkpoint *c,
                                                    wefti_checkpoint_role role, const char *name);
/* Copies a tensor out and verifies the checksum of the copied bytes. WEFT_E_NOT_FOUND; WEFT_E_SHAPE
 * if it is not `desc`; WEFT_E_CORRUPT. */
weft_status wefti_checkpoint_read(const wefti_checkpoint *c, wefti_checkpoint_role role,
                                  const char *name, const weft_desc *desc, void *dst) WEFT_CHECKED;
/* Compares the checkpoint's tensors of `role` with the expected ones of that role. WEFT_E_SHAPE
 * names the first five that are missing, unexpected, or of another shape or dtype. */
weft_status wefti_checkpoint_compare(const wefti_checkpoint *c, wefti_checkpoint_role role,
                                     const wefti_checkpoint_tensor *expected,
                                     int64_t count) WEFT_CHECKED;

/* Verifies every byte of one step's directory against its manifest. */
weft_status wefti_checkpoint_verify(const char *step_path) WEFT_CHECKED;

#endif
