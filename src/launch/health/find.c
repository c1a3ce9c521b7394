/* Finds the jobs of `weft launch` on this host: their ranks have the scheduler's address in their
 * environment. A probe of Kubernetes runs in the same container, but is no child of the launcher.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/digest/digest.h"
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

/* What the link /proc/PROCESS/NAME says; "": it cannot be read. */
static void read_link(const char *folder, const char *process, const char *name, char *out,
                      size_t room) {
    char path[WEFTI_PATH_TEXT];
    (void)snprintf(path, sizeof path, "%.900s/%.20s/%.20s", folder, process, name);
    const ssize_t bytes = readlink(path, out, room - 1);
    out[bytes > 0 ? bytes : 0] = '\0';
}

/* Jobs of two namespaces can have one address, and a job of several hosts has one on all. */
static void name_job(wefti_job_place *job, const char *network) {
    uint32_t sum = wefti_crc32c(0, job->scheduler, strlen(job->scheduler) + 1);
    sum = wefti_crc32c(sum, job->secret_file, strlen(job->secret_file) + 1);
    if (!strncmp(job->scheduler, "127.", 4)) sum = wefti_crc32c(sum, network, strlen(network));
    (void)snprintf(job->name, sizeof job->name, "%08x", (unsigned)sum);
}

void wefti_job_name(const char *scheduler, const char *secret_file, char out[16]) {
    wefti_job_place job = {0};
    char network[64];
    (void)snprintf(job.scheduler, sizeof job.scheduler, "%s", scheduler);
    (void)snprintf(job.secret_file, sizeof job.secret_file, "%s", secret_file);
    read_link("/proc", "self", "ns/net", network, sizeof network);
    name_job(&job, network);
    memcpy(out, job.name, sizeof job.name);
}

static bool read_place(const char *folder, int64_t process, wefti_job_place *out) {
    char path[WEFTI_PATH_TEXT], number[24], network[64], own[64], *text;
    int64_t bytes;
    bool found = false;
    (void)snprintf(number, sizeof number, "%lld", (long long)process);
    (void)snprintf(path, sizeof path, "%.900s/%s/environ", folder, number);
    if (wefti_file_read(path, ENVIRONMENT_MOST, &text, &bytes) < 0) return false;
    const char *launch = value_of(text, bytes, "WEFT_LAUNCH"),
               *scheduler = value_of(text, bytes, "WEFT_SCHEDULER"),
               *secret = value_of(text, bytes, "WEFT_SECRET_FILE"),
               *standby = value_of(text, bytes, "WEFT_STANDBY"),
               *job = value_of(text, bytes, "WEFT_JOB"), *size = value_of(text, bytes, "WEFT_SIZE"),
               *tls = value_of(text, bytes, "WEFT_TLS");
    *out = (wefti_job_place){0};
    if (launch && *launch && scheduler && secret && strlen(scheduler) < sizeof out->scheduler &&
        strlen(secret) < sizeof out->secret_file) {
        (void)snprintf(out->scheduler, sizeof out->scheduler, "%s", scheduler);
        (void)snprintf(out->job, sizeof out->job, "%.200s", job ? job : "");
        (void)snprintf(out->standby, sizeof out->standby, "%s", standby ? standby : "");
        (void)snprintf(out->secret_file, sizeof out->secret_file, "%s", secret);
        out->tls = tls && !strcmp(tls, "1");
        out->size = size ? atoi(size) : 0;
        read_link(folder, number, "cwd", out->folder, sizeof out->folder);
        read_link(folder, number, "ns/net", network, sizeof network);
        read_link(folder, "self", "ns/net", own, sizeof own);
        out->elsewhere = strcmp(network, own) != 0;
        name_job(out, network);
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

/* A job with processes in several namespaces is here if one of them is. */
static bool is_known(wefti_job_place *jobs, int64_t count, const wefti_job_place *one) {
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(jobs[i].name, one->name) != 0) continue;
        jobs[i].elsewhere = jobs[i].elsewhere && one->elsewhere;
        return true;
    }
    return false;
}

weft_status wefti_jobs_find(const char *folder, wefti_job_place **out, int64_t *out_count) {
    wefti_job_place *jobs = NULL, one;
    int64_t *processes, count, found = 0, capacity = 0;
    weft_status status = WEFT_OK;
    WEFT_TRY(wefti_dir_numbers(folder, number_of, NULL, &processes, &count));
    for (int64_t i = 0; i < count && status >= 0; i++) {
        if (!read_place(folder, processes[i], &one)) continue; /* gone, or of another user */
        if (is_known(jobs, found, &one)) continue;
        status = WEFT_GROW(jobs, found, capacity);
        if (status >= 0) jobs[found++] = one;
    }
    wefti_free(processes);
    if (status < 0) {
        wefti_free(jobs);
        return status;
    }
    *out = jobs;
    *out_count = found;
    return WEFT_OK;
}

/* The name that its user gave it (WEFT_JOB), if no other job has it. */
static const char *shown_name(const wefti_job_place *jobs, int64_t count, int64_t i) {
    if (!*jobs[i].job) return jobs[i].name;
    for (int64_t k = 0; k < count; k++)
        if (k != i && !strcmp(jobs[k].job, jobs[i].job)) return jobs[i].name;
    return jobs[i].job;
}

static weft_status say_several(const wefti_job_place *jobs, int64_t count) {
    wefti_text text = {0};
    for (int64_t i = 0; i < count && i < JOBS_NAMED; i++)
        wefti_text_add(&text, "%s%s in %.200s", i ? ", " : "", shown_name(jobs, count, i),
                       *jobs[i].folder ? jobs[i].folder : "a folder that is not known");
    char *names = wefti_text_take(&text);
    const weft_status status =
        WEFT_RAISE(WEFT_E_ARG,
                   "several jobs of weft launch run on this host: choose one with --job NAME: %s "
                   "(weft jobs lists them)",
                   names ? names : "");
    wefti_free(names);
    return status;
}

/* Moves those in reach to the front, if there are any, and returns how many count. */
static int64_t prefer_near(wefti_job_place *jobs, int64_t count) {
    int64_t near = 0;
    for (int64_t i = 0; i < count; i++)
        if (!jobs[i].elsewhere) jobs[near++] = jobs[i];
    return near > 0 ? near : count;
}

weft_status wefti_job_find(const char *folder, const char *name, wefti_job_place *out) {
    wefti_job_place *jobs;
    int64_t count;
    WEFT_TRY(wefti_jobs_find(folder, &jobs, &count));
    const int64_t near = name ? count : prefer_near(jobs, count);
    weft_status status = WEFT_E_NOT_FOUND;
    for (int64_t i = 0; i < near && status != WEFT_OK; i++) {
        if (name && strcmp(jobs[i].name, name) != 0 &&
            strcmp(shown_name(jobs, count, i), name) != 0)
            continue;
        *out = jobs[i];
        status = WEFT_OK;
    }
    if (!name && near > 1)
        status = say_several(jobs, near);
    else if (status < 0 && name)
        status =
            WEFT_RAISE(WEFT_E_NOT_FOUND,
                       "no job %.40s of weft launch runs on this host: weft jobs lists them", name);
    else if (status < 0)
        status = WEFT_RAISE(WEFT_E_NOT_FOUND,
                            "no job of weft launch runs on this host, and neither an option nor "
                            "WEFT_SCHEDULER says where a scheduler is");
    wefti_free(jobs);
    return status;
}

weft_status weft_jobs_find(weft_jobs *out) {
    wefti_job_place *jobs;
    int64_t count;
    *out = (weft_jobs){0};
    WEFT_TRY(wefti_jobs_find("/proc", &jobs, &count));
    weft_status status = WEFT_OK;
    out->job = wefti_calloc((size_t)(count > 0 ? count : 1), sizeof *out->job);
    if (!out->job) status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the jobs of a host");
    for (int64_t i = 0; i < count && status >= 0; i++) {
        weft_running_job *to = &out->job[out->count++];
        *to = (weft_running_job){.name = wefti_strdup(shown_name(jobs, count, i)),
                                 .folder = wefti_strdup(jobs[i].folder),
                                 .scheduler = wefti_strdup(jobs[i].scheduler),
                                 .ranks = jobs[i].size,
                                 .elsewhere = jobs[i].elsewhere};
        if (!to->name || !to->folder || !to->scheduler)
            status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the jobs of a host");
    }
    wefti_free(jobs);
    if (status < 0) weft_jobs_free(out);
    return status;
}

void weft_jobs_free(weft_jobs *jobs) {
    for (int i = 0; i < jobs->count; i++) {
        wefti_free(jobs->job[i].name);
        wefti_free(jobs->job[i].folder);
        wefti_free(jobs->job[i].scheduler);
    }
    wefti_free(jobs->job);
    *jobs = (weft_jobs){0};
}
