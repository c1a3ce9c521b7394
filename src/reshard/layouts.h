/* Layout files: which region of each tensor each rank holds.
 *
 * A layout file is a plan of weft, or a strategy file of MindSpore: its JSON form, its protobuf
 * form, or a directory with one of these for each pipeline stage. Rules, PATTERN=DIM, stand for a
 * file: each tensor is split along one dimension. The meaning of the fields of
 * strategy files was taken from MindSpore's documentation and from its description of the format
 * (node_strategy.proto). */
#ifndef WEFTI_RESHARD_LAYOUTS_H
#define WEFTI_RESHARD_LAYOUTS_H

#include "base/map/map.h"
#include "base/memory.h"
#include "base/text.h"
#include "layout/layout.h"
#include "weft/checkpoint.h"
#include "weft/plan.h"

/* How the ranks of one stage hold a tensor. Afterwards the stage's replicas may divide dimension 0
 * further, as optimizer parallelism does. */
typedef struct wefti_placement {
    const char *name;
    wefti_mesh mesh;
    wefti_layout layout;
    int32_t shard_step, shard_size; /* of MindSpore's optimizer parallelism; size 1: none */
    bool shard_all;                 /* all replicas share: they are numbered by free axes */
    bool shaped;                    /* `shape` is known */
    int rank;
    int64_t shape[WEFT_MAX_RANK];
    int32_t next; /* the placement of this name on another stage; -1: none */
} wefti_placement;

/* An entry of a strategy file that only a round trip needs. */
typedef struct wefti_strategy_item {
    const char *name;
    int32_t stage, inputs;
    int32_t *ranks; /* [inputs] */
    int64_t *cuts;  /* of all inputs, one after the other */
} wefti_strategy_item;

typedef struct wefti_layouts {
    wefti_arena *arena;
    char *path;
    int32_t ranks;   /* of all stages */
    int32_t stages;  /* from 1 */
    int32_t stage;   /* the stage of a file for one stage; -1: all of them */
    weft_plan *plan; /* NULL: a strategy file, or rules */
    const weft_checkpoint_slice_rule *rules; /* of the caller */
    int rule_count;
    bool *matched; /* [rules]; NULL: these are no rules */
    wefti_placement *items;
    int64_t count, cap;
    wefti_map names; /* to the first placement of a name */
    wefti_map nodes; /* of `strategies` */
    wefti_strategy_item *strategies;
    int64_t strategy_count, strategy_cap;
} wefti_layouts;

/* A path of such a file, or the text of rules. */
weft_status wefti_layouts_open(const char *path, wefti_layouts **out) WEFT_CHECKED;
void wefti_layouts_close(wefti_layouts *l); /* NULL is legal */

/* rules.c: layouts by rules for 1 to WEFTI_RULES_RANKS ranks. The rules must outlive them.
 * WEFT_E_ARG for a rule that is malformed. The text is "RANKS:PATTERN=DIM,PATTERN=DIM". */
enum { WEFTI_RULES_RANKS = 100000 };
weft_status wefti_layouts_of_rules(const weft_checkpoint_slice_rule *rules, int count,
                                   int32_t ranks, wefti_layouts **out) WEFT_CHECKED;
weft_status wefti_layouts_parse_rules(const char *text, wefti_layouts **out) WEFT_CHECKED;
/* WEFT_E_ARG for a rule that no tensor of `path` has matched. */
weft_status wefti_layouts_check_matched(const wefti_layouts *l, const char *path) WEFT_CHECKED;
enum { WEFTI_SPLIT_NONE = -1, WEFTI_SPLIT_UNSAID = -2 };
/* As wefti_layouts_find. WEFT_E_SHAPE for a dimension that the tensor does not have. */
weft_status wefti_layouts_find_by_rules(const wefti_layouts *l, const char *name, const char *of,
                                        const weft_desc *whole, wefti_placement **out,
                                        int32_t *out_count) WEFT_CHECKED;

/* Parses a strategy file; `name` stands for it in messages. The form is recognised. */
weft_status wefti_layouts_parse(const char *name, const char *text, int64_t bytes,
                                wefti_layouts **out) WEFT_CHECKED;
weft_status wefti_layouts_create(const char *name, wefti_layouts **out) WEFT_CHECKED;
/* Adds a copy of `p`. WEFT_E_CORRUPT if its stage has the name already, or if it is malformed. */
weft_status wefti_layouts_add(wefti_layouts *l, const wefti_placement *p) WEFT_CHECKED;
/* Adds the placements of a file for another stage. */
weft_status wefti_layouts_merge(wefti_layouts *to, const wefti_layouts *from) WEFT_CHECKED;
/* Checks what only the whole file shows, and counts ranks and stages. */
weft_status wefti_layouts_finish(wefti_layouts *l) WEFT_CHECKED;
/* As text of MindSpore's JSON form, or as bytes of its protobuf form. wefti_free. */
weft_status wefti_layouts_print_json(const wefti_layouts *l, char **out,
                                     int64_t *out_bytes) WEFT_CHECKED;
weft_status wefti_layouts_print_protobuf(const wefti_layouts *l, char **out,
                                         int64_t *out_bytes) WEFT_CHECKED;

/* The placements of a tensor. `of`: the parameter of an optimizer's state; NULL: none. For a plan
 * the placement is computed for `whole`. *out_count 0: the file does not name the tensor. The
 * caller frees the array. */
weft_status wefti_layouts_find(const wefti_layouts *l, const char *name, const char *of,
                               const weft_desc *whole, wefti_placement **out,
                               int32_t *out_count) WEFT_CHECKED;
/* Whether the file names the tensor. */
bool wefti_layouts_names(const wefti_layouts *l, const char *name);
/* Whether `rank` may have a part of a tensor of which only the name is known. */
bool wefti_layouts_may_have(const wefti_layouts *l, const char *name, int32_t rank);
/* The number of patterns for tensors of a plan. */
int64_t wefti_layouts_patterns(const wefti_layouts *l);
bool wefti_placement_has(const wefti_placement *p, int32_t rank);
/* The region that `rank` holds. */
void wefti_placement_region(const wefti_placement *p, const weft_desc *whole, int32_t rank,
                            wefti_region *out);
/* WEFT_E_SHAPE unless the placement fits a tensor of this shape. */
weft_status wefti_placement_check(const wefti_layouts *l, const wefti_placement *p,
                                  const weft_desc *whole) WEFT_CHECKED;
/* Number of parts along each dimension, of the axes and of optimizer parallelism together. */
void wefti_placement_parts(const wefti_placement *p, int rank, int64_t out[WEFT_MAX_RANK]);

/* Makes a layout fit files that merge the last dimensions of a tensor into one, to `rank`
 * dimensions in all. */
void wefti_placement_merge(wefti_layout *layout, int rank);

/* The groups as "{0,4},{1,5}", or as a JSON object with the list `groups`. */
weft_status wefti_layouts_groups_text(const wefti_layouts *l, bool json,
                                      wefti_text *text) WEFT_CHECKED;

/* strategy_json.c, strategy_protobuf.c */
weft_status wefti_strategy_parse_json(wefti_layouts *l, const char *text,
                                      int64_t bytes) WEFT_CHECKED;
weft_status wefti_strategy_parse_protobuf(wefti_layouts *l, const void *data,
                                          int64_t bytes) WEFT_CHECKED;
/* An entry of either form: the device matrix, outermost first; for each dimension of the tensor the
 * axis that splits it, counted from the right, or -1. */
typedef struct wefti_strategy_layout {
    const char *name;
    int axes, rank;
    int64_t matrix[64];
    int64_t map[WEFT_MAX_RANK];
    int64_t shape[WEFT_MAX_RANK];
    int shape_rank; /* -1: not stated */
    int manual;     /* entries of a manual split */
    int64_t step, size;
} wefti_strategy_layout;
weft_status wefti_strategy_add(wefti_layouts *l, const wefti_strategy_layout *x) WEFT_CHECKED;
weft_status wefti_strategy_add_item(wefti_layouts *l, const char *name, int64_t stage, int inputs,
                                    const int32_t *ranks, const int64_t *cuts) WEFT_CHECKED;
/* The device matrix and the tensor map of a placement, for the printers. */
weft_status wefti_strategy_of(const wefti_layouts *l, const wefti_placement *p,
                              wefti_strategy_layout *out) WEFT_CHECKED;
/* The stage of a placement, and its name in a file of this many stages. */
int32_t wefti_placement_stage(const wefti_layouts *l, const wefti_placement *p);

#endif
