/* The control part of a host's file: lines of ranks, rings of messages from each to each, and
 * channels in lists that only grow. A process may be killed at any instruction here; what it had
 * begun is then never seen by anybody. */
#include "comm/host/intranode.h"

enum { BUCKETS = 4096 };

struct wefti_host_control {
    _Atomic uint64_t used; /* bytes from the beginning */
    uint64_t bytes;
    _Atomic uint64_t bucket[BUCKETS]; /* offsets of channels; 0: none */
    wefti_shm_common common;
};

typedef struct control_entry {
    uint64_t next;
    uint64_t tag;
    int32_t members;
    int32_t ranks[]; /* then, from a cache line on, the rows */
} control_entry;

static uint64_t round_up(uint64_t bytes) {
    return (bytes + 127) / 128 * 128;
}
static uint64_t head_bytes(const wefti_transfer *t) {
    return round_up(sizeof(control_entry) + (uint64_t)t->members * sizeof(int32_t));
}

/* Behind the lines of the ranks. */
static uint64_t queues_begin(int32_t ranks) {
    const wefti_host_control *none = NULL;
    return round_up(sizeof *none + (uint64_t)ranks * sizeof *none->common.peer);
}
static uint64_t queues_end(int32_t ranks) {
    uint64_t pairs = (uint64_t)ranks * (uint64_t)ranks;
    return queues_begin(ranks) + pairs * sizeof(wefti_intranode_queue);
}

void wefti_host_control_begin(wefti_host_control *control, size_t bytes, int32_t ranks) {
    control->bytes = bytes;
    bool queues = queues_end(ranks) <= bytes / 2;
    atomic_store(&control->used, queues ? queues_end(ranks) : queues_begin(ranks));
}

wefti_intranode_queue *wefti_host_control_queues(wefti_host_control *control, int32_t ranks) {
    if (queues_end(ranks) > control->bytes / 2) return NULL;
    return (wefti_intranode_queue *)(void *)((char *)control + queues_begin(ranks));
}

wefti_shm_common *wefti_host_control_common(wefti_host_control *control) {
    return &control->common;
}

static control_entry *at(wefti_host_control *control, uint64_t offset) {
    return (control_entry *)(void *)((char *)control + offset);
}

static control_entry *find(wefti_host_control *control, uint64_t offset, const wefti_transfer *t) {
    for (; offset; offset = at(control, offset)->next) {
        control_entry *e = at(control, offset);
        if (e->tag == t->tag && e->members == t->members &&
            memcmp(e->ranks, t->ranks, (size_t)t->members * sizeof *t->ranks) == 0)
            return e;
    }
    return NULL;
}

/* Zeroed, as the file is from the beginning. */
static weft_status add(wefti_host_control *control, const wefti_transfer *t, uint64_t *out) {
    uint64_t bytes = head_bytes(t) + (uint64_t)t->members * sizeof(wefti_shm_ring);
    uint64_t offset = atomic_fetch_add(&control->used, bytes);
    WEFT_REQUIRE(offset + bytes <= control->bytes, WEFT_E_NOMEM,
                 "no room for one more group of %d in the %llu bytes that processes share",
                 (int)t->members, (unsigned long long)control->bytes);
    control_entry *e = at(control, offset);
    e->tag = t->tag;
    e->members = t->members;
    memcpy(e->ranks, t->ranks, (size_t)t->members * sizeof *t->ranks);
    *out = offset;
    return WEFT_OK;
}

weft_status wefti_host_control_rings(wefti_host_control *control, const wefti_transfer *t,
                                     wefti_shm_ring **out) {
    _Atomic uint64_t *bucket = &control->bucket[wefti_transfer_channel(t) % BUCKETS];
    uint64_t mine = 0, first = atomic_load(bucket);
    control_entry *e;
    while (!(e = find(control, first, t))) {
        if (!mine) WEFT_TRY(add(control, t, &mine));
        at(control, mine)->next = first;
        if (atomic_compare_exchange_strong(bucket, &first, mine)) {
            e = at(control, mine);
            break;
        }
    }
    *out = (wefti_shm_ring *)(void *)((char *)e + head_bytes(t));
    return WEFT_OK;
}
