/* Models in the form of Hugging Face: weights and configurations from directories. config.json and
 * the names of tensors are public: weft/model.h. */
#ifndef WEFTI_INTEROP_PRETRAINED_H
#define WEFTI_INTEROP_PRETRAINED_H

#include "checkpoint/side_files.h"
#include "checkpoint/tensor_set.h"
#include "session/party.h"
#include "tokenizer/special.h"
#include "weft/data.h"
#include "weft/model.h"
#include "weft/session.h"

/* Loads weights from one of: a Hugging Face directory; a step of weft, which is such a directory
 * with checksums; a run's directory, which stands for its newest good step. */
weft_status wefti_pretrained_load(weft_session *session, const weft_model_config *config,
                                  const char *directory) WEFT_CHECKED;
/* The same across processes: rank 0 reads, collective. *out_note: see wefti_pretrained_path; set on
 * failure too. */
weft_status wefti_pretrained_load_across(const wefti_party *party, weft_session *session,
                                         const weft_model_config *config, const char *directory,
                                         char **out_note) WEFT_CHECKED;
/* The same from the directory that wefti_pretrained_path has found on rank 0 and all ranks know. If
 * all ranks see its files, each reads only the parts that its device has. Nothing must change these
 * values later: a tier on a disk reads them from the files of the directory, where dtype and slices
 * allow. */
weft_status wefti_pretrained_load_parts(const wefti_party *party, weft_session *session,
                                        const weft_model_config *config,
                                        const char *path) WEFT_CHECKED;
weft_status wefti_pretrained_config(const char *directory, weft_model_config *out) WEFT_CHECKED;
/* Reads a config.json alone: `path` is that file, or a directory that holds it. */
weft_status wefti_pretrained_config_file(const char *path, weft_model_config *out) WEFT_CHECKED;
/* The same in two steps. First find the directory with the weights, with all checksums verified,
 * and the newer steps that are damaged (NULL: none). Free both with wefti_free. Then load from it.
 */
weft_status wefti_pretrained_path(const char *directory, char **out, char **out_note) WEFT_CHECKED;
/* Collective: rank 0 finds it, and has the note. */
weft_status wefti_pretrained_path_across(const wefti_party *party, const char *directory,
                                         char **out, char **out_note) WEFT_CHECKED;

/* ---- adapters, in the form of PEFT: adapter_config.json, adapter_model.safetensors ---- */

/* Reads adapter_config.json of a directory. */
weft_status wefti_adapter_read(const char *directory, weft_lora *out) WEFT_CHECKED;
/* The same from its text, into config->lora. */
weft_status wefti_adapter_config_read(const char *json, weft_model_config *config) WEFT_CHECKED;
/* Opens adapter_model.safetensors of a directory. */
weft_status wefti_adapter_open(const char *directory, wefti_tensor_set **out) WEFT_CHECKED;
/* wefti_pretrained_load_across for the adapters of such a directory. */
weft_status wefti_adapter_load_across(const wefti_party *party, weft_session *session,
                                      const weft_model_config *config,
                                      const char *directory) WEFT_CHECKED;

/* Adds the files beside the weights in a Hugging Face directory, or in the newest step of a run. */
weft_status wefti_pretrained_side_files(const char *directory, unsigned uses,
                                        wefti_side_files *out) WEFT_CHECKED;

/* If `config` names no tokens that end a text, it gets those of the tokenizer. */
void wefti_ends_of_tokenizer(const wefti_ends *ends, weft_model_config *config);

/* names.c: the name of a tensor without what wrappers of torch and PEFT add. `out` has room for
 * `name`. */
void wefti_plain_name(const char *name, char *out);
/* names.c: the part of a plain name behind the base model's prefix, if it has one. */
const char *wefti_bare_name(const weft_model_config *config, const char *plain);
/* names.c: the names in files of the embedding and of the output's matrix, which is the same if the
 * model is tied. False: the family has no such pair. */
bool wefti_model_tie(const weft_model_config *config, const char **table, const char **head);

#endif
