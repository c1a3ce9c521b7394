/* What tests of rows of files share: streams of both engines, and memory for blocks of rows. */
#ifndef WEFT_TESTS_ROW_WAYS_H
#define WEFT_TESTS_ROW_WAYS_H

#include "disk_ways.h"

#include "device/disk_rows.h"

static void *staging;

static inline int make_all(void **state) {
    staging = malloc(WEFTI_ROWS_STAGING);
    return staging ? make_folder(state) : -1;
}
static inline int remove_all(void **state) {
    free(staging);
    return remove_folder(state);
}

#endif
