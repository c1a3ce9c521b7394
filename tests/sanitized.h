/* Whether a program is built with a sanitizer, under which all takes many times longer. gcc and clang say it
 * differently. */
#ifndef SANITIZED_H
#define SANITIZED_H

#if defined(__has_feature)
#define SANITIZED_HAS(feature) __has_feature(feature)
#else
#define SANITIZED_HAS(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || SANITIZED_HAS(address_sanitizer)
#define SANITIZED_ADDRESS 1
#else
#define SANITIZED_ADDRESS 0
#endif

#if defined(__SANITIZE_THREAD__) || SANITIZED_HAS(thread_sanitizer)
#define SANITIZED_THREAD 1
#else
#define SANITIZED_THREAD 0
#endif

#define SANITIZED (SANITIZED_ADDRESS || SANITIZED_THREAD)

#endif
