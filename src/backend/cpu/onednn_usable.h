/* Whether the oneDNN that is found at run time can be used: it may be another build than the one
 * that weft was compiled against. */
#ifndef WEFTI_CPU_ONEDNN_USABLE_H
#define WEFTI_CPU_ONEDNN_USABLE_H

/* Why not; NULL: it is used, or none is built in. Static storage. */
const char *wefti_onednn_unused(void);

#endif
