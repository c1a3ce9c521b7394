/* Memory of other processes that is not mapped here.
 *
 * If the kernel permits it (process_vm_readv(2): same user, not forbidden), a large source is read
 * with one copy. All other data goes through mapped memory, all-reduces chunk by chunk
 * (comm/shm/staged_reduce.c). A process never writes into unmapped memory of another process: it
 * could be stopped in the middle, be given up by its peers, continue, and then do harm. */
#include <errno.h>
#include <stdio.h>
#include <sys/uio.h>

#include "comm/shm/shm.h"

weft_status wefti_shm_make_readable(wefti_shm_endpoint *endpoint, wefti_shm_post *post) {
    const wefti_shm_rank *local = endpoint->local;
    const wefti_shm_plan *plan = endpoint->plan;
    wefti_shm_world *world = local->world;
    if (!plan->exposes || plan->bytes == 0) return WEFT_OK;
    if (wefti_shm_reach(world, local->place, post->source) &&
        (!plan->shares || wefti_shm_reach(world, local->place, post->destination)))
        return WEFT_OK;
    if (plan->shares) return wefti_shm_stage_reduce(endpoint, post);
    if (wefti_shm_stages_gather(world, plan)) return wefti_shm_stage_gather(endpoint, post);
    post->single_copy =
        world->single_copy_bytes && plan->runs && plan->bytes >= world->single_copy_bytes;
    if (post->single_copy) return WEFT_OK;
    if (plan->bytes <= WEFTI_SHM_SMALL) {
        WEFT_TRY(wefti_shm_keep_small(world, endpoint->port));
        post->copied = true;
        return WEFT_OK;
    }
    void **bounce = &endpoint->bounce[post - endpoint->post];
    if (!*bounce) WEFT_TRY(world->take(world, (size_t)plan->bytes, bounce));
    post->bounce = *bounce;
    memcpy(post->bounce, post->source, (size_t)plan->bytes);
    return WEFT_OK;
}

/* On a device that guards its memory, a peer's bytes that are not exposed there are a violation. */
static void blame_device(const wefti_shm_rank *local, int32_t place, const void *p, int64_t bytes) {
    const wefti_device_table *device;
    char what[200];
    if (wefti_device_choose(local->world->rank_of[place], &device) < 0 || !device->violation)
        return;
    (void)snprintf(
        what, sizeof what,
        "rank %d reads %lld bytes at %p of rank %d (process %lld), which are not exposed "
        "there",
        (int)local->comm.rank, (long long)bytes, p, (int)local->world->rank_of[place],
        (long long)local->world->area[place].process);
    device->violation(what);
}

static bool refuse(wefti_shm_rank *local, int32_t place, int why) {
    long long process = local->world->area[place].process;
    int rank = (int)local->world->rank_of[place];
    if (why == ESRCH)
        wefti_shm_break(local, rank, "rank %d (process %lld) has ended", rank, process);
    else
        wefti_shm_break(local, rank, "the memory of rank %d (process %lld) cannot be read: %s",
                        rank, process, strerror(why));
    return false;
}

bool wefti_shm_read_peer(wefti_shm_rank *local, int32_t place, const void *p, void *to,
                         int64_t bytes) {
#if defined(__linux__)
    while (bytes > 0) {
        struct iovec here = {to, (size_t)bytes}, there = {(void *)(uintptr_t)p, (size_t)bytes};
        ssize_t n =
            process_vm_readv((pid_t)local->world->area[place].process, &here, 1, &there, 1, 0);
        if (n < 0 && errno == EINTR) continue;
        int why = n < 0 ? errno : EFAULT;
        if (n <= 0 && why == EFAULT) blame_device(local, place, p, bytes);
        if (n <= 0) return refuse(local, place, why);
        to = (char *)to + n;
        p = (const char *)p + n;
        bytes -= n;
    }
    return true;
#else
    (void)p;
    (void)to;
    return bytes == 0 || refuse(local, place, ENOSYS);
#endif
}

/* Elements [first, first + count) of the run: every source fetched or found, then reduced. */
static bool pull_block(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number,
                       const wefti_copy_move *move, void *destination, int64_t first,
                       int64_t count) {
    const wefti_shm_endpoint *endpoint = wefti_shm_in_flight_of(port, number)->post->endpoint;
    int64_t bytes = (int64_t)weft_dtype_bytes(move->dtype);
    wefti_copy_move block = *move;
    block.run = count;
    block.to.offset += first;
    for (int32_t s = 0; s < move->sources; s++) {
        int32_t member = move->members[s];
        const char *source = wefti_shm_source(local, port, member, number);
        int64_t offset = move->from[s].offset * bytes; /* which the move adds */
        if (source) {
            endpoint->source[s] = source + first * bytes;
            continue;
        }
        unsigned char *here = endpoint->blocks + (int64_t)s * WEFTI_SHM_BLOCK;
        const char *there = wefti_shm_slot_of(port->channel, member, number)->source;
        if (!wefti_shm_read_peer(local, port->channel->places[member],
                                 there + offset + first * bytes, here, count * bytes))
            return false;
        endpoint->source[s] = (const void *)((uintptr_t)here - (uintptr_t)offset);
    }
    wefti_move_run(&block, endpoint->source, destination);
    return true;
}

bool wefti_shm_read_peer_move(wefti_shm_rank *local, wefti_shm_port *port, uint64_t number,
                              const wefti_copy_move *move, void *destination) {
    int64_t bytes = (int64_t)weft_dtype_bytes(move->dtype);
    if (move->sources == 1) {
        int32_t member = move->members[0];
        const char *there = wefti_shm_slot_of(port->channel, member, number)->source;
        return wefti_shm_read_peer(
            local, port->channel->places[member], there + move->from[0].offset * bytes,
            (char *)destination + move->to.offset * bytes, move->run * bytes);
    }
    int64_t most = WEFTI_SHM_BLOCK / bytes;
    for (int64_t done = 0; done < move->run; done += most) {
        int64_t count = move->run - done < most ? move->run - done : most;
        if (!pull_block(local, port, number, move, destination, done, count)) return false;
    }
    return true;
}
