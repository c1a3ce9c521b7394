/* A pool of threads that share the tasks of one loop. One pool per device.
 *
 * Tasks are taken by an atomic counter, so which thread runs a task is not fixed: a task's result
 * must depend on its number only. That, with tasks cut by the problem and not by the thread count,
 * is what makes every kernel's result independent of the number of threads. */
#ifndef WEFTI_BASE_POOL_H
#define WEFTI_BASE_POOL_H

#include <stdint.h>

#include "base/status.h"

typedef struct wefti_pool wefti_pool;
typedef void wefti_task(void *context, int64_t task, int thread); /* thread in [0, threads) */

/* threads >= 1, the caller of wefti_pool_run counted in. Destroy joins. */
weft_status wefti_pool_create(int threads, wefti_pool **out) WEFT_CHECKED;
void wefti_pool_destroy(wefti_pool *pool);
int wefti_pool_threads(const wefti_pool *pool); /* NULL pool: 1 */

/* Run fn(context, 0..tasks-1, thread) and return when all are done. Not reentrant. NULL pool:
 * inline. */
void wefti_pool_run(wefti_pool *pool, int64_t tasks, wefti_task *fn, void *context);

/* Cores this process may use (affinity and cgroup quota respected), at least 1. */
int wefti_cores(void);

#endif
