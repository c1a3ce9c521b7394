/* Whether a program is built with a sanitizer, under which all takes many times longer. gcc defines
 * these names; for clang the build does (cmake/WeftFlags.cmake). */
#ifndef SANITIZED_H
#define SANITIZED_H

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED_ADDRESS 1
#else
#define SANITIZED_ADDRESS 0
#endif

#if defined(__SANITIZE_THREAD__)
#define SANITIZED_THREAD 1
#else
#define SANITIZED_THREAD 0
#endif

#define SANITIZED (SANITIZED_ADDRESS || SANITIZED_THREAD)

/* For loops that compute what a test expects. They touch only memory of the test, and would take
 * most of its time. */
#define UNSANITIZED                                                                                \
    __attribute__((no_sanitize("address"))) __attribute__((no_sanitize("undefined")))              \
    __attribute__((no_sanitize("thread")))

#endif
