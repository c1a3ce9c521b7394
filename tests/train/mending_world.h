/* A job whose processes die and are replaced, in one process: threads as ranks, and a control plane
 * of some lines in place of the scheduler. A rank dies where its session asks whether the world is
 * halted, or in a callback of its run. The thread then begins as a new process with its rank. */
#ifndef WEFT_TESTS_MENDING_WORLD_H
#define WEFT_TESTS_MENDING_WORLD_H

#include <stdatomic.h>

#include "session/world_fixture.h"

enum { MOST_DEATHS = 3 };

typedef struct mending_job mending_job;

typedef struct mending_seat {
    mending_job *job;
    weft_world *world;
    wefti_comm *next, *old[MOST_DEATHS + 1];
    wefti_stand stand;
    wefti_mend told;
    int32_t rank, olds, source[MOST_RANKS], holds[MOST_RANKS];
    int64_t asked; /* how often this process has been asked whether it is halted */
    bool dead, is_new, whole;
} mending_seat;

/* Rank `rank` dies when its process is asked for time `at`; or as the last one that the world waits
 * for to be whole, or before it sets up. `of_new`: in a process that is itself new. Ranks that the
 * world has waited for have their states, so a rank whose only replica dies last still has its own.
 */
enum { IN_WHOLE = -1, IN_SETUP = -2 };
typedef struct mending_death {
    int32_t rank;
    int64_t at;
    bool of_new, done;
} mending_death;

struct mending_job {
    mending_seat seats[MOST_RANKS];
    mending_death deaths[MOST_DEATHS];
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t generation; /* grows with each death and each mend */
    atomic_bool halted;
    int32_t size, stood, dead, wholes, armed, death_count;
    int mends, from_disk;
    bool failed; /* the job ends */
    char why[1000];
};

/* ---- dying ---- */

/* The lock is held. */
static inline void mending_halt(mending_job *j, int32_t rank) {
    j->seats[rank].dead = true;
    j->dead++;
    j->generation++;
    j->stood = j->wholes = 0;
    atomic_store(&j->halted, true);
    wefti_comm_break(j->seats[rank].world->comm, rank, "a rank has died");
    pthread_cond_broadcast(&j->change);
}

/* From the rank's own thread. False: no rank can die now, since the job mends already. */
static inline bool mending_die(mending_job *j, int32_t rank) {
    pthread_mutex_lock(&j->lock);
    const bool can = !atomic_load(&j->halted) && !j->dead;
    if (can) mending_halt(j, rank);
    pthread_mutex_unlock(&j->lock);
    return can;
}

/* The death that the rank is to die at this place; NULL: none. */
static inline mending_death *mending_due(const mending_seat *s, int64_t at) {
    for (int i = 0; i < s->job->death_count; i++) {
        mending_death *d = &s->job->deaths[i];
        if (d->rank == s->rank && d->at == at && d->of_new == s->is_new && !d->done) return d;
    }
    return NULL;
}

static inline void mending_die_at(const mending_seat *s, int64_t at) {
    mending_death *d = mending_due(s, at);
    if (d) d->done = mending_die(s->job, s->rank);
}

static inline bool mending_is_halted(void *control) {
    mending_seat *s = control;
    mending_die_at(s, ++s->asked);
    return atomic_load(&s->job->halted);
}

/* ---- the end of the job ---- */

/* A process that has died tells nothing. */
static inline void mending_fail(void *control, weft_status status, int failed,
                                const char *message) {
    const mending_seat *s = control;
    mending_job *j = s->job;
    (void)status;
    (void)failed;
    pthread_mutex_lock(&j->lock);
    if (!s->dead && !j->failed) {
        j->failed = true;
        (void)snprintf(j->why, sizeof j->why, "rank %d: %s", s->rank, message);
        for (int32_t r = 0; r < j->size; r++)
            if (j->seats[r].world) wefti_comm_break(j->seats[r].world->comm, s->rank, j->why);
        pthread_cond_broadcast(&j->change);
    }
    pthread_mutex_unlock(&j->lock);
}

/* The lock is held, and is released on failure. */
static inline weft_status mending_lives(mending_job *j) {
    if (!j->failed) return WEFT_OK;
    pthread_mutex_unlock(&j->lock);
    WEFT_FAIL(WEFT_E_PEER, "%s", j->why);
}

/* ---- mending ---- */

/* All seats stand, and the lock is held: target, sources and communicators. */
static inline void mending_choose(mending_job *j) {
    int64_t target = -1;
    bool disk = false;
    wefti_comm *next[MOST_RANKS];
    for (int32_t r = 0; r < j->size; r++)
        if (j->seats[r].stand.step > target) target = j->seats[r].stand.step;
    for (int32_t r = 0; r < j->size; r++) {
        const wefti_stand *at = &j->seats[r].stand;
        int32_t source = at->step < 0 ? -2 : -1;
        for (int32_t k = 0; k < j->size && at->step < 0; k++)
            for (int32_t i = 0; i < j->seats[k].stand.holds_count && j->seats[k].stand.step >= 0;
                 i++)
                if (j->seats[k].holds[i] == r) source = k;
        disk |= source == -2 ||
                (at->step >= 0 && at->step != target && !(at->step == target - 1 && at->ready));
        for (int32_t k = 0; k < j->size; k++) j->seats[k].source[r] = source;
    }
    ASSERT_OK(wefti_comm_threads(j->size, -1, next));
    for (int32_t r = 0; r < j->size; r++) {
        mending_seat *s = &j->seats[r];
        for (int32_t k = 0; disk && k < j->size; k++) s->source[k] = -2;
        s->told = (wefti_mend){.target = disk ? 0 : target, .from_disk = disk, .source = s->source};
        s->next = next[r];
        s->whole = false;
    }
    j->mends++;
    j->from_disk += disk;
    j->generation++;
    j->wholes = 0;
    atomic_store(&j->halted, false);
    pthread_cond_broadcast(&j->change);
}

/* Tells where the rank stands, and waits for the mend. The lock is held. */
static inline void mending_stand(mending_seat *s, const wefti_stand *at) {
    mending_job *j = s->job;
    while (!atomic_load(&j->halted) && !j->failed) pthread_cond_wait(&j->change, &j->lock);
    const uint64_t generation = j->generation;
    s->stand = *at;
    for (int32_t i = 0; i < at->holds_count; i++) s->holds[i] = at->holds[i];
    if (s->dead) j->dead--;
    s->dead = false;
    j->stood++;
    pthread_cond_broadcast(&j->change);
    if (j->stood == j->size) mending_choose(j);
    while (j->generation == generation && !j->failed) pthread_cond_wait(&j->change, &j->lock);
}

static inline weft_status mending_mend(weft_world *world, const wefti_stand *at, wefti_mend *out) {
    mending_seat *s = world->control;
    mending_job *j = s->job;
    pthread_mutex_lock(&j->lock);
    if (s->dead) { /* its memory is read until all others have stopped */
        while (j->stood < j->size - 1 && !j->failed) pthread_cond_wait(&j->change, &j->lock);
        pthread_mutex_unlock(&j->lock);
        WEFT_FAIL_OF(s->rank, WEFT_E_LOST, "rank %d was killed", s->rank);
    }
    mending_stand(s, at);
    TRY(mending_lives(j));
    *out = s->told;
    if (world->agreement) world->end_agreement(world->agreement);
    world->agreement = NULL;
    s->old[s->olds++] = world->comm;
    world->comm = s->next;
    s->next = NULL;
    pthread_mutex_unlock(&j->lock);
    return WEFT_OK;
}

static inline const wefti_mend *mending_newcomer(void *control) {
    const mending_seat *s = control;
    if (!s->is_new || s->whole) return NULL;
    mending_die_at(s, IN_SETUP);
    return &s->told;
}

static inline weft_status mending_whole(void *control) {
    mending_seat *s = control;
    mending_job *j = s->job;
    pthread_mutex_lock(&j->lock);
    while (mending_due(s, IN_WHOLE) && !atomic_load(&j->halted) && j->wholes < j->size - 1 &&
           !j->failed)
        pthread_cond_wait(&j->change, &j->lock);
    pthread_mutex_unlock(&j->lock);
    mending_die_at(s, IN_WHOLE);
    pthread_mutex_lock(&j->lock);
    const uint64_t generation = j->generation;
    if (!atomic_load(&j->halted)) {
        j->wholes++;
        pthread_cond_broadcast(&j->change);
    }
    while (!atomic_load(&j->halted) && j->wholes < j->size && j->generation == generation &&
           !j->failed)
        pthread_cond_wait(&j->change, &j->lock);
    TRY(mending_lives(j));
    const bool whole = j->wholes == j->size && j->generation == generation;
    s->whole |= whole;
    pthread_mutex_unlock(&j->lock);
    return whole ? WEFT_OK : WEFT_PENDING;
}

static inline void mending_forget(void *control) {
    mending_seat *s = control;
    while (s->olds) wefti_comm_destroy(s->old[--s->olds]);
}

static inline void mending_arm(void *control, const wefti_elastic *elastic) {
    const mending_seat *s = control;
    (void)elastic;
    pthread_mutex_lock(&s->job->lock);
    s->job->armed++;
    pthread_mutex_unlock(&s->job->lock);
}

static const wefti_mender mending_mender = {.restarts = true,
                                            .arm = mending_arm,
                                            .is_halted = mending_is_halted,
                                            .mend = mending_mend,
                                            .newcomer = mending_newcomer,
                                            .whole = mending_whole,
                                            .forget = mending_forget};

/* ---- life ---- */

static inline void mending_own(mending_seat *s) {
    s->world->control = s;
    s->world->fail = mending_fail;
    s->world->mender = &mending_mender;
}

static inline void mending_open(mending_job *j, int32_t size) {
    wefti_comm *comms[MOST_RANKS];
    *j = (mending_job){.size = size};
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->change, NULL);
    ASSERT_OK(wefti_comm_threads(size, -1, comms));
    for (int32_t r = 0; r < size; r++) {
        mending_seat *s = &j->seats[r];
        *s = (mending_seat){.job = j, .rank = r};
        ASSERT_OK(wefti_world_create(comms[r], r, size, NULL, &s->world));
        mending_own(s);
    }
}

/* In the thread of a rank that was killed: a new process takes the seat. */
static inline weft_status mending_join(mending_seat *s) {
    const wefti_stand none = {.step = -1};
    weft_world *old = s->world;
    pthread_mutex_lock(&s->job->lock);
    s->world = NULL;
    pthread_mutex_unlock(&s->job->lock);
    weft_world_leave(old);
    mending_forget(s);
    s->is_new = true;
    s->asked = 0;
    pthread_mutex_lock(&s->job->lock);
    mending_stand(s, &none);
    TRY(mending_lives(s->job));
    wefti_comm *comm = s->next;
    s->next = NULL;
    pthread_mutex_unlock(&s->job->lock);
    weft_world *world;
    TRY(wefti_world_create(comm, s->rank, s->job->size, NULL, &world));
    pthread_mutex_lock(&s->job->lock);
    s->world = world;
    mending_own(s);
    pthread_mutex_unlock(&s->job->lock);
    return WEFT_OK;
}

static inline void mending_close(mending_job *j) {
    for (int32_t r = 0; r < j->size; r++) {
        weft_world_leave(j->seats[r].world);
        mending_forget(&j->seats[r]);
    }
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->change);
}

#endif
