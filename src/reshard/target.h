/* A destination: files of safetensors that hold regions of a source's tensors.
 *
 * A format adds files and items (target_*.c). The copier fills all items in one pass over the
 * source (copy.h). Everything is written into a hidden directory beside the destination, which is
 * renamed last: a killed run leaves the destination absent. */
#ifndef WEFTI_RESHARD_TARGET_H
#define WEFTI_RESHARD_TARGET_H

#include <stdatomic.h>

#include "reshard/source.h"

typedef struct wefti_target_item {
    int64_t tensor; /* number in the source */
    wefti_region region;
    int32_t file;
    int64_t at;    /* first byte in the file, once it is laid out */
    int64_t order; /* of the items of a file with equal element sizes */
    int32_t next;  /* the next item of this tensor; -1: none */
} wefti_target_item;

typedef struct wefti_target_file {
    const char *name;  /* in the directory */
    const char *place; /* where a file goes that leaves the directory; NULL: it stays */
    int32_t rank;      /* whose slices it holds; -1: of no rank */
    int64_t bytes, header_bytes;
    uint32_t header_crc32c;
    int fd; /* -1: opened for each write */
} wefti_target_file;

typedef enum wefti_target_regions {
    WEFTI_REGIONS_NONE,   /* whole tensors */
    WEFTI_REGIONS_RANKS,  /* the rank, and not its regions */
    WEFTI_REGIONS_SLICES, /* as slices of weft state them */
    WEFTI_REGIONS_DCP     /* as torch states them */
} wefti_target_regions;

typedef struct wefti_target {
    const wefti_shards *source;
    wefti_arena *arena;
    char *path, *temporary; /* the destination, and the directory that becomes it */
    bool beside;            /* `path` begins the paths of the files, and is no directory */
    const wefti_safetensors_pair *pairs; /* metadata of each file */
    int64_t pairs_count;
    wefti_target_file *files;
    wefti_target_item *items;
    int64_t file_count, file_cap, item_count, item_cap;
    int32_t *first_item; /* [tensors of the source]; -1: none */
    wefti_target_regions regions;
    int32_t ranks;    /* of the layouts; 0: whole tensors */
    uint32_t *crc32c; /* [tensors]: of the copied bytes; only if whole tensors were copied */
    bool made;        /* `temporary` exists, and belongs to this target */
    int claim;        /* the descriptor of `temporary`, which it locks; -1: none */
} wefti_target;

/* WEFT_E_ARG if `path` exists. NULL: nothing will be written; only the items matter. */
weft_status wefti_target_create(const wefti_shards *source, const char *path,
                                wefti_target **out) WEFT_CHECKED;
/* Files in an existing directory, of which `stem` begins the paths: all of them appear, or none. */
weft_status wefti_target_create_beside(const wefti_shards *source, const char *stem,
                                       wefti_target **out) WEFT_CHECKED;
/* Removes the temporary directory, if it is still there. */
void wefti_target_destroy(wefti_target *t); /* NULL is legal */
/* WEFT_E_ARG if a file that leaves the directory exists. */
weft_status wefti_target_add_file(wefti_target *t, const char *name, int32_t rank,
                                  int32_t *out) WEFT_CHECKED;
weft_status wefti_target_add_item(wefti_target *t, int32_t file, int64_t tensor,
                                  const wefti_region *region) WEFT_CHECKED;
/* The region of a whole tensor. */
wefti_region wefti_region_whole(const weft_desc *desc);
/* target_claim.c: makes the temporary directory, empty. WEFT_E_ARG if another process uses it. */
weft_status wefti_target_claim(wefti_target *t) WEFT_CHECKED;
/* Gives every item its place, and creates the files with their headers. */
weft_status wefti_target_make(wefti_target *t) WEFT_CHECKED;
/* Writes bytes of a file. Any thread may call it. */
weft_status wefti_target_write(const wefti_target *t, int32_t file, int64_t at, const void *data,
                               size_t bytes) WEFT_CHECKED;
/* A small file of the directory. */
weft_status wefti_target_text(const wefti_target *t, const char *name, const char *text,
                              int64_t bytes) WEFT_CHECKED;
/* Syncs everything, and renames the directory, or its files. */
weft_status wefti_target_commit(wefti_target *t) WEFT_CHECKED;

/* ---- formats: add files and items; after the copy, add what belongs to them ---- */

/* target_ranks.c. only [ranks]: the ranks to write; NULL: all. */
weft_status wefti_target_slices(wefti_target *t, const wefti_layouts *to,
                                const bool *only) WEFT_CHECKED;
weft_status wefti_target_slices_end(wefti_target *t) WEFT_CHECKED;
/* torch's files: each region is written by the first rank that holds it. */
weft_status wefti_target_dcp(wefti_target *t, const wefti_layouts *to) WEFT_CHECKED;
/* target_whole.c: a model directory; a run of weft with one step. */
weft_status wefti_target_model(wefti_target *t) WEFT_CHECKED;
weft_status wefti_target_model_end(wefti_target *t) WEFT_CHECKED;
/* The files beside the model, in the destination itself. */
weft_status wefti_target_side_files(wefti_target *t) WEFT_CHECKED;
typedef struct wefti_target_step wefti_target_step;
weft_status wefti_target_run(wefti_target *t, wefti_target_step **out) WEFT_CHECKED;
weft_status wefti_target_run_end(wefti_target *t, wefti_target_step *step) WEFT_CHECKED;
void wefti_target_run_free(wefti_target_step *step); /* NULL is legal */

#endif
