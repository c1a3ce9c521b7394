/* The files beside a model's weights that tell how the model is used: its tokenizer, templates of
 * chats, settings of generation, preparation of images. Training does not need most of them. A copy
 * of the model keeps them, because other programs do. */
#ifndef WEFTI_CHECKPOINT_SIDE_FILES_H
#define WEFTI_CHECKPOINT_SIDE_FILES_H

#include "checkpoint/checkpoint.h"

/* What a file belongs to. */
typedef enum wefti_side_use {
    WEFTI_SIDE_CONFIG = 1,    /* config.json, which a training run writes by itself */
    WEFTI_SIDE_MODEL = 2,     /* generation_config.json and others of the model */
    WEFTI_SIDE_TOKENIZER = 4, /* a run with another tokenizer has that one's files */
    WEFTI_SIDE_ALL = 7
} wefti_side_use;

/* Several files in one block, which ranks can send as it is: of each file its name with a NUL, the
 * number of its bytes, the bytes, and a NUL. Zero-initialise. */
typedef struct wefti_side_files {
    char *data;
    int64_t bytes, count;
} wefti_side_files;

enum { WEFTI_SIDE_FILES_MOST = 32 }; /* the table has fewer names */

/* Adds the files of `dir` with one of these uses. Encrypted ones are decrypted. WEFT_E_CORRUPT if
 * one is a link that leads to a file with another name: a directory from elsewhere must not bring
 * files of this machine into a checkpoint. */
weft_status wefti_side_files_add(wefti_side_files *files, const char *dir,
                                 unsigned uses) WEFT_CHECKED;
/* Adds one file under a name of the table, from any place. */
weft_status wefti_side_files_add_file(wefti_side_files *files, const char *path,
                                      const char *name) WEFT_CHECKED;
/* Takes a block that another rank has sent; checks it. The files own `data` then. */
weft_status wefti_side_files_take(wefti_side_files *files, char *data, int64_t bytes) WEFT_CHECKED;
/* Writes the list of files to `out` [WEFTI_SIDE_FILES_MOST] and returns their number. The texts
 * are borrowed. */
int64_t wefti_side_files_list(const wefti_side_files *files, wefti_checkpoint_text *out);
/* The contents of a file; NULL: absent. */
const char *wefti_side_files_find(const wefti_side_files *files, const char *name,
                                  int64_t *out_bytes);
/* Writes the files into a directory. */
weft_status wefti_side_files_write(const wefti_side_files *files, const char *dir) WEFT_CHECKED;
void wefti_side_files_free(wefti_side_files *files);

#endif
