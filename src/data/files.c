/* The files that a data path names. See data/files.h. */
#include "data/files.h"

#include <string.h>

#include "base/io.h"

/* Matches one character class, with `*pattern` after its '[', and moves it past the ']'. A class
 * without ']' matches nothing. */
static bool class_matches(const char **pattern, unsigned char c) {
    const unsigned char *p = (const unsigned char *)*pattern;
    bool negated = *p == '!', found = false;
    if (negated) p++;
    const unsigned char *first = p;
    for (; *p && (*p != ']' || p == first); p++) {
        unsigned char low = *p, high = *p;
        if (p[1] == '-' && p[2] && p[2] != ']') {
            high = p[2];
            p += 2;
        }
        found |= c >= low && c <= high;
    }
    *pattern = (const char *)p;
    if (!*p) return false;
    (*pattern)++;
    return found != negated;
}

/* After a mismatch only the last * or the last ** is tried again, since an earlier one of the same
 * kind cannot match more. So the time is at most pattern * text * text. */
bool wefti_pattern_matches(const char *pattern, const char *text) {
    const char *star = NULL, *star_text = NULL; /* after the last '*', and the end of its match */
    const char *deep = NULL, *deep_text = NULL; /* the same for the last '**' */
    const char *start = pattern;
    for (;;) {
        if (pattern[0] == '*' && pattern[1] == '*') {
            bool directory = pattern == start || pattern[-1] == '/';
            pattern += 2;
            deep = pattern;
            deep_text = text;
            star = NULL;
            if (directory && *pattern == '/')
                pattern++; /* a directory ** may also match no directory */
            continue;
        }
        if (*pattern == '*') {
            star = ++pattern;
            star_text = text;
            continue;
        }
        bool same = false;
        const char *next = pattern;
        if (*text && *pattern == '[') {
            next++;
            same = class_matches(&next, (unsigned char)*text) && *text != '/';
        } else if (*text) {
            next = pattern + 1;
            same = *pattern == *text || (*pattern == '?' && *text != '/');
        } else if (!*pattern) {
            return true;
        }
        if (same && *pattern) {
            pattern = next;
            text++;
        } else if (star && *star_text && *star_text != '/') {
            pattern = star;
            text = ++star_text;
        } else if (deep && *deep_text) {
            pattern = deep;
            text = ++deep_text;
            star = NULL;
        } else {
            return false;
        }
    }
}

static weft_status add(wefti_path_list *list, char *path) {
    WEFT_TRY(WEFT_GROW(list->paths, list->count, list->capacity));
    list->paths[list->count++] = path;
    return WEFT_OK;
}

enum { DEEPEST = 100 }; /* bounds the recursion; paths end at 4096 bytes anyway */

/* Files below `directory` that match `pattern` (NULL: all), depth first, each level sorted by name;
 * `levels` of directories below it are entered. */
static weft_status walk(const char *directory, const char *pattern, int levels, wefti_arena *arena,
                        wefti_path_list *list) {
    char **names;
    int64_t count;
    WEFT_TRY(wefti_dir_list(*directory ? directory : ".", &names, &count));
    weft_status status = WEFT_OK;
    const char *slash = !*directory || directory[strlen(directory) - 1] == '/' ? "" : "/";
    for (int64_t i = 0; status >= 0 && i < count; i++) {
        if (names[i][0] == '.') continue;
        char *path = wefti_arena_format(arena, "%s%s%s", directory, slash, names[i]);
        if (!path) {
            status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the names of files");
        } else if (wefti_is_dir(path)) {
            if (levels > 0 && !wefti_is_link(path))
                status = walk(path, pattern, levels - 1, arena, list);
        } else if (!pattern || wefti_pattern_matches(pattern, path)) {
            status = add(list, path);
        }
    }
    wefti_free(names);
    return status;
}

/* The directory part before the first special character of a pattern, up to its slash. */
static char *fixed_part(const char *pattern, wefti_arena *arena) {
    size_t special = strcspn(pattern, "*?["), length = 0;
    for (size_t i = 0; i < special; i++)
        if (pattern[i] == '/') length = i + 1;
    return wefti_arena_format(arena, "%.*s", (int)length, pattern);
}

weft_status wefti_paths_find(const char *path, wefti_arena *arena, wefti_path_list *list) {
    WEFT_REQUIRE(path && *path, WEFT_E_ARG, "the path of the data is empty");
    if (wefti_is_dir(path)) {
        WEFT_TRY(walk(path, NULL, DEEPEST, arena, list));
        WEFT_REQUIRE(list->count > 0, WEFT_E_NOT_FOUND, "the directory %s holds no files", path);
        return WEFT_OK;
    }
    bool is_name = !strpbrk(path, "*?[");
    if (!is_name) WEFT_TRY(wefti_look_for(path, &is_name));
    if (is_name) {
        char *copy = wefti_arena_strdup(arena, path);
        WEFT_REQUIRE(copy, WEFT_E_NOMEM, "no memory for the name of a file");
        WEFT_TRY(add(list, copy));
        return WEFT_OK;
    }
    char *directory = fixed_part(path, arena);
    WEFT_REQUIRE(directory, WEFT_E_NOMEM, "no memory for the name of a directory");
    int levels = 0;
    for (const char *p = path + strlen(directory); *p; p++) levels += *p == '/';
    if (strstr(path, "**")) levels = DEEPEST;
    WEFT_TRY(walk(directory, path, levels, arena, list));
    WEFT_REQUIRE(list->count > 0, WEFT_E_NOT_FOUND, "no file matches the pattern %s", path);
    return WEFT_OK;
}
