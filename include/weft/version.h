/* The version of these headers; the build reads it from here. weft_version() is the version of the
 * library. */
#ifndef WEFT_VERSION_H
#define WEFT_VERSION_H

#include "weft/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

/** A number that grows with the version, for #if: WEFT_VERSION_NUMBER >= WEFT_VERSION_OF(0, 2, 0).
 */
#define WEFT_VERSION_OF(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define WEFT_VERSION_NUMBER                                                                        \
    WEFT_VERSION_OF(WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH)

#define WEFT_VERSION_JOIN(major, minor, patch) #major "." #minor "." #patch
#define WEFT_VERSION_TEXT(major, minor, patch) WEFT_VERSION_JOIN(major, minor, patch)
/** The same as text, such as "0.1.0". */
#define WEFT_VERSION WEFT_VERSION_TEXT(WEFT_VERSION_MAJOR, WEFT_VERSION_MINOR, WEFT_VERSION_PATCH)

/** The library's version at run time, as text (static storage) and as a number. A program that was
 * compiled with these headers can use any library with the same major version, and the same minor
 * version while the major version is 0. */
WEFT_API const char *weft_version(void);
WEFT_API int weft_version_number(void);

#ifdef __cplusplus
}
#endif
#endif
