/* Threads of the library. */
#ifndef WEFTI_BASE_THREAD_H
#define WEFTI_BASE_THREAD_H

#include <pthread.h>

/* Returns as pthread_create does. Signals are blocked in the thread, except signals of its own
 * faults: the program's own threads handle the others. The stack is large enough for the library's
 * code even if the process's limit (ulimit -s) is small. */
int wefti_thread_start(pthread_t *out, void *(*run)(void *context), void *context);

#endif
