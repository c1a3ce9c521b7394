/* Ranks that give up because of another rank: the word of that rank counts more, whenever it comes
 * within the scheduler's limit. Members are processes, which the test leads through each case. */
#include "support.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "control_cases.h"

enum { RANKS = 3, BLAMED = 1, BLAMES = 0 };
#define CLOSED "connection closed (rank 1)"

/* The deeds of a rank, each done when the test says so. */
typedef enum deed {
    STAYS,
    GIVES_UP,
    NAMES_ITSELF, /* it gives up as a world's rank does */
    IS_LATE,
    BLAMES_ONE,
    BLAMES_ZERO,
    LEAVES,
    IS_KILLED,
    EXITS
} deed;

typedef struct part {
    _Atomic int joined, next, done, ended; /* next: the number of deeds that it may do */
    bool blames_late;                      /* once it has been told how the world failed */
    deed deeds[3];
    weft_status status;
    int failed;
    char text[1024];
} part;

typedef struct crew {
    part part[RANKS];
    char address[64];
    _Atomic int go;
} crew;

static crew *all;
static pid_t pids[RANKS];

static void await(_Atomic int *what, int least) {
    for (int i = 0; i < 40000 && *what < least; i++) usleep(500);
    if (*what < least) fail_msg("waited in vain for %d, it is %d", least, *what);
}

static void end(wefti_member *m, part *p) {
    static wefti_call_records records; /* each rank has made a number of calls of its own */
    records.count = 1;
    records.of[0] = (wefti_call_record){
        .ranks = 7, .other = -1, .calls = (uint64_t)wefti_member_rank(m) + 1, .text = "a call"};
    p->status = wefti_member_close(m, &records);
    p->failed = weft_error_rank();
    snprintf(p->text, sizeof p->text, "%s", p->status < 0 ? weft_error_message() : "");
    p->ended = 1;
    _exit(0);
}

static void act(wefti_member *m, part *p, deed what) {
    switch (what) {
    case STAYS:
        break;
    case GIVES_UP:
        wefti_member_fail(m, WEFT_E_PEER, WEFT_RANK_OWN, TEST_REASON);
        break;
    case NAMES_ITSELF:
        wefti_member_fail(m, WEFT_E_PEER, BLAMED, "rank 1: " TEST_REASON);
        break;
    case IS_LATE:
        wefti_member_fail(m, WEFT_E_TIMEOUT, WEFT_RANK_OWN, TEST_REASON);
        break;
    case BLAMES_ONE:
        wefti_member_fail(m, WEFT_E_PEER, BLAMED, CLOSED);
        break;
    case BLAMES_ZERO:
        wefti_member_fail(m, WEFT_E_PEER, BLAMES, "connection closed (rank 0)");
        break;
    case LEAVES:
        end(m, p);
        break;
    case IS_KILLED:
        (void)raise(SIGKILL);
        break;
    case EXITS:
        _exit(1);
    }
}

static void be_member(int rank) {
    part *p = &all->part[rank];
    wefti_member *m;
    while (!all->go) usleep(200);
    wefti_member_options o = test_member(all->address);
    o.rank = rank;
    o.host = "here";
    if (wefti_member_join(&o, &m) < 0) _exit(3);
    p->joined = 1;
    while (wefti_member_check(m) == WEFT_OK) {
        if (p->done < p->next) {
            act(m, p, p->deeds[p->done]);
            p->done++;
        }
        usleep(200);
    }
    if (p->blames_late) act(m, p, BLAMES_ONE);
    end(m, p);
}

static wefti_scheduler *begin(void) {
    wefti_scheduler_options o = test_scheduler(RANKS);
    wefti_scheduler *s;
    memset(all, 0, sizeof *all);
    for (int r = 0; r < RANKS; r++) {
        fflush(NULL);
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] > 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_member(r);
    }
    assert_int_equal(wefti_scheduler_start(&o, &s), WEFT_OK);
    snprintf(all->address, sizeof all->address, "%s", wefti_scheduler_address(s));
    all->go = 1;
    for (int r = 0; r < RANKS; r++) await(&all->part[r].joined, 1);
    return s;
}

static bool gave_up(const wefti_life *life) {
    return life->gave_up;
}
static bool has_parted(const wefti_life *life) {
    return life->state == WEFTI_LIFE_PARTED;
}

/* Until the scheduler knows it. */
static void is_known(wefti_scheduler *s, int rank, bool (*fact)(const wefti_life *)) {
    bool known = false;
    for (int i = 0; i < 40000 && !known; i++, usleep(500)) {
        pthread_mutex_lock(&s->lock);
        known = fact(&s->live.ranks[rank]);
        pthread_mutex_unlock(&s->lock);
    }
    assert_true(known);
}

static void is_seen_dead(wefti_scheduler *s, int rank) {
    is_known(s, rank, wefti_is_dead);
}

static void let(int rank, deed what) {
    part *p = &all->part[rank];
    p->deeds[p->next] = what;
    p->next++;
}

static void blame(wefti_scheduler *s, int rank) {
    let(rank, BLAMES_ONE);
    is_known(s, rank, gave_up);
}

/* All that live are told of `failed`, with `facts`. */
static void all_told(wefti_scheduler *s, weft_status status, int failed, const char *facts) {
    assert_int_equal(wefti_scheduler_wait(s, WEFTI_SCHEDULER_RUNNING, 20), WEFTI_SCHEDULER_FAILED);
    char *reason = wefti_scheduler_abort_reason(s);
    ASSERT_FACTS(reason, facts);
    wefti_free(reason);
    for (int r = 0; r < RANKS; r++) {
        const part *p = &all->part[r];
        int how = 0;
        assert_int_equal(waitpid(pids[r], &how, 0), pids[r]);
        if (!p->ended) continue; /* killed, or gone before */
        if (p->status != status || p->failed != failed || !has_facts(p->text, facts))
            fail_msg("rank %d: status %d of rank %d, '%s'", r, (int)p->status, p->failed, p->text);
    }
    wefti_scheduler_stop(s);
}

static void death_after_blame(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    blame(s, BLAMES);
    let(BLAMED, IS_KILLED);
    all_told(s, WEFT_E_LOST, BLAMED, "rank 1|died: ");
    assert_true(all->part[BLAMES].ended && all->part[2].ended);
}

static void blame_after_death(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    all->part[BLAMES].blames_late = true;
    let(BLAMED, IS_KILLED);
    all_told(s, WEFT_E_LOST, BLAMED, "rank 1|died: ");
    assert_true(all->part[BLAMES].ended && all->part[2].ended);
}

/* Two blame it, and one of them has gone by then: its end is a consequence. */
static void death_after_those_who_blame(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    blame(s, BLAMES);
    blame(s, 2);
    let(2, EXITS);
    is_seen_dead(s, 2);
    let(BLAMED, IS_KILLED);
    all_told(s, WEFT_E_LOST, BLAMED, "rank 1|died: ");
}

static void own_reason_after_blame(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    blame(s, BLAMES);
    let(BLAMED, GIVES_UP);
    all_told(s, WEFT_E_PEER, BLAMED, "rank 1|failed: |" TEST_REASON);
}

static void a_rank_is_named_once(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    let(BLAMED, NAMES_ITSELF);
    all_told(s, WEFT_E_PEER, BLAMED, "rank 1|failed: " TEST_REASON);
}

/* The blamed rank lives, and says nothing: only a connection was lost, so the job may be tried
 * again. */
static void blame_without_a_word(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    blame(s, BLAMES);
    let(2, GIVES_UP); /* because of the same, in words of its own: the first one counts */
    let(2, LEAVES);
    let(BLAMES, LEAVES);
    all_told(s, WEFT_E_LOST, BLAMED, "rank 0|failed: |" CLOSED);
}

/* All leave, and still not in peace. */
static void blamed_rank_leaves(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    blame(s, BLAMES);
    for (int r = 0; r < RANKS; r++) let(r, LEAVES);
    all_told(s, WEFT_E_LOST, BLAMED, "rank 0|failed: |" CLOSED);
}

/* The one that blames has gone when nothing more is said. */
static void blame_by_one_that_ends(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    blame(s, BLAMES);
    let(BLAMES, EXITS);
    is_seen_dead(s, BLAMES);
    wefti_scheduler_fail(s, WEFT_E_PEER, BLAMES, "rank 0 ended with exit code 1");
    all_told(s, WEFT_E_LOST, BLAMED, "rank 0|failed: |" CLOSED);
    assert_false(all->part[BLAMES].ended);
}

/* A link between two that live: each blames the other. */
static void blame_each_other(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    blame(s, BLAMES);
    let(BLAMED, BLAMES_ZERO);
    all_told(s, WEFT_E_LOST, BLAMES, "rank 1|failed: |(rank 0)");
}

/* It had left in peace before: whoever still waits for it has made unlike calls. */
static void blame_of_one_that_left(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    let(BLAMED, LEAVES);
    is_known(s, BLAMED, has_parted);
    let(BLAMES, BLAMES_ONE);
    all_told(s, WEFT_E_PEER, BLAMED, "rank 0|failed: |" CLOSED);
}

/* The others hear that the job may do better the next time. */
static void time_is_up(void **state) {
    (void)state;
    wefti_scheduler *s = begin();
    let(BLAMES, IS_LATE);
    all_told(s, WEFT_E_TIMEOUT, BLAMES, "rank 0|failed: |" TEST_REASON);
}

static int make_crew(void **state) {
    (void)state;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return all == MAP_FAILED ? -1 : 0;
}
static int free_crew(void **state) {
    (void)state;
    return munmap(all, sizeof *all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_after_blame),
        cmocka_unit_test(blame_after_death),
        cmocka_unit_test(death_after_those_who_blame),
        cmocka_unit_test(own_reason_after_blame),
        cmocka_unit_test(a_rank_is_named_once),
        cmocka_unit_test(blame_without_a_word),
        cmocka_unit_test(blamed_rank_leaves),
        cmocka_unit_test(blame_by_one_that_ends),
        cmocka_unit_test(blame_each_other),
        cmocka_unit_test(blame_of_one_that_left),
        cmocka_unit_test(time_is_up),
    };
    return cmocka_run_group_tests(tests, make_crew, free_crew);
}
