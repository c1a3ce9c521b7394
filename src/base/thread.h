/* The threads that the library starts. */
#ifndef WEFTI_BASE_THREAD_H
#define WEFTI_BASE_THREAD_H

#include <pthread.h>

/* As pthread_create, which see for what it returns. Signals are blocked in the thread, except those
 * of its own faults: they are for the threads that the program knows of. Its stack is large enough
 * for what runs there, also where the process's limit (ulimit -s) is not. */
int wefti_thread_start(pthread_t *out, void *(*run)(void *context), void *context);

#endif
