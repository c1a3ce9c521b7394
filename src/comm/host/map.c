/* How processes of one host map each other's memory. The first process of a host creates one file
 * for all of them and publishes its descriptor. Each process maps the whole file and reports
 * success or failure. Then the descriptors are closed, and only the mappings remain. A file for
 * each process would cost as many mappings as the square of the processes. All ranks of all hosts
 * take part in both exchanges, so that all know the reason if it fails. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/pool.h"
#include "comm/host/host.h"

enum {
    TROUBLE = 320,
    /* Bytes from which on fetching is faster, measured: copies in the caches of what both sides
       touch next cost less than a page's way through the kernel. */
    PULLED_PARTS = 32 << 10
};
static const size_t control_most = (size_t)4 << 30;

/* Where a rank's memory is. */
typedef struct whereabouts {
    int64_t process;
    int32_t file; /* descriptor of the host's file, of the first rank of a host */
    uint64_t inode;
    uint64_t most; /* bytes that it can map for each rank of its host */
    uint64_t control_bytes;
    uint64_t probe; /* its own address; whoever can read its memory finds process there */
    int32_t light, cores;
    uint64_t cpus[CPU_SETSIZE / 64]; /* on which it may run */
    char trouble[TROUBLE];
} whereabouts;

typedef struct result {
    uint64_t base; /* of its heap, in its own addresses */
    int32_t copies;
    char trouble[TROUBLE];
} result;

typedef struct joining {
    wefti_host *host;
    int file;         /* own, -1: none */
    whereabouts *all; /* [size of the world] */
    result *results;
    int32_t first; /* the rank that creates the file */
} joining;

static void say_trouble(char *trouble) {
    snprintf(trouble, TROUBLE, "%s", weft_error_message());
}

/* Twice the machine's memory: there is always room, as pages are there only when touched. */
static size_t heap_wish(void) {
    size_t wish = (size_t)1 << 30;
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    while (wish < 2 * memory && wish < (size_t)1 << 44) wish *= 2;
    return wish;
}

/* --- the first exchange --- */

/* As long as all may want it: those that can map less say so in the same exchange. */
static weft_status make_file(joining *j, whereabouts *mine) {
    size_t ranks = (size_t)j->host->world.size;
    mine->most = wefti_host_most(heap_wish(), j->host->world.size);
    WEFT_REQUIRE(mine->most > 0, WEFT_E_NOMEM, "no addresses for memory of %d processes",
                 (int)j->host->world.size);
    if (j->host->local.place > 0) return WEFT_OK;
    WEFT_TRY(wefti_host_file("weft host", &j->file, &mine->inode));
    mine->file = j->file;
    mine->control_bytes = mine->most < control_most ? mine->most : control_most;
    size_t bytes = (size_t)mine->control_bytes + (size_t)mine->most * ranks;
    WEFT_REQUIRE(ftruncate(j->file, (off_t)bytes) == 0, WEFT_E_NOMEM,
                 "no %zu bytes of shared memory: %s", bytes, strerror(errno));
    return WEFT_OK;
}

static void describe(joining *j, whereabouts *mine) {
    mine->process = getpid();
    mine->probe = (uint64_t)(uintptr_t)&mine->process;
    mine->light = wefti_eventcount_can_be_light(true);
    mine->cores = wefti_cores();
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (size_t c = 0; c < CPU_SETSIZE; c++)
            if (CPU_ISSET(c, &set)) mine->cpus[c / 64] |= (uint64_t)1 << c % 64;
    if (make_file(j, mine) < 0) say_trouble(mine->trouble);
}

/* --- between the two --- */

/* Ranks wait busily where each can have a core. */
static void choose_waiting(const joining *j) {
    wefti_shm_world *world = &j->host->world;
    int32_t cores = 0;
    world->mode = (wefti_eventcount_mode){.light = true, .shared = true};
    for (int w = 0; w < CPU_SETSIZE / 64; w++) {
        uint64_t any = 0;
        for (int32_t p = 0; p < world->size; p++) any |= j->all[world->rank_of[p]].cpus[w];
        cores += __builtin_popcountll(any);
    }
    for (int32_t p = 0; p < world->size; p++) {
        const whereabouts *w = &j->all[world->rank_of[p]];
        int32_t own = 0;
        for (int i = 0; i < CPU_SETSIZE / 64; i++) own += __builtin_popcountll(w->cpus[i]);
        if (w->cores < own && w->cores < cores) cores = w->cores; /* less time than cores */
        world->mode.light &= w->light;
    }
    world->spin = world->size > cores ? 0 : WEFTI_SHM_SPIN;
    world->mode.light &= world->spin > 0;
}

static size_t heap_bytes(const joining *j) {
    const wefti_shm_world *world = &j->host->world;
    size_t bytes = SIZE_MAX;
    for (int32_t p = 0; p < world->size; p++)
        if (j->all[world->rank_of[p]].most < bytes) bytes = j->all[world->rank_of[p]].most;
    return bytes;
}

static void use_control(joining *j) {
    wefti_host *host = j->host;
    host->control = (wefti_host_control *)(void *)host->mapped;
    host->world.common = wefti_host_control_common(host->control);
    if (host->local.place == 0)
        wefti_host_control_begin(host->control, host->control_bytes, host->world.size);
}

static void use_heaps(joining *j, size_t bytes) {
    wefti_shm_world *world = &j->host->world;
    unsigned char *view = j->host->mapped + j->host->control_bytes;
    for (int32_t p = 0; p < world->size; p++, view += bytes) {
        const whereabouts *w = &j->all[world->rank_of[p]];
        world->area[p] = (wefti_shm_area){0, bytes, (uintptr_t)view, w->process};
        if (p != j->host->local.place) continue;
        j->host->heap.base = view;
        j->host->heap.bytes = bytes;
    }
}

static bool can_read(const whereabouts *w) {
    int64_t found = -1;
    struct iovec here = {&found, sizeof found};
    struct iovec there = {(void *)(uintptr_t)w->probe, sizeof found};
    return process_vm_readv((pid_t)w->process, &here, 1, &there, 1, 0) == sizeof found &&
           found == w->process;
}

static weft_status map_all(joining *j) {
    wefti_host *host = j->host;
    const whereabouts *first = &j->all[j->first];
    size_t each = heap_bytes(j);
    size_t bytes = (size_t)first->control_bytes + each * (size_t)host->world.size;
    int opened = -1;
    WEFT_TRY(wefti_host_reserve(bytes, &host->mapped));
    host->mapped_bytes = bytes;
    host->control_bytes = (size_t)first->control_bytes;
    WEFT_TRY(wefti_host_open(first->process, first->file, first->inode, &opened));
    weft_status status = wefti_host_map(opened, bytes, host->mapped);
    close(opened);
    WEFT_TRY(status);
    wefti_host_advise(host->mapped, bytes);
    use_control(j);
    use_heaps(j, each);
    return WEFT_OK;
}

static void describe_result(joining *j, result *mine) {
    const wefti_shm_world *world = &j->host->world;
    if (map_all(j) < 0) say_trouble(mine->trouble);
    mine->base = (uint64_t)(uintptr_t)j->host->heap.base;
    /* In a ring each process reads one and is read by one: a process that may not read, or may not
     * be read, is found. */
    mine->copies = can_read(&j->all[world->rank_of[(j->host->local.place + 1) % world->size]]);
}

/* --- both --- */

static weft_status use_results(const joining *j) {
    wefti_shm_world *world = &j->host->world;
    bool copies = true;
    for (int32_t r = 0; r < j->host->local.comm.size; r++)
        WEFT_REQUIRE_OF(r, !j->results[r].trouble[0], WEFT_E_PEER, "rank %d: %s", (int)r,
                        j->results[r].trouble);
    for (int32_t p = 0; p < world->size; p++) {
        const result *r = &j->results[world->rank_of[p]];
        world->area[p].begin = (uintptr_t)r->base;
        copies &= r->copies;
    }
    world->single_copy_bytes = copies ? PULLED_PARTS : 0;
    return WEFT_OK;
}

static weft_status exchange_all(joining *j, const wefti_exchange *exchange) {
    int32_t rank = j->host->local.comm.rank;
    whereabouts mine = {0}; /* lies still until all have probed it */
    describe(j, &mine);
    WEFT_TRY(exchange->allgather(exchange->context, &mine, sizeof mine, j->all));
    for (int32_t r = 0; r < j->host->local.comm.size; r++)
        WEFT_REQUIRE_OF(r, !j->all[r].trouble[0], r == rank ? WEFT_E_NOMEM : WEFT_E_PEER,
                        "rank %d: %s", (int)r, j->all[r].trouble);
    choose_waiting(j);
    result own = {0};
    describe_result(j, &own);
    WEFT_TRY(exchange->allgather(exchange->context, &own, sizeof own, j->results));
    return use_results(j);
}

weft_status wefti_host_join(wefti_host *host, const int32_t *hosts,
                            const wefti_exchange *exchange) {
    joining j = {.host = host, .file = -1};
    size_t size = (size_t)host->local.comm.size;
    while (hosts[j.first] != hosts[host->local.comm.rank]) j.first++;
    j.all = wefti_calloc(size, sizeof *j.all);
    j.results = wefti_calloc(size, sizeof *j.results);
    weft_status status = WEFT_OK;
    if (!j.all || !j.results)
        status = WEFT_RAISE(WEFT_E_NOMEM, "no memory for the whereabouts of %zu ranks", size);
    if (status >= 0) status = exchange_all(&j, exchange);
    if (j.file >= 0) close(j.file);
    wefti_free(j.all);
    wefti_free(j.results);
    return status;
}
