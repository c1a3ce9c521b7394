/* A YAML document as a tree with line numbers, for job files.
 *
 * Reads a subset with libyaml's event parser: one document, mappings with plain scalar keys,
 * sequences, scalars. Refuses anchors, aliases and tags, because aliases can make a short file
 * expand without bound. Refuses duplicate keys. Scalars stay text: the key decides what a value
 * means. So `no` is not a truth value, and 010 is not eight. Source: YAML 1.1 (yaml.org/spec/1.1),
 * as libyaml reads it. */
#ifndef WEFTI_JOB_YAML_H
#define WEFTI_JOB_YAML_H

#include <stdbool.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"

enum {
    WEFTI_YAML_BYTES = 1 << 20, /* longest text */
    WEFTI_YAML_DEPTH = 32,      /* deepest nesting */
    WEFTI_YAML_ITEMS = 1000,    /* most entries of one mapping or sequence */
};

typedef enum wefti_yaml_kind {
    WEFTI_YAML_SCALAR,
    WEFTI_YAML_SEQUENCE,
    WEFTI_YAML_MAPPING,
} wefti_yaml_kind;

typedef struct wefti_yaml {
    wefti_yaml_kind kind;
    const char *key;                 /* in a mapping, else NULL */
    const char *text;                /* scalars: never NULL, no NUL inside */
    bool quoted;                     /* a scalar in quotes, or a block scalar */
    int line, column;                /* from 1; 0: not from a file */
    struct wefti_yaml *first, *next; /* children in order */
    int count;                       /* of children */
} wefti_yaml;

/* Parse `bytes` bytes. `name` stands for the text in messages, "name:line:column: ...". The tree
 * lives in `arena`. An empty document is an empty mapping. WEFT_E_ARG for anything wrong in the
 * text, WEFT_E_NO_IMPL when this build has no libyaml. */
weft_status wefti_yaml_parse(const char *name, const char *text, int64_t bytes, wefti_arena *arena,
                             wefti_yaml **out) WEFT_CHECKED;

#endif
