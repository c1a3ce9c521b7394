/* Worlds, groups and collectives of the Fortran module `weft`. Counts and types of elements are
 * those of the arrays where they are not said, and no call reads or writes beyond its arrays, or
 * leaves numbers of one type in an array of another. */
#include "weft_fortran.h"

#include <stdio.h>

weft_status weft_fortran_world_join(weft_world **out, const CFI_cdesc_t *communicator,
                                    const CFI_cdesc_t *links, const CFI_cdesc_t *network,
                                    const double *join_seconds, const double *heartbeat_seconds,
                                    const double *wait_seconds) {
    WEFT_FORTRAN_TEXT(name, communicator);
    WEFT_FORTRAN_TEXT(file, links);
    WEFT_FORTRAN_TEXT(bound, network);
    weft_world_options options =
        WEFT_STRUCT(weft_world_options, .communicator = name, .links = file, .interface = bound);
    if (join_seconds) options.join_seconds = *join_seconds;
    if (heartbeat_seconds) options.heartbeat_seconds = *heartbeat_seconds;
    if (wait_seconds) options.wait_seconds = *wait_seconds;
    return weft_world_join(&options, out);
}

void weft_fortran_world_fail(weft_world *world, const CFI_cdesc_t *message) {
    WEFT_FORTRAN_TEXT(text, message);
    weft_world_fail(world, message ? text : NULL);
}

weft_status weft_fortran_group_create(weft_world *world, const CFI_cdesc_t *ranks,
                                      weft_group **out) {
    int count = weft_fortran_count(ranks), list[count + 1];
    for (int i = 0; i < count; i++) list[i] = weft_fortran_int(ranks, i);
    return weft_group_create(world, list, count, out);
}

/* ---- what a call is about ---- */

typedef struct call {
    weft_group *group; /* NULL: all ranks */
    int members, me;
    int64_t count;
    weft_dtype dtype;
    bool said; /* the type, by the caller; else it is that of the array that is counted */
} call;

#define OPTIONAL weft_group *const *group, const int64_t *count, const int *dtype

static weft_status type_of(const CFI_cdesc_t *array, const int *said, weft_dtype *out) {
    if (said) return *out = (weft_dtype)*said, WEFT_OK;
    if (weft_fortran_dtype(array, out)) return WEFT_OK;
    return weft_error_raise(WEFT_E_ARG, "the array's type is none of weft's: say dtype=WEFT_...");
}

/* The array that is counted has one block, or as many as there are members. */
static weft_status call_of(weft_world *world, const CFI_cdesc_t *counted, bool blocks, OPTIONAL,
                           call *out) {
    call c = {.group = group ? *group : NULL, .said = dtype != NULL};
    c.members = c.group ? weft_group_size(c.group) : weft_world_size(world);
    c.me = c.group ? weft_group_rank(c.group) : weft_world_rank(world);
    weft_status status = type_of(counted, dtype, &c.dtype);
    if (status < 0) return status;
    int64_t elements = weft_fortran_elements(counted), parts = blocks ? c.members : 1;
    if (!count && elements < 0)
        return weft_error_raise(WEFT_E_ARG, "an array of assumed size: say count=");
    if (!count && elements % parts != 0) {
        char message[160];
        (void)snprintf(message, sizeof message,
                       "the array has %lld elements, which are no %lld equal blocks",
                       (long long)elements, (long long)parts);
        return weft_error_raise(WEFT_E_SHAPE, message);
    }
    c.count = count ? *count : elements / parts;
    *out = c;
    return WEFT_OK;
}

/* Does an array hold so many elements, one behind the other, and of the call's type? */
static weft_status fits(const CFI_cdesc_t *array, const char *name, const call *c,
                        int64_t elements) {
    char message[160];
    weft_dtype own;
    if (!weft_fortran_contiguous(array)) {
        (void)snprintf(message, sizeof message, "the array '%s' is not contiguous", name);
        return weft_error_raise(WEFT_E_ARG, message);
    }
    if (!c->said && weft_fortran_dtype(array, &own) && own != c->dtype) {
        (void)snprintf(message, sizeof message, "the array '%s' is %s; the other one is %s", name,
                       weft_dtype_text(own), weft_dtype_text(c->dtype));
        return weft_error_raise(WEFT_E_ARG, message);
    }
    int64_t has = weft_fortran_elements(array) * (int64_t)array->elem_len;
    int64_t needs = elements * (int64_t)weft_dtype_bytes(c->dtype);
    if (has < 0 || has >= needs) return WEFT_OK;
    (void)snprintf(message, sizeof message, "the array '%s' has %lld bytes; the call needs %lld",
                   name, (long long)has, (long long)needs);
    return weft_error_raise(WEFT_E_SHAPE, message);
}

static int64_t sum_of(const int64_t *counts, int number) {
    int64_t sum = 0;
    for (int i = 0; i < number; i++) sum += counts[i];
    return sum;
}

#define TRY(call_)                                                                                 \
    do {                                                                                           \
        weft_status status_ = (call_);                                                             \
        if (status_ < 0) return status_;                                                           \
    } while (0)
#define BEGIN(counted, blocks)                                                                     \
    call c;                                                                                        \
    TRY(call_of(world, counted, blocks, group, count, dtype, &c))
#define FITS(array, elements) TRY(fits(array, #array, &c, elements))

/* Both forms of a collective. `check`: what comes before; behind it what the C call takes. */
#define BLOCKS (c.members * c.count)
#define IN(...) __VA_ARGS__
#define BOTH(name, of, arguments, optional, check, ...)                                            \
    weft_status weft_fortran_##name(weft_world *world, arguments, optional) {                      \
        check;                                                                                     \
        return weft_##of(world, c.group, __VA_ARGS__);                                             \
    }                                                                                              \
    weft_status weft_fortran_##name##_start(weft_world *world, arguments, weft_request **out,      \
                                            optional) {                                            \
        check;                                                                                     \
        return weft_##of##_start(world, c.group, __VA_ARGS__, out);                                \
    }
#define MOVE const CFI_cdesc_t *source, const CFI_cdesc_t *destination

BOTH(all_reduce, all_reduce, IN(MOVE, int reduction), IN(OPTIONAL), BEGIN(source, false);
     FITS(source, c.count); FITS(destination, c.count), source->base_addr, destination->base_addr,
                            c.count, c.dtype, (weft_reduction)reduction)
BOTH(all_reduce_in_place, all_reduce, IN(const CFI_cdesc_t *buffer, int reduction), IN(OPTIONAL),
     BEGIN(buffer, false);
     FITS(buffer, c.count), buffer->base_addr, buffer->base_addr, c.count, c.dtype,
     (weft_reduction)reduction)
BOTH(all_gather, all_gather, IN(MOVE), IN(OPTIONAL), BEGIN(source, false); FITS(source, c.count);
     FITS(destination, BLOCKS), source->base_addr, destination->base_addr, c.count, c.dtype)
BOTH(reduce_scatter, reduce_scatter, IN(MOVE, int reduction), IN(OPTIONAL),
     BEGIN(destination, false);
     FITS(source, BLOCKS); FITS(destination, c.count), source->base_addr, destination->base_addr,
                           c.count, c.dtype, (weft_reduction)reduction)
BOTH(all_to_all, all_to_all, IN(MOVE), IN(OPTIONAL), BEGIN(source, true); FITS(source, BLOCKS);
     FITS(destination, BLOCKS), source->base_addr, destination->base_addr, c.count, c.dtype)
BOTH(broadcast, broadcast, IN(const CFI_cdesc_t *buffer, int root), IN(OPTIONAL),
     BEGIN(buffer, false);
     FITS(buffer, c.count), buffer->base_addr, c.count, c.dtype, root)
BOTH(reduce, reduce, IN(MOVE, int reduction, int root), IN(OPTIONAL), BEGIN(source, false);
     FITS(source, c.count);
     if (c.me == root) FITS(destination, c.count), source->base_addr, destination->base_addr,
     c.count, c.dtype, (weft_reduction)reduction, root)
BOTH(gather, gather, IN(MOVE, int root), IN(OPTIONAL), BEGIN(source, false); FITS(source, c.count);
     if (c.me == root) FITS(destination, BLOCKS), source->base_addr, destination->base_addr,
     c.count, c.dtype, root)
BOTH(scatter, scatter, IN(MOVE, int root), IN(OPTIONAL), BEGIN(destination, false);
     FITS(destination, c.count); if (c.me == root) FITS(source, BLOCKS), source->base_addr,
                                 destination->base_addr, c.count, c.dtype, root)
BOTH(send, send, IN(const CFI_cdesc_t *source, int to, int tag), IN(OPTIONAL), BEGIN(source, false);
     FITS(source, c.count), source->base_addr, c.count, c.dtype, to, tag)
BOTH(recv, recv, IN(const CFI_cdesc_t *destination, int from, int tag), IN(OPTIONAL),
     BEGIN(destination, false);
     FITS(destination, c.count), destination->base_addr, c.count, c.dtype, from, tag)

/* Blocks of any size: there is no one count. */
#define UNCOUNTED weft_group *const *group, const int *dtype
#define BEGIN_UNCOUNTED                                                                            \
    const int64_t *count = &(int64_t){0};                                                          \
    BEGIN(source, false)
BOTH(all_to_all_v, all_to_all_v,
     IN(const CFI_cdesc_t *source, const int64_t *send_counts, const CFI_cdesc_t *destination,
        const int64_t *receive_counts),
     IN(UNCOUNTED), BEGIN_UNCOUNTED;
     FITS(source, sum_of(send_counts, c.members));
     FITS(destination, sum_of(receive_counts, c.members)), source->base_addr, send_counts,
     destination->base_addr, receive_counts, c.dtype)
BOTH(neighbor_exchange, neighbor_exchange,
     IN(const CFI_cdesc_t *source, const int *send_ranks, const int64_t *send_counts, int sends,
        const CFI_cdesc_t *destination, const int *receive_ranks, const int64_t *receive_counts,
        int receives),
     IN(UNCOUNTED), BEGIN_UNCOUNTED;
     FITS(source, sum_of(send_counts, sends));
     FITS(destination, sum_of(receive_counts, receives)), source->base_addr, send_ranks,
     send_counts, sends, destination->base_addr, receive_ranks, receive_counts, receives, c.dtype)
/* How much a tile with its rims is. */
static int64_t framed(const int64_t shape[3], const weft_halo *halo) {
    return shape[0] * (halo->sizes[0] + shape[1] + halo->sizes[1]) *
           (halo->sizes[2] + shape[2] + halo->sizes[3]);
}
BOTH(halo_exchange, halo_exchange,
     IN(const CFI_cdesc_t *source, const int64_t *shape, const weft_halo *send,
        const CFI_cdesc_t *destination, const weft_halo *receive),
     IN(UNCOUNTED), BEGIN_UNCOUNTED;
     FITS(source, shape[0] * shape[1] * shape[2]);
     FITS(destination, framed(shape, receive)), source->base_addr, shape, send,
     destination->base_addr, receive, c.dtype)

/* How much a rank's array of a grid holds. */
static weft_status layered(weft_world *world, weft_group *group, const weft_grid *grid,
                           int64_t planes, int64_t *out) {
    int64_t begin[3], size[3];
    const int place = group ? weft_group_rank(group) : weft_world_rank(world);
    TRY(weft_grid_tile(grid, place, begin, size));
    *out = planes;
    for (int d = 0; d < grid->dimensions; d++) *out *= grid->before[d] + size[d] + grid->after[d];
    return WEFT_OK;
}
BOTH(grid_exchange, grid_exchange,
     IN(const CFI_cdesc_t *array, int64_t planes, const weft_grid *grid), IN(UNCOUNTED),
     const CFI_cdesc_t *source = array;
     BEGIN_UNCOUNTED; int64_t elements; TRY(layered(world, c.group, grid, planes, &elements));
     FITS(array, elements), array->base_addr, planes, grid, c.dtype)

weft_status weft_fortran_barrier(weft_world *world, weft_group *const *group) {
    return weft_barrier(world, group ? *group : NULL);
}
