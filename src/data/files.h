/* The files that a data path names. */
#ifndef WEFTI_DATA_FILES_H
#define WEFTI_DATA_FILES_H

#include <stdbool.h>

#include "base/memory.h"

/* Paths in `arena`, sorted name by name, so that the order is the same on every machine and in
 * every locale. */
typedef struct wefti_path_list {
    char **paths;
    int64_t count, capacity;
} wefti_path_list;

/* `path` is a file, a directory or a pattern. A directory stands for every file below it, except
 * hidden ones and files in hidden directories; links to directories are not followed.
 * WEFT_E_NOT_FOUND if there is no such file. Free the array with wefti_free(list->paths), also
 * after a failure. */
weft_status wefti_paths_find(const char *path, wefti_arena *arena,
                             wefti_path_list *list) WEFT_CHECKED;

/* Whether `text` matches `pattern`: * (any characters but /), ** (any characters), a directory **
 * (also no directory), ? and [a-z] or [!a-z] (one character but /). */
bool wefti_pattern_matches(const char *pattern, const char *text);

#endif
