/* A folder of a test, with a job's secret and, for all its ranks to see, memory; and nothing in the
 * environment that a launcher would say. */
#ifndef SECRET_FOLDER_H
#define SECRET_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/io.h"
#include "launch/auth.h"
#include "launch/env/env.h"

static char folder[64], secret[128]; /* their paths */

/* *out_shared: zeros. 0 or -1, as cmocka's. */
static int make_secret_folder(const char *name, void **out_shared, size_t bytes) {
    (void)snprintf(folder, sizeof folder, "/tmp/weft_%s.XXXXXX", name);
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(secret, sizeof secret, "%s/secret", folder);
    for (const char *const *v = wefti_launcher_variables; *v; v++) unsetenv(*v);
    setenv("HOME", folder, 1);
    *out_shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *out_shared == MAP_FAILED || wefti_secret_create(secret) < 0 ? -1 : 0;
}
static int remove_secret_folder(void *shared, size_t bytes) {
    munmap(shared, bytes);
    return wefti_remove_tree(folder) < 0 ? -1 : 0;
}

#endif
