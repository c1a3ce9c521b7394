/* The directory of a run from inside: its steps, the folders of its ranks, and the files behind an
 * open step. */
#ifndef WEFTI_CHECKPOINT_RUN_RUN_H
#define WEFTI_CHECKPOINT_RUN_RUN_H

#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

/* ---- files.c: one folder ---- */

typedef struct wefti_step_files {
    char *path;
    wefti_manifest *manifest;
    wefti_reader **readers;    /* one per file of the manifest */
    wefti_safetensors **files; /* NULL for a file without tensors */
    int64_t file_count;        /* of both */
    uint32_t identity;         /* checksum of the manifest */
    wefti_seal_mark mark;      /* of all files, as of the manifest */
} wefti_step_files;

/* Reads the manifest of a step's folder. WEFT_E_CORRUPT: damaged, or there is none. */
weft_status wefti_step_files_manifest(wefti_step_files *f, const char *path) WEFT_CHECKED;
/* After that: opens all files; checks sizes, headers and texts. unread: no file is read ahead. */
weft_status wefti_step_files_open(wefti_step_files *f, bool unread) WEFT_CHECKED;
/* Frees the manifest; the files stay open. */
void wefti_step_files_forget(wefti_step_files *f);
void wefti_step_files_close(wefti_step_files *f);

/* ---- folders.c: the directory of a run, which has whole steps, sliced steps, or both ---- */

/* The ranks of the folders rank_N, ascending; wefti_free. */
weft_status wefti_rank_folders(const char *dir, int64_t **out, int64_t *out_count) WEFT_CHECKED;
/* All steps that `dir` or a folder of a rank has, by name alone, ascending; wefti_free. */
weft_status wefti_run_steps(const char *dir, int64_t **out_steps, int64_t *out_count) WEFT_CHECKED;
/* DIR/step-N, or, where that does not exist, the step's folder of the lowest rank that has it;
 * wefti_free. *out_sliced: which of both. Where there is neither, DIR/step-N. */
weft_status wefti_run_step_path(const char *dir, int64_t step, char **out,
                                bool *out_sliced) WEFT_CHECKED;

/* Refuses a folder rank_N of a sliced run, which has steps as a run has, but only a part of each.
 * It looks at the newest readable step. */
weft_status wefti_run_refuse_part(const char *dir) WEFT_CHECKED;

/* The manifest of step N of a run. WEFT_E_CORRUPT: it is damaged, or of another step. */
weft_status wefti_run_manifest(const char *dir, int64_t step, wefti_step_files *out) WEFT_CHECKED;

/* ---- sliced.c ---- */

/* A region of a tensor in the files of one rank. */
typedef struct wefti_sliced_piece {
    wefti_region region;
    int32_t rank;
    const char *path; /* of its file; NULL: missing */
    /* Reads the region, from byte `at` on; NULL: missing. A slice in doubt is verified when it is
     * first read, and if it is damaged, the region is read from another rank's files. */
    const wefti_reader *reader;
    int64_t at;
} wefti_sliced_piece;

typedef struct wefti_sliced wefti_sliced;

/* Opens step `step` of the folders in `dir`. Folders that lack it, and those with damaged files,
 * are missing ranks. WEFT_E_CORRUPT, with the tensor and the ranks, if a region has no file left;
 * WEFT_E_NOT_FOUND if the step is unfinished. The bytes of slices are not verified. */
weft_status wefti_sliced_open(const char *dir, int64_t step, wefti_sliced **out) WEFT_CHECKED;
void wefti_sliced_close(wefti_sliced *s);
const char *wefti_sliced_path(const wefti_sliced *s); /* of the lowest rank's folder */
const wefti_manifest *wefti_sliced_manifest(const wefti_sliced *s);
/* See wefti_checkpoint_doubt. WEFT_E_CORRUPT from a reader: no good slice is left of a region. */
bool wefti_sliced_doubt(wefti_sliced *s);
/* Reads tensor `index` of the manifest as if it were a file. */
const wefti_reader *wefti_sliced_reader(const wefti_sliced *s, int64_t index);
/* The regions of a tensor in all ranks' files, region by region. */
const wefti_sliced_piece *wefti_sliced_pieces(const wefti_sliced *s, int64_t index,
                                              int64_t *out_count);
/* Verifies every slice of every rank. A line for each that is damaged or missing is added to `out`,
 * though other ranks may have its region. */
weft_status wefti_sliced_verify(wefti_sliced *s, wefti_text *out) WEFT_CHECKED;

/* unfinished.c: checks the step of `dir` that the manifest describes. WEFT_E_NOT_FOUND: the step is
 * unfinished. No rank has a certain region, because a rank was killed before it put its part into
 * place, or after it removed it. A step that lost a region later is damaged, not unfinished. */
weft_status wefti_sliced_check_finished(const char *dir, const wefti_manifest *m) WEFT_CHECKED;

/* The slices of an open checkpoint; NULL: it is whole. */
wefti_sliced *wefti_checkpoint_sliced(const wefti_checkpoint *c);

#endif
