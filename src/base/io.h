/* Files through one door, with fault points: every call here can be told to fail (WEFTI_FAULT_IO).
 * Messages name the path. What is written is whole or absent: written beside, synced, renamed. */
#ifndef WEFTI_BASE_IO_H
#define WEFTI_BASE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

/* To be read; of a named pipe nobody is waited for. */
weft_status wefti_file_open(const char *path, int *out_fd, struct stat *out_stat) WEFT_CHECKED;

/* Whole file into fresh memory with a NUL behind it; refuses more than `limit` bytes. wefti_free
 * the result. */
weft_status wefti_file_read(const char *path, int64_t limit, char **out,
                            int64_t *out_bytes) WEFT_CHECKED;

/* A file being written under a temporary name beside `path`; commit syncs and renames, abort
 * removes. Both end the writer. A device or a pipe is written as it is; of a
 * link its target is replaced. */
typedef struct wefti_writer wefti_writer;
weft_status wefti_writer_open(const char *path, wefti_writer **out) WEFT_CHECKED;
weft_status wefti_writer_write(wefti_writer *w, const void *data, size_t bytes) WEFT_CHECKED;
weft_status
wefti_writer_commit(wefti_writer *w) WEFT_CHECKED; /* also on failure the writer is gone */
void wefti_writer_abort(wefti_writer *w);

/* Small text file, whole or absent. */
weft_status wefti_file_write(const char *path, const void *data, size_t bytes) WEFT_CHECKED;

/* With parents; existing is fine. What is made is synced. */
weft_status wefti_dir_make(const char *path) WEFT_CHECKED;
weft_status wefti_dir_sync(const char *path) WEFT_CHECKED;
weft_status wefti_rename(const char *from, const char *to) WEFT_CHECKED;
weft_status
wefti_remove_tree(const char *path) WEFT_CHECKED; /* absent is fine; does not follow links */
bool wefti_exists(const char *path);
bool wefti_is_dir(const char *path);
bool wefti_is_link(const char *path); /* the name itself is a symbolic link */
/* Names in a directory, sorted, without . and ..; one allocation: free with wefti_free(*out_names).
 */
weft_status wefti_dir_list(const char *path, char ***out_names, int64_t *out_count) WEFT_CHECKED;

#endif
