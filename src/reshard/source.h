/* Checkpoints of every format as a source of named tensors.
 *
 * A tensor consists of pieces. A piece is a region of the tensor that lies in a file as one dense
 * array. A whole tensor has one piece. Pieces with equal regions are replicas. Each format is one
 * file of this folder that adds files, tensors and pieces (source_*.c); everything behind this
 * interface is independent of formats. */
#ifndef WEFTI_RESHARD_SOURCE_H
#define WEFTI_RESHARD_SOURCE_H

#include "base/map/map.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "reshard/layouts.h"

typedef struct wefti_source_file {
    const char *path;
    int32_t rank;               /* whose slices it holds; -1: of no rank */
    wefti_safetensors *tensors; /* NULL: not opened here, or missing */
    bool missing;
} wefti_source_file;

typedef struct wefti_source_piece {
    wefti_region region;
    const wefti_reader *reader; /* NULL: its file is missing */
    int64_t at;                 /* first byte in the file */
    int32_t file;
    int32_t order; /* of replicas: by rank, which missing files do not change */
    int32_t same;  /* the next piece of the tensor with the same region; -1: none */
    bool first;    /* of the pieces with this region */
    /* Of the first piece of a region: the piece to read, by wefti_reads_choose; -1: none. */
    int32_t chosen;
} wefti_source_piece;

typedef struct wefti_source_tensor {
    const char *name;
    wefti_checkpoint_role role;
    weft_desc desc; /* of the whole tensor */
    wefti_source_piece *pieces;
    int64_t count, capacity;
    bool unplaced; /* layouts do not tell which ranks have it: missing files may have it, too */
    bool checked;  /* `crc32c` is the checksum that the checkpoint states */
    uint32_t crc32c;
} wefti_source_tensor;

typedef struct wefti_shards {
    wefti_arena *arena; /* of names, paths and texts */
    char *path;         /* as given */
    wefti_source_file *files;
    wefti_source_tensor *tensors; /* ordered by role and name once the source is open */
    int64_t file_count, file_cap, count, cap;
    wefti_map names; /* of "<role><name>", to the number in `tensors` */
    wefti_map roles; /* of names in the manifest, to their role */
    wefti_map paths; /* of a step's files, to their number */
    int32_t ranks;   /* of sliced files; 0: the files belong to no ranks */
    /* Tensors that layouts name and of which every file is missing. With a manifest such tensors
     * are in `tensors`. */
    const char **absent;
    int64_t absent_count, absent_cap;
    wefti_map absent_names;
    /* Files are missing, and it is not known which tensors they had; the rest of a sentence that
     * tells why. NULL: it is known. */
    const char *unknown;
    bool maybe_replicas; /* the missing files may have only what others have */
    /* A run's state beside its tensors, from a step of weft or slices of one; NULL: none. Its
     * files and tensors are those of the step. */
    wefti_manifest *manifest;
    const char *manifest_text;
    int64_t manifest_bytes;
    wefti_checkpoint_text *texts; /* files of the model: config.json */
    int64_t text_count;
    wefti_checkpoint *step; /* the step that is the source, or NULL */
    /* For merge and split. What a file says of its place in whole tensors does not count, nor what
     * lies beside model.safetensors in a directory. */
    bool slice;
    struct wefti_shards **parts; /* [part_count]: slices that this source joins; owned */
    int part_count;
} wefti_shards;

/* Opens a .safetensors file, a step or a run of weft (the newest good step), a model directory,
 * a directory of torch's distributed checkpoints in safetensors, or a directory of slices: one
 * folder rank_N for each rank, or files *-rank-0000N-of-0000M.safetensors. `layouts` tells how
 * slices are placed; NULL: the slices tell it themselves. Reads headers only. */
weft_status wefti_shards_open(const char *path, const wefti_layouts *layouts,
                              wefti_shards **out) WEFT_CHECKED;
void wefti_shards_close(wefti_shards *s); /* NULL is legal */
/* source_parts.c: slices in the order of ranks; each is a path as above. WEFT_E_ARG for slices in
 * another order, missing slices and slices of other steps. */
weft_status wefti_shards_open_parts(const char *const *paths, int count,
                                    wefti_shards **out) WEFT_CHECKED;
/* Makes the slices one source with whole tensors. The slices of a tensor may have different sizes;
 * they follow each other along its dimension in `dimensions`, by wefti_shards_dimensions for the
 * first slice. WEFT_E_SHAPE if slices do not fit each other; WEFT_E_MISMATCH if they differ, and no
 * rule names the tensor. */
weft_status wefti_shards_join(wefti_shards *s, const int *dimensions) WEFT_CHECKED;
/* rules.c: the dimension along which layouts by rules split each tensor, into `out` [tensors].
 * WEFT_E_ARG for a rule that matches no tensor; WEFT_E_SHAPE for a dimension that a tensor lacks,
 * and for an optimizer's tensor of another shape than its split parameter of which no rule tells.
 */
weft_status wefti_shards_dimensions(const wefti_shards *s, const wefti_layouts *l,
                                    int *out) WEFT_CHECKED;

/* The number of a tensor, also while the source is being opened; -1: there is none. */
int64_t wefti_shards_number(const wefti_shards *s, wefti_checkpoint_role role, const char *name);
const wefti_source_tensor *wefti_shards_find(const wefti_shards *s, wefti_checkpoint_role role,
                                             const char *name);
/* The parameter of an optimizer's state, "w" for "w.m" and for "moments.w"; NULL: none. */
const wefti_source_tensor *wefti_shards_parameter(const wefti_shards *s,
                                                  const wefti_source_tensor *t);
/* The parameter "w" of "w.m", whatever its shape; NULL: none. */
const wefti_source_tensor *wefti_shards_before(const wefti_shards *s, const wefti_source_tensor *t);
/* The metadata of the first file. */
const wefti_safetensors_pair *wefti_shards_pairs(const wefti_shards *s, int64_t *out_count);
/* The ranks or paths of the files that hold this region, "rank 3, rank 7". */
void wefti_shards_holders(const wefti_shards *s, const wefti_source_tensor *t,
                          const wefti_source_piece *p, wefti_text *out);

/* Fails with WEFT_E_NOT_FOUND: no file has this tensor of `absent`. */
weft_status wefti_shards_fail_absent(const wefti_shards *s, const char *name) WEFT_CHECKED;
/* The paths of missing files, at most eight. */
void wefti_shards_missing(const wefti_shards *s, wefti_text *out);

/* ---- for the formats ---- */

/* An empty source, and one for merge or split (`slice`). */
weft_status wefti_shards_create(const char *path, wefti_shards **out) WEFT_CHECKED;
weft_status wefti_shards_open_slice(const char *path, wefti_shards **out) WEFT_CHECKED;

/* A file; *out its number. missing: only its path is known. */
weft_status wefti_shards_add_file(wefti_shards *s, const char *path, int32_t rank, bool missing,
                                  int32_t *out) WEFT_CHECKED;
/* A tensor with this name, new or from before. WEFT_E_MISMATCH if its shape or type differs. */
weft_status wefti_shards_add_tensor(wefti_shards *s, wefti_checkpoint_role role, const char *name,
                                    const weft_desc *whole, wefti_source_tensor **out) WEFT_CHECKED;
weft_status wefti_shards_add_piece(wefti_source_tensor *t,
                                   const wefti_source_piece *piece) WEFT_CHECKED;
/* The value of a metadata key of a file; NULL: absent. */
const char *wefti_shards_metadata(const wefti_safetensors *file, const char *key);
/* Orders the tensors and finds replicas. Refuses regions outside of their tensor, and regions that
 * overlap without being equal. */
weft_status wefti_shards_finish(wefti_shards *s) WEFT_CHECKED;

/* source_step.c: a step of weft. */
weft_status wefti_shards_open_step(wefti_shards *s) WEFT_CHECKED;
/* Takes the state of a run from `text`, the manifest that slices carry along. */
weft_status wefti_shards_take_manifest(wefti_shards *s, const char *text,
                                       int64_t bytes) WEFT_CHECKED;
/* The files beside a model in a directory that is no step. */
weft_status wefti_shards_take_side_files(wefti_shards *s) WEFT_CHECKED;
/* Reads the texts of the manifest from a directory. */
weft_status wefti_shards_take_texts(wefti_shards *s, const char *dir) WEFT_CHECKED;
/* The role that the manifest gives to a name; without a manifest all tensors are the model's. */
wefti_checkpoint_role wefti_shards_role(const wefti_shards *s, const char *name);
/* source_lost.c: of slices, what no file that is there has. `file_of` [ranks] are the numbers of
 * files. Adds the tensors of the manifest, with the regions that the layouts give; notes those that
 * only the layouts name. Called when all slices are placed. */
weft_status wefti_shards_add_lost(wefti_shards *s, const wefti_layouts *layouts,
                                  const int32_t *file_of) WEFT_CHECKED;
/* source_dir.c: a file, a model directory, or a directory of safetensors files. */
weft_status wefti_shards_open_dir(wefti_shards *s) WEFT_CHECKED;
/* source_ranks.c: slices. *out false: the directory has none. */
weft_status wefti_shards_open_ranks(wefti_shards *s, const wefti_layouts *layouts,
                                    bool *out) WEFT_CHECKED;

/* The name of the file beside slices that carries the manifest of the step. */
#define WEFTI_SLICES_MANIFEST "weft-step.json"
/* Metadata of a file of slices: a JSON object {"name": {"shape": [..], "begin": [..]}}. */
#define WEFTI_SLICES_REGIONS "weft_regions"
/* The same of torch: {"name": {"saved_offsets": [..]}}. */
#define WEFTI_DCP_REGIONS "DCP_SHARDING_INFO"

#endif
