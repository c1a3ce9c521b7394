/* Files of documents as JSON lines, and files whose structure is not text. */
#ifndef WEFTI_DATA_JSONL_H
#define WEFTI_DATA_JSONL_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/status.h"

enum { WEFTI_JSONL_LINE_BYTES = 64 << 20 }; /* the longest line */

/* Takes one document. Its bytes are borrowed for the call. */
typedef weft_status (*wefti_document_fn)(void *context, const char *text, int64_t bytes);

/* How lines are read, and what was left out. */
typedef struct wefti_jsonl {
    const char *field;   /* the member that holds the text; NULL: "text" */
    bool skip_bad;       /* lines that would be refused are counted instead */
    int64_t lines, bad;  /* of all files; blank lines do not count */
    char first_bad[300]; /* why the first of them is one */
} wefti_jsonl;

/* Calls `take` with the text of each line, in order. Holds one line in memory at a time. Skips
 * lines of white space. WEFT_E_CORRUPT names file and line of a line that is too long, is not a
 * JSON object, or has no such member that is a string. What other members hold does not matter. */
weft_status wefti_jsonl_read(const char *path, wefti_jsonl *how, wefti_document_fn take,
                             void *context) WEFT_CHECKED;
/* The same with a window of `piece_bytes`, at least 1, that doubles for longer lines. */
weft_status wefti_jsonl_read_pieces(const char *path, int64_t piece_bytes, wefti_jsonl *how,
                                    wefti_document_fn take, void *context) WEFT_CHECKED;

/* Does the name end in .jsonl or .ndjson? */
bool wefti_jsonl_named(const char *path);

/* WEFT_E_NO_IMPL with advice if the name's ending or the first bytes of the file are those of a
 * format with a structure of its own: tables, JSON, XML, archives, arrays, documents. */
weft_status wefti_text_check(const char *path) WEFT_CHECKED;

#endif
