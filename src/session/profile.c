/* The times of kernels and transfers of a session's devices. */
#include "session/parts.h"

#include "base/memory.h"

void wefti_session_set_profiles(const weft_session *s) {
    for (int32_t r = 0; s->workers && s->profiles && r < s->devices; r++)
        if (wefti_session_has(s, r))
            wefti_rank_device_profile(wefti_workers_device(s->workers, r),
                                      s->profiling ? s->profiles[r] : NULL);
}

static weft_status create(weft_session *s) {
    WEFT_NEW_ARRAY(s->profiles, wefti_profile *, s->devices);
    for (int32_t r = 0; r < s->devices; r++)
        if (wefti_session_has(s, r))
            WEFT_TRY(wefti_profile_create(s->views[0]->programs[r], &s->profiles[r]));
    return WEFT_OK;
}

weft_status wefti_session_profile(weft_session *s, bool on) {
    weft_status status = on && !s->profiles ? create(s) : WEFT_OK;
    if (status < 0) {
        wefti_session_profiles_destroy(s);
        return status;
    }
    s->profiling = on;
    wefti_session_set_profiles(s);
    return WEFT_OK;
}

void wefti_session_profile_end_step(weft_session *s) {
    for (int32_t r = 0; s->profiling && r < s->devices; r++)
        if (s->profiles[r]) wefti_profile_end_step(s->profiles[r]);
}

const wefti_profile *wefti_session_profile_of(const weft_session *s, int32_t rank) {
    return s->profiles ? s->profiles[rank] : NULL;
}

int64_t wefti_session_waited(const weft_session *s) {
    int64_t sum = 0, count = 0;
    for (int32_t r = 0; s->workers && r < s->devices; r++) {
        if (!wefti_session_has(s, r)) continue;
        sum += wefti_rank_device_waited(wefti_workers_device(s->workers, r));
        count++;
    }
    return count ? sum / count : 0;
}

void wefti_session_trace_run(const weft_session *s, const char *what, int64_t begin_ns,
                             int64_t end_ns) {
    if (s->trace)
        wefti_trace_event(s->trace, s->me, WEFTI_TRACK_RUN, what, what, begin_ns, end_ns, 0, 0);
}

void wefti_session_trace_meeting(const weft_session *s, int64_t step, int64_t at_ns) {
    if (s->trace) wefti_trace_meeting(s->trace, step, at_ns);
}

int64_t wefti_session_observed(const weft_session *s, int32_t rank) {
    if (!s->workers || !wefti_session_has(s, rank)) return 0;
    return wefti_rank_device_observed_peak(wefti_workers_device(s->workers, rank),
                                           WEFTI_SPACE_DEVICE);
}

void wefti_session_profiles_destroy(weft_session *s) {
    for (int32_t r = 0; s->profiles && r < s->devices; r++) wefti_profile_destroy(s->profiles[r]);
    wefti_free(s->profiles);
    s->profiles = NULL;
    s->profiling = false;
}
