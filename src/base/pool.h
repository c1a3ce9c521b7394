/* A pool of threads that share the tasks of one loop. Each device has one pool.
 *
 * Threads take tasks by an atomic counter, so the thread of a task is not fixed. A task's result
 * must depend only on the task's number. The number of tasks must depend only on the problem, not
 * on the thread count. These two rules make the result of every kernel independent of the number of
 * threads. */
#ifndef WEFTI_BASE_POOL_H
#define WEFTI_BASE_POOL_H

#include <stdint.h>

#include "base/status.h"

typedef struct wefti_pool wefti_pool;
typedef void wefti_task(void *context, int64_t task, int thread); /* thread in [0, threads) */

/* threads >= 1 and includes the caller of wefti_pool_run. Destroy joins the threads. */
weft_status wefti_pool_create(int threads, wefti_pool **out) WEFT_CHECKED;
void wefti_pool_destroy(wefti_pool *pool);
int wefti_pool_threads(const wefti_pool *pool); /* NULL pool: 1 */

/* Runs fn(context, 0..tasks-1, thread) and returns when all tasks are done. Not reentrant. NULL
 * pool: the caller runs all tasks. */
void wefti_pool_run(wefti_pool *pool, int64_t tasks, wefti_task *fn, void *context);

/* The cores that this process may use (by affinity and the limits of its cgroups), at least 1. */
int wefti_cores(void);

#endif
