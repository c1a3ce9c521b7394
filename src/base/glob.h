/* Patterns over names: of ops, cells, tensors. */
#ifndef WEFTI_BASE_GLOB_H
#define WEFTI_BASE_GLOB_H

#include <stdbool.h>

/* *: any bytes, dots too; ?: one; [a-z], [!a-z]: one of, none of. A pattern is well formed when
 * every [ is closed. Linear in the text for each * of the pattern. */
bool wefti_glob_match(const char *pattern, const char *text);
bool wefti_glob_valid(const char *pattern);

#endif
