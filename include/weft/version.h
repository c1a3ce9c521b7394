/* The version of these headers; the build reads it from here. weft_version() is the version of the
 * library. */
#ifndef WEFT_VERSION_H
#define WEFT_VERSION_H

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION "0.1.0"

/** The library's version, "0.1.0". Static storage. */
WEFT_API const char *weft_version(void);

#ifdef __cplusplus
}
#endif
#endif
