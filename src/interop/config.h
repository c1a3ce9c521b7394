/* config.json, in parts: values by key (config_values.c), the settings of each family
 * (config_read.c, config_write.c), and the whole file (config.c). Private to this folder. */
#ifndef WEFTI_INTEROP_CONFIG_H
#define WEFTI_INTEROP_CONFIG_H

#include "base/json/json.h"
#include "base/status.h"
#include "base/text.h"
#include "weft/model.h"

/* The keys of a family's dropout rates: of blocks, of attention, of the embedding. */
extern const char *const wefti_gpt2_dropout[3];
extern const char *const wefti_bert_dropout[2];
extern const char *const wefti_llama_dropout[1];

/* The settings of family c->family. */
weft_status wefti_config_read(const wefti_json *o, weft_model_config *c) WEFT_CHECKED;
void wefti_config_write(wefti_text *t, const weft_model_config *c);

/* ---- config_values.c: values by key; `_or` gives the value of a missing key ---- */

/* NULL: missing, or null. */
const wefti_json *wefti_config_get(const wefti_json *o, const char *key);
weft_status wefti_config_int(const wefti_json *o, const char *key, int64_t *out) WEFT_CHECKED;
weft_status wefti_config_int_or(const wefti_json *o, const char *key, int64_t standard,
                                int64_t *out) WEFT_CHECKED;
weft_status wefti_config_real_or(const wefti_json *o, const char *key, double standard,
                                 double *out) WEFT_CHECKED;
/* Reads a number for which 0 would mean the family's default. */
weft_status wefti_config_positive_or(const wefti_json *o, const char *key, double standard,
                                     double *out) WEFT_CHECKED;
weft_status wefti_config_bool_or(const wefti_json *o, const char *key, bool standard,
                                 bool *out) WEFT_CHECKED;
/* A switch that must have this value; absent means `standard`. */
weft_status wefti_config_expect_bool(const wefti_json *o, const char *key, bool standard,
                                     bool wanted) WEFT_CHECKED;
/* A text that must be one of two (`two` may be NULL). A missing key is legal. */
weft_status wefti_config_expect_text(const wefti_json *o, const char *key, const char *one,
                                     const char *two) WEFT_CHECKED;
/* Reads the rates of dropout: of blocks, of attention, of the embedding (else that of blocks). */
weft_status wefti_config_dropout(const wefti_json *o, double standard, int count,
                                 const char *const *keys, weft_model_config *c) WEFT_CHECKED;
/* The number that is not null and not 0, which stands for "left out" there. */
weft_status wefti_config_nonzero_or(const wefti_json *o, const char *key, double standard,
                                    double *out) WEFT_CHECKED;
/* A list of `count` sizes, or one number for all of them. */
weft_status wefti_config_sizes(const wefti_json *o, const char *key, int count,
                               int64_t *out) WEFT_CHECKED;

/* ---- adapter.c: adapters, in PEFT's words ---- */

/* `o`: adapter_config.json, or the member "lora" that weft adds to config.json. */
weft_status wefti_lora_read(const wefti_json *o, weft_lora *out) WEFT_CHECKED;
void wefti_lora_write(wefti_text *t, const weft_lora *lora);

/* ---- config_write.c ---- */

void wefti_config_write_int(wefti_text *t, const char *key, int64_t value);
void wefti_config_write_raw(wefti_text *t, const char *key, const char *value);
void wefti_config_write_int_or_null(wefti_text *t, const char *key, bool has, int64_t value);

#endif
