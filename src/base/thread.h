/* Threads of the library. */
#ifndef WEFTI_BASE_THREAD_H
#define WEFTI_BASE_THREAD_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

/* Returns as pthread_create does. Signals are blocked in the thread, except signals of its own
 * faults: the program's own threads handle the others. The stack is large enough for the library's
 * code even if the process's limit (ulimit -s) is small. */
int wefti_thread_start(pthread_t *out, void *(*run)(void *context), void *context);

/* The cores of one of `count` members, 0 to count - 1, among those that this thread may use: a
 * piece for each, or one core in turns if there are more members than cores. Empty: not known. */
void wefti_cores_piece(int member, int count, cpu_set_t *out);
/* Where members are more than cores: keeps this thread on its piece. Threads that wait for each
 * other all the time would else gather on some cores, and steps would take as long as there. False:
 * the thread stays as it is. */
bool wefti_thread_take_turns(int member, int count);

#endif
