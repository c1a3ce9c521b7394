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

/* `path` is a file, a directory (every file below it except those with a hidden name on the way;
 * links to directories are not followed) or a pattern. WEFT_E_NOT_FOUND when that is no file at
 * all. Free the array with wefti_free(list->paths), also after a failure. */
weft_status wefti_paths_find(const char *path, wefti_arena *arena,
                             wefti_path_list *list) WEFT_CHECKED;

/* Does `text` match `pattern`: * (any characters but /), ** (any characters), a directory ** (also
 * none), ? and [a-z] or [!a-z] (one character but /). */
bool wefti_pattern_matches(const char *pattern, const char *text);

#endif
