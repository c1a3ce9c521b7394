/* GPT-2's alphabet, in which each byte is a printable character: bytes_to_unicode of openai/gpt-2,
 * src/encoder.py. */
#ifndef WEFTI_TOKENIZER_ALPHABET_H
#define WEFTI_TOKENIZER_ALPHABET_H

#include <stdbool.h>
#include <stdint.h>

/* The character that stands for a byte. */
uint32_t wefti_alphabet_character(unsigned char byte);
/* Writes the bytes that the characters of `text` stand for, at most `bytes`. False: a character is
 * outside of the alphabet. */
bool wefti_alphabet_bytes(const unsigned char *text, int64_t bytes, unsigned char *to,
                          int64_t *out);

#endif
