/* The trace of a run. Each process writes its own; at the end, the first one of each host puts
 * those of the host together. If the run fails or is stopped before, the files of the processes
 * stay. */
#include <unistd.h>

#include "base/io.h"
#include "base/text.h"
#include "train/loop/loop.h"

/* For wefti_free; NULL: no memory. */
static char *path_of(const wefti_training *t, int rank) {
    const char *path = t->events->trace;
    return rank == 0 ? wefti_strdup(path) : wefti_format("%s.rank%d", path, rank);
}

static int own_rank(const wefti_training *t) {
    return t->setup.party.world ? weft_world_rank(t->setup.party.world) : 0;
}

weft_status wefti_training_begin_trace(wefti_training *t) {
    if (!t->events || !t->events->trace) return WEFT_OK;
    char *path = path_of(t, own_rank(t));
    WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = weft_session_trace(t->built->session, path);
    wefti_free(path);
    return status;
}

/* The files of this host's ranks. A file that this process does not see, or whose rank writes
 * none, is none of them. */
static weft_status list_files(const wefti_training *t, const char *traced, char **files,
                              int *count) {
    const weft_world *world = t->setup.party.world;
    for (int r = own_rank(t); r < world->size; r++) {
        if (world->host[r] != world->host[world->rank] || !traced[r]) continue;
        char *path = path_of(t, r);
        WEFT_REQUIRE(path, WEFT_E_NOMEM, "no memory for a path");
        if (wefti_is_missing(path))
            wefti_free(path);
        else
            files[(*count)++] = path;
    }
    return WEFT_OK;
}

static weft_status merge(const wefti_training *t, char **files, int count) {
    const weft_world *world = t->setup.party.world;
    char *out = own_rank(t) == 0
                    ? wefti_strdup(t->events->trace)
                    : wefti_format("%s.host%d", t->events->trace, (int)world->host[world->rank]);
    WEFT_REQUIRE(out, WEFT_E_NOMEM, "no memory for a path");
    weft_status status = weft_trace_merge((const char *const *)files, count, out);
    wefti_free(out);
    for (int i = own_rank(t) == 0; i < count && status >= 0; i++) (void)unlink(files[i]);
    return status;
}

/* traced: [size]: ranks that have written a trace. */
static weft_status merge_host(const wefti_training *t, const char *traced) {
    const weft_world *world = t->setup.party.world;
    char **files;
    for (int r = 0; r < world->rank; r++)
        if (world->host[r] == world->host[world->rank] && traced[r]) return WEFT_OK;
    WEFT_NEW_ARRAY(files, char *, world->size);
    int count = 0;
    weft_status status = list_files(t, traced, files, &count);
    if (status >= 0 && count > 0 && world->size > 1) status = merge(t, files, count);
    for (int i = 0; i < count; i++) wefti_free(files[i]);
    wefti_free(files);
    return status < 0 ? wefti_prefix(status, "the trace") : WEFT_OK;
}

weft_status wefti_training_end_trace(wefti_training *t) {
    const bool traces = t->events && t->events->trace;
    weft_status status = WEFT_OK;
    if (traces) {
        wefti_training_trace_parts(t);
        status = weft_session_trace(t->built->session, NULL);
    }
    if (!t->setup.party.agreement) return status;
    WEFT_TRY(wefti_party_agree(&t->setup.party, status));
    char own = traces, *traced = wefti_calloc((size_t)weft_world_size(t->setup.party.world), 1);
    status = wefti_agree_records(t->setup.party.agreement, &own, sizeof own, traced);
    /* Ranks of a mended world may have other numbers than their files. */
    if (status >= 0 && traces && !t->mended) status = merge_host(t, traced);
    wefti_free(traced);
    return status;
}
