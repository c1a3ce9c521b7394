/* BERT's normalizer and pre-tokenizer for single characters. */
#ifndef WEFTI_TOKENIZER_UNICODE_BERT_H
#define WEFTI_TOKENIZER_UNICODE_BERT_H

#include <stdbool.h>
#include <stdint.h>

/* The character, a space for white space, 0 for controls, which are left out. */
uint32_t wefti_bert_clean(uint32_t point);
bool wefti_bert_ideograph(uint32_t point); /* a word by itself */
bool wefti_bert_punctuation(uint32_t point);
/* The canonical decomposition without its combining marks (0 to 4 characters). */
int wefti_bert_strip(uint32_t point, uint32_t out[4]);
int wefti_bert_lower(uint32_t point, uint32_t out[4]); /* 1 or 2 characters */

#endif
