/* A locale with a decimal comma, as programs for users set it. It is an installed one, or one that
 * localedef makes in `directory`. */
#ifndef WEFT_TESTS_COMMA_LOCALE_H
#define WEFT_TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline bool comma_locale_set(const char *directory) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "it_IT.UTF-8"};
    char command[1200];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_NUMERIC, names[i])) return true;
    (void)snprintf(command, sizeof command,
                   "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", directory);
    if (system(command) || setenv("LOCPATH", directory, 1)) return false;
    return setlocale(LC_NUMERIC, "de_DE.UTF-8") != NULL;
}

static inline void comma_locale_end(void) {
    (void)setlocale(LC_NUMERIC, "C");
}

#endif
