/* What the jobs of a run's ranks must have in common, by the column `ranks` of keys.def. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest/digest.h"
#include "base/memory.h"
#include "job/job.h"
#include "plan/plan.h"

static bool is_given(const char *value) {
    return strcmp(value, "\"\"") != 0 && strcmp(value, "auto") != 0;
}

/* A value of each key, in the order of the table, with a NUL behind it. Keys that say nothing, or
 * that are not compared, have an empty one. */
weft_status wefti_job_shared(const weft_job *job, wefti_text *out) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    for (int i = 0; i < rows; i++) {
        const bool compared =
            table[i].ranks == WEFTI_RANKS_SAME || table[i].ranks == WEFTI_RANKS_GIVEN;
        if (compared && !wefti_job_is_told_elsewhere(job, &table[i]))
            wefti_job_write_value(job, &table[i], out);
        wefti_text_add_bytes(out, "", 1);
    }
    WEFT_REQUIRE(!out->failed, WEFT_E_NOMEM, "no memory to compare jobs");
    return WEFT_OK;
}

/* The next value of a list, which another process may have cut short. */
static const char *next_value(const char **at, const char *end) {
    const char *value = *at, *stop = memchr(value, 0, (size_t)(end - value));
    if (!stop) return "";
    *at = stop + 1;
    return value;
}

static weft_status compare(wefti_job_ranks ranks, int32_t me, const wefti_text *own,
                           const char *first, int64_t bytes) {
    int rows;
    const wefti_job_row *table = wefti_job_table(&rows);
    const char *mine = own->data, *mine_end = mine + own->used, *theirs_end = first + bytes;
    for (int i = 0; i < rows; i++) {
        const char *path = table[i].path;
        const char *here = next_value(&mine, mine_end), *there = next_value(&first, theirs_end);
        if (table[i].ranks != ranks) continue;
        WEFT_REQUIRE_OF(me, ranks != WEFTI_RANKS_GIVEN || is_given(here) == is_given(there),
                        WEFT_E_MISMATCH,
                        "%s is set on rank %d, but not on rank %d: all ranks of a run need it, or "
                        "none",
                        path, is_given(here) ? (int)me : 0, is_given(here) ? 0 : (int)me);
        WEFT_REQUIRE_OF(me, ranks != WEFTI_RANKS_SAME || !strcmp(here, there), WEFT_E_MISMATCH,
                        "%s is %.200s on rank %d, but %.200s on rank 0: all ranks of a run need "
                        "the same",
                        path, *here ? here : "not set", (int)me, *there ? there : "not set");
    }
    return WEFT_OK;
}

weft_status wefti_job_same(const weft_job *job, int32_t me, const char *first, int64_t bytes) {
    wefti_text own = {0};
    weft_status status = wefti_job_shared(job, &own);
    /* Whether there are files decides which keys say anything. */
    if (status >= 0) status = compare(WEFTI_RANKS_GIVEN, me, &own, first, bytes);
    if (status >= 0) status = compare(WEFTI_RANKS_SAME, me, &own, first, bytes);
    wefti_text_free(&own);
    return status;
}

/* ---- before joining ---- */

/* The ending of a file's name, "txt". Files with the same one hold the same data only if their
 * bytes are equal. "": not so. A line of jsonl may be written in several ways, and files may be
 * packed. */
static const char *plain_ending(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    if (!dot || (slash && dot < slash)) return "";
    return strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".gz") == 0 ? "" : dot + 1;
}

/* Size and samples; false: it is no file, or cannot be read, as the run will say. */
static bool sample_file(const char *path, int64_t *out_bytes, uint64_t *out_digest) {
    enum { PLACES = 16, EACH = 4096 };
    unsigned char sample[EACH];
    struct stat at;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool reads = fd >= 0 && fstat(fd, &at) == 0 && S_ISREG(at.st_mode);
    *out_digest = 0;
    for (int i = 0; i < PLACES && reads; i++) {
        const int64_t room = at.st_size > EACH ? at.st_size - EACH : 0;
        const ssize_t got = pread(fd, sample, EACH, room / (PLACES - 1) * i);
        reads = got >= 0;
        if (reads) *out_digest = wefti_digest_bytes(*out_digest, sample, (size_t)got);
    }
    if (reads) *out_bytes = (int64_t)at.st_size;
    if (fd >= 0) close(fd);
    return reads;
}

/* In mode manual each rank may have data of its own. */
static void add_data(const weft_job *job, wefti_text *out) {
    const char *ending = plain_ending(job->data.path);
    const bool manual = job->plan && job->plan->mode == WEFT_PARALLEL_MANUAL;
    int64_t bytes;
    uint64_t digest;
    if (manual || !*ending || !sample_file(job->data.path, &bytes, &digest)) return;
    wefti_text_add(out, "the .%s file of data.path = %lld bytes, samples %016llx\n", ending,
                   (long long)bytes, (unsigned long long)digest);
}

/* On one line. */
static void add_value(wefti_text *out, const char *value) {
    for (const char *c = value; *c; c++) wefti_text_add_bytes(out, *c == '\n' ? " " : c, 1);
}

weft_status weft_job_identity(const weft_job *job, const char *program, char **out) {
    int rows;
    wefti_text text = {0}, shared = {0};
    const wefti_job_row *table = wefti_job_table(&rows);
    weft_status status = wefti_job_shared(job, &shared);
    if (status < 0) {
        wefti_text_free(&shared);
        return status;
    }
    const char *at = shared.data, *end = at + shared.used;
    wefti_text_add(&text, "program = %s\n", program);
    for (int i = 0; i < rows; i++) {
        const char *value = next_value(&at, end);
        const bool same = table[i].ranks == WEFTI_RANKS_SAME;
        if (!same && table[i].ranks != WEFTI_RANKS_GIVEN) continue;
        wefti_text_add(&text, "%s = ", table[i].path);
        add_value(&text, same && *value ? value : is_given(value) && *value ? "set" : "not set");
        wefti_text_add(&text, "\n");
    }
    wefti_text_free(&shared);
    add_data(job, &text);
    *out = wefti_text_take(&text);
    WEFT_REQUIRE(*out, WEFT_E_NOMEM, "no memory for an identity");
    return WEFT_OK;
}
