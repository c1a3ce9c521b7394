/* The words of launch scripts, and what they stand for: variables, arrays, defaults, quotes,
 * arithmetic. Private to this folder. */
#ifndef WEFTI_INTEROP_EXPAND_H
#define WEFTI_INTEROP_EXPAND_H

#include "job/systems/shell.h"

enum { WEFTI_SHELL_NESTED = 32 }; /* brackets in brackets, at most */

typedef struct wefti_shell_words {
    wefti_shell_word *items;
    int64_t count, cap;
} wefti_shell_words;

typedef struct wefti_shell_variable {
    const char *name;
    wefti_shell_words value; /* one element, or those of an array */
} wefti_shell_variable;

typedef struct wefti_expander {
    const char *name; /* of the script, for messages */
    wefti_arena *arena;
    int line; /* of the word that is expanded */
    wefti_shell_variable *variables;
    int64_t variable_count, variable_cap;
    int64_t fields, bytes; /* that were made, for limits */
} wefti_expander;
void wefti_expander_free(wefti_expander *x);

/* The byte behind a name; behind a word, whose quotes and brackets may hold blanks. */
const char *wefti_shell_name_end(const char *at, const char *end);
const char *wefti_shell_word_end(const char *at, const char *end);
bool wefti_shell_ends_word(char c);

/* Adds a word as it is. */
weft_status wefti_expand_add(wefti_expander *x, wefti_shell_words *list,
                             wefti_shell_word word) WEFT_CHECKED;
/* Adds the fields of the word [at, end). */
weft_status wefti_expand_word(wefti_expander *x, const char *at, const char *end,
                              wefti_shell_words *out) WEFT_CHECKED;
/* What stands behind the sign of an assignment: one field. */
weft_status wefti_expand_value(wefti_expander *x, const char *at, const char *end,
                               wefti_shell_word *out) WEFT_CHECKED;
/* The elements of a variable as a word without quotes. */
weft_status wefti_expand_elements(wefti_expander *x, const wefti_shell_variable *v,
                                  wefti_shell_words *out) WEFT_CHECKED;
/* NAME=value, NAME=(elements); adds: NAME+=... */
weft_status wefti_expand_set(wefti_expander *x, const char *name, size_t length,
                             const wefti_shell_word *value, bool adds) WEFT_CHECKED;
weft_status wefti_expand_set_array(wefti_expander *x, const char *name, size_t length,
                                   const wefti_shell_words *elements, bool adds) WEFT_CHECKED;

#endif
