/* Launch scripts as the words of their commands: see shell.c. Private to this folder. */
#ifndef WEFTI_INTEROP_SHELL_H
#define WEFTI_INTEROP_SHELL_H

#include "base/memory.h"
#include "base/text.h"

typedef struct wefti_shell_word {
    const char *text;
    const char
        *unset; /* what the script does not tell, and the word needs: "$NAME"; NULL: nothing */
    int line;
} wefti_shell_word;

typedef struct wefti_shell_script {
    const char *name, *text; /* name: of the text, for messages */
    int64_t bytes;
    const char *const *variables; /* "NAME=value" that it finds; the last one is NULL. NULL: none */
    wefti_arena *arena;           /* where the words live */
    wefti_text *notes;            /* a line for each condition that cannot be evaluated */
    void *context;
    /* A command that runs, after expansion, without assignments and redirections. */
    weft_status (*command)(void *context, const wefti_shell_word *words, int64_t count);
    /* At the end: false asks for the values of all variables, each as a command, too. For scripts
     * that others read. */
    bool (*enough)(void *context);
} wefti_shell_script;

/* Reads a script of bash: variables, arrays, defaults, quotes, arithmetic, `if` and `case`. Nothing
 * is run. Variables that the script does not set are empty; words that need them are marked.
 * Branches whose condition depends on files or on other commands are left out, with a note.
 * WEFT_E_ARG: too long, or too many words. */
weft_status wefti_shell_read(const wefti_shell_script *script) WEFT_CHECKED;

#endif
