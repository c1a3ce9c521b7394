/* File access with fault points: a test can make every call here fail (WEFTI_FAULT_IO). Messages
 * name the path. A file is written whole or not at all: the writer fills a temporary file, syncs it
 * and renames it. */
#ifndef WEFTI_BASE_IO_H
#define WEFTI_BASE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

/* Opens a file for reading. Opening a named pipe does not wait for its writer. */
weft_status wefti_file_open(const char *path, int *out_fd, struct stat *out_stat) WEFT_CHECKED;

/* Reads the whole file into fresh memory and adds a NUL. Refuses more than `limit` bytes. The
 * caller frees the result with wefti_free. */
weft_status wefti_file_read(const char *path, int64_t limit, char **out,
                            int64_t *out_bytes) WEFT_CHECKED;

/* Writes a file under a temporary name beside `path`. Commit syncs and renames it; abort removes
 * it. Both free the writer. A device or a pipe is written in place. If `path` is a link, the link's
 * target is replaced. */
typedef struct wefti_writer wefti_writer;
weft_status wefti_writer_open(const char *path, wefti_writer **out) WEFT_CHECKED;
weft_status wefti_writer_write(wefti_writer *w, const void *data, size_t bytes) WEFT_CHECKED;
weft_status
wefti_writer_commit(wefti_writer *w) WEFT_CHECKED; /* frees the writer, also on failure */
void wefti_writer_abort(wefti_writer *w);

/* Writes a small file, whole or not at all. */
weft_status wefti_file_write(const char *path, const void *data, size_t bytes) WEFT_CHECKED;

/* Creates the directory and its parents. An existing directory is fine. New directories are
 * synced. */
weft_status wefti_dir_make(const char *path) WEFT_CHECKED;
weft_status wefti_dir_sync(const char *path) WEFT_CHECKED;
weft_status wefti_rename(const char *from, const char *to) WEFT_CHECKED; /* syncs the directory */
weft_status wefti_rename_unsynced(const char *from, const char *to) WEFT_CHECKED;
/* Succeeds if `path` does not exist; does not follow links. */
weft_status wefti_remove_tree(const char *path) WEFT_CHECKED;
/* Whether a file may be opened, or its name is surely missing. If the disk cannot tell, both are
 * false: for messages only. */
bool wefti_exists(const char *path);
bool wefti_is_missing(const char *path);
/* For files that may be missing. WEFT_E_IO if the disk cannot tell. */
weft_status wefti_look_for(const char *path, bool *out) WEFT_CHECKED;
/* WEFT_E_ARG if the name is there, also as a link that leads nowhere; WEFT_E_IO if the disk
 * cannot tell. */
weft_status wefti_check_new(const char *path) WEFT_CHECKED;
/* For a message that `path` does not exist: if it has the form OWNER/NAME, what to do about a name
 * of the Hugging Face hub; else "". */
const char *wefti_hub_hint(const char *path);
/* Whether both names lead to one file; false if one of them does not exist. */
bool wefti_same_file(const char *a, const char *b);
bool wefti_is_dir(const char *path);
bool wefti_is_link(const char *path); /* whether the name itself is a symbolic link */
/* Lists the names in a directory, sorted, without . and .. . The result is one allocation: free it
 * with wefti_free(*out_names). */
weft_status wefti_dir_list(const char *path, char ***out_names, int64_t *out_count) WEFT_CHECKED;
/* Numbers of the names in a directory, ascending: of each name what `number_of` returns, unless
 * that is negative. A missing directory has none. NULL and 0, or wefti_free. */
typedef int64_t wefti_name_number(const char *name, const void *context);
weft_status wefti_dir_numbers(const char *path, wefti_name_number *number_of, const void *context,
                              int64_t **out, int64_t *out_count) WEFT_CHECKED;
void wefti_sort_numbers(int64_t *numbers, int64_t count); /* ascending */

/* Little-endian numbers of files and messages: the lowest `bytes` bytes of `x`, 8 at most. */
static inline void wefti_put_number(unsigned char *at, uint64_t x, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (unsigned char)(x >> 8 * i);
}
static inline uint64_t wefti_get_number(const unsigned char *at, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)at[i] << 8 * i;
    return x;
}

#endif
