/* Examines checkpoints and directories of safetensors, and merges and splits slices, without a
 * model or a run. No call is collective. */
#ifndef WEFT_CHECKPOINT_H
#define WEFT_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** From now on, this process reads files that were encrypted with a key, beside those of earlier
 * calls. Sessions that are created from then on encrypt their files for tensors in tier DISK.
 * Training takes the key of its job by itself. See docs/guide/how-to-encrypt.md.
 *
 * @param where  the path of a file with 64 hexadecimal digits, which only its owner can read, or
 *   env:NAME, an environment variable that holds them
 * @return WEFT_OK; WEFT_E_ARG if this is no key, or others can read the file; WEFT_E_NOT_FOUND;
 * WEFT_E_IO; WEFT_E_NO_IMPL in a build without OpenSSL. No message shows the key */
WEFT_API weft_status weft_checkpoint_key(const char *where) WEFT_CHECKED;

/** Make a new random key: a file that only its owner can read. WEFT_E_IO if `path` exists. */
WEFT_API weft_status weft_checkpoint_make_key(const char *path) WEFT_CHECKED;

/** Describe `path`: the directory of a run (its steps, and the newest good one in full), one step,
 * a Hugging Face directory, or a .safetensors file.
 *
 * @param json      0: text for people; otherwise one JSON object
 * @param out_text  freed with weft_checkpoint_text_free; unchanged on failure
 * @return WEFT_OK; WEFT_E_NOT_FOUND if `path` is none of these; WEFT_E_CORRUPT; WEFT_E_IO;
 * WEFT_E_NOMEM */
WEFT_API weft_status weft_checkpoint_describe(const char *path, int json,
                                              char **out_text) WEFT_CHECKED;

/** Read every byte at `path` (as for weft_checkpoint_describe) and check it: steps against the
 * checksums of their manifests; other safetensors, which have no checksums, against the rules of
 * the format.
 *
 * @param out_text  a line (or JSON array element) with the result of each step or file. Set
 * whenever the verification could run, also with WEFT_E_CORRUPT and without a finished step; freed
 * with weft_checkpoint_text_free
 * @return WEFT_OK if nothing is damaged and something is good; WEFT_E_CORRUPT for damage;
 * WEFT_E_NOT_FOUND, also if no step is finished; WEFT_E_IO; WEFT_E_NOMEM */
WEFT_API weft_status weft_checkpoint_verify(const char *path, int json,
                                            char **out_text) WEFT_CHECKED;

/** Write the adapters of `from` alone, in the form of PEFT (adapter_config.json and
 * adapter_model.safetensors). `from` is a run that trained adapters, or a step of one.
 *
 * @param base  what adapter_config.json names as the model below the adapters; NULL: nothing
 * @param out   the directory to make, completely or not at all
 * @return WEFT_OK; WEFT_E_ARG if `out` exists; WEFT_E_NOT_FOUND if there are no adapters;
 * WEFT_E_CORRUPT; WEFT_E_IO; WEFT_E_NOMEM */
WEFT_API weft_status weft_checkpoint_adapter(const char *from, const char *base,
                                             const char *out) WEFT_CHECKED;
/** Write a model without adapters, as a directory in the form of Hugging Face. Each weight W
 * becomes W + alpha / rank * B A.
 *
 * @param from  A run that trained adapters, a step of one, or adapters in the form of PEFT.
 * @param base  The model below the adapters. NULL: `from` has it.
 * @param out   The directory to make. It appears complete, or not at all.
 * @return as weft_checkpoint_adapter; WEFT_E_SHAPE if adapters do not fit the model */
WEFT_API weft_status weft_checkpoint_merge_adapter(const char *from, const char *base,
                                                   const char *out) WEFT_CHECKED;

/** How tensors are split into slices, for programs whose ranks hold slices of parameters.
 * Parameters with a name that matches `match` are split along `dimension`, from 0; with -1 each
 * rank has the whole. In `match`, * stands for any characters (dots too), ? for one, [a-z] for one
 * of these, and [!a-z] for none of these. If several entries match, the last one counts.
 *
 * An entry for a parameter also covers its optimizer's tensors. These have its shape, and its name
 * with one word more, after it ("w.m") or before it ("moments.w"). Name optimizer tensors of other
 * shapes themselves. */
typedef struct weft_checkpoint_slice_rule {
    const char *match;
    int dimension;
} weft_checkpoint_slice_rule;

/** Merge the slices of all ranks, in the order of ranks, into one .safetensors file. A slice is any
 * path that weft_checkpoint_describe takes; of a run the newest step, with the optimizer's state.
 * Slices may have any sizes along the split dimension. A tensor without an entry in `rules` must be
 * the same in all slices, and is written once.
 *
 * The merged file keeps metadata texts that are equal in all slices, except `rank` and `ranks`.
 * Slices with a `rank` must be in that order, and slices with `ranks` must be complete. Memory
 * stays below 256 MiB.
 *
 * @param path      the file to write, completely or not at all; must not exist
 * @param out_text  the result for each tensor, as text for people or (json) one JSON object; may be
 * NULL; freed with weft_checkpoint_text_free; unchanged on failure
 * @return WEFT_OK. WEFT_E_SHAPE if slices do not fit each other, and WEFT_E_MISMATCH if an unsplit
 * tensor differs; both name tensor and slices. WEFT_E_ARG for entries that match nothing, no
 * slices, missing slices, slices of different steps, or an existing file. WEFT_E_NO_IMPL for
 * element types and numbers of dimensions that weft lacks. WEFT_E_NOT_FOUND;
 * WEFT_E_CORRUPT; WEFT_E_IO; WEFT_E_NOMEM */
WEFT_API weft_status weft_checkpoint_merge(const char *const *slices, int slice_count,
                                           const weft_checkpoint_slice_rule *rules, int rule_count,
                                           const char *path, int json,
                                           char **out_text) WEFT_CHECKED;

/** Split the tensors at `path` (as for weft_checkpoint_digest) for `ranks` ranks, into
 * PREFIX-rank-00000-of-00004.safetensors and so on, all of them or none. Only a process that is
 * killed while it renames them leaves some; weft_checkpoint_merge refuses those. Of n elements
 * along the dimension, rank r gets those from floor(r n / ranks) to floor((r + 1) n / ranks). A
 * tensor without an entry in `rules` goes to every rank whole. The files' metadata has `rank` and
 * `ranks`.
 *
 * @param out_text  as for weft_checkpoint_merge
 * @return WEFT_OK; WEFT_E_SHAPE for a tensor without such a dimension; otherwise as
 * weft_checkpoint_merge */
WEFT_API weft_status weft_checkpoint_split(const char *path, int ranks,
                                           const weft_checkpoint_slice_rule *rules, int rule_count,
                                           const char *prefix, int json,
                                           char **out_text) WEFT_CHECKED;

/** The digest of the tensors at `path`: a hash of names, roles, types, shapes and checksums of
 * bytes, in any order. Equal tensors have equal digests, whatever files hold them and however they
 * are split. It equals the digest in a step's manifest. Streams: memory does not grow with the
 * model.
 *
 * @param path      any path that weft_checkpoint_describe takes; a directory of slices (folders
 *   rank_0, rank_1, ... with a .safetensors file each, or files *-rank-00000-of-0000N.safetensors);
 *   or a directory of torch's distributed checkpoints in safetensors
 * @param layouts   how ranks hold the slices: a plan, a strategy file of MindSpore (JSON or
 *   protobuf), a directory with one for each stage, or ranks with rules, "4:h.*.weight=1,bias=0"
 *   (weft_checkpoint_slice_rule; - for -1). NULL: the slices tell it themselves
 * @param out_text  the digest, and the checksum of each tensor; freed with
 *   weft_checkpoint_text_free; unchanged on failure
 * @return WEFT_OK. WEFT_E_CORRUPT for damage, and for parts that overlap; WEFT_E_NOT_FOUND for
 * missing parts; WEFT_E_MISMATCH for replicas with different values. WEFT_E_SHAPE and
 * WEFT_E_MISMATCH if the layouts do not fit the slices. WEFT_E_NO_IMPL; WEFT_E_ARG; WEFT_E_IO;
 * WEFT_E_NOMEM */
WEFT_API weft_status weft_checkpoint_digest(const char *path, const char *layouts, int json,
                                            char **out_text) WEFT_CHECKED;

/** Compare two checkpoints, tensor by tensor: names, shapes, types, the number of different
 * elements, the first of them, and the largest difference. Paths and layouts as for
 * weft_checkpoint_digest. Streams.
 *
 * @param out_differing  the number of tensors that differ
 * @return as weft_checkpoint_digest; differences are no failure */
WEFT_API weft_status weft_checkpoint_diff(const char *a, const char *a_layouts, const char *b,
                                          const char *b_layouts, int json, int64_t *out_differing,
                                          char **out_text) WEFT_CHECKED;

/** Formats that weft_checkpoint_reshard writes. */
typedef enum weft_checkpoint_format {
    WEFT_CHECKPOINT_AUTO, /* SLICES with `to`; else RUN if the source has a run's state; else HF */
    WEFT_CHECKPOINT_SLICES, /* rank_N/checkpoint_N.safetensors for each rank */
    WEFT_CHECKPOINT_DCP,    /* torch's distributed checkpoint in safetensors, sharded */
    WEFT_CHECKPOINT_RUN,    /* a run of weft with one step */
    WEFT_CHECKPOINT_HF      /* a model directory of Hugging Face */
} weft_checkpoint_format;

typedef struct weft_checkpoint_reshard_options {
    size_t struct_bytes;
    const char *from, *to; /* layouts of source and destination, as for weft_checkpoint_digest */
    const int *only;       /* with `to`: the ranks to write; NULL: all */
    int only_count;
    weft_checkpoint_format format;
    bool replicas; /* read other ranks' files if a file is missing */
} weft_checkpoint_reshard_options;
WEFTI_ZERO_DEFAULTS(weft_checkpoint_reshard_options, weft_checkpoint_reshard_defaults)

/** Convert a checkpoint to another format, or to the slices of other ranks. The values do not
 * change. The destination is not encrypted, also if the source is. Every byte is read once and
 * written once; memory stays below 256 MiB. Checksums that the source states are checked, except
 * with `only`. Replicas are compared, except with `only`.
 *
 * @param source       as for weft_checkpoint_digest
 * @param destination  must not exist; appears when it is complete, or not at all
 * @param options      NULL: the defaults
 * @param out_text     what was written; freed with weft_checkpoint_text_free
 * @return as weft_checkpoint_digest. WEFT_E_NOT_FOUND names a missing file and who else has its
 * part. WEFT_E_ARG if `destination` exists */
WEFT_API weft_status weft_checkpoint_reshard(const char *source, const char *destination,
                                             const weft_checkpoint_reshard_options *options,
                                             int json, char **out_text) WEFT_CHECKED;

/** The files that weft_checkpoint_reshard reads with `only` = {rank}. Other files may be missing.
 *
 * @param out_text  one path a line, or (json) one object with the list `files` */
WEFT_API weft_status weft_checkpoint_sources(const char *source, int rank,
                                             const weft_checkpoint_reshard_options *options,
                                             int json, char **out_text) WEFT_CHECKED;

/** Merge MindSpore's strategy files of pipeline stages into one, in JSON if `path` ends in .json,
 * else in protobuf. One file alone is converted. */
WEFT_API weft_status weft_checkpoint_merge_strategies(const char *const *paths, int count,
                                                      const char *path) WEFT_CHECKED;

/** Free a text of the calls above; NULL is legal. */
WEFT_API void weft_checkpoint_text_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
