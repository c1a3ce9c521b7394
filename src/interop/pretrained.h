/* Models in the form of Hugging Face: weights and configurations from directories. config.json and
 * the names of tensors are public: weft/model.h. */
#ifndef WEFTI_INTEROP_PRETRAINED_H
#define WEFTI_INTEROP_PRETRAINED_H

#include "session/agree.h"
#include "weft/data.h"
#include "weft/model.h"
#include "weft/session.h"

/* Weights from a Hugging Face directory, one step of ours, which is such a directory
 * with checksums, or the newest good step of a run's directory. */
weft_status wefti_pretrained_load(weft_session *session, const weft_model_config *config,
                                  const char *directory) WEFT_CHECKED;
/* The same across processes: rank 0 reads, collective. *out_note: see wefti_pretrained_path; set on
 * failure too. */
weft_status wefti_pretrained_load_across(wefti_agreement *agreement, bool follows,
                                         weft_session *session, const weft_model_config *config,
                                         const char *directory, char **out_note) WEFT_CHECKED;
weft_status wefti_pretrained_config(const char *directory, weft_model_config *out) WEFT_CHECKED;
/* In two steps: where the weights lie, all checksums verified (wefti_free it), and which newer
 * steps are damaged and were passed over (NULL: none; wefti_free it); then load that. */
weft_status wefti_pretrained_path(const char *directory, char **out, char **out_note) WEFT_CHECKED;
weft_status wefti_pretrained_load_path(weft_session *session, const weft_model_config *config,
                                       const char *path) WEFT_CHECKED;

/* Where `config` does not tell which tokens end a text, those that tokenizers call so. */
void wefti_ends_of_tokenizer(const weft_tokenizer *tokenizer, weft_model_config *config);

#endif
