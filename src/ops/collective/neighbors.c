/* Exchanges with neighbors in graphs, built from permute. Each received block is a permutation of
 * sent blocks. */
#include <string.h>

#include "comm/halo.h"
#include "ops/common.h"

/* ---- general blocks ---- */

typedef struct blocks {
    int members, sends, receives;
    const int *send_ranks, *receive_ranks;
} blocks;

/* Index of the `nth` occurrence (from 0) of a rank in a member's list; -1: not found. */
static int find(const int *list, int count, int who, int nth) {
    for (int b = 0; b < count; b++)
        if (list[b] == who && nth-- == 0) return b;
    return -1;
}

/* How many times the value list[block] occurs before index `block`. */
static int times_before(const int *list, int block) {
    int times = 0;
    for (int b = 0; b < block; b++) times += list[b] == list[block];
    return times;
}

/* A member receives block number `block`. Returns its number among the blocks of the sender; -1:
 * none. */
static int source_of(const blocks *b, int member, int block) {
    const int *mine = b->receive_ranks + (int64_t)member * b->receives;
    if (mine[block] < 0) return -1;
    return find(b->send_ranks + (int64_t)mine[block] * b->sends, b->sends, member,
                times_before(mine, block));
}

static weft_status check_ranks(const int *list, int64_t count, int members, const char *what) {
    for (int64_t i = 0; i < count; i++)
        WEFT_REQUIRE(list[i] >= -1 && list[i] < members, WEFT_E_ARG,
                     "neighbor_exchange: member %d is to %s; there are 0 to %d, and -1 for none",
                     list[i], what, members - 1);
    return WEFT_OK;
}

/* Checks that every block that one member sends is received by its destination, and the reverse. */
static weft_status check_blocks(const blocks *b) {
    WEFT_TRY(check_ranks(b->send_ranks, (int64_t)b->members * b->sends, b->members, "receive"));
    WEFT_TRY(check_ranks(b->receive_ranks, (int64_t)b->members * b->receives, b->members, "send"));
    for (int m = 0; m < b->members; m++) {
        const int *from = b->receive_ranks + (int64_t)m * b->receives;
        const int *to = b->send_ranks + (int64_t)m * b->sends;
        for (int j = 0; j < b->receives; j++)
            WEFT_REQUIRE(from[j] < 0 || source_of(b, m, j) >= 0, WEFT_E_MISMATCH,
                         "neighbor_exchange: member %d receives from member %d, as block %d, but "
                         "that member does not send this block",
                         m, from[j], j);
        for (int i = 0; i < b->sends; i++)
            WEFT_REQUIRE(to[i] < 0 || find(b->receive_ranks + (int64_t)to[i] * b->receives,
                                           b->receives, m, times_before(to, i)) >= 0,
                         WEFT_E_MISMATCH,
                         "neighbor_exchange: member %d sends to member %d, as block %d, but that "
                         "member does not receive this block",
                         m, to[i], i);
    }
    return WEFT_OK;
}

/* Selects the members that receive block number `sent` of their sender as their block number
 * `block`. */
static bool choose(const blocks *b, int block, int sent, int *from) {
    bool any = false;
    for (int m = 0; m < b->members; m++) {
        bool is = source_of(b, m, block) == sent;
        from[m] = is ? b->receive_ranks[(int64_t)m * b->receives + block] : -1;
        any |= is;
    }
    return any;
}

static weft_status receive_block(weft_graph *g, weft_ranks group, const blocks *b,
                                 const weft_value *x, const weft_desc *shape, int block,
                                 weft_value *out) {
    int from[WEFTI_MAX_TABLE];
    *out = WEFT_NO_VALUE;
    for (int i = 0; i < b->sends; i++) {
        if (!choose(b, block, i, from)) continue;
        weft_desc sent = weft_value_desc(g, x[i]);
        WEFT_REQUIRE(sent.rank < 0 || wefti_desc_equal(&sent, shape), WEFT_E_SHAPE,
                     "neighbor_exchange: block %d is received as %s, and sent as %s, block %d",
                     block, TEXT(shape), TEXT(&sent), i);
        weft_value y = weft_graph_permute(g, x[i], group, from);
        *out = out->id < 0 ? y : weft_add(g, *out, y);
    }
    if (out->id < 0) *out = weft_constant(g, *shape, 0.0);
    return WEFT_OK;
}

static weft_status exchange(weft_graph *g, weft_ranks group, const blocks *b, const weft_value *x,
                            const weft_desc *received, weft_value *out) {
    WEFT_REQUIRE(b->members >= 1 && b->members <= WEFTI_MAX_TABLE && b->sends >= 0 &&
                     b->receives >= 0,
                 WEFT_E_ARG, "neighbor_exchange of %d blocks for %d among %d ranks", b->sends,
                 b->receives, b->members);
    WEFT_TRY(check_blocks(b));
    for (int j = 0; j < b->receives; j++)
        WEFT_TRY(receive_block(g, group, b, x, &received[j], j, &out[j]));
    return WEFT_OK;
}

void weft_graph_neighbor_exchange(weft_graph *g, weft_ranks group, const weft_value *x, int sends,
                                  const int *send_ranks, const weft_desc *received, int receives,
                                  const int *receive_ranks, weft_value *out) {
    blocks b = {group.count, sends, receives, send_ranks, receive_ranks};
    for (int j = 0; j < receives; j++) out[j] = WEFT_NO_VALUE;
    if (!wefti_graph_ok(g)) return;
    weft_status status = exchange(g, group, &b, x, received, out);
    if (status < 0) wefti_graph_fail(g, status);
}

/* ---- halos ---- */

/* Checks that both ends name each other. */
static weft_status check_way(int m, int way, const weft_halo *mine, const weft_halo *others,
                             const char *does, const char *does_not) {
    int other = mine[m].ranks[way], back = wefti_halo_opposite(way);
    WEFT_REQUIRE(other < 0 || others[other].ranks[back] == m, WEFT_E_MISMATCH,
                 "halo_exchange: member %d %s member %d at its %s, which %s member %d at its %s", m,
                 does, other, wefti_halo_way_text(way), does_not, m, wefti_halo_way_text(back));
    return WEFT_OK;
}

static weft_status check_halos(const int64_t shape[3], int members, const weft_halo *send,
                               const weft_halo *receive) {
    for (int m = 0; m < members; m++) {
        WEFT_TRY(wefti_halo_check(shape, members, &send[m], &receive[m]));
        WEFT_REQUIRE(!memcmp(send[m].sizes, send[0].sizes, sizeof send[0].sizes) &&
                         !memcmp(receive[m].sizes, receive[0].sizes, sizeof receive[0].sizes),
                     WEFT_E_SHAPE, "halo_exchange: members 0 and %d have rims of other sizes", m);
    }
    for (int m = 0; m < members; m++)
        for (int way = 0; way < WEFTI_HALO_WAYS; way++) {
            WEFT_TRY(check_way(m, way, receive, send, "receives from", "does not send to"));
            WEFT_TRY(check_way(m, way, send, receive, "sends to", "does not receive from"));
        }
    return WEFT_OK;
}

/* The rim at one side of the tile: the received rim, or zeros if no member sends one. Empty if it
 * has no elements. */
static weft_status receive_rim(weft_graph *g, weft_value x, weft_ranks group,
                               const int64_t shape[3], const weft_halo *send,
                               const weft_halo *receive, int way, weft_value *out) {
    weft_desc d = weft_value_desc(g, x);
    int from[WEFTI_MAX_TABLE];
    bool any = false;
    wefti_region rim = wefti_halo_received(shape, &receive[0], way);
    wefti_region block = wefti_halo_sent(shape, &send[0], wefti_halo_opposite(way));
    *out = WEFT_NO_VALUE;
    for (int m = 0; m < group.count; m++) {
        from[m] = receive[m].ranks[way];
        any |= from[m] >= 0;
    }
    WEFT_REQUIRE(!any || (rim.size[1] == block.size[1] && rim.size[2] == block.size[2]),
                 WEFT_E_SHAPE,
                 "halo_exchange: from the %s come %lld x %lld elements, and %lld x %lld are "
                 "expected",
                 wefti_halo_way_text(way), (long long)block.size[1], (long long)block.size[2],
                 (long long)rim.size[1], (long long)rim.size[2]);
    if (rim.size[1] == 0 || rim.size[2] == 0) return WEFT_OK;
    for (int k = 1; k <= 2; k++) {
        int axis = d.rank - 3 + k;
        d.shape[axis] = rim.size[k];
        if (any) x = weft_slice(g, x, axis, block.begin[k], block.begin[k] + block.size[k]);
    }
    *out = any ? weft_graph_permute(g, x, group, from) : weft_constant(g, d, 0.0);
    return WEFT_OK;
}

/* Concatenates the values that are not empty. */
static weft_value join(weft_graph *g, weft_value a, weft_value b, weft_value c, int axis) {
    weft_value list[3], all[3] = {a, b, c};
    int count = 0;
    for (int i = 0; i < 3; i++)
        if (all[i].id >= 0) list[count++] = all[i];
    return count > 1 ? weft_concat(g, count, list, axis) : count ? list[0] : WEFT_NO_VALUE;
}

static weft_status exchange_halos(weft_graph *g, weft_value x, weft_ranks group,
                                  const weft_halo *send, const weft_halo *receive,
                                  weft_value *out) {
    weft_desc d = weft_value_desc(g, x);
    weft_value rim[WEFTI_HALO_WAYS];
    int rank = d.rank;
    WEFT_REQUIRE(rank >= 2, WEFT_E_SHAPE, "halo_exchange: %s is no tile [..., height, width]",
                 TEXT(&d));
    WEFT_REQUIRE(group.count >= 1 && group.count <= WEFTI_MAX_TABLE, WEFT_E_ARG,
                 "halo_exchange among %d ranks", group.count);
    const int64_t shape[3] = {wefti_op_count(&d, 0, rank - 2), d.shape[rank - 2],
                              d.shape[rank - 1]};
    WEFT_TRY(check_halos(shape, group.count, send, receive));
    for (int way = 0; way < WEFTI_HALO_WAYS; way++)
        WEFT_TRY(receive_rim(g, x, group, shape, send, receive, way, &rim[way]));
    weft_value top = join(g, rim[7], rim[0], rim[1], rank - 1);
    weft_value middle = join(g, rim[6], x, rim[2], rank - 1);
    weft_value bottom = join(g, rim[5], rim[4], rim[3], rank - 1);
    *out = join(g, top, middle, bottom, rank - 2);
    return WEFT_OK;
}

weft_value weft_graph_halo_exchange(weft_graph *g, weft_value x, weft_ranks group,
                                    const weft_halo *send, const weft_halo *receive) {
    weft_value y = WEFT_NO_VALUE;
    if (!wefti_graph_ok(g) || weft_value_desc(g, x).rank < 0) return y;
    weft_status status = exchange_halos(g, x, group, send, receive, &y);
    if (status < 0) wefti_graph_fail(g, status);
    return y;
}
