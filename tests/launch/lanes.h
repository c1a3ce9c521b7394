/* Members in threads of this process, for tests of the control plane. */
#ifndef WEFT_TESTS_LAUNCH_LANES_H
#define WEFT_TESTS_LAUNCH_LANES_H

#include "support.h"

#include <poll.h>

#include "base/fault.h"
#include "control_cases.h"
#include "launch/member/state.h"
#include "launch/socket.h"

enum { MOST = 16 };

static inline wefti_scheduler *start(const wefti_scheduler_options *o) {
    wefti_scheduler *s;
    weft_status status = wefti_scheduler_start(o, &s);
    if (status < 0) fail_msg("%s", weft_error_message());
    return s;
}

static inline void prepare(test_lane *lanes, int count, const char *address) {
    memset(lanes, 0, (size_t)count * sizeof *lanes);
    for (int i = 0; i < count; i++) {
        lanes[i].options = test_member(address);
        snprintf(lanes[i].node, sizeof lanes[i].node, "node-%d", i);
    }
}

static inline void all_good(const test_lane *lanes, int count) {
    bool seen[MOST] = {false};
    for (int i = 0; i < count; i++) {
        if (lanes[i].status < 0) fail_msg("member %d: %s", i, lanes[i].text);
        assert_false(lanes[i].wrong);
        assert_int_equal(lanes[i].size, count);
        assert_in_range(lanes[i].rank, 0, count - 1);
        assert_false(seen[lanes[i].rank]);
        seen[lanes[i].rank] = true;
        assert_true(lanes[i].generation == lanes[0].generation && lanes[i].generation > 0);
        assert_memory_equal(lanes[i].hosts, lanes[0].hosts, sizeof lanes[i].hosts);
    }
}

typedef struct leaver {
    wefti_member_options options;
    wefti_call_records records;
    weft_status joined, left;
    _Atomic bool has_joined; /* or failed to */
    pthread_t thread;
} leaver;

static inline void *join_and_leave(void *context) {
    leaver *l = context;
    wefti_member *m;
    l->joined = wefti_member_join(&l->options, &m);
    l->has_joined = true;
    if (l->joined >= 0) l->left = wefti_member_close(m, &l->records);
    return NULL;
}

#endif
