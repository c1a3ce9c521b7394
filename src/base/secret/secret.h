/* Random bytes for secrets, and files that only their owner can read. */
#ifndef WEFTI_BASE_SECRET_H
#define WEFTI_BASE_SECRET_H

#include <stddef.h>

#include "base/status.h"

weft_status wefti_random_bytes(void *out, size_t bytes) WEFT_CHECKED;

/* Reads a file, or with the path "env:NAME" an environment variable, into `data`, at most `room`
 * bytes. A file must be a plain one that belongs to this user and that nobody else can use, or
 * root's with mode 0440 and one of the process's groups; else WEFT_E_ARG. WEFT_E_NOT_FOUND;
 * WEFT_E_IO. Messages call it by `noun`, as "secret", and do not show what it holds. */
weft_status wefti_private_read(const char *path, const char *noun, void *data, size_t room,
                               size_t *out_bytes) WEFT_CHECKED;
/* The NAME of "env:NAME"; NULL: a path. */
const char *wefti_private_variable(const char *path);
/* A new file of 64 random hexadecimal digits, mode 0600. WEFT_E_IO if there is one of that name. */
weft_status wefti_private_create(const char *path, const char *noun) WEFT_CHECKED;

#endif
