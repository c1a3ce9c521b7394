/* The door of this folder: sources, destinations, layouts and copies of checkpoints. */
#ifndef WEFTI_RESHARD_H
#define WEFTI_RESHARD_H

#include "reshard/copy.h"
#include "reshard/layouts.h"
#include "reshard/source.h"
#include "reshard/target.h"

/* A source with its layout file. */
typedef struct wefti_reshard_input {
    wefti_layouts *layouts; /* NULL: none */
    wefti_shards *shards;
} wefti_reshard_input;
/* `layouts` NULL: no layout file. */
weft_status wefti_reshard_open(const char *path, const char *layouts,
                               wefti_reshard_input *out) WEFT_CHECKED;
void wefti_reshard_close(wefti_reshard_input *in);
/* "model" or "optimizer", dtype and shape of a tensor, as members of a JSON object. */
void wefti_reshard_tell(wefti_text *text, const char *name, wefti_checkpoint_role role,
                        const weft_desc *desc);
/* Completes a text, and gives it to the caller after success. */
weft_status wefti_reshard_give(weft_status status, wefti_text *text, char **out);

#endif
