/* The device `fenced` and communicators: memory of a device is closed in every process that maps
 * it, a transfer opens what it touches, and each violation ends the process that commits it.
 * (weft-test: threads) */
#include "support.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* not all of it is needed here */
#include "device_bytes.h"
#include "processes.h"

enum { PAGE = 4096, PAGES = 64, BYTES = PAGES * PAGE, ELEMS = BYTES / 4 };

/* ---- a process that dies ---- */

typedef void violate(void *where);

static void read_it(void *where) {
    volatile unsigned char byte = *(volatile unsigned char *)where;
    (void)byte;
}
static void write_it(void *where) {
    *(volatile unsigned char *)where = 1;
}
/* Whether a copy of this process dies of it. */
static bool dies(violate *how, void *where) {
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)signal(SIGBUS, SIG_DFL);
        how(where);
        _exit(0);
    }
    int how_it_ended;
    if (waitpid(child, &how_it_ended, 0) != child) abort();
    return WIFSIGNALED(how_it_ended) &&
           (WTERMSIG(how_it_ended) == SIGSEGV || WTERMSIG(how_it_ended) == SIGBUS);
}

/* ---- one process ---- */

typedef struct open_once {
    wefti_stream *stream;
    unsigned char *memory;
} open_once;

static open_once own_memory(void) {
    wefti_device *device = guarded_device();
    open_once o = {.stream = device_stream};
    void *p;
    assert_true(device->table->allocate(device, WEFTI_SPACE_DEVICE, BYTES, &p) >= 0);
    o.memory = p;
    return o;
}
static void close_again(void *where) {
    open_once *o = where;
    wefti_byte_range range = {o->memory, PAGE};
    wefti_stream_conceal(o->stream, &range, 1);
}

/* Read and written outside of what is open; after the close; closed once too often. */
static void each_kind_of_violation_is_found(void **state) {
    (void)state;
    open_once o = own_memory();
    unsigned char *inside = o.memory + 100, *outside = o.memory + 5 * PAGE;
    wefti_byte_range range = {o.memory, PAGE};
    assert_true(wefti_stream_expose(o.stream, WEFTI_SPACE_DEVICE, &range, 1) >= 0);
    assert_false(dies(read_it, inside));
    assert_false(dies(write_it, inside));
    assert_true(dies(read_it, outside));
    assert_true(dies(write_it, outside));
    assert_true(wefti_stream_expose(o.stream, WEFTI_SPACE_DEVICE, &range, 1) >= 0);
    wefti_stream_conceal(o.stream, &range, 1);
    assert_false(dies(read_it, inside)); /* it was opened twice */
    assert_false(dies(close_again, &o));
    wefti_stream_conceal(o.stream, &range, 1);
    assert_true(dies(read_it, inside));
    assert_true(dies(write_it, inside));
    assert_true(dies(close_again, &o));
    guarded_device()->table->free(guarded_device(), WEFTI_SPACE_DEVICE, o.memory, BYTES);
}

/* ---- two processes ---- */

/* An arena of each rank, in memory that both map. */
typedef struct arenas {
    _Atomic(uintptr_t) address[2]; /* of rank r, in its own addresses */
} arenas;

static void *arena_of(world_test *w, int32_t rank) {
    arenas *a = w->context;
    void *p;
    if (w->comm[rank]->engine->map(w->comm[rank], guarded_device(), BYTES, &p) < 0) abort();
    atomic_store(&a->address[rank], (uintptr_t)p);
    pthread_barrier_wait(&w->barrier);
    return p;
}
/* The other rank's arena, in this process. */
static unsigned char *arena_of_other(world_test *w, int32_t rank) {
    const arenas *a = w->context;
    const wefti_host *host = (const wefti_host *)w->comm[rank];
    unsigned char *p = wefti_shm_reach(&host->world, 1 - host->local.place,
                                       (const void *)atomic_load(&a->address[1 - rank]));
    if (!p) abort();
    return p;
}
static void end_arena(world_test *w, int32_t rank, void *arena) {
    pthread_barrier_wait(&w->barrier);
    w->comm[rank]->engine->unmap(w->comm[rank], guarded_device(), arena, BYTES);
}
static void expect(world_test *w, int32_t rank, bool right, const char *what) {
    if (!right) complain(w, rank, "fence", what);
}

static void touch_the_other(world_test *w, int32_t rank) {
    void *arena = arena_of(w, rank);
    unsigned char *other = arena_of_other(w, rank);
    expect(w, rank, dies(read_it, other), "the other's arena can be read");
    expect(w, rank, dies(write_it, other + BYTES / 2), "the other's arena can be written");
    expect(w, rank, dies(read_it, arena), "the own arena can be read");
    end_arena(w, rank, arena);
}

static void the_host_must_not_touch_an_arena_of_a_peer(void **state) {
    (void)state;
    arenas *a = share(sizeof *a);
    process_world *p = processes_begin(2, a);
    run_processes(p, touch_the_other);
    if (p->w.failures) fail_msg("%s", p->w.message);
    processes_end(p);
    munmap(a, sizeof *a);
}

/* A sum over two arenas: both ranks read and write both. */
static void reduce_in_arenas(world_test *w, int32_t rank) {
    unsigned char *arena = arena_of(w, rank), *other = arena_of_other(w, rank);
    wefti_device *device = guarded_device();
    shared_case c = all_reduce_of(2, ELEMS / 2, WEFT_F32);
    wefti_endpoint *e = bound(w, rank, &c);
    wefti_byte_range range = {arena, BYTES / 2};
    static float numbers_here[ELEMS / 2];
    for (int turn = 0; e && turn < 3; turn++) {
        for (int i = 0; i < ELEMS / 2; i++) numbers_here[i] = (float)(i + rank + turn);
        if (!good(w, rank, device_write(device, arena, numbers_here, BYTES / 2), "write")) return;
        if (!good(w, rank, wefti_stream_expose(device_stream, WEFTI_SPACE_DEVICE, &range, 1),
                  "expose"))
            return;
        if (!good(w, rank, wefti_comm_run(e, arena, arena), "all-reduce")) return;
        wefti_stream_conceal(device_stream, &range, 1);
        expect(w, rank, dies(read_it, other), "the other's arena is open after the transfer");
        expect(w, rank, dies(read_it, arena), "the own arena is open after the transfer");
        if (!good(w, rank, device_read(device, numbers_here, arena, BYTES / 2), "read")) return;
        for (int i = 0; i < ELEMS / 2; i++)
            if (numbers_here[i] != (float)(2 * (i + turn) + 1)) {
                complain(w, rank, "values", "are not the sums");
                return;
            }
    }
    wefti_comm_unbind(e);
    end_arena(w, rank, arena);
}

static void a_transfer_opens_what_it_touches_and_closes_it(void **state) {
    (void)state;
    arenas *a = share(sizeof *a);
    process_world *p = processes_begin(2, a);
    run_processes(p, reduce_in_arenas);
    if (p->w.failures) fail_msg("%s", p->w.message);
    processes_end(p);
    munmap(a, sizeof *a);
}

/* Rank 1 posts memory of its device that it does not open; rank 0 fetches it through the kernel. */
static void fetch_what_is_closed(world_test *w, int32_t rank) {
    wefti_device *device = guarded_device();
    shared_case c = send_of(1, 0, ELEMS);
    wefti_endpoint *e = bound(w, rank, &c);
    static float got[ELEMS];
    void *closed;
    if (!e || device->table->allocate(device, WEFTI_SPACE_DEVICE, BYTES, &closed) < 0) abort();
    if (rank == 0) {
        (void)wefti_comm_run(e, NULL, got);
        complain(w, rank, "fence", "memory that is closed was read");
        return;
    }
    (void)good(w, rank, w->comm[rank]->engine->post(e, closed, NULL), "post");
    for (;;) pause(); /* until the test ends it */
}

static void a_fetch_of_closed_memory_is_a_violation(void **state) {
    (void)state;
    process_world *p = processes_begin(2, NULL);
    p->ignored = 1;
    start_processes(p, fetch_what_is_closed);
    await_processes(p);
    assert_int_equal(p->w.failures, 1);
    if (!strstr(p->w.message, "rank 0 was killed by signal 11")) fail_msg("%s", p->w.message);
    processes_end(p);
}

int main(void) {
    (void)setenv("WEFT_DEVICE", "fenced", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_violation_is_found),
        cmocka_unit_test(the_host_must_not_touch_an_arena_of_a_peer),
        cmocka_unit_test(a_transfer_opens_what_it_touches_and_closes_it),
        cmocka_unit_test(a_fetch_of_closed_memory_is_a_violation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
