/* What a step takes on one rank, by equal kernels, transfers and copies between spaces: predicted
 * or measured. */
#ifndef WEFTI_RUN_RECORD_ROWS_H
#define WEFTI_RUN_RECORD_ROWS_H

#include "base/json/json.h"
#include "exec/profile.h"
#include "topo/model.h"

/* Ranks with rows of their own; further ranks have only their memory. */
enum { WEFTI_RUN_RECORD_RANKS = 64 };

typedef enum wefti_run_record_kind {
    WEFTI_RUN_RECORD_KERNEL,
    WEFTI_RUN_RECORD_TRANSFER,
    WEFTI_RUN_RECORD_COPY, /* between device memory and a lower tier */
    WEFTI_RUN_RECORD_KINDS
} wefti_run_record_kind;

typedef struct wefti_run_record_row {
    wefti_run_record_kind kind;
    const char *name;            /* of the op; "copy", "add"; the kind of a transfer; "fetch from
                                    disk" */
    bool product;                /* its limit is the rate of products */
    wefti_arithmetic arithmetic; /* of kernels */
    int32_t members;             /* of transfers */
    int32_t level;               /* of predicted transfers: the machine's level of links */
    double flops, bytes;         /* of one call; transfers: bytes that the rank receives */
    double calls;                /* of a step */
    double seconds;              /* of all calls of a step; transfers and copies: of posts and
                                    waits */
    double processor;            /* measured: of `seconds`, on a processor; 0: not known */
    double under_way;            /* transfers: from posts to ends of waits; predicted: 0 */
} wefti_run_record_row;

typedef struct wefti_run_record_rows {
    wefti_run_record_row *items;
    int64_t count, cap;
} wefti_run_record_rows;

bool wefti_run_record_same(const wefti_run_record_row *a, const wefti_run_record_row *b);
/* Adds to the equal row, or appends. The name is borrowed. */
weft_status wefti_run_record_add(wefti_run_record_rows *rows,
                                 const wefti_run_record_row *row) WEFT_CHECKED;
void wefti_run_record_rows_free(wefti_run_record_rows *rows);

/* The rows of a step by the machine's formulas; of what was measured, the
 * mean over chosen steps (wefti_profile_entry). `microbatches`: of a step. `ranks`: all of them; if
 * they share processors, kernels take so much longer. */
weft_status wefti_run_record_predicted(const wefti_program *program,
                                       const wefti_machine_model *machine, int32_t microbatches,
                                       int32_t ranks, wefti_run_record_rows *out) WEFT_CHECKED;
weft_status wefti_run_record_measured(const wefti_profile *profile, uint64_t steps,
                                      wefti_run_record_rows *out) WEFT_CHECKED;

/* A JSON array, and back; names are borrowed from the JSON. */
void wefti_run_record_rows_print(const wefti_run_record_rows *rows, wefti_text *out);
weft_status wefti_run_record_rows_read(const wefti_json *array,
                                       wefti_run_record_rows *out) WEFT_CHECKED;

/* A number of any kind. WEFT_E_CORRUPT names the key. */
weft_status wefti_run_record_real(const wefti_json *object, const char *key,
                                  double *out) WEFT_CHECKED;

#endif
