/* Finds the job of `weft launch` on this host: its ranks have the scheduler's address in their
 * environment. A probe of Kubernetes runs in the same container, but is no child of the launcher.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "launch/health/health.h"

enum { ENVIRONMENT_MOST = 4 << 20, JOBS_NAMED = 8 };

/* NULL: the environment has no such variable. */
static const char *value_of(const char *environment, int64_t bytes, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = environment; at < environment + bytes; at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=') return at + length + 1;
    return NULL;
}

static bool read_place(const char *path, wefti_job_place *out) {
    char *text;
    int64_t bytes;
    bool found = false;
    if (wefti_file_read(path, ENVIRONMENT_MOST, &text, &bytes) < 0) return false;
    const char *launch = value_of(text, bytes, "WEFT_LAUNCH"),
               *scheduler = value_of(text, bytes, "WEFT_SCHEDULER"),
               *secret = value_of(text, bytes, "WEFT_SECRET_FILE"),
               *standby = value_of(text, bytes, "WEFT_STANDBY"),
               *tls = value_of(text, bytes, "WEFT_TLS");
    if (launch && *launch && scheduler && secret && strlen(scheduler) < sizeof out->scheduler &&
        strlen(secret) < sizeof out->secret_file) {
        (void)snprintf(out->scheduler, sizeof out->scheduler, "%s", scheduler);
        (void)snprintf(out->standby, sizeof out->standby, "%s", standby ? standby : "");
        (void)snprintf(out->secret_file, sizeof out->secret_file, "%s", secret);
        out->tls = tls && !strcmp(tls, "1");
        found = true;
    }
    wefti_free(text);
    return found;
}

static int64_t number_of(const char *name, const void *context) {
    (void)context;
    const size_t digits = strspn(name, "0123456789");
    return digits > 0 && digits < 10 && !name[digits] ? strtoll(name, NULL, 10) : -1;
}

weft_status wefti_job_find(const char *folder, wefti_job_place *out) {
    wefti_job_place one;
    wefti_text others = {0};
    int64_t *processes, count;
    int jobs = 0;
    WEFT_TRY(wefti_dir_numbers(folder, number_of, NULL, &processes, &count));
    for (int64_t i = 0; i < count; i++) {
        char path[WEFTI_PATH_TEXT];
        (void)snprintf(path, sizeof path, "%.900s/%lld/environ", folder, (long long)processes[i]);
        if (!read_place(path, &one)) continue; /* gone, or of another user */
        if (jobs > 0 && !strcmp(one.scheduler, out->scheduler)) continue;
        if (jobs++ == 0) *out = one;
        if (jobs > 1 && jobs <= JOBS_NAMED) wefti_text_add(&others, ", %s", one.scheduler);
    }
    wefti_free(processes);
    char *names = wefti_text_take(&others);
    weft_status status = WEFT_OK;
    if (jobs > 1)
        status = WEFT_RAISE(WEFT_E_ARG,
                            "several jobs of weft launch run on this host: say which scheduler to "
                            "ask, %s%s",
                            out->scheduler, names ? names : "");
    else if (jobs == 0)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "no job of weft launch runs on this host, and neither an option nor "
                            "WEFT_SCHEDULER says where a scheduler is");
    wefti_free(names);
    return status;
}
