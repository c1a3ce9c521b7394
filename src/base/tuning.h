/* The facts of the machine that choices of speed depend on. Tests set other values, to run on one
 * machine what others would choose. */
#ifndef WEFTI_BASE_TUNING_H
#define WEFTI_BASE_TUNING_H

#include <stdint.h>

/* From which size on copies use streaming stores (comm/copy.h). */
typedef enum wefti_streaming {
    WEFTI_STREAMING_MEASURED,
    WEFTI_STREAMING_NEVER,
    WEFTI_STREAMING_BEYOND_L2,         /* the last-level cache is far */
    WEFTI_STREAMING_BEYOND_LAST_LEVEL, /* it is near */
} wefti_streaming;

/* 0 in any field: the machine's own value. */
typedef struct wefti_tuning {
    int cores; /* that this process may use: wefti_cores */
    /* Bytes of a core's second-level cache. For matrix products 0 means the size that their block
     * sizes were measured with. */
    int64_t l2_bytes;
    wefti_streaming streaming;
} wefti_tuning;

/* Uses a copy of `tuning` from now on. NULL: the machine's own values again. For tests, while no
 * other thread reads it. */
void wefti_tune(const wefti_tuning *tuning);
/* The values in use; never NULL. */
const wefti_tuning *wefti_tuned(void);

#endif
