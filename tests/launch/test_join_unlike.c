/* Ranks of a world that was joined make calls that differ: all learn which rank differs, and how.
 */
#include "join_cases.h"

#include "base/fault.h"

/* --- calls that differ at the very end, where no later call finds it */

enum {
    LIKE,
    OTHER_ROOT,
    LEFT_OUT,
    LOST_MESSAGE,
    ONE_MESSAGE_LESS,
    OTHER_TAG,
    LOST_BLOCK,
    LOST_NEIGHBOR,
    OTHER_BLOCKS,
    UNLIKE_CASES
};
static int unlike_case;

/* The paths of messages: small ones go into shared memory or the network before the receiver takes
 * them. */
static const struct {
    const char *communicator;
    int hosts;     /* of neighbours... */
    bool by_turns; /* ...or not */
} roads[] = {{"host", 1, false},
             {"mac", 1, false},
             {"host+mac", 2, false},
             {"host+mac", 2, true},
             {"ucx", 1, false}};
enum { ROADS = sizeof roads / sizeof *roads };
static int unlike_road;

/* All messages are received, in another order than they are sent; an empty one may be lost. */
static weft_status like_messages(weft_world *w, int rank) {
    enum { TAGS = 3 };
    static float sent[TAGS] = {1, 2, 3}, received[TAGS];
    weft_request *request[TAGS];
    weft_status status = WEFT_OK;
    if (rank == 1) {
        for (int t = 0; t < TAGS && status >= 0; t++)
            status = weft_send(w, NULL, &sent[t], 1, WEFT_F32, 3, t);
        if (status >= 0) status = weft_send(w, NULL, NULL, 0, WEFT_F32, 3, TAGS);
    }
    if (rank != 3) return status;
    for (int t = TAGS - 1; t >= 0 && status >= 0; t--)
        status = weft_recv_start(w, NULL, &received[t], 1, WEFT_F32, 1, t, &request[t]);
    for (int t = 0; t < TAGS && status >= 0; t++) status = weft_request_wait(request[t]);
    return status;
}

/* Messages that nobody receives. */
static weft_status unlike_messages(weft_world *w, int rank) {
    float values[3] = {1, 2, 3};
    weft_status status = WEFT_OK;
    if (unlike_case == LOST_MESSAGE && rank == 0)
        return weft_send(w, NULL, values, 3, WEFT_F32, 2, 7);
    if (unlike_case == OTHER_TAG && rank == 3)
        for (int t = 7; t < 9 && status >= 0; t++)
            status = weft_send(w, NULL, values, 2, WEFT_F32, 2, t);
    if (unlike_case == OTHER_TAG && rank == 2) {
        static float left[2];
        weft_request *request;
        status = weft_recv_start(w, NULL, left, 2, WEFT_F32, 3, 9, &request);
        if (status >= 0) status = weft_recv(w, NULL, values, 2, WEFT_F32, 3, 7);
    }
    if (unlike_case != ONE_MESSAGE_LESS) return status;
    for (int i = 0; i < 2 && rank == 3 && status >= 0; i++)
        status = weft_send(w, NULL, values, 2, WEFT_F32, 2, 7);
    return rank == 2 ? weft_recv(w, NULL, values, 2, WEFT_F32, 3, 7) : status;
}

/* Equal on all, but for the order of groups and what neighbours say to each other. */
static weft_status like_calls(weft_world *w, int rank) {
    weft_group *group[2];
    weft_request *request[2];
    float mine = 1, sum[2];
    int other = rank == 0 ? 1 : 0;
    int64_t one = 1;
    weft_status status = weft_barrier(w, NULL);
    for (int i = 0; i < 2 && status >= 0; i++)
        status = weft_group_create(w, (int[]){0, 1, 2, 3}, RANKS, &group[i]);
    for (int i = 0; i < 2 && status >= 0; i++) {
        int k = (i + rank) % 2;
        status = weft_all_reduce_start(w, group[k], &mine, &sum[k], 1, WEFT_F32,
                                       k ? WEFT_REDUCE_MAX : WEFT_REDUCE_SUM, &request[k]);
    }
    for (int i = 0; i < 2 && status >= 0; i++) status = weft_request_wait(request[i]);
    if (status >= 0 && rank < 2)
        status =
            weft_neighbor_exchange(w, NULL, &mine, &other, &one, 1, sum, &other, &one, 1, WEFT_F32);
    weft_group_destroy(group[rank % 2]);
    int64_t sent[RANKS] = {0}, received[RANKS] = {rank + 1};
    float values[RANKS * RANKS] = {0}, taken[RANKS];
    for (int m = 0; m < RANKS && rank == 0; m++) sent[m] = m + 1;
    if (status >= 0) status = weft_all_to_all_v(w, NULL, values, sent, taken, received, WEFT_F32);
    return status >= 0 ? like_messages(w, rank) : status;
}

/* One that has no memory for a call makes it again, until it has. */
static weft_status repeated_call(weft_world *w, int rank) {
    static float values[5];
    weft_status status = WEFT_E_NOMEM;
    for (int nth = 0; rank == 2 && status == WEFT_E_NOMEM; nth++) {
        wefti_fault_arm(WEFTI_FAULT_ALLOC, nth, false, 0);
        status = weft_broadcast(w, NULL, values, 5, WEFT_F32, 3);
        wefti_fault_arm(WEFTI_FAULT_ALLOC, -1, false, 0);
        if (nth == 0 && status >= 0) return weft_error_raise(WEFT_E_ARG, "it needs no memory");
    }
    return rank == 2 ? status : weft_broadcast(w, NULL, values, 5, WEFT_F32, 3);
}

/* Blocks that nobody looks for. */
static weft_status unlike_blocks(weft_world *w, int rank) {
    static const float values[RANKS] = {1, 2, 3, 4};
    int64_t sent[RANKS] = {0}, none[RANKS] = {0};
    if (unlike_case == LOST_BLOCK) {
        if (rank == 2) sent[1] = 3;
        return weft_all_to_all_v(w, NULL, values, sent, NULL, none, WEFT_F32);
    }
    bool odd = unlike_case == LOST_NEIGHBOR ? rank == 3 : rank == 0;
    if (unlike_case < LOST_BLOCK || !odd) return WEFT_OK;
    int to = unlike_case == LOST_NEIGHBOR ? 0 : 3;
    return weft_neighbor_exchange(w, NULL, values, &to, (int64_t[]){2}, 1, NULL, NULL, NULL, 0,
                                  WEFT_F32);
}

static int unlike(int number, outcome *out) {
    weft_world *w;
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .join_seconds = 600, .heartbeat_seconds = LONG_HEARTBEAT);
    int hosts = roads[unlike_road].hosts;
    set_number("RANK", number);
    set_number("LOCAL_RANK", number);
    if (hosts > 1) {
        set_number("WEFT_HOST_ID",
                   roads[unlike_road].by_turns ? number % hosts : number / (RANKS / hosts));
        unsetenv("LOCAL_RANK");
        unsetenv("LOCAL_WORLD_SIZE");
    } else {
        setenv("WEFT_COMM", roads[unlike_road].communicator, 1);
    }
    weft_status status = weft_world_join(&options, &w);
    if (status < 0) return describe(out, status);
    snprintf(out->communicator, sizeof out->communicator, "%s", weft_world_communicator(w));
    float value = 1;
    status = like_calls(w, number);
    if (status >= 0 && unlike_case == LIKE) status = repeated_call(w, number);
    if (status >= 0 && unlike_case == OTHER_ROOT)
        status = weft_broadcast(w, NULL, &value, 1, WEFT_F32, number == 1 ? 1 : 0);
    if (status >= 0 && unlike_case == LEFT_OUT && number == 0)
        status = weft_broadcast(w, NULL, &value, 1, WEFT_F32, 0);
    if (status >= 0) status = unlike_messages(w, number);
    if (status >= 0) status = unlike_blocks(w, number);
    describe(out, status); /* one that is late hears it in a call */
    weft_status end = weft_world_close(w);
    if (status >= 0) describe(out, end);
    return 0;
}

/* False: this build has no such carrier. */
static bool is_told(const char *named) {
    const char *communicator = roads[unlike_road].communicator;
    torch_variables(true);
    begin(RANKS, unlike);
    int bad = finish(RANKS);
    torch_variables(false);
    if (carrier_missing(RANKS)) return false;
    assert_int_equal(bad, 0);
    for (int i = 0; i < RANKS; i++) {
        const outcome *o = &outcomes[i];
        bool told = o->status == WEFT_E_MISMATCH || o->status == WEFT_E_PEER;
        assert_string_equal(o->communicator, communicator);
        if (named ? !told || !has_facts(o->text, named) : o->status != WEFT_OK)
            fail_msg("case %d by %s %d, rank %d: status %d, '%s'", unlike_case, communicator,
                     unlike_road, i, (int)o->status, o->text);
    }
    return true;
}

/* Whoever leaves first, the odd one is compared with another. */
static void unlike_at_the_end(void **state) {
    (void)state;
    static const char *const named[UNLIKE_CASES] = {
        [OTHER_ROOT] = "rank 1 in all 4 ranks|5 calls|a broadcast|root member 1",
        [LEFT_OUT] = "rank 0 in all 4 ranks|5 calls|a broadcast|root member 0",
        [LOST_MESSAGE] = "rank 0 in messages|from rank 0 to rank 2|1 sent|3 elements (f32)|tag 7|"
                         "rank 2 in none",
        [ONE_MESSAGE_LESS] = "rank 2 in messages|from rank 3 to rank 2|1 received|2 elements (f32)|"
                             "tag 7",
        [OTHER_TAG] = "2 sent|2 elements (f32)|tag 8",
        [LOST_BLOCK] = "rank 2 in exchanges|from rank 2 to rank 1|1 block|3 elements (f32)|"
                       "rank 1 in none",
        [LOST_NEIGHBOR] = "rank 3 in exchanges|from rank 3 to rank 0|1 block|2 elements (f32)|"
                          "rank 0 in none",
        [OTHER_BLOCKS] = "rank 3 in exchanges|from rank 0 to rank 3|1 block|4 elements (f32)"};
    bool there = true;
    for (unlike_road = 0; unlike_road < ROADS && there; unlike_road++)
        for (unlike_case = LIKE; unlike_case < UNLIKE_CASES && there; unlike_case++) {
            bool messages = unlike_case >= LOST_MESSAGE && unlike_case <= OTHER_TAG;
            /* In the network roots and blocks that differ may meet sooner. */
            if (unlike_road == 0 || unlike_case == LIKE || messages)
                there = is_told(named[unlike_case]);
        }
}

static int make_folder(void **state) {
    (void)state;
    return make_join_folder("join-unlike");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unlike_at_the_end),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
