/* Assigns ranks and numbers hosts. A rank that a member asks for is honoured. Node ids that are
 * numbers are ranks. Otherwise ranks follow the order of (address, host, node id), so that ranks
 * of one host are neighbours and a second start gives the same ranks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "launch/scheduler/state.h"

/* Numbers within names count as numbers: node-2 comes before node-10. */
static int order(const void *a, const void *b) {
    const wefti_member_slot *x = a, *y = b;
    int by = strverscmp(x->address, y->address);
    if (by == 0) by = strverscmp(x->join.host, y->join.host);
    if (by == 0) by = strverscmp(x->join.node, y->join.node);
    if (by == 0) by = (x->join.pid > y->join.pid) - (x->join.pid < y->join.pid);
    return by;
}

static int32_t numeric_node(const char *node) {
    if (!*node || strlen(node) > 6) return -1;
    int32_t number = 0;
    for (const char *p = node; *p; p++) {
        if (*p < '0' || *p > '9') return -1;
        number = 10 * number + (*p - '0');
    }
    return number;
}

/* wanted[i]: the rank of seat i. False unless each has one of its own. */
static bool is_permutation(const int32_t *wanted, int32_t count, bool *seen) {
    for (int32_t i = 0; i < count; i++) seen[i] = false;
    for (int32_t i = 0; i < count; i++) {
        if (wanted[i] < 0 || wanted[i] >= count || seen[wanted[i]]) return false;
        seen[wanted[i]] = true;
    }
    return true;
}

/* Members that ask for a rank get it (form.c has refused duplicates). The others get the free
 * ranks, in order. */
static void fill_in(wefti_member_slot *slots, int32_t *rank, int32_t count, bool *seen) {
    for (int32_t i = 0; i < count; i++) seen[i] = false;
    for (int32_t i = 0; i < count; i++)
        if ((rank[i] = slots[i].join.number) >= 0) seen[rank[i]] = true;
    int32_t next = 0;
    for (int32_t i = 0; i < count; i++) {
        if (rank[i] >= 0) continue;
        while (seen[next]) next++;
        rank[i] = next++;
    }
}

static void choose(wefti_member_slot *slots, int32_t *rank, int32_t count, bool *seen) {
    bool any_wanted = false;
    for (int32_t i = 0; i < count; i++) {
        any_wanted = any_wanted || slots[i].join.number >= 0;
        rank[i] = numeric_node(slots[i].join.node);
    }
    if (!any_wanted && is_permutation(rank, count, seen)) return;
    fill_in(slots, rank, count, seen);
}

static int by_host(const void *a, const void *b) {
    const wefti_member_slot *x = *(wefti_member_slot *const *)a,
                            *y = *(wefti_member_slot *const *)b;
    int by = strcmp(x->join.host, y->join.host);
    return by != 0 ? by : (x > y) - (x < y);
}

/* Hosts are numbered in the order of their lowest ranks. */
weft_status wefti_scheduler_number_hosts(wefti_member_slot *slots, int32_t count) {
    wefti_member_slot **sorted;
    int32_t hosts = 0;
    WEFT_NEW_ARRAY(sorted, wefti_member_slot *, count);
    for (int32_t r = 0; r < count; r++) sorted[r] = &slots[r];
    qsort(sorted, (size_t)count, sizeof *sorted, by_host);
    for (int32_t i = 0; i < count; i++) { /* for now: the lowest rank of the host */
        bool same = i > 0 && strcmp(sorted[i - 1]->join.host, sorted[i]->join.host) == 0;
        sorted[i]->host = same ? sorted[i - 1]->host : (int32_t)(sorted[i] - slots);
    }
    for (int32_t r = 0; r < count; r++)
        slots[r].host = slots[r].host == r ? hosts++ : slots[slots[r].host].host;
    wefti_free(sorted);
    return WEFT_OK;
}

weft_status wefti_scheduler_rank(wefti_scheduler *s) {
    int32_t count = s->taken;
    int32_t *rank = wefti_calloc((size_t)count, sizeof *rank);
    bool *seen = wefti_calloc((size_t)count, sizeof *seen);
    wefti_member_slot *sorted = wefti_calloc((size_t)count, sizeof *sorted);
    weft_status status = WEFT_OK;
    if (!rank || !seen || !sorted) {
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to rank %d members", (int)count);
    } else {
        qsort(s->slots, (size_t)count, sizeof *s->slots, order);
        choose(s->slots, rank, count, seen);
        for (int32_t i = 0; i < count; i++) sorted[rank[i]] = s->slots[i];
        memcpy(s->slots, sorted, (size_t)count * sizeof *sorted);
        for (int32_t r = 0; r < count; r++)
            s->slots[r].client->slot = s->slots[r].number = s->slots[r].join.number = r;
        status = wefti_scheduler_number_hosts(s->slots, count);
    }
    wefti_free(rank);
    wefti_free(seen);
    wefti_free(sorted);
    return status;
}
