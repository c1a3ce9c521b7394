/* Ranks as processes: each is a fork of the test with a communicator of its own. Their reports to
 * the test and their all-gather entries lie in shared memory. */
#ifndef COMM_PROCESSES_H
#define COMM_PROCESSES_H

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "comm/host/host.h"
#include "comm_scripts.h"
#include "sanitized.h"

enum { CARD = 4096, HANG_SECONDS = 60 };

typedef struct meeting {
    int32_t size;
    _Atomic uint32_t arrived;
    _Atomic bool over; /* nobody else comes */
    unsigned char card[MOST_RANKS][CARD];
} meeting;

typedef struct process_world process_world;
struct process_world {
    world_test w; /* in shared memory, as all of this */
    size_t bytes; /* of the whole, which may have more behind this */
    meeting meeting;
    int32_t hosts[MOST_RANKS];
    bool with_far;      /* a second communicator serves for transfers between hosts */
    int64_t pull_least; /* -1: as it comes */
    int spin;           /* -1: as it comes */
    int memory;         /* 0: plain, 1: from map, 2: either */
    pid_t pid[MOST_RANKS];
    int32_t ignored; /* this rank does not come to its end; -1: all do */
    /* Makes p->w.comm[rank]; NULL: wefti_comm_host. What others open may stay open. */
    weft_status (*join)(process_world *p, int32_t rank);
};

/* Before UCX is loaded. It patches the first instructions of mmap and its like in the running
 * process, and ends that by a fault where these are the thread sanitizer's ("bistro"). */
__attribute__((unused)) static void prepare_for_ucx(void) {
    if (SANITIZED_THREAD) (void)setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
}

static void *share(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

/* --- swapping cards --- */

typedef struct seat_at_meeting {
    meeting *m;
    int32_t rank;
    uint32_t rounds;
} seat_at_meeting;

static bool all_arrive(meeting *m, uint32_t count) {
    atomic_fetch_add(&m->arrived, 1);
    for (int64_t until = wefti_now_ns() + (int64_t)HANG_SECONDS * 1000000000;
         atomic_load(&m->arrived) < count; usleep(100))
        if (wefti_now_ns() > until || atomic_load(&m->over)) return false;
    return true;
}
static weft_status swap_cards(void *context, const void *card, size_t bytes, void *cards) {
    seat_at_meeting *s = context;
    WEFT_REQUIRE(bytes <= CARD, WEFT_E_BUG, "a card of %zu bytes", bytes);
    memcpy(s->m->card[s->rank], card, bytes);
    uint32_t size = (uint32_t)s->m->size;
    WEFT_REQUIRE(all_arrive(s->m, ++s->rounds * size), WEFT_E_TIMEOUT, "cards are missing");
    for (int32_t r = 0; r < s->m->size; r++)
        memcpy((char *)cards + (size_t)r * bytes, s->m->card[r], bytes);
    WEFT_REQUIRE(all_arrive(s->m, ++s->rounds * size), WEFT_E_TIMEOUT, "cards are missing");
    return WEFT_OK;
}

/* --- memory of both kinds --- */

static bool is_mapped(world_test *w, int32_t rank, const void *p) {
    const wefti_host_heap *heap = &((wefti_host *)w->comm[rank])->heap;
    return (const unsigned char *)p >= heap->base &&
           (const unsigned char *)p < heap->base + heap->bytes;
}
static void *get_memory(world_test *w, int32_t rank, int64_t bytes, numbers *r) {
    int memory = ((process_world *)w)->memory;
    bool mapped = memory == 1 || (memory == 2 && pick(r, 0, 1));
    return take_memory(mapped ? w->comm[rank] : NULL, bytes);
}
static void put_memory(world_test *w, int32_t rank, void *p) {
    if (!p || give_block(p)) return;
    if (is_mapped(w, rank, p))
        w->comm[rank]->engine->unmap(w->comm[rank], NULL, p, 0);
    else
        free(p);
}

/* --- one rank --- */

static int count_files(void) {
    int count = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return -1;
    while (readdir(d)) count++;
    closedir(d);
    return count;
}

static weft_status join(process_world *p, int32_t rank) {
    seat_at_meeting port = {&p->meeting, rank, 0};
    wefti_exchange exchange = {&port, swap_cards};
    static const int32_t one_host[MOST_RANKS];
    wefti_comm *far = NULL;
    if (p->with_far) WEFT_TRY(wefti_comm_host(rank, p->w.size, one_host, &exchange, &far));
    WEFT_TRY(wefti_comm_host(rank, p->w.size, p->hosts, &exchange, &p->w.comm[rank]));
    if (far) wefti_comm_host_set_internode(p->w.comm[rank], far);
    wefti_host *host = (wefti_host *)p->w.comm[rank];
    if (p->pull_least >= 0 && host->world.single_copy_bytes > 0)
        host->world.single_copy_bytes = p->pull_least;
    if (p->spin >= 0) host->world.spin = p->spin;
    return WEFT_OK;
}

static void live(process_world *p, int32_t rank) {
    world_test *w = &p->w;
    int files = count_files();
    if ((p->join ? p->join : join)(p, rank) < 0) {
        pthread_mutex_lock(&w->lock);
        if (atomic_fetch_add(&w->failures, 1) == 0)
            snprintf(w->message, sizeof w->message, "rank %d: %s", (int)rank, weft_error_message());
        pthread_mutex_unlock(&w->lock);
        atomic_store(&p->meeting.over, true);
        return;
    }
    int joined = count_files();
    w->body(w, rank);
    wefti_comm_destroy(w->comm[rank]);
    if (!p->join && (joined != files || count_files() != files)) {
        atomic_fetch_add(&w->failures, 1);
        snprintf(w->message, sizeof w->message, "rank %d: %d files are open, %d were before",
                 (int)rank, count_files(), files);
    }
}

/* --- all of them --- */

/* `bytes`: of a struct that begins with a process_world. */
static void *processes_begin_of(size_t bytes, int32_t size, void *context) {
    process_world *p = share(bytes);
    p->bytes = bytes;
    p->w.size = p->meeting.size = size;
    p->w.context = context;
    p->w.get = get_memory;
    p->w.put = put_memory;
    p->pull_least = p->spin = p->ignored = -1;
    p->memory = 2;
    pthread_barrierattr_t barrier;
    pthread_barrierattr_init(&barrier);
    pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&p->w.barrier, &barrier, (unsigned)size);
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&p->w.lock, &mutex);
    return p;
}
static process_world *processes_begin(int32_t size, void *context) {
    return processes_begin_of(sizeof(process_world), size, context);
}
static void processes_end(process_world *p) {
    munmap(p, p->bytes);
}

static void start_processes(process_world *p, rank_body *body) {
    p->w.body = body;
    fflush(NULL);
    for (int32_t r = 0; r < p->w.size; r++) {
        pid_t pid = fork();
        if (pid < 0) abort();
        if (pid > 0) {
            p->pid[r] = pid;
            continue;
        }
        alarm(HANG_SECONDS + 20); /* whatever happens to the test */
        live(p, r);
        exit(0);
    }
}
static void complain_of(process_world *p, int32_t rank, const char *what, int detail) {
    if (atomic_fetch_add(&p->w.failures, 1) == 0)
        snprintf(p->w.message, sizeof p->w.message, "rank %d %s %d", (int)rank, what, detail);
}
/* Until ranks have counted so far; not longer than they may take. */
__attribute__((unused)) static void await_turns(const process_world *p,
                                                const _Atomic int64_t *turns, int64_t least) {
    int64_t until = wefti_now_ns() + (int64_t)HANG_SECONDS * 1000000000;
    while (atomic_load(turns) < least && !atomic_load(&p->w.failures) && wefti_now_ns() < until)
        usleep(100);
}
/* Those that do not end are killed, and are failures. */
static void await_processes(process_world *p) {
    int64_t until = wefti_now_ns() + (int64_t)HANG_SECONDS * 1000000000;
    for (int32_t r = 0; r < p->w.size; r++) {
        int how = 0;
        pid_t got;
        if (r == p->ignored) kill(p->pid[r], SIGKILL);
        while ((got = waitpid(p->pid[r], &how, WNOHANG)) == 0 && wefti_now_ns() < until)
            usleep(500);
        if (got == 0) {
            kill(p->pid[r], SIGKILL);
            waitpid(p->pid[r], &how, 0);
            complain_of(p, r, "did not come to its end in seconds:", HANG_SECONDS);
        } else if (r != p->ignored && WIFSIGNALED(how)) {
            complain_of(p, r, "was killed by signal", WTERMSIG(how));
        } else if (r != p->ignored && WEXITSTATUS(how) != 0) {
            complain_of(p, r, "ended with status", WEXITSTATUS(how));
        }
    }
}
static void run_processes(process_world *p, rank_body *body) {
    start_processes(p, body);
    await_processes(p);
}

/* --- a rank is killed --- */

typedef struct killing {
    shared_case c;
    _Atomic int64_t turns;
    _Atomic int failed;
    int32_t victim;
    char message[MOST_RANKS][512];
} killing;

/* Until it fails. */
__attribute__((unused)) static void reduce_until_lost(world_test *w, int32_t rank) {
    killing *k = w->context;
    static float a[2][60000];
    wefti_endpoint *e = bound(w, rank, &k->c);
    weft_status status = WEFT_OK;
    while (status >= 0) {
        status = wefti_comm_run(e, a[0], a[1]);
        if (rank == 0) atomic_fetch_add(&k->turns, 1);
    }
    snprintf(k->message[rank], sizeof k->message[rank], "%s", weft_error_message());
    if (status == WEFT_E_PEER) atomic_fetch_add(&k->failed, 1);
    wefti_comm_unbind(e);
}

/* Kills the victim after some turns, of the world that `p` is: all others name it. */
__attribute__((unused)) static void kill_and_hear(process_world *p, killing *k, numbers *r,
                                                  const char *lost) {
    p->ignored = k->victim;
    start_processes(p, reduce_until_lost);
    await_turns(p, &k->turns, 3);
    usleep((useconds_t)pick(r, 0, 20000));
    kill(p->pid[k->victim], SIGKILL);
    await_processes(p);
    if (p->w.failures) fail_msg("%s", p->w.message);
    assert_int_equal(k->failed, p->w.size - 1);
    char name[64];
    snprintf(name, sizeof name, "rank %d%s", (int)k->victim, lost);
    for (int32_t i = 0; i < p->w.size; i++)
        if (i != k->victim && !strstr(k->message[i], name)) fail_msg("%s", k->message[i]);
}

/* Shared memory has no name that could be left. (Other tests have folders there.) */
__attribute__((unused)) static void check_nothing_has_a_name(void) {
    DIR *d = opendir("/dev/shm");
    if (!d) return;
    for (struct dirent *entry; (entry = readdir(d));)
        if (strstr(entry->d_name, "weft") && entry->d_type != DT_DIR)
            fail_msg("/dev/shm/%s is left", entry->d_name);
    closedir(d);
}

/* --- random scripts, each in a world of its own --- */

typedef struct script_rounds {
    int rounds;
    int32_t least, most; /* ranks; most 0: as many as there are */
    uint64_t mask;       /* of the seed, so that tests differ */
    int break_every;     /* a rank breaks the world every so many rounds; 0: never */
    rank_body *body;
    /* The world; may change the script. */
    process_world *(*begin)(int32_t size, int round, numbers *r, script *s);
} script_rounds;

/* Nobody leaves before all are through, as in a world. */
__attribute__((unused)) static void follow_to_the_end(world_test *w, int32_t rank) {
    follow_script(w, rank);
    pthread_barrier_wait(&w->barrier);
}

__attribute__((unused)) static void run_script_rounds(const script_rounds *o) {
    uint64_t seed = test_new_seed() ^ o->mask;
    static script s;
    for (int round = 0; round < o->rounds; round++) {
        numbers r = {seed + (uint64_t)round, 0};
        int32_t size = (int32_t)pick(&r, o->least, o->most ? o->most : MOST_RANKS);
        char expected[64] = "";
        choose_script(&s, seed + (uint64_t)round, &r, size);
        process_world *p = o->begin(size, round, &r, &s);
        if (o->break_every && round % o->break_every == o->break_every - 1) {
            choose_breaker(&s, &r, size, expected);
            p->w.expected = expected;
        }
        run_processes(p, o->body);
        if (p->w.failures)
            fail_msg("seed %llu, memory %d, pull %lld, %s", (unsigned long long)s.seed, p->memory,
                     (long long)p->pull_least, p->w.message);
        processes_end(p);
    }
}

#endif
