/* Who the ranks of a world are, as a part of several bodies: see wire.h. */
#include <string.h>

#include "base/memory.h"
#include "launch/wire/wire.h"

static int32_t end_of_run(const wefti_seated *seats, int32_t first, int32_t size) {
    int32_t end = first + 1;
    while (end < size && seats[end].host == seats[first].host &&
           seats[end].number == seats[end - 1].number + 1)
        end++;
    return end;
}

void wefti_pack_seats(wefti_pack *p, const wefti_seated *seats, int32_t size) {
    for (int32_t r = 0, end; r < size; r = end) {
        end = end_of_run(seats, r, size);
        wefti_pack_u32(p, (uint32_t)seats[r].host);
        wefti_pack_u32(p, (uint32_t)seats[r].number);
        wefti_pack_u32(p, (uint32_t)(end - r));
    }
}

typedef struct seat_run {
    wefti_seated first;
    int32_t count;
} seat_run;

/* A bad one has no ranks. A world has at most as many hosts as ranks, and so as numbers. */
static seat_run unpack_run(wefti_unpack *u, int32_t numbers) {
    seat_run x = {.first.host = (int32_t)wefti_unpack_u32(u)};
    x.first.number = (int32_t)wefti_unpack_u32(u);
    x.count = (int32_t)wefti_unpack_u32(u);
    if (x.first.host < 0 || x.first.host >= numbers || x.first.number < 0 || x.count <= 0 ||
        x.first.number >= numbers || x.count > numbers - x.first.number)
        u->bad = true;
    return u->bad ? (seat_run){0} : x;
}

/* Whether none of them was there before. */
static bool note(unsigned char *seen, const seat_run *x) {
    bool fresh = true;
    for (int32_t n = x->first.number; n < x->first.number + x->count; n++) {
        unsigned char *byte = &seen[n / 8], bit = (unsigned char)(1 << n % 8);
        fresh = fresh && !(*byte & bit);
        *byte |= bit;
    }
    return fresh;
}

/* The number of ranks of all runs; 0 if they are no ranks of a world. */
static int32_t count_ranks(wefti_unpack u, int32_t numbers) {
    unsigned char seen[WEFTI_RANKS_MAX / 8 + 1] = {0};
    int32_t ranks = 0, hosts = 0;
    while (u.at < u.bytes && !u.bad) {
        const seat_run x = unpack_run(&u, numbers);
        if (!note(seen, &x)) u.bad = true;
        if (x.first.host >= hosts) hosts = x.first.host + 1;
        ranks += x.count;
    }
    return u.bad || hosts > ranks ? 0 : ranks;
}

weft_status wefti_unpack_seats(wefti_unpack *u, const char *what, int32_t numbers,
                               int32_t *in_out_size, wefti_seated **out) {
    if (numbers <= 0 || numbers > WEFTI_RANKS_MAX) u->bad = true;
    const int32_t size = u->bad ? 0 : count_ranks(*u, numbers);
    if (*in_out_size < 0) *in_out_size = size;
    if (size == 0 || size != *in_out_size) u->bad = true;
    if (u->bad) return wefti_unpack_end(u, what);
    wefti_seated *seats;
    WEFT_NEW_ARRAY(seats, wefti_seated, size);
    for (int32_t r = 0; r < size;) {
        const seat_run x = unpack_run(u, numbers);
        for (int32_t i = 0; i < x.count; i++, r++)
            seats[r] = (wefti_seated){x.first.host, x.first.number + i};
    }
    *out = seats;
    return WEFT_OK;
}

weft_status wefti_hosts_encode(const wefti_hosts *m, const wefti_seated *seats, unsigned char **out,
                               size_t *out_bytes) {
    size_t runs = 0;
    for (int32_t r = 0; r < m->size; r = end_of_run(seats, r, m->size)) runs++;
    const size_t room = 8 + WEFTI_SEATED_BYTES * runs;
    WEFT_NEW_ARRAY(*out, unsigned char, room);
    wefti_pack p = {.data = *out, .room = room};
    wefti_pack_u64(&p, m->generation);
    wefti_pack_seats(&p, seats, m->size);
    *out_bytes = p.used;
    return WEFT_OK;
}

weft_status wefti_hosts_decode(const wefti_frame *frame, wefti_hosts *out,
                               wefti_seated **out_seats) {
    wefti_unpack u = wefti_unpack_of(frame);
    out->generation = wefti_unpack_u64(&u);
    if (out->generation == 0 || out->generation > INT64_MAX) u.bad = true;
    out->size = -1;
    return wefti_unpack_seats(&u, "hosts", WEFTI_RANKS_MAX, &out->size, out_seats);
}
