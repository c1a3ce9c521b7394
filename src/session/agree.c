/* Agreement between the processes of a world: see agree.h. */
#include "session/agree.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* Programs number their tags from 0 and from 2^32. */
static const uint64_t AGREEMENT_TAG = (uint64_t)1 << 62;
static const char NAME[] = "the agreement of all ranks";

enum { AGREE_MESSAGE_BYTES = 1000, SIZES = 3 };

/* Precedes the data that rank 0 broadcasts. A failed rank also broadcasts one. */
typedef struct notice {
    int64_t status;
    int64_t failed; /* the rank that the message blames; else WEFT_RANK_OWN, NONE */
    char message[AGREE_MESSAGE_BYTES];
} notice;

static const int64_t broadcast_sizes[SIZES] = {4 << 10, 64 << 10, WEFTI_BROADCAST_BYTES};

struct wefti_agreement {
    weft_world *world;
    int32_t size, me;
    int32_t *ranks; /* 0, 1, ... */
    wefti_region *have, *want;
    wefti_endpoint *record;           /* all-gather of WEFTI_RECORD_BYTES a rank */
    char *records;                    /* [size + 1]: all, and this rank's own */
    struct order_record *orders;      /* [size] */
    wefti_endpoint *broadcast[SIZES]; /* bound when first used */
    char *room;                       /* a notice and WEFTI_BROADCAST_BYTES */
    bool failed;
};

/* A failed rank's record. It decides which failure is the first. */
typedef struct order_record {
    int64_t status, order;
} order_record;

bool wefti_is_of_others(const weft_world *world, weft_status status) {
    if (status == WEFT_E_PEER) return true;
    return world && (status == WEFT_E_TIMEOUT || status == WEFT_E_LOST) &&
           weft_error_rank() != world->rank;
}

weft_status wefti_fail_world(weft_world *world, weft_status status) {
    if (!world || world->size == 1 || status >= 0) return status;
    /* Another rank has ended, or only a connection was lost: the scheduler finds out which. */
    if (status == WEFT_E_PEER)
        return wefti_world_is_repaired(world) ? status : wefti_world_lost(world, status);
    if (wefti_world_mends(world) && wefti_is_of_others(world, status)) return status;
    (void)wefti_name_rank(status, world->rank);
    weft_world_fail(world, NULL);
    return status;
}

static wefti_region range(int64_t begin, int64_t size) {
    return (wefti_region){.begin = {begin}, .size = {size}};
}

weft_status wefti_world_transfer_bind(wefti_agreement *a, const wefti_world_transfer *what,
                                      wefti_endpoint **out) {
    wefti_transfer t = {.kind = what->kind,
                        .dtype = what->dtype,
                        .rank = what->rank,
                        .members = a->size,
                        .me = a->me,
                        .ranks = a->ranks,
                        .have = what->have,
                        .want = what->want,
                        .tag = AGREEMENT_TAG,
                        .name = what->name};
    return a->world->comm->engine->bind(a->world->comm, &t, out);
}

weft_status wefti_world_transfer_run(wefti_agreement *a, const wefti_world_transfer *what,
                                     const void *source, void *destination) {
    wefti_endpoint *endpoint;
    bool gives = wefti_region_elems(&what->have[a->me], what->rank) > 0;
    bool takes = wefti_region_elems(&what->want[a->me], what->rank) > 0;
    WEFT_TRY(wefti_world_transfer_bind(a, what, &endpoint));
    weft_status status =
        wefti_comm_run(endpoint, gives ? source : NULL, takes ? destination : NULL);
    wefti_comm_unbind(endpoint);
    return status;
}

/* ---- life ---- */

static weft_status bind_records(wefti_agreement *a) {
    for (int32_t r = 0; r < a->size; r++) {
        a->ranks[r] = r;
        a->have[r] = range((int64_t)r * WEFTI_RECORD_BYTES, WEFTI_RECORD_BYTES);
        a->want[r] = range(0, (int64_t)a->size * WEFTI_RECORD_BYTES);
    }
    wefti_world_transfer records = {WEFTI_TRANSFER_ALL_GATHER, WEFT_U8, 1, a->have, a->want, NAME};
    return wefti_world_transfer_bind(a, &records, &a->record);
}

static void destroy(wefti_agreement *a) {
    wefti_comm_unbind(a->record);
    for (int i = 0; i < SIZES; i++) wefti_comm_unbind(a->broadcast[i]);
    if (a->room) weft_world_free(a->world, a->room, sizeof(notice) + WEFTI_BROADCAST_BYTES);
    wefti_free(a->ranks);
    wefti_free(a->have);
    wefti_free(a->want);
    wefti_free(a->records);
    wefti_free(a->orders);
    wefti_free(a);
}

static weft_status create(weft_world *world, wefti_agreement **out) {
    wefti_agreement *a;
    size_t size = (size_t)world->size;
    WEFT_NEW(a, wefti_agreement);
    *a = (wefti_agreement){.world = world, .size = world->size, .me = world->rank};
    a->ranks = wefti_calloc(size, sizeof *a->ranks);
    a->have = wefti_calloc(size, sizeof *a->have);
    a->want = wefti_calloc(size, sizeof *a->want);
    a->records = wefti_calloc(size + 1, WEFTI_RECORD_BYTES);
    a->orders = wefti_calloc(size, sizeof *a->orders);
    weft_status status = a->ranks && a->have && a->want && a->records && a->orders
                             ? bind_records(a)
                             : WEFT_RAISE(WEFT_E_NOMEM, "no memory for a world of %d", a->size);
    if (status < 0) {
        destroy(a);
        return status;
    }
    *out = a;
    return WEFT_OK;
}

weft_status wefti_agreement_of(weft_world *world, wefti_agreement **out) {
    wefti_agreement *a = world->agreement;
    if (!a) WEFT_TRY(wefti_fail_world(world, create(world, &a)));
    a->failed = false;
    world->agreement = a;
    world->end_agreement = destroy;
    *out = a;
    return WEFT_OK;
}

bool wefti_agreement_failed(const wefti_agreement *a) {
    return a->failed;
}

/* ---- all to all ---- */

weft_status wefti_agree_records(wefti_agreement *a, const void *record, size_t bytes,
                                void *out_records) {
    char *own = a->records + (size_t)a->size * WEFTI_RECORD_BYTES;
    memcpy(own, record, bytes);
    a->failed = false;
    if (!out_records)
        return wefti_fail_world(a->world,
                                WEFT_RAISE(WEFT_E_NOMEM, "no memory for %d ranks", a->size));
    WEFT_TRY(wefti_fail_world(a->world, wefti_comm_run(a->record, own, a->records)));
    for (int32_t r = 0; r < a->size; r++)
        memcpy((char *)out_records + (size_t)r * bytes, a->records + (size_t)r * WEFTI_RECORD_BYTES,
               bytes);
    return WEFT_OK;
}

/* This thread's failure in a form that can be sent. */
static notice notice_of(weft_status status) {
    notice note = {.status = status < 0 ? status : 0, .failed = weft_error_rank()};
    if (status < 0) (void)snprintf(note.message, sizeof note.message, "%s", weft_error_message());
    return note;
}

/* The failure of rank `from` becomes this thread's failure. */
static weft_status hear(const notice *note, int32_t from) {
    weft_status status = (weft_status)note->status;
    (void)WEFT_RAISE(status, "%.*s", AGREE_MESSAGE_BYTES - 1, note->message);
    (void)wefti_blame(status, (int)note->failed);
    return wefti_name_rank(status, from);
}

/* Broadcasts the notice of rank `from`. */
static weft_status tell(wefti_agreement *a, int32_t from, notice *note) {
    const int64_t bytes = (int64_t)sizeof *note;
    for (int32_t r = 0; r < a->size; r++) {
        a->have[r] = range(0, r == from ? bytes : 0);
        a->want[r] = range(0, bytes);
    }
    wefti_world_transfer all = {WEFTI_TRANSFER_BROADCAST, WEFT_U8, 1, a->have, a->want, NAME};
    notice own = *note;
    return wefti_fail_world(a->world, wefti_world_transfer_run(a, &all, &own, note));
}

/* Finds the failure with the lowest order; of equals, the lowest rank's. *out_rank -1: no rank
 * failed. */
static weft_status find_first(wefti_agreement *a, weft_status status, int64_t order, notice *out,
                              int32_t *out_rank) {
    order_record mine = {status < 0 ? status : 0, order}, *all = a->orders;
    *out_rank = -1;
    WEFT_TRY(wefti_agree_records(a, &mine, sizeof mine, all));
    for (int32_t r = 0; r < a->size; r++)
        if (all[r].status < 0 && (*out_rank < 0 || all[r].order < all[*out_rank].order))
            *out_rank = r;
    return *out_rank < 0 ? WEFT_OK : tell(a, *out_rank, out);
}

/* `own`: a failed rank keeps its own message. */
static weft_status agree(wefti_agreement *a, weft_status status, int64_t order, bool own) {
    notice note = notice_of(status);
    wefti_failure mine;
    int32_t first;
    wefti_failure_keep(status, &mine);
    weft_status told = find_first(a, status, order, &note, &first);
    a->failed = told >= 0 && first >= 0;
    if (status < 0 && (own || told < 0 || first == a->me)) return wefti_failure_tell(&mine);
    WEFT_TRY(told);
    return first < 0 ? WEFT_OK : hear(&note, first);
}

weft_status wefti_agree(wefti_agreement *a, weft_status status) {
    return agree(a, status, 0, true);
}

weft_status wefti_agree_first(wefti_agreement *a, weft_status status, int64_t order) {
    return agree(a, status, order, false);
}

static weft_status gather(wefti_agreement *a, const void *part, int64_t bytes, char **out,
                          int64_t **out_offsets) {
    size_t head = ((size_t)a->size + 1) * sizeof(int64_t);
    int64_t *sizes;
    WEFT_NEW_ARRAY(sizes, int64_t, a->size);
    weft_status status = wefti_agree_records(a, &bytes, sizeof bytes, sizes);
    int64_t total = 0;
    for (int32_t r = 0; r < a->size && status >= 0; r++) total += sizes[r];
    int64_t *block = status < 0 ? NULL : wefti_alloc(head + (size_t)total + 1);
    if (status >= 0 && !block)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory to gather from %d ranks", a->size);
    if (status >= 0) {
        for (int32_t r = 0; r < a->size; r++) {
            block[r] = r ? block[r - 1] + sizes[r - 1] : 0;
            a->have[r] = range(block[r], sizes[r]);
            a->want[r] = range(0, total);
        }
        block[a->size] = total;
        wefti_world_transfer all = {WEFTI_TRANSFER_ALL_GATHER, WEFT_U8, 1, a->have, a->want, NAME};
        if (total > 0) status = wefti_world_transfer_run(a, &all, part, (char *)block + head);
    }
    wefti_free(sizes);
    if (status < 0) {
        wefti_free(block);
        return status;
    }
    *out = (char *)block + head;
    *out_offsets = block;
    return WEFT_OK;
}

weft_status wefti_agree_gather(wefti_agreement *a, const void *part, int64_t bytes, char **out,
                               int64_t **out_offsets) {
    return wefti_fail_world(a->world, gather(a, part, bytes, out, out_offsets));
}

/* ---- from rank 0 ---- */

weft_status wefti_broadcast_buffer(wefti_agreement *a, void **out) {
    void *room = a->room;
    size_t bytes = sizeof(notice) + WEFTI_BROADCAST_BYTES;
    if (!room) WEFT_TRY(wefti_fail_world(a->world, weft_world_alloc(a->world, bytes, &room)));
    a->room = room;
    *out = a->room + sizeof(notice);
    return WEFT_OK;
}

static weft_status bind_broadcast(wefti_agreement *a, int which) {
    int64_t bytes = (int64_t)sizeof(notice) + broadcast_sizes[which];
    if (a->broadcast[which]) return WEFT_OK;
    for (int32_t r = 0; r < a->size; r++) {
        a->have[r] = range(0, r == 0 ? bytes : 0);
        a->want[r] = range(0, r == 0 ? 0 : bytes);
    }
    wefti_world_transfer data = {WEFTI_TRANSFER_BROADCAST, WEFT_U8, 1, a->have, a->want, NAME};
    return wefti_world_transfer_bind(a, &data, &a->broadcast[which]);
}

static weft_status run_broadcast(wefti_agreement *a, int which) {
    bool gives = a->me == 0;
    WEFT_TRY(bind_broadcast(a, which));
    return wefti_comm_run(a->broadcast[which], gives ? a->room : NULL, gives ? NULL : a->room);
}

weft_status wefti_broadcast_piece(wefti_agreement *a, weft_status status, int64_t bytes) {
    notice *note;
    void *room;
    int which = 0;
    WEFT_TRY(wefti_broadcast_buffer(a, &room));
    note = (notice *)(void *)a->room;
    while (which < SIZES - 1 && broadcast_sizes[which] < bytes) which++;
    a->failed = false;
    if (a->me == 0) {
        wefti_failure mine;
        wefti_failure_keep(status, &mine);
        *note = notice_of(status);
        weft_status sent = wefti_fail_world(a->world, run_broadcast(a, which));
        a->failed = sent >= 0 && status < 0;
        return status < 0 ? wefti_failure_tell(&mine) : sent;
    }
    WEFT_TRY(wefti_fail_world(a->world, run_broadcast(a, which)));
    a->failed = note->status < 0;
    return note->status < 0 ? hear(note, 0) : WEFT_OK;
}

weft_status wefti_agree_broadcast(wefti_agreement *a, weft_status status, void *data,
                                  int64_t bytes) {
    void *room;
    WEFT_TRY(wefti_broadcast_buffer(a, &room));
    for (int64_t at = 0, part; at < bytes || at == 0; at += part) {
        part = bytes - at < WEFTI_BROADCAST_BYTES ? bytes - at : WEFTI_BROADCAST_BYTES;
        if (a->me == 0 && status >= 0 && part) memcpy(room, (char *)data + at, (size_t)part);
        WEFT_TRY(wefti_broadcast_piece(a, status, part));
        if (a->me != 0 && part) memcpy((char *)data + at, room, (size_t)part);
        if (bytes == 0) break;
    }
    return WEFT_OK;
}

weft_status wefti_agree_same(wefti_agreement *a, weft_status status, const wefti_job_fact *facts,
                             int count) {
    wefti_job_value first[WEFTI_FACTS];
    wefti_failure own;
    WEFT_REQUIRE(count <= WEFTI_FACTS, WEFT_E_BUG, "%d facts: at most %d can be compared", count,
                 WEFTI_FACTS);
    wefti_job_values(facts, count, first);
    wefti_failure_keep(status, &own);
    const weft_status told =
        wefti_agree_broadcast(a, status, first, (int64_t)((size_t)count * sizeof *first));
    if (status < 0) status = wefti_failure_tell(&own);
    if (told < 0) return status < 0 ? status : told;
    if (status >= 0) status = wefti_job_compare(facts, count, a->me, first, 0, a->me);
    return wefti_agree(a, status);
}
