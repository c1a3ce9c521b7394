/* Records of the calls that each member has made. The scheduler compares them when members leave.
 *
 * Most mismatched calls are found by the next call of the group, but there may be no next call.
 * Three kinds remain: a last broadcast in which each rank takes itself for the root; blocks of an
 * exchange that no member expects; and messages small enough to be sent before the receiver asks
 * for them. */
#include <stdio.h>

#include "comm/collective/collective.h"

/* Start values for the hashes of pairs. Group hashes start from small numbers. Start values that
 * are close to each other can collide: [0, 2] and the pair (3, 2) did. */
static const uint64_t OF_PAIRS = UINT64_C(0x6a09e667f3bcc908);
static const uint64_t OF_MESSAGES = UINT64_C(0xbb67ae8584caa73b);

/* Sums: two members may begin exchanges of several groups in different orders. */
static void record_blocks(const wefti_call *call, const int *members, const int64_t *counts,
                          int blocks, bool sent) {
    const weft_group *group = call->group;
    uint64_t what =
        wefti_group_mix(group->identity, (uint64_t)call->kind << 32 | (uint64_t)call->dtype);
    for (int b = 0; b < blocks; b++) {
        int member = members ? members[b] : b;
        if (member == group->me || counts[b] == 0) continue;
        wefti_blocks *all = &group->of->blocks[2 * group->ranks[member] + sent];
        all->count++;
        all->digest += wefti_group_mix(what, (uint64_t)counts[b]);
        all->elements = counts[b];
        all->dtype = (int32_t)call->dtype;
    }
}

static void record_exchange(const wefti_call *call) {
    record_blocks(call, call->receive_ranks, call->receive_counts, call->receives, false);
    record_blocks(call, call->send_ranks, call->send_counts, call->sends, true);
}

static void record_message(const wefti_call *call) {
    const weft_group *group = call->group;
    bool sent = call->kind == WEFTI_CALL_SEND;
    wefti_messages *all = &group->of->messages[2 * group->ranks[call->root] + sent];
    if (call->count == 0) return; /* as empty blocks */
    all->count++;
    all->digest += wefti_group_mix(group->identity, (uint32_t)call->tag);
    all->elements = call->count;
    all->dtype = (int32_t)call->dtype;
    all->tag = (int32_t)call->tag;
}

/* Records a call that all members make. */
static void record_common(const wefti_call *call) {
    weft_group *group = call->group;
    wefti_ranks_seen *seen = group->seen;
    if (call->kind > WEFTI_CALL_ALL_TO_ALL_V || group->count == 1) return;
    seen->kind = (int32_t)call->kind;
    seen->dtype = (int32_t)call->dtype;
    seen->reduction = (int32_t)call->reduction;
    seen->root = call->root;
    seen->elements = call->count;
    uint64_t what = (uint64_t)call->kind << 48 | (uint64_t)call->dtype << 40 |
                    (uint64_t)((uint32_t)call->reduction & 0xff) << 32 | (uint32_t)call->root;
    group->digest = wefti_group_mix(wefti_group_mix(group->digest, what), (uint64_t)call->count);
    group->common++;
}

static bool is_message(const wefti_call *call) {
    return call->kind == WEFTI_CALL_SEND || call->kind == WEFTI_CALL_RECV;
}
static bool is_exchange(const wefti_call *call) {
    return call->kind == WEFTI_CALL_ALL_TO_ALL_V || call->kind == WEFTI_CALL_NEIGHBOR_EXCHANGE;
}

weft_status wefti_record_room(const wefti_call *call) {
    wefti_collectives *c = call->group->of;
    size_t ranks = (size_t)c->world->size;
    if (is_message(call) && !c->messages) {
        c->messages = wefti_calloc(ranks, 2 * sizeof *c->messages);
        WEFT_REQUIRE(c->messages, WEFT_E_NOMEM, "no memory for the messages of %zu ranks", ranks);
    }
    if (is_exchange(call) && !c->blocks) {
        c->blocks = wefti_calloc(ranks, 2 * sizeof *c->blocks);
        WEFT_REQUIRE(c->blocks, WEFT_E_NOMEM, "no memory for the exchanges of %zu ranks", ranks);
    }
    return WEFT_OK;
}

void wefti_record_call(const wefti_call *call) {
    if (is_message(call)) {
        record_message(call);
        return;
    }
    if (is_exchange(call)) record_exchange(call);
    record_common(call);
    call->group->calls++;
}

/* Sums, since members may call and end groups of the same ranks in different orders. */
static uint64_t part_of(const weft_group *group) {
    return group->common ? wefti_group_mix(group->identity, group->digest) : 0;
}

void wefti_record_end(const weft_group *group) {
    group->seen->common += group->common;
    group->seen->digest += part_of(group);
}

static void name_last(const wefti_ranks_seen *seen, int32_t world, uint64_t calls,
                      char out[WEFTI_CALL_TEXT]) {
    char name[WEFTI_GROUP_NAME], root[32] = "";
    wefti_call_kind kind = (wefti_call_kind)seen->kind;
    wefti_group_name(seen->ranks, seen->count, world, name);
    if (calls == 0) {
        (void)snprintf(out, WEFTI_CALL_TEXT, "%s: no call", name);
        return;
    }
    if (wefti_call_has_root(kind))
        (void)snprintf(root, sizeof root, ", root member %d", seen->root);
    (void)snprintf(out, WEFTI_CALL_TEXT, "%s: %llu %s, the last a %s%s (%s, %lld elements)", name,
                   (unsigned long long)calls, calls == 1 ? "call" : "calls", wefti_call_text(kind),
                   root, weft_dtype_text((weft_dtype)seen->dtype), (long long)seen->elements);
}

static void record(const wefti_collectives *c, const wefti_ranks_seen *seen,
                   wefti_call_record *out) {
    out->ranks = (uint64_t)seen->count;
    for (int32_t m = 0; m < seen->count; m++)
        out->ranks = wefti_group_mix(out->ranks, (uint64_t)seen->ranks[m]);
    out->other = -1;
    out->calls = seen->common;
    out->digest = seen->digest;
    for (const weft_group *g = c->groups; g; g = g->next) {
        if (g->seen != seen) continue;
        out->calls += g->common;
        out->digest += part_of(g);
    }
    name_last(seen, c->world->size, out->calls, out->text);
}

static bool has_member(const wefti_ranks_seen *seen, int32_t rank) {
    for (int32_t m = 0; m < seen->count; m++)
        if (seen->ranks[m] == rank) return true;
    return false;
}

/* Of what went one way between this rank and another, with `calls` of it: NULL where there is none,
 * or no place. *from and *to are the ranks. */
static wefti_call_record *add_pair(const wefti_collectives *c, uint64_t of, int32_t other,
                                   bool sent, uint64_t calls, wefti_call_records *out,
                                   int32_t *from, int32_t *to) {
    if (calls == 0 || out->count == WEFTI_CALL_RECORDS) return NULL;
    wefti_call_record *record = &out->of[out->count++];
    *from = sent ? c->world->rank : other;
    *to = sent ? other : c->world->rank;
    record->ranks = wefti_group_mix(wefti_group_mix(of, (uint64_t)*from), (uint64_t)*to);
    record->other = other;
    record->calls = calls;
    return record;
}

static void record_pair(const wefti_collectives *c, int32_t other, bool sent,
                        wefti_call_records *out) {
    const wefti_blocks *blocks = &c->blocks[2 * other + sent];
    int32_t from, to;
    wefti_call_record *record = add_pair(c, OF_PAIRS, other, sent, blocks->count, out, &from, &to);
    if (!record) return;
    record->digest = blocks->digest;
    (void)snprintf(record->text, WEFTI_CALL_TEXT,
                   "exchanges from rank %d to rank %d: %llu %s, the last of %lld elements (%s)",
                   (int)from, (int)to, (unsigned long long)blocks->count,
                   blocks->count == 1 ? "block" : "blocks", (long long)blocks->elements,
                   weft_dtype_text((weft_dtype)blocks->dtype));
}

static void record_messages(const wefti_collectives *c, int32_t other, bool sent,
                            wefti_call_records *out) {
    const wefti_messages *messages = &c->messages[2 * other + sent];
    int32_t from, to;
    wefti_call_record *record =
        add_pair(c, OF_MESSAGES, other, sent, messages->count, out, &from, &to);
    if (!record) return;
    record->side = sent ? WEFTI_SENT : WEFTI_RECEIVED;
    record->digest = messages->digest;
    (void)snprintf(record->text, WEFTI_CALL_TEXT,
                   "messages from rank %d to rank %d: %llu %s, the last of %lld elements (%s), tag "
                   "%d",
                   (int)from, (int)to, (unsigned long long)messages->count,
                   sent ? "sent" : "received", (long long)messages->elements,
                   weft_dtype_text((weft_dtype)messages->dtype), (int)messages->tag);
}

static void record_with(const wefti_collectives *c, int32_t other, wefti_call_records *out) {
    for (int sent = 0; sent < 2; sent++) {
        if (c->blocks) record_pair(c, other, sent, out);
        if (c->messages) record_messages(c, other, sent, out);
    }
}

/* Lists the nearest ranks first, around the world, so that two ranks mostly list each other or
 * neither does. A rank without room for a peer says that its list is incomplete. */
static void record_pairs(const wefti_collectives *c, wefti_call_records *out) {
    int32_t size = c->world->size, me = c->world->rank;
    for (int32_t d = 1; (c->blocks || c->messages) && d <= size / 2; d++) {
        int32_t up = (me + d) % size, down = (me + size - d) % size;
        record_with(c, up, out);
        if (down != up) record_with(c, down, out);
    }
}

wefti_call_records *wefti_collectives_records(weft_world *world) {
    wefti_collectives *c;
    wefti_call_records *all = wefti_calloc(1, sizeof *all);
    if (!all || wefti_collectives_of(world, &c) < 0) {
        wefti_free(all);
        return NULL;
    }
    int32_t sets = 0, at = 0;
    for (const wefti_ranks_seen *s = c->seen; s; s = s->next) sets++;
    for (const wefti_ranks_seen *s = c->seen; s; s = s->next, at++)
        if (sets - at <= WEFTI_CALL_RECORDS && s->count > 1 && has_member(s, world->rank))
            record(c, s, &all->of[all->count++]);
    record_pairs(c, all);
    return all;
}
